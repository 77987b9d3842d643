/*
 * container_open.c - opening a set of parts: files, headers, sections into private memory.
 *
 * A part is read by descriptor, never by name again. Header and sections are copied, the copies are hashed, and
 * only the copies are parsed (container_check.c), so that nobody who writes the file meanwhile can change what
 * was checked. Parts are found beside the given one by their numbered names, but what they are is told by their
 * headers alone.
 */
#include <stdio.h>

#include "container_priv.h"

static tess_status part_open(const mem *m, const char *path, ct_part *part, tess_error *err)
{
    uint8_t *page = NULL, trailer[CT_TRAILER_SIZE];
    tess_status st;
    part->file.fd = -1;
    part->path = mem_strndup(m, path, strlen(path));
    page = mem_alloc(m, CT_HEAD_SIZE);
    if (!part->path || !page) {
        st = ERR(err, TESS_E_NOMEM, "%s: no memory", path);
        goto done;
    }
    if ((st = os_open_read(&part->file, path, err)) < 0) goto done;
    uint64_t size = part->file.size;
    if (size == 0) st = ERR(err, TESS_E_FORMAT, "%s: is empty", path);
    else if (size < CT_HEAD_SIZE + CT_TRAILER_SIZE || size > CT_FILE_MAX)
        st = ERR(err, TESS_E_FORMAT,
                 "%s: is not a Tessera container (.tess): a file of %llu bytes cannot be one", path,
                 (unsigned long long)size);
    if (st < 0) goto done;
    if ((st = os_pread(&part->file, page, CT_HEAD_SIZE, 0, path, err)) < 0) goto done;
    if ((st = os_pread(&part->file, trailer, CT_TRAILER_SIZE, size - CT_TRAILER_SIZE, path, err)) < 0)
        goto done;
    st = ct_head_get(&part->head, path, size, page, trailer, err);
done:
    mem_free(m, page);
    return st;
}

static void part_close(const mem *m, ct_part *p)
{
    if (p->map) os_unmap(p->map, (size_t)p->file.size);
    os_close(&p->file);
    mem_free(m, p->path);
}

/* Part i belongs with part 1, whose header is `first`. */
static tess_status check_sibling(const ct_part *part, uint32_t i, const ct_part *first, tess_error *err)
{
    const ct_head *h = &part->head, *a = &first->head;
    if (memcmp(h->uuid, a->uuid, 16) != 0)
        return ct_bad(err, part->path, 48,
                      "header.model_uuid: differs from that of %s; the parts are of two conversions",
                      first->path);
    if (h->split_no != i || h->split_count != a->split_count)
        return ct_bad(err, part->path, 72, "header.split_no: is part %u of %u, want %u of %u", h->split_no + 1,
                      h->split_count, i + 1, a->split_count);
    if (memcmp(h->index_hash, a->index_hash, 16) != 0)
        return ct_bad(err, part->path, 112,
                      "header.index_hash: differs from that of %s; the parts are of two conversions",
                      first->path);
    if (h->tp != a->tp || h->kind != a->kind || h->incompat != a->incompat || h->rocompat != a->rocompat ||
        h->compat != a->compat || h->logical_bytes != a->logical_bytes || h->param_count != a->param_count)
        return ct_bad(err, part->path, 24, "header: differs from that of %s", first->path);
    return TESS_OK;
}

/* ---- sections ---- */

static uint32_t min_rec(uint32_t kind)
{
    static const uint8_t rec[SEC_COUNT] = {
        [SEC_STRS] = 1,        [SEC_AXES] = REC_AXES, [SEC_BNDS] = REC_BNDS, [SEC_TENS] = REC_TENS,
        [SEC_PIEC] = REC_PIEC, [SEC_CHNK] = REC_CHNK, [SEC_SEGM] = REC_SEGM, [SEC_BLOB] = REC_BLOB,
        [SEC_PROV] = 1,        [SEC_CSHA] = 32,       [SEC_KEYV] = 1,        [SEC_BDAT] = 1};
    return rec[kind];
}
static bool is_optional(uint32_t kind) { return kind == SEC_PROV || kind == SEC_CSHA; }
static bool is_bytes(uint32_t kind) { return min_rec(kind) == 1; }

