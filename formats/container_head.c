/*
 * container_head.c - the header page (first 4096 bytes of a part, written last) and the trailer (its last 64
 * bytes).
 *
 * Both name the uuid, the size of the file and each other, so that a part that was cut, extended, or only half
 * written is told apart at once. The header's hash is checked before any other field but the magic is believed.
 */
#include <stdio.h>

#include "container_priv.h"
#include "utf8.h"

static const uint8_t head_magic[8] = {0x89, 'T', 'E', 'S', 'S', 0x0d, 0x0a, 0x1a};
static const char trailer_magic[8] = {'T', 'E', 'S', 'S', 'E', 'N', 'D', '\n'};
enum { ENDIAN_TAG = 0x01020304, VER_MAJOR = 1, AT_ZERO = 200 /* from here to the table zero */ };

tess_status ct_bad(tess_error *err, const char *path, uint64_t off, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return ERR(err, TESS_E_FORMAT, "%s: at offset %llu: %s", path, (unsigned long long)off, text);
}

static void table_put(const ct_head *h, uint8_t *p)
{
    for (uint32_t i = 0; i < h->n_sections; i++, p += CT_TABLE_REC) {
        const ct_section *s = &h->sec[i];
        memset(p, 0, CT_TABLE_REC);
        wr32(p, s->kind);
        wr32(p + 4, s->flags);
        wr32(p + 8, s->rec);
        wr64(p + 16, s->off);
        wr64(p + 24, s->len);
        memcpy(p + 32, s->hash, 16);
    }
}

void ct_table_hash(const ct_head *h, uint8_t out[16])
{
    uint8_t table[CT_MAX_SECTIONS * CT_TABLE_REC];
    table_put(h, table);
    hash128(table, (size_t)h->n_sections * CT_TABLE_REC, out);
}

void ct_head_put(ct_head *h, uint8_t page[CT_HEAD_SIZE], uint8_t trailer[CT_TRAILER_SIZE])
{
    memset(page, 0, CT_HEAD_SIZE);
    memcpy(page, head_magic, 8);
    wr16(page + 8, VER_MAJOR);
    wr16(page + 10, h->minor);
    wr32(page + 12, CT_HEAD_SIZE);
    wr32(page + 16, ENDIAN_TAG);
    wr64(page + 24, h->incompat);
    wr64(page + 32, h->rocompat);
    wr64(page + 40, h->compat);
    memcpy(page + 48, h->uuid, 16);
    wr64(page + 64, h->file_size);
    wr16(page + 72, h->split_no);
    wr16(page + 74, h->split_count);
    wr16(page + 76, h->tp);
    wr16(page + 78, h->n_sections);
    wr64(page + 80, CT_HEAD_SIZE);
    wr64(page + 88, h->data_len);
    wr64(page + 96, h->logical_bytes);
    wr64(page + 104, h->param_count);
    memcpy(page + 112, h->index_hash, 16);
    memcpy(page + 128, h->writer, strnlen(h->writer, 32));
    wr64(page + 160, h->created);
    wr64(page + 168, h->file_size - CT_TRAILER_SIZE);
    wr16(page + 176, h->kind);
    memcpy(page + 184, h->parent, 16);
    table_put(h, page + CT_TABLE_AT);
    hash128(page, CT_HEAD_HASH_AT, h->header_hash);
    memcpy(page + CT_HEAD_HASH_AT, h->header_hash, 16);

    memset(trailer, 0, CT_TRAILER_SIZE);
    memcpy(trailer, trailer_magic, 8);
    wr64(trailer + 8, h->file_size);
    memcpy(trailer + 16, h->uuid, 16);
    memcpy(trailer + 32, h->header_hash, 16);
    wr16(trailer + 48, h->split_no);
    wr16(trailer + 50, h->split_count);
    wr64(trailer + 56, hash64(trailer, 56, 0));
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

/* Magic, hash, version, features: what must hold before the fields mean anything. */
static tess_status check_identity(const char *path, const uint8_t *p, tess_error *err)
{
    uint8_t hash[16];
    if (all_zero(p, CT_HEAD_SIZE))
        return ct_bad(err, path, 0, "header: is empty; the file was not written to its end, convert again");
    if (memcmp(p, head_magic, 8) != 0) {
        if (memcmp(p + 1, "TESS", 4) == 0)
            return ct_bad(
                err, path, 0,
                "header.magic: was changed by a transfer in text mode; copy the file again in binary mode");
        return ERR(err, TESS_E_FORMAT,
                   "%s: at offset 0: header.magic: is not that of a Tessera container (.tess)", path);
    }
    hash128(p, CT_HEAD_HASH_AT, hash);
    if (memcmp(hash, p + CT_HEAD_HASH_AT, 16) != 0)
        return ERR(err, TESS_E_CHECKSUM,
                   "%s: at offset %d: header: its hash does not match; the file is damaged", path,
                   CT_HEAD_HASH_AT);
    if (rd16(p + 8) != VER_MAJOR)
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: at offset 8: header.ver_major: format %u is not known, this program reads %d", path,
                   rd16(p + 8), VER_MAJOR);
    if (rd32(p + 12) != CT_HEAD_SIZE)
        return ct_bad(err, path, 12, "header.header_size: is %u, want %d", rd32(p + 12), CT_HEAD_SIZE);
    if (rd32(p + 16) != ENDIAN_TAG)
        return ct_bad(err, path, 16, "header.endian: is %08x, want %08x", rd32(p + 16), ENDIAN_TAG);
    uint64_t unknown = rd64(p + 24) & ~(uint64_t)CT_INCOMPAT_KNOWN;
    if (unknown)
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: at offset 24: header.feat_incompat: bit %d is not known; a newer program is needed",
                   path, __builtin_ctzll(unknown));
    if (rd32(p + 20) || !all_zero(p + 178, 6) || !all_zero(p + AT_ZERO, CT_TABLE_AT - AT_ZERO))
        return ct_bad(err, path, 20, "header: reserved bytes are not zero");
    return TESS_OK;
}

