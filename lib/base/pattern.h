/*
 * pattern.h - search patterns of tokenizers: a literal text, or a regular expression in Oniguruma's syntax on PCRE2.
 *
 * The only user of PCRE2. What differs between the two engines is rewritten before it is compiled (pattern.c lists it);
 * what can not be rewritten is refused. A pattern is immutable and may be used by any number of threads; a
 * pattern_scratch belongs to one thread at a time. Texts are valid UTF-8.
 */
#ifndef TESS_PATTERN_H
#define TESS_PATTERN_H
#include "mem.h"

typedef struct pattern pattern;
tess_status pattern_open(const mem *m, const char *text, size_t len, bool regex, pattern **out, tess_error *err);
void pattern_close(pattern *p); /* NULL is fine */

/* Memory of matching; made when an expression is first searched for. */
typedef struct { const mem *m; struct match_state *state; } pattern_scratch;
void pattern_scratch_init(pattern_scratch *s, const mem *m);
void pattern_scratch_free(pattern_scratch *s);

/* One pass over s[0, n): every call of pattern_next gives the next match, none overlapping, left to right. An empty match
 * does not directly follow another match. *found is false at the end. */
typedef struct {
    const pattern *p;
    pattern_scratch *scratch;
    const char *s;
    size_t n, from, last_end;
} pattern_iter;
void pattern_start(pattern_iter *it, const pattern *p, pattern_scratch *scratch, const char *s, size_t n);
tess_status pattern_next(pattern_iter *it, bool *found, size_t *begin, size_t *end, tess_error *err);
#endif
