/*
 * tok_scan.c - the split patterns of GPT-2, Llama 3 and Qwen 2 by hand: the same pieces as the regular expressions in
 * tok_keys.h, which cover every text, in one pass.
 */
#include "tok_int.h"

static uint8_t class_at(const tok *t, const char *s, size_t i, uint32_t *len)
{
    uint32_t cp;
    *len = uni_next(s + i, &cp);
    return cp < UNI_BMP ? t->bmp[cp] : uni_class(cp);
}

/* End of the run of characters of class `want` from i on. */
static size_t run_of(const tok *t, const char *s, size_t n, size_t i, uint8_t want)
{
    uint32_t len;
    while (i < n && class_at(t, s, i, &len) == want) i += len;
    return i;
}

/* Length of 's 't 're 've 'm 'll 'd at s[i] = "'", 0 = none. Caseless also takes U+017F, the long s. */
static size_t contraction(const char *s, size_t n, size_t i, bool caseless)
{
    if (n - i < 2) return 0;
    char a = s[i + 1], b = n - i > 2 ? s[i + 2] : 0;
    if (caseless && a == '\xc5' && b == '\xbf') return 3;
    if (caseless) {
        a = (char)(a >= 'A' && a <= 'Z' ? a + 32 : a);
        b = (char)(b >= 'A' && b <= 'Z' ? b + 32 : b);
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* Whitespace at i: \s+(?!\S)|\s+, before that \s*[\r\n]+ with newlines: up to the last newline of the run; else all but the
 * character in front of the next piece. */
static size_t whitespace(const tok *t, const char *s, size_t n, size_t i, bool newlines)
{
    size_t j = i, last = i, after_newline = 0;
    uint32_t len;
    for (; j < n && class_at(t, s, j, &len) == UNI_SPACE; j += len) {
        last = j;
        if (s[j] == '\n' || s[j] == '\r') after_newline = j + 1;
    }
    if (newlines && after_newline) return after_newline;
    return j == n || last == i ? j : last;
}

static size_t newlines_from(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == '\r' || s[i] == '\n')) i++;
    return i;
}

size_t scan_next(const tok *t, int scan, const char *s, size_t n, size_t i)
{
    bool gpt2 = scan == SCAN_GPT2;
    uint32_t len, len2;
    if (s[i] == '\'') {
        size_t k = contraction(s, n, i, !gpt2);
        if (k) return i + k;
    }
    uint8_t c = class_at(t, s, i, &len), c2 = UNI_SPACE;
    if (c == UNI_LETTER) return run_of(t, s, n, i + len, UNI_LETTER);
    if (i + len < n) c2 = class_at(t, s, i + len, &len2);
    if (!gpt2 && c != UNI_NUMBER && c2 == UNI_LETTER && s[i] != '\r' && s[i] != '\n') return run_of(t, s, n, i + len, UNI_LETTER);
    if (c == UNI_NUMBER) {
        if (gpt2) return run_of(t, s, n, i, UNI_NUMBER);
        size_t j = i;
        for (int k = scan == SCAN_QWEN2 ? 1 : 3; k > 0 && j < n && class_at(t, s, j, &len) == UNI_NUMBER; k--) j += len;
        return j;
    }
    if (s[i] == ' ' && gpt2 && c2 != UNI_SPACE) return run_of(t, s, n, i + 1, c2);
    if (c == UNI_OTHER || (s[i] == ' ' && c2 == UNI_OTHER && i + 1 < n)) {
        size_t j = run_of(t, s, n, i + (c != UNI_OTHER), UNI_OTHER);
        return gpt2 ? j : newlines_from(s, n, j);
    }
    return whitespace(t, s, n, i, !gpt2);
}
