/* jinja_parse_priv.h - what the two halves of the parser share: tokens in, nodes out. */
#ifndef TESS_JINJA_PARSE_PRIV_H
#define TESS_JINJA_PARSE_PRIV_H
#include "jinja_lex.h"
#include "jinja_parse.h"

typedef struct {
    jj *j;
    jsyms *syms;
    const jtok *t; /* current token */
    uint32_t depth, n_loops;
    jparams *macro; /* innermost macro, to note which special names it uses */
    jsym *loop, *special[3]; /* loop; caller, kwargs, varargs */
} parser;
typedef struct { node **v; uint32_t n, cap; } nodes;

node *parse_fail(parser *p, const char *what); /* always NULL; names the place and the token */
bool parse_enter(parser *p);                   /* one level deeper; pair with p->depth-- */
node *parse_make(parser *p, nkind kind, node *a, node *b);
bool parse_add(parser *p, nodes *l, node *n);

static inline bool at_tok(const parser *p, tok_type t) { return p->t->type == t; }
static inline bool at_name(const parser *p, const char *name)
{
    return p->t->type == T_NAME && str_is(p->t->v.u.s, name);
}
static inline void next_tok(parser *p) { p->t += p->t->type != T_EOF; }
static inline bool skip_tok(parser *p, tok_type t) { return at_tok(p, t) ? next_tok(p), true : false; }
static inline bool skip_name(parser *p, const char *name)
{
    return at_name(p, name) ? next_tok(p), true : false;
}
static inline bool expect_tok(parser *p, tok_type t, const char *what)
{
    return skip_tok(p, t) ? true : (parse_fail(p, what), false);
}
jsym *expect_name(parser *p);

node *parse_expr(parser *p);
node *parse_or(parser *p); /* an expression that is not "a if b else c" */
/* One expression, or a tuple when commas follow. cond: conditional expressions are allowed. */
node *parse_tuple(parser *p, bool cond, bool in_brackets, const char *end_name);
node *parse_constant(parser *p, val v);  /* and goes on to the next token */
node *parse_filter(parser *p, node *a);  /* at the name of the filter */
node *parse_filters(parser *p, node *a); /* while there is "|" */
#endif
