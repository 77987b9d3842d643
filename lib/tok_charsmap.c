/*
 * tok_charsmap.c - the Precompiled normalizer: SentencePiece's table of texts that are replaced by texts.
 *
 * The table is a double-array trie over bytes. A unit has the label of the edge that leads to it in its low 8 bits (bit 31 set:
 * it is no such node), at bit 8 whether a text ends at it, and from bit 10 on the offset to its children, shifted left by 8
 * when bit 9 is set; child c of the node at p lies at p ^ offset ^ c, and the value of a text at p ^ offset: where its
 * replacement begins in one string of zero-terminated replacements.
 *
 * As in tokenizers, text goes by grapheme clusters: one of less than 6 bytes is replaced as a whole by what the shortest text
 * at its start maps to (though that text may be shorter than the cluster), else its characters are looked up one by one.
 */
#include <utf8proc.h>

#include "tok_int.h"

enum { CLUSTER_MAX = 5 };

static uint64_t offset_of(uint32_t unit) { return (uint64_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

/* What the shortest text that s[0, n) begins with maps to; NULL = none. Units are not trusted: they come from a file. */
static const char *look_up(const charsmap *m, const char *s, size_t n, size_t *len)
{
    uint64_t at = m->n_units ? offset_of(m->unit[0]) : 0;
    for (size_t i = 0; i < n && s[i]; i++) {
        at ^= (uint8_t)s[i];
        if (at >= m->n_units) return NULL;
        uint32_t unit = m->unit[at];
        if ((unit & (1u << 31 | 0xff)) != (uint8_t)s[i]) return NULL;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1)) continue;
        if (at >= m->n_units) return NULL;
        uint32_t value = m->unit[at] & ~(1u << 31);
        if (value > m->len || (value < m->len && ((uint8_t)m->text[value] & 0xc0) == 0x80)) return NULL;
        const char *end = memchr(m->text + value, 0, m->len - value);
        *len = end ? (size_t)(end - m->text) - value : m->len - value;
        return m->text + value;
    }
    return NULL;
}

/* End of the grapheme cluster that begins at i. */
static size_t cluster_end(const char *s, size_t n, size_t i)
{
    if ((uint8_t)s[i] < 0x80 && (i + 1 == n || ((uint8_t)s[i + 1] < 0x80 && !(s[i] == '\r' && s[i + 1] == '\n')))) return i + 1;
    uint32_t cp, next;
    utf8proc_int32_t state = 0;
    for (i += uni_next(s + i, &cp); i < n; cp = next) {
        uint32_t len = uni_next(s + i, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state)) break;
        i += len;
    }
    return i;
}

/* Attributes of a replacement of [a, b): plain when any of it was, and of the text's first character when that is in it. */
static uint8_t attr_of(const norm_text *in, size_t a, size_t b)
{
    uint8_t all = 0;
    for (; a < b; a++) all |= (uint8_t)in->attr.data[a];
    return all;
}

bool charsmap_run(const charsmap *m, norm_text *o, const norm_text *in)
{
    const char *s = in->text.data;
    size_t n = in->text.len, done = 0, len = 0;
    for (size_t i = 0, end; i < n; i = end) {
        end = cluster_end(s, n, i);
        const char *to = end - i <= CLUSTER_MAX ? look_up(m, s + i, end - i, &len) : NULL;
        if (to) {
            if (!norm_copy(o, in, done, i) || !norm_put(o, to, len, attr_of(in, i, end))) return false;
            done = end;
            continue;
        }
        for (size_t c = i, c_end; c < end; c = c_end) {
            c_end = c + uni_len(s + c);
            if (c_end - c == end - i || !(to = look_up(m, s + c, c_end - c, &len))) continue;
            if (!norm_copy(o, in, done, c) || !norm_put(o, to, len, attr_of(in, c, c_end))) return false;
            done = c_end;
        }
    }
    if (!norm_copy(o, in, done, n)) return false;
    /* Whatever is first now stands where the text began, also when what stood there is gone. */
    for (uint32_t i = 0; o->text.len && n && (in->attr.data[0] & ATTR_ORIGIN) && i < uni_len(o->text.data); i++)
        o->attr.data[i] = (char)(o->attr.data[i] | ATTR_ORIGIN);
    return true;
}

tess_status charsmap_open(tok *t, const kvs *k, tess_error *err)
{
    bool wanted = false;
    for (uint32_t i = 0; i < t->norm.n; i++) wanted = wanted || t->norm.op[i].code == TOK_N_PRECOMPILED;
    if (!wanted) return TESS_OK;
    t->map.unit = kvs_array(k, TOK_K_CHARSMAP, KV_U32S, &t->map.n_units);
    t->map.text = kvs_str(k, TOK_K_CHARSMAP_TEXT, &t->map.len);
    return t->map.unit && t->map.text ? TESS_OK : ERR(err, TESS_E_FORMAT, "%s or %s is missing", TOK_K_CHARSMAP, TOK_K_CHARSMAP_TEXT);
}