static tess_status check_fields(const ct_head *h, const char *path, uint64_t size, const uint8_t *p,
                                tess_error *err)
{
    if (h->file_size != size)
        return ct_bad(err, path, 64, "header.file_size: is %llu, the file has %llu bytes; it was %s",
                      (unsigned long long)h->file_size, (unsigned long long)size,
                      size < h->file_size ? "cut off" : "extended");
    if (h->split_count == 0 || h->split_count > CT_MAX_PARTS || h->split_no >= h->split_count)
        return ct_bad(err, path, 72, "header.split_no: part %u of %u", h->split_no, h->split_count);
    if (h->tp == 0) return ct_bad(err, path, 76, "header.tp_size: is 0");
    if (h->n_sections > CT_MAX_SECTIONS)
        return ct_bad(err, path, 78, "header.n_sections: is %u, the limit is %d", h->n_sections,
                      CT_MAX_SECTIONS);
    if (h->split_no > 0 && h->n_sections)
        return ct_bad(err, path, 78, "header.n_sections: is %u in part %u, only the first part has sections",
                      h->n_sections, h->split_no + 1);
    if (rd64(p + 80) != CT_HEAD_SIZE)
        return ct_bad(err, path, 80, "header.data_off: is %llu, want %d", (unsigned long long)rd64(p + 80),
                      CT_HEAD_SIZE);
    if (rd64(p + 168) != size - CT_TRAILER_SIZE)
        return ct_bad(err, path, 168, "header.trailer_off: is %llu, want %llu",
                      (unsigned long long)rd64(p + 168), (unsigned long long)(size - CT_TRAILER_SIZE));
    if (!range_in(CT_HEAD_SIZE, h->data_len, size - CT_TRAILER_SIZE))
        return ct_bad(err, path, 88, "header.data_len: %llu bytes reach beyond the file",
                      (unsigned long long)h->data_len);
    if (h->kind < CT_KIND_MODEL || h->kind > CT_KIND_TRAIN)
        return ct_bad(err, path, 176, "header.kind: %u is not known", h->kind);
    if (!utf8_valid(h->writer, strlen(h->writer))) return ct_bad(err, path, 128, "header.writer: is not text");
    size_t used = (size_t)h->n_sections * CT_TABLE_REC;
    if (!all_zero(p + CT_TABLE_AT + used, CT_HEAD_HASH_AT - CT_TABLE_AT - used))
        return ct_bad(err, path, CT_TABLE_AT + used, "header: bytes after the section table are not zero");
    return TESS_OK;
}

