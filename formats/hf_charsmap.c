/*
 * hf_charsmap.c - "precompiled_charsmap" of tokenizer.json: base64 of what tok_spec_charsmap takes.
 */
#include <stdio.h>

#include "hf_tok_ops.h"

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
    char what[200];
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
    if (!raw) {
        tj_fail(r, TESS_E_NOMEM, "no memory for %s", path);
        return;
    }
    bytes = base64_decode(text, n, raw);
    snprintf(what, sizeof what, "%s: %.150s.precompiled_charsmap", r->file, path);
    if (bytes == SIZE_MAX) tj_fail(r, TESS_E_FORMAT, "%s.precompiled_charsmap is not base64", path);
    else r->st = tok_spec_charsmap(s, raw, bytes, what, r->err);
}