static tess_status load_section(ct_file *f, uint32_t i, uint64_t *total, tess_error *err)
{
    const ct_part *part = &f->parts[0];
    const ct_section *s = &part->head.sec[i];
    uint64_t at = CT_TABLE_AT + (uint64_t)i * CT_TABLE_REC;
    if (s->kind == 0 || s->kind >= SEC_COUNT) return TESS_OK;
    ct_sec *d = &f->sec[s->kind];
    if (s->rec < min_rec(s->kind) || ((is_bytes(s->kind) || s->kind == SEC_BNDS) && s->rec != min_rec(s->kind)))
        return ct_bad(err, part->path, at + 8, "section[%u].rec_size: is %u, want %u", i, s->rec,
                      min_rec(s->kind));
    if ((s->flags & SEC_LAZY) && s->kind != SEC_BDAT)
        return ct_bad(err, part->path, at + 4, "section[%u].flags: only blobs may be checked late", i);
    *d = (ct_sec){NULL, s->off, s->len, s->rec, s->len / s->rec};
    if (s->kind == SEC_BDAT || s->kind == SEC_CSHA) return TESS_OK; /* read on demand */
    if (!u64_add(*total, s->len, total) || *total > CT_META_MAX)
        return ct_bad(err, part->path, at + 24, "section[%u].len: more than 1 GiB of metadata", i);
    d->data = mem_alloc(f->m, (size_t)s->len + 1);
    if (!d->data)
        return ERR(err, TESS_E_NOMEM, "%s: no memory for a section of %llu bytes", part->path,
                   (unsigned long long)s->len);
    d->data[s->len] = 0;
    TRY(os_pread(&part->file, d->data, (size_t)s->len, s->off, part->path, err));
    uint8_t hash[16];
    hash128(d->data, (size_t)s->len, hash);
    if (memcmp(hash, s->hash, 16) != 0)
        return ERR(err, TESS_E_CHECKSUM,
                   "%s: at offset %llu: section[%u] (kind %u): its hash does not match; the file is damaged",
                   part->path, (unsigned long long)s->off, i, s->kind);
    return TESS_OK;
}

static tess_status load_sections(ct_file *f, tess_error *err)
{
    const ct_part *part = &f->parts[0];
    uint64_t total = 0, seen = 0;
    uint8_t hash[16];
    ct_table_hash(&part->head, hash);
    if (memcmp(hash, part->head.index_hash, 16) != 0)
        return ct_bad(err, part->path, 112, "header.index_hash: is not that of the section table");
    for (uint32_t i = 0; i < part->head.n_sections; i++) {
        TRY(load_section(f, i, &total, err));
        if (part->head.sec[i].kind < SEC_COUNT) seen |= UINT64_C(1) << part->head.sec[i].kind;
    }
    for (uint32_t k = 1; k < SEC_COUNT; k++)
        if (!is_optional(k) && !(seen >> k & 1))
            return ct_bad(err, part->path, CT_TABLE_AT, "section table: kind %u is missing", k);
    return TESS_OK;
}

/* ---- the set ---- */

static tess_status open_maps(ct_file *f, tess_error *err)
{
    if (f->flags & CT_NO_MMAP) return TESS_OK;
    for (uint32_t i = 0; i < f->n_parts; i++) {
        ct_part *p = &f->parts[i];
        const void *map;
        if (p->file.network_fs || p->head.data_len == 0) continue; /* a lost server would be a SIGBUS */
        TRY(os_map(&p->file, 0, (size_t)p->file.size, &map, p->path, err));
        p->map = map;
    }
    return TESS_OK;
}

static void fill_info(ct_file *f)
{
    const ct_head *h = &f->parts[0].head;
    ct_info *o = &f->info;
    o->path = f->parts[0].path;
    o->kind = h->kind;
    o->n_splits = f->n_parts;
    o->tp = h->tp;
    for (uint32_t i = 0; i < f->n_parts; i++) o->file_bytes += f->parts[i].file.size;
    o->logical_bytes = h->logical_bytes;
    o->param_count = h->param_count;
    o->incompat = h->incompat;
    o->rocompat = h->rocompat;
    o->compat = h->compat;
    o->created = h->created;
    o->uuid = h->uuid;
    memcpy(o->writer, h->writer, sizeof o->writer);
    o->tensors = f->tensors;
    o->pieces = f->pieces;
    o->chunks = f->chunks;
    o->axes = f->axes;
    o->blobs = f->blobs;
    o->segments = f->segments;
    o->kv = &f->kv;
    o->prov = f->sec[SEC_PROV].data ? (const char *)f->sec[SEC_PROV].data : "";
    o->prov_len = (size_t)f->sec[SEC_PROV].len;
}