static tess_status table_get(ct_head *h, const char *path, const uint8_t *page, tess_error *err)
{
    uint64_t end = CT_HEAD_SIZE + h->data_len, seen = 0;
    for (uint32_t i = 0; i < h->n_sections; i++) {
        const uint8_t *p = page + CT_TABLE_AT + i * CT_TABLE_REC;
        uint64_t at = (uint64_t)(p - page);
        ct_section *s = &h->sec[i];
        *s = (ct_section){.kind = rd32(p),
                          .flags = rd32(p + 4),
                          .rec = rd32(p + 8),
                          .off = rd64(p + 16),
                          .len = rd64(p + 24)};
        memcpy(s->hash, p + 32, 16);
        if (rd32(p + 12) || s->flags & ~(uint32_t)(SEC_REQUIRED | SEC_LAZY))
            return ct_bad(err, path, at, "section[%u]: reserved bits are not zero", i);
        if (s->rec == 0 || s->rec > CT_MAX_REC || s->len % s->rec)
            return ct_bad(err, path, at + 8, "section[%u].rec_size: is %u, the section has %llu bytes", i,
                          s->rec, (unsigned long long)s->len);
        if (s->off % CT_SECTION_ALIGN || s->off < end || s->off - end >= CT_SECTION_ALIGN ||
            !range_in(s->off, s->len, h->file_size - CT_TRAILER_SIZE))
            return ct_bad(err, path, at + 16,
                          "section[%u]: %llu bytes at %llu do not follow what is before them", i,
                          (unsigned long long)s->len, (unsigned long long)s->off);
        if (s->kind < 64) {
            if (seen >> s->kind & 1)
                return ct_bad(err, path, at, "section[%u].kind: %u occurs twice", i, s->kind);
            seen |= UINT64_C(1) << s->kind;
        }
        if ((s->kind == 0 || s->kind >= SEC_COUNT) && s->flags & SEC_REQUIRED)
            return ERR(
                err, TESS_E_UNSUPPORTED,
                "%s: at offset %llu: section[%u].kind: %u is required and not known; a newer program is needed",
                path, (unsigned long long)at, i, s->kind);
        end = s->off + s->len;
    }
    if (h->file_size - CT_TRAILER_SIZE - end >= CT_SECTION_ALIGN)
        return ct_bad(err, path, end, "file: unknown bytes before the trailer");
    return TESS_OK;
}

static tess_status check_trailer(const ct_head *h, const char *path, const uint8_t *t, tess_error *err)
{
    uint64_t at = h->file_size - CT_TRAILER_SIZE;
    if (memcmp(t, trailer_magic, 8) != 0)
        return ct_bad(err, path, at, "trailer.magic: is wrong; the end of the file is damaged");
    if (hash64(t, 56, 0) != rd64(t + 56))
        return ERR(err, TESS_E_CHECKSUM, "%s: at offset %llu: trailer: its hash does not match", path,
                   (unsigned long long)at);
    if (rd64(t + 8) != h->file_size || memcmp(t + 16, h->uuid, 16) != 0 ||
        memcmp(t + 32, h->header_hash, 16) != 0 || rd16(t + 48) != h->split_no ||
        rd16(t + 50) != h->split_count || rd32(t + 52) != 0)
        return ct_bad(err, path, at, "trailer: does not belong to the header; the file is a mix of two");
    return TESS_OK;
}

tess_status ct_head_get(ct_head *h, const char *path, uint64_t size, const uint8_t *p, const uint8_t *trailer,
                        tess_error *err)
{
    TRY(check_identity(path, p, err));
    *h = (ct_head){.minor = rd16(p + 10),
                   .incompat = rd64(p + 24),
                   .rocompat = rd64(p + 32),
                   .compat = rd64(p + 40),
                   .file_size = rd64(p + 64),
                   .split_no = rd16(p + 72),
                   .split_count = rd16(p + 74),
                   .tp = rd16(p + 76),
                   .n_sections = rd16(p + 78),
                   .data_len = rd64(p + 88),
                   .logical_bytes = rd64(p + 96),
                   .param_count = rd64(p + 104),
                   .created = rd64(p + 160),
                   .kind = rd16(p + 176)};
    memcpy(h->uuid, p + 48, 16);
    memcpy(h->index_hash, p + 112, 16);
    memcpy(h->writer, p + 128, 32);
    memcpy(h->parent, p + 184, 16);
    memcpy(h->header_hash, p + CT_HEAD_HASH_AT, 16);
    TRY(check_fields(h, path, size, p, err));
    TRY(check_trailer(h, path, trailer, err));
    return table_get(h, path, p, err);
}
