/* utf8.h - strict UTF-8 (no overlong forms, surrogates, or values above U+10FFFF). */
#ifndef TESS_UTF8_H
#define TESS_UTF8_H
#include "base.h"
/* Decodes one character of [p, p + n): its length 1..4 and *cp; 0 when the bytes at p are not valid. n > 0. */
uint32_t utf8_decode(const char *p, size_t n, uint32_t *cp);
uint32_t utf8_encode(uint32_t cp, char out[4]);
bool utf8_valid(const char *p, size_t n);
/* Length of the invalid sequence at p that one U+FFFD replaces (the maximal subpart, as Unicode and Python do). */
uint32_t utf8_bad_len(const char *p, size_t n);
/* Bytes at the end of [p, p + n) that begin a character and may be completed by more bytes: 0..3. */
uint32_t utf8_partial_tail(const char *p, size_t n);
#endif