tess_status ct_open_list(const char *const *paths, uint32_t n, uint32_t flags, const mem *m, ct_file **out,
                         tess_error *err)
{
    *out = NULL;
    tess_status st = TESS_OK;
    ct_file *f = mem_zalloc(m, sizeof *f);
    if (!f) return ERR(err, TESS_E_NOMEM, "%s: no memory", paths[0]);
    f->m = m;
    f->flags = flags;
    arena_init(&f->a, m);
    if (!(f->parts = mem_calloc(m, n, sizeof *f->parts))) {
        st = ERR(err, TESS_E_NOMEM, "%s: no memory", paths[0]);
        goto fail;
    }
    for (; f->n_parts < n; f->n_parts++) {
        ct_part *p = &f->parts[f->n_parts];
        if ((st = part_open(m, paths[f->n_parts], p, err)) < 0 ||
            (st = check_sibling(p, f->n_parts, &f->parts[0], err)) < 0) {
            f->n_parts++;
            goto fail;
        }
    }
    if (f->parts[0].head.split_count != n) {
        st = ct_bad(err, paths[0], 74, "header.split_count: is %u, %u files were given",
                    f->parts[0].head.split_count, n);
        goto fail;
    }
    if ((st = load_sections(f, err)) < 0 || (st = ct_parse_tables(f, err)) < 0 || (st = open_maps(f, err)) < 0)
        goto fail;
    for (uint32_t k = 0; k < SEC_COUNT; k++)
        if (k != SEC_KEYV && k != SEC_PROV) { /* their tables are parsed; those two are used in place */
            mem_free(m, f->sec[k].data);
            f->sec[k].data = NULL;
        }
    fill_info(f);
    *out = f;
    return TESS_OK;
fail:
    ct_close(f);
    return st;
}

void ct_close(ct_file *f)
{
    if (!f) return;
    for (uint32_t i = 0; i < f->n_parts; i++) part_close(f->m, &f->parts[i]);
    mem_free(f->m, f->parts);
    for (uint32_t k = 0; k < SEC_COUNT; k++) mem_free(f->m, f->sec[k].data);
    kvs_close(&f->kv);
    mem_free(f->m, f->order);
    arena_free(&f->a);
    mem_free(f->m, f);
}

/* "-00002-of-00004.tess" at the end of path: where it begins, or NULL. */
static const char *part_suffix(const char *path, uint32_t no, uint32_t count)
{
    char want[40];
    int n = snprintf(want, sizeof want, "-%05u-of-%05u.tess", no + 1, count);
    size_t len = strlen(path);
    if (n < 0 || len < (size_t)n || strcmp(path + len - n, want) != 0) return NULL;
    return path + len - n;
}

static tess_status open_set(const char *path, const ct_head *h, uint32_t flags, const mem *m, ct_file **out,
                            tess_error *err)
{
    const char *tail = part_suffix(path, h->split_no, h->split_count);
    if (!tail)
        return ERR(err, TESS_E_FORMAT,
                   "%s: is part %u of %u, but its name does not end in -%05u-of-%05u.tess, so the others "
                   "cannot be found; rename it",
                   path, h->split_no + 1, h->split_count, h->split_no + 1, h->split_count);
    size_t base = (size_t)(tail - path), room = base + 40;
    uint32_t n = h->split_count;
    char **paths = mem_calloc(m, n, sizeof *paths), *text = mem_calloc(m, n, room);
    tess_status st = TESS_OK;
    if (!paths || !text) st = ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    for (uint32_t i = 0; st == TESS_OK && i < n; i++) {
        paths[i] = text + i * room;
        snprintf(paths[i], room, "%.*s-%05u-of-%05u.tess", (int)base, path, i + 1, n);
    }
    if (st == TESS_OK) st = ct_open_list((const char *const *)paths, n, flags, m, out, err);
    mem_free(m, paths);
    mem_free(m, text);
    return st;
}

tess_status ct_open(const char *path, uint32_t flags, const mem *m, ct_file **out, tess_error *err)
{
    *out = NULL;
    ct_part part = {0};
    tess_status st = part_open(m, path, &part, err);
    if (st == TESS_OK) {
        part_close(m, &part);
        if (part.head.split_count > 1) return open_set(path, &part.head, flags, m, out, err);
        return ct_open_list(&path, 1, flags, m, out, err);
    }
    part_close(m, &part);
    return st;
}

/* ---- lookups ---- */

const ct_info *ct_get(const ct_file *f) { return &f->info; }

int64_t ct_find(const ct_file *f, const char *name)
{
    uint32_t lo = 0, hi = f->info.n_tensors;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(f->tensors[mid].name, name); /* bytes as unsigned, the order of the table */
        if (c == 0) return mid;
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return -1;
}

int64_t ct_find_blob(const ct_file *f, const char *name)
{
    for (uint32_t i = 0; i < f->info.n_blobs; i++)
        if (strcmp(f->blobs[i].name, name) == 0) return i;
    return -1;
}
