/*
 * hf_charsmap.c - "precompiled_charsmap" of tokenizer.json: base64 of the number of bytes of a trie (u32), the trie (u32 units)
 * and the replacements (UTF-8, each ended by a zero byte). What the units mean is said in lib/tok_charsmap.c.
 */
#include "hf_tok_ops.h"
#include "utf8.h"

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Writes 3 bytes per 4 digits; SIZE_MAX when s is not base64 with padding. */
static size_t base64_decode(const char *s, size_t n, uint8_t *out)
{
    if (n % 4) return SIZE_MAX;
    while (n && s[n - 1] == '=' && n % 4 != 2) n--; /* at most two */
    size_t k = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        int d = base64_digit(s[i]);
        if (d < 0) return SIZE_MAX;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4 == 0) continue;
        out[k++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    return k;
}

void tj_read_charsmap(tj_reader *r, const json_t *o, const char *path)
{
    tok_spec *s = r->spec;
    size_t n, bytes;
    const char *text = tj_str(r, o, path, "precompiled_charsmap", &n);
    if (!text) {
        tj_fail(r, TESS_E_FORMAT, "%s.precompiled_charsmap is missing", path);
        return;
    }
    if (s->map_units) {
        tj_fail(r, TESS_E_UNSUPPORTED, "%s: a second precompiled_charsmap is not supported", path);
        return;
    }
    uint8_t *raw = arena_alloc(&s->a, n / 4 * 3 + 4, 1);
    s->map_units = arena_alloc(&s->a, n / 16 + 2, 12);
    if (!raw || !s->map_units) {
        tj_fail(r, TESS_E_NOMEM, "no memory for %s", path);
        return;
    }
    bytes = base64_decode(text, n, raw);
    uint32_t trie = bytes != SIZE_MAX && bytes >= 4 ? rd32(raw) : 1;
    if (trie % 4 || trie > bytes - 4) {
        tj_fail(r, TESS_E_FORMAT, "%s.precompiled_charsmap is not base64 of a trie and its texts", path);
        return;
    }
    s->n_map_units = trie / 4;
    for (size_t i = 0; i < s->n_map_units; i++) s->map_units[i] = rd32(raw + 4 + 4 * i);
    s->map_text = (const char *)raw + 4 + trie;
    s->map_text_len = bytes - 4 - trie;
    if (!utf8_valid(s->map_text, s->map_text_len))
        tj_fail(r, TESS_E_FORMAT, "%s.precompiled_charsmap: the replacements are not UTF-8", path);
}
