/*
 * jinja_parse.c - recursive descent over the tokens; the grammar and its precedences are those of jinja2. See
 * jinja_parse.h.
 *
 * Binary operators are parsed by precedence climbing, so that a bracket costs few stack frames; every cycle of the
 * recursion passes enter(), which bounds the depth.
 */
#include "jinja_parse.h"

#include <stdlib.h>

#include "hash.h"
#include "jinja_lex.h"

/* Precedences, loosest first. */
enum { P_OR, P_AND, P_COMPARE, P_SUM, P_CONCAT, P_PRODUCT, P_POWER, P_NONE };

typedef struct {
    jj *j;
    jsyms *syms;
    const jtok *t; /* current token */
    uint32_t depth, n_loops;
    jparams *macro; /* innermost macro, to note which special names it uses */
    jsym *loop, *special[3]; /* loop; caller, kwargs, varargs */
} parser;

typedef struct { node **v; uint32_t n, cap; } nodes;

static node *parse_expr(parser *p);
static node *parse_unary(parser *p, bool with_filter);
static node *parse_binary(parser *p, int min);
static node *parse_postfix(parser *p, node *a);
static node *parse_primary(parser *p);
static bool parse_body(parser *p, const char *const *ends, nodes *out);

/* ---- helpers -------------------------------------------------------------------------------------- */

jsym *jsym_get(jsyms *t, const jstr *name)
{
    jsym **slot = &t->table[hash64(name->s, name->len, 0) & 255];
    for (jsym *s = *slot; s; s = s->next)
        if (str_eq(s->name, name)) return s;
    jsym *s = jj_alloc(t->j, 1, sizeof *s);
    if (!s) return NULL;
    *s = (jsym){name, *slot};
    return *slot = s;
}

static node *fail(parser *p, const char *what)
{
    p->j->line = p->t->line;
    if (p->t->type == T_EOF) jj_fail(p->j, "%s, but the template ends", what);
    else if (p->t->type == T_NAME) jj_fail(p->j, "%s, got '%.*s'", what, (int)MIN(p->t->v.u.s->len, 60u), p->t->v.u.s->s);
    else jj_fail(p->j, "%s", what);
    return NULL;
}
static bool enter(parser *p)
{
    if (++p->depth <= JJ_MAX_PARSE_DEPTH) return true;
    fail(p, "nested too deeply");
    return false;
}
static node *make(parser *p, nkind kind, node *a, node *b)
{
    node *n = jj_alloc(p->j, 1, sizeof *n);
    if (n) n->kind = (uint8_t)kind, n->line = p->t->line, n->a = a, n->b = b;
    return n;
}
static bool add(parser *p, nodes *l, node *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        node **v = jj_alloc(p->j, cap, sizeof *v);
        if (!v) return false;
        if (l->n) memcpy(v, l->v, l->n * sizeof *v);
        l->v = v, l->cap = cap;
    }
    l->v[l->n++] = n;
    return true;
}
static bool is(const parser *p, tok_type t) { return p->t->type == t; }
static bool is_name(const parser *p, const char *name) { return p->t->type == T_NAME && str_is(p->t->v.u.s, name); }
static void next(parser *p) { p->t += p->t->type != T_EOF; }
static bool skip(parser *p, tok_type t) { return is(p, t) ? next(p), true : false; }
static bool skip_name(parser *p, const char *name) { return is_name(p, name) ? next(p), true : false; }
static bool expect(parser *p, tok_type t, const char *what) { return skip(p, t) ? true : (fail(p, what), false); }
static jsym *expect_name(parser *p)
{
    if (!is(p, T_NAME)) return fail(p, "expected a name"), NULL;
    jsym *s = jsym_get(p->syms, p->t->v.u.s);
    next(p);
    return s;
}
/* "name" or "name.name" of filters and tests. */
static jsym *expect_dotted(parser *p)
{
    jsym *s = expect_name(p);
    while (s && is(p, T_DOT)) {
        sb b = {.j = p->j};
        val v;
        next(p);
        jsym *more = expect_name(p);
        if (!more || !sb_str(&b, s->name) || !sb_puts(&b, ".") || !sb_str(&b, more->name) || !sb_done(&b, &v)) return NULL;
        s = jsym_get(p->syms, v.u.s);
    }
    return s;
}

/* ---- expressions ---------------------------------------------------------------------------------- */

static bool tuple_end(const parser *p, const char *end_name)
{
    return is(p, T_VAR_END) || is(p, T_BLOCK_END) || is(p, T_RPAREN) || (end_name && is_name(p, end_name));
}
/* One expression, or a tuple when commas follow. cond: conditional expressions are allowed. */
static NOINLINE node *parse_tuple(parser *p, bool cond, bool in_brackets, const char *end_name)
{
    nodes l = {0};
    node *result = NULL;
    bool is_tuple = false;
    while (true) {
        if (l.n && !expect(p, T_COMMA, "expected ','")) return NULL;
        if (tuple_end(p, end_name)) break;
        node *e = cond ? parse_expr(p) : parse_binary(p, P_OR);
        if (!e || !add(p, &l, e)) return NULL;
        if (!is(p, T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && l.n) return l.v[0];
    if (!is_tuple && !in_brackets) return fail(p, "expected an expression");
    if ((result = make(p, N_TUPLE, NULL, NULL))) result->list = l.v, result->n = l.n;
    return result;
}

static NOINLINE node *parse_list(parser *p)
{
    nodes l = {0};
    node *n = make(p, N_LIST, NULL, NULL);
    next(p);
    while (n && !skip(p, T_RBRACKET)) {
        if (l.n && !expect(p, T_COMMA, "expected ',' or ']'")) return NULL;
        if (skip(p, T_RBRACKET)) break;
        node *e = parse_expr(p);
        if (!e || !add(p, &l, e)) return NULL;
    }
    if (n) n->list = l.v, n->n = l.n;
    return n;
}
static NOINLINE node *parse_dict(parser *p)
{
    nodes l = {0};
    node *n = make(p, N_DICT, NULL, NULL);
    next(p);
    while (n && !skip(p, T_RBRACE)) {
        if (l.n && !expect(p, T_COMMA, "expected ',' or '}'")) return NULL;
        if (skip(p, T_RBRACE)) break;
        node *k = parse_expr(p), *v;
        if (!k || !expect(p, T_COLON, "expected ':'") || !(v = parse_expr(p)) || !add(p, &l, k) || !add(p, &l, v)) return NULL;
    }
    if (n) n->list = l.v, n->n = l.n;
    return n;
}

static node *constant(parser *p, val v)
{
    node *n = make(p, N_CONST, NULL, NULL);
    if (n) n->u.v = v;
    next(p);
    return n;
}
static NOINLINE node *parse_name(parser *p)
{
    if (is_name(p, "true") || is_name(p, "True")) return constant(p, v_bool(true));
    if (is_name(p, "false") || is_name(p, "False")) return constant(p, v_bool(false));
    if (is_name(p, "none") || is_name(p, "None")) return constant(p, v_none());
    if (p->macro) {
        p->macro->uses_caller |= is_name(p, "caller");
        p->macro->uses_varargs |= is_name(p, "varargs");
        p->macro->uses_kwargs |= is_name(p, "kwargs");
    }
    node *n = make(p, N_NAME, NULL, NULL);
    if (n && !(n->sym = expect_name(p))) return NULL;
    return n;
}
/* Adjacent strings are one. */
static NOINLINE node *parse_strings(parser *p)
{
    node *n = constant(p, p->t->v);
    while (n && is(p, T_STRING)) {
        sb b = {.j = p->j};
        if (!sb_str(&b, n->u.v.u.s) || !sb_str(&b, p->t->v.u.s) || !sb_done(&b, &n->u.v)) return NULL;
        next(p);
    }
    return n;
}
static node *parse_primary(parser *p)
{
    node *n;
    switch (p->t->type) {
    case T_NAME: return parse_name(p);
    case T_STRING: return parse_strings(p);
    case T_INT: case T_FLOAT: return constant(p, p->t->v);
    case T_LBRACKET: return parse_list(p);
    case T_LBRACE: return parse_dict(p);
    case T_LPAREN:
        next(p);
        n = parse_tuple(p, true, true, NULL);
        return n && expect(p, T_RPAREN, "expected ')'") ? n : NULL;
    default: return fail(p, "expected an expression");
    }
}

/* From "(" to behind ")". */
static NOINLINE jcall *parse_args(parser *p)
{
    jcall *c = jj_alloc(p->j, 1, sizeof *c);
    nodes pos = {0}, kw = {0}, names = {0}; /* names: N_NAME nodes, turned into strings below */
    if (!c || !expect(p, T_LPAREN, "expected '('")) return NULL;
    for (bool first = true; !skip(p, T_RPAREN); first = false) {
        if (!first && !expect(p, T_COMMA, "expected ',' or ')'")) return NULL;
        if (!first && skip(p, T_RPAREN)) break;
        bool ok;
        if (skip(p, T_MUL)) ok = !c->star && !c->star2 && (c->star = parse_expr(p));
        else if (skip(p, T_POW)) ok = !c->star2 && (c->star2 = parse_expr(p));
        else if (is(p, T_NAME) && p->t[1].type == T_ASSIGN) {
            node *name = make(p, N_NAME, NULL, NULL), *v;
            ok = !c->star2 && name && (name->sym = expect_name(p));
            next(p);
            ok = ok && (v = parse_expr(p)) && add(p, &kw, v) && add(p, &names, name);
        } else {
            node *e = NULL;
            ok = !c->star && !c->star2 && !kw.n && (e = parse_expr(p)) && add(p, &pos, e);
        }
        if (!ok) return fail(p, "invalid arguments of a call"), NULL;
    }
    c->pos = pos.v, c->n_pos = pos.n, c->kw = kw.v, c->n_kw = kw.n;
    c->kw_name = jj_alloc(p->j, kw.n, sizeof *c->kw_name);
    for (uint32_t i = 0; c->kw_name && i < kw.n; i++) c->kw_name[i] = names.v[i]->sym->name;
    return c->kw_name ? c : NULL;
}

static NOINLINE node *parse_slice(parser *p, node *a, node *from)
{
    node *n = make(p, N_SLICE, a, NULL);
    if (!n || !(n->list = jj_alloc(p->j, 3, sizeof *n->list))) return NULL;
    n->list[0] = from, n->n = 3;
    for (int i = 1; i < 3 && skip(p, T_COLON); i++) {
        if (is(p, T_RBRACKET) || is(p, T_COLON)) continue;
        if (!(n->list[i] = parse_expr(p))) return NULL;
    }
    return expect(p, T_RBRACKET, "expected ']'") ? n : NULL;
}
static NOINLINE node *parse_subscript(parser *p, node *a)
{
    nodes l = {0};
    node *n = NULL, *e = NULL;
    if (skip(p, T_DOT)) {
        if (is(p, T_INT)) return (e = constant(p, p->t->v)) ? make(p, N_ITEM, a, e) : NULL;
        if ((n = make(p, N_ATTR, a, NULL)) && !(n->sym = expect_name(p))) return NULL;
        return n;
    }
    next(p);
    if (!is(p, T_COLON) && !(e = parse_expr(p))) return NULL;
    if (is(p, T_COLON)) return parse_slice(p, a, e);
    if (is(p, T_COMMA)) {
        if (!add(p, &l, e)) return NULL;
        while (skip(p, T_COMMA))
            if (!(e = parse_expr(p)) || !add(p, &l, e)) return NULL;
        if (!(e = make(p, N_TUPLE, NULL, NULL))) return NULL;
        e->list = l.v, e->n = l.n;
    }
    return expect(p, T_RBRACKET, "expected ']'") ? make(p, N_ITEM, a, e) : NULL;
}
static node *parse_call(parser *p, node *a)
{
    node *n = make(p, N_CALL, a, NULL);
    return n && (n->u.args = parse_args(p)) ? n : NULL;
}
static node *parse_postfix(parser *p, node *a)
{
    while (a) {
        if (is(p, T_DOT) || is(p, T_LBRACKET)) a = parse_subscript(p, a);
        else if (is(p, T_LPAREN)) a = parse_call(p, a);
        else break;
    }
    return a;
}

/* After "|" or at the name behind "{% filter". */
static NOINLINE node *parse_filter(parser *p, node *a)
{
    node *n = make(p, N_FILTER, a, NULL);
    if (!n || !(n->sym = expect_dotted(p))) return NULL;
    n->u.args = is(p, T_LPAREN) ? parse_args(p) : jj_alloc(p->j, 1, sizeof(jcall));
    return n->u.args ? n : NULL;
}
static node *parse_filters(parser *p, node *a)
{
    node *n = a;
    while (skip(p, T_PIPE))
        if (!(n = parse_filter(p, n))) return NULL;
    return n;
}
static bool starts_test_arg(const parser *p)
{
    switch (p->t->type) {
    case T_STRING: case T_INT: case T_FLOAT: case T_LPAREN: case T_LBRACKET: case T_LBRACE: return true;
    case T_NAME: return !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and");
    default: return false;
    }
}
/* After "is". */
static NOINLINE node *parse_test(parser *p, node *a)
{
    bool negated = skip_name(p, "not");
    node *n = make(p, N_TEST, a, NULL);
    if (!n || !(n->sym = expect_dotted(p))) return NULL;
    if (is(p, T_LPAREN)) {
        if (!(n->u.args = parse_args(p))) return NULL;
    } else {
        if (!(n->u.args = jj_alloc(p->j, 1, sizeof(jcall)))) return NULL;
        if (starts_test_arg(p)) {
            if (is_name(p, "is")) return fail(p, "tests can not be chained with 'is'");
            n->u.args->pos = jj_alloc(p->j, 1, sizeof(node *));
            n->u.args->n_pos = 1;
            if (!n->u.args->pos || !(n->u.args->pos[0] = parse_postfix(p, parse_primary(p)))) return NULL;
        }
    }
    return negated ? make(p, N_NOT, n, NULL) : n;
}
static node *parse_unary(parser *p, bool with_filter)
{
    node *n;
    if (!enter(p)) return NULL;
    if (is(p, T_MINUS) || is(p, T_PLUS)) {
        nkind kind = is(p, T_MINUS) ? N_NEG : N_POS;
        next(p);
        if ((n = parse_unary(p, false))) n = make(p, kind, n, NULL);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (n && with_filter) {
        if (skip(p, T_PIPE)) n = parse_filter(p, n);
        else if (skip_name(p, "is")) n = parse_test(p, n);
        else if (is(p, T_LPAREN)) n = parse_call(p, n);
        else break;
    }
    p->depth--;
    return n;
}

static int precedence(const parser *p)
{
    switch (p->t->type) {
    case T_EQ: case T_NE: case T_LT: case T_LE: case T_GT: case T_GE: return P_COMPARE;
    case T_PLUS: case T_MINUS: return P_SUM;
    case T_TILDE: return P_CONCAT;
    case T_MUL: case T_DIV: case T_FLOORDIV: case T_MOD: return P_PRODUCT;
    case T_POW: return P_POWER;
    case T_NAME:
        if (is_name(p, "or")) return P_OR;
        if (is_name(p, "and")) return P_AND;
        if (is_name(p, "in") || (is_name(p, "not") && p->t[1].type == T_NAME && str_is(p->t[1].v.u.s, "in"))) return P_COMPARE;
        return -1;
    default: return -1;
    }
}
static NOINLINE node *parse_compare(parser *p, node *a)
{
    nodes l = {0};
    uint8_t ops[64];
    uint32_t n_ops = 0;
    if (!add(p, &l, a)) return NULL;
    while (precedence(p) == P_COMPARE) {
        uint8_t op = p->t->type;
        if (op == T_NAME) op = is_name(p, "in") ? CMP_IN : CMP_NOT_IN;
        if (op == CMP_NOT_IN) next(p);
        next(p);
        if (n_ops == sizeof ops) return fail(p, "too many comparisons in one chain");
        ops[n_ops++] = op;
        node *e = parse_binary(p, P_SUM);
        if (!e || !add(p, &l, e)) return NULL;
    }
    node *n = make(p, N_COMPARE, NULL, NULL);
    if (!n || !(n->u.ops = jj_alloc(p->j, n_ops, 1))) return NULL;
    memcpy(n->u.ops, ops, n_ops);
    n->list = l.v, n->n = l.n;
    return n;
}
static NOINLINE node *parse_concat(parser *p, node *a)
{
    nodes l = {0};
    node *n = make(p, N_CONCAT, NULL, NULL);
    if (!n || !add(p, &l, a)) return NULL;
    while (skip(p, T_TILDE)) {
        node *e = parse_binary(p, P_PRODUCT);
        if (!e || !add(p, &l, e)) return NULL;
    }
    n->list = l.v, n->n = l.n;
    return n;
}
/* Operators of at least this precedence; all of them bind to the left. */
static node *parse_binary(parser *p, int min)
{
    node *a;
    int prec;
    if (!enter(p)) return NULL;
    if (min <= P_COMPARE && skip_name(p, "not")) a = (a = parse_binary(p, P_COMPARE)) ? make(p, N_NOT, a, NULL) : NULL;
    else a = parse_unary(p, true);
    while (a && (prec = precedence(p)) >= min) {
        if (prec == P_COMPARE) a = parse_compare(p, a);
        else if (prec == P_CONCAT) a = parse_concat(p, a);
        else {
            uint8_t op = p->t->type;
            next(p);
            node *b = parse_binary(p, prec + 1);
            a = b ? make(p, prec == P_OR ? N_OR : prec == P_AND ? N_AND : N_BINARY, a, b) : NULL;
            if (a) a->op = op;
        }
    }
    p->depth--;
    return a;
}
static node *parse_expr(parser *p)
{
    node *a = parse_binary(p, P_OR);
    while (a && skip_name(p, "if")) {
        node *test = parse_binary(p, P_OR), *other = NULL;
        if (!test) return NULL;
        if (skip_name(p, "else")) {
            if (!enter(p) || !(other = parse_expr(p))) return NULL;
            p->depth--;
        }
        if ((a = make(p, N_COND, a, test))) a->c = other;
    }
    return a;
}

/* ---- statements ----------------------------------------------------------------------------------- */

static NOINLINE node *parse_target_one(parser *p, bool with_ns)
{
    if (skip(p, T_LPAREN)) {
        fail(p, "brackets around targets are not supported");
        return NULL;
    }
    node *n = make(p, N_NAME, NULL, NULL);
    if (is_name(p, "true") || is_name(p, "false") || is_name(p, "none") || is_name(p, "True") || is_name(p, "False") || is_name(p, "None"))
        return fail(p, "can not assign to a constant");
    if (!n || !(n->sym = expect_name(p))) return NULL;
    if (with_ns && skip(p, T_DOT)) {
        node *attr = make(p, N_NAME, NULL, NULL);
        if (!attr || !(attr->sym = expect_name(p))) return NULL;
        n->kind = N_NSREF, n->b = attr;
    }
    return n;
}
/* A name, "ns.name", or several with commas. */
static node *parse_target(parser *p, bool with_ns, bool may_tuple)
{
    nodes l = {0};
    node *n = parse_target_one(p, with_ns);
    if (!n || !may_tuple || !is(p, T_COMMA)) return n;
    if (!add(p, &l, n)) return NULL;
    while (skip(p, T_COMMA) && is(p, T_NAME) && !is_name(p, "in"))
        if (!(n = parse_target_one(p, with_ns)) || !add(p, &l, n)) return NULL;
    if ((n = make(p, N_TUPLE, NULL, NULL))) n->list = l.v, n->n = l.n;
    return n;
}

/* "%}", the body, and up to the tag in `ends`, whose name is the current token then. */
static bool parse_block(parser *p, const char *const *ends, node *into)
{
    nodes l = {0};
    skip(p, T_COLON);
    if (!expect(p, T_BLOCK_END, "expected the end of the tag") || !parse_body(p, ends, &l)) return false;
    into->list = l.v, into->n = l.n;
    return true;
}
static bool parse_block_to(parser *p, const char *end, node *into)
{
    if (!parse_block(p, (const char *const[]){end, NULL}, into)) return false;
    next(p);
    return true;
}

static NOINLINE node *parse_if(parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    nodes branches = {0};
    node *n = make(p, N_IF, NULL, NULL);
    bool more = true;
    while (n && more) {
        node *b = make(p, N_BRANCH, NULL, NULL);
        if (!b || !(b->a = parse_tuple(p, false, false, NULL)) || !parse_block(p, ends, b) || !add(p, &branches, b)) return NULL;
        more = is_name(p, "elif");
        bool has_else = is_name(p, "else");
        next(p);
        if (!has_else) continue;
        b = make(p, N_BRANCH, NULL, NULL);
        if (!b || !parse_block_to(p, "endif", b) || !add(p, &branches, b)) return NULL;
    }
    if (n) n->list = branches.v, n->n = branches.n;
    return n;
}

static NOINLINE node *parse_for(parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    node *n = make(p, N_FOR, NULL, NULL);
    if (!n || !(n->a = parse_target(p, false, true))) return NULL;
    n->sym = p->loop;
    for (uint32_t i = 0; i < MAX(n->a->n, 1u); i++)
        if ((n->a->kind == N_TUPLE ? n->a->list[i] : n->a)->sym == p->loop) return fail(p, "can not assign to the special variable 'loop' here");
    if (!skip_name(p, "in")) return fail(p, "expected 'in'");
    if (!(n->b = parse_tuple(p, false, false, "recursive"))) return NULL;
    if (skip_name(p, "if") && !(n->c = parse_expr(p))) return NULL;
    n->op = skip_name(p, "recursive");
    p->n_loops++;
    if (!parse_block(p, ends, n)) return NULL;
    p->n_loops--;
    bool has_else = is_name(p, "else");
    next(p);
    if (has_else && (!(n->d = make(p, N_BRANCH, NULL, NULL)) || !parse_block_to(p, "endfor", n->d))) return NULL;
    return n;
}

static NOINLINE node *parse_set(parser *p)
{
    node *n = make(p, N_SET, NULL, NULL);
    if (!n || !(n->a = parse_target(p, true, true))) return NULL;
    if (skip(p, T_ASSIGN)) return (n->b = parse_tuple(p, true, false, NULL)) ? n : NULL;
    n->kind = N_SETBLOCK;
    if (is(p, T_PIPE) && !(n->b = parse_filters(p, NULL))) return NULL;
    return parse_block_to(p, "endset", n) ? n : NULL;
}

static NOINLINE bool parse_params(parser *p, jparams *m)
{
    nodes names = {0}, defs = {0};
    if (!expect(p, T_LPAREN, "expected '('")) return false;
    bool any_default = false;
    while (!skip(p, T_RPAREN)) {
        if (names.n && !expect(p, T_COMMA, "expected ',' or ')'")) return false;
        node *name = parse_target_one(p, false), *def = NULL;
        if (!name) return false;
        if (skip(p, T_ASSIGN)) {
            if (!(def = parse_expr(p))) return false;
            any_default = true;
        } else if (any_default) return fail(p, "a parameter without default follows one with default"), false;
        if (!add(p, &names, name) || !add(p, &defs, def)) return false;
    }
    m->n = names.n;
    m->def = defs.v;
    m->name = jj_alloc(p->j, names.n, sizeof *m->name);
    for (uint32_t i = 0; m->name && i < names.n; i++) m->name[i] = names.v[i]->sym;
    return m->name != NULL;
}
/* A macro, or a call block: the call, and its body as a macro without a name and maybe without parameters. */
static NOINLINE node *parse_macro(parser *p, bool is_call)
{
    node *n = make(p, N_MACRO, NULL, NULL), *call = NULL;
    jparams *outer = p->macro;
    uint32_t loops = p->n_loops;
    if (!n || !(n->u.params = jj_alloc(p->j, 1, sizeof(jparams)))) return NULL;
    if (!is_call && !(n->sym = expect_name(p))) return NULL;
    p->macro = n->u.params;
    p->macro->special = p->special;
    if ((!is_call || is(p, T_LPAREN)) && !parse_params(p, n->u.params)) return NULL;
    if (is_call) {
        p->macro = outer;
        if (!(call = make(p, N_CALLBLOCK, n, NULL)) || !(call->b = parse_expr(p))) return NULL;
        if (call->b->kind != N_CALL) return fail(p, "expected a call");
        p->macro = n->u.params;
    }
    p->n_loops = 0;
    if (!parse_block_to(p, is_call ? "endcall" : "endmacro", n)) return NULL;
    p->n_loops = loops;
    p->macro = outer;
    if (outer) { /* a name that a nested body uses counts for the macros around it as well */
        outer->uses_caller |= n->u.params->uses_caller;
        outer->uses_varargs |= n->u.params->uses_varargs;
        outer->uses_kwargs |= n->u.params->uses_kwargs;
    }
    return is_call ? call : n;
}

static NOINLINE node *parse_with(parser *p)
{
    nodes l = {0};
    node *n = make(p, N_WITH, NULL, make(p, N_LIST, NULL, NULL));
    if (!n || !n->b) return NULL;
    while (!is(p, T_BLOCK_END)) {
        node *t, *v;
        if (l.n && !expect(p, T_COMMA, "expected ','")) return NULL;
        if (!(t = parse_target(p, false, false)) || !expect(p, T_ASSIGN, "expected '='") || !(v = parse_expr(p))) return NULL;
        if (!add(p, &l, t) || !add(p, &l, v)) return NULL;
    }
    n->b->list = l.v, n->b->n = l.n;
    return parse_block_to(p, "endwith", n) ? n : NULL;
}
static NOINLINE node *parse_filter_block(parser *p)
{
    node *n = make(p, N_FILTERBLOCK, NULL, NULL);
    if (!n || !(n->a = parse_filter(p, NULL)) || !(n->a = parse_filters(p, n->a))) return NULL;
    return parse_block_to(p, "endfilter", n) ? n : NULL;
}
static NOINLINE node *parse_print(parser *p)
{
    nodes l = {0};
    node *n = make(p, N_IF, NULL, NULL), *b = make(p, N_BRANCH, NULL, NULL);
    if (!n || !b) return NULL;
    while (!is(p, T_BLOCK_END)) {
        node *out = make(p, N_OUTPUT, NULL, NULL);
        if (l.n && !expect(p, T_COMMA, "expected ','")) return NULL;
        if (!out || !(out->a = parse_expr(p)) || !add(p, &l, out)) return NULL;
    }
    b->list = l.v, b->n = l.n;
    n->list = jj_alloc(p->j, 1, sizeof *n->list), n->n = 1;
    if (n->list) n->list[0] = b;
    return n->list ? n : NULL;
}
static node *parse_jump(parser *p, nkind kind)
{
    return p->n_loops ? make(p, kind, NULL, NULL) : fail(p, "break and continue belong in a loop");
}

/* At the name behind "{%"; ends before "%}". */
static node *parse_statement(parser *p)
{
    node *n;
    if (skip_name(p, "if")) return parse_if(p);
    if (skip_name(p, "for")) return parse_for(p);
    if (skip_name(p, "set")) return parse_set(p);
    if (skip_name(p, "macro")) return parse_macro(p, false);
    if (skip_name(p, "call")) return parse_macro(p, true);
    if (skip_name(p, "filter")) return parse_filter_block(p);
    if (skip_name(p, "with")) return parse_with(p);
    if (skip_name(p, "print")) return parse_print(p);
    if (skip_name(p, "break")) return parse_jump(p, N_BREAK);
    if (skip_name(p, "continue")) return parse_jump(p, N_CONTINUE);
    if (skip_name(p, "generation")) return (n = make(p, N_SCOPE, NULL, NULL)) && parse_block_to(p, "endgeneration", n) ? n : NULL;
    return fail(p, "unknown or unexpected tag");
}

static bool ends_body(const parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (is_name(p, *ends)) return true;
    return false;
}
/* Statements up to an end tag (NULL: the end of the template). */
static bool parse_body(parser *p, const char *const *ends, nodes *out)
{
    if (!enter(p)) return false;
    while (!is(p, T_EOF)) {
        node *n;
        if (is(p, T_DATA)) {
            n = constant(p, p->t->v);
            if (n) n->kind = N_DATA;
        } else if (skip(p, T_VAR_BEGIN)) {
            n = make(p, N_OUTPUT, NULL, NULL);
            if (n && (!(n->a = parse_tuple(p, true, false, NULL)) || !expect(p, T_VAR_END, "expected '}}'"))) return false;
        } else {
            next(p);
            if (ends_body(p, ends)) return p->depth--, true;
            n = parse_statement(p);
            if (n && !expect(p, T_BLOCK_END, "expected '%}'")) return false;
        }
        if (!n || !add(p, out, n)) return false;
    }
    p->depth--;
    return ends ? (fail(p, "a block is not closed"), false) : true;
}

bool jinja_parse(jj *j, jsyms *syms, const char *s, size_t n, node **out)
{
    jtok *tok;
    uint32_t n_tok;
    nodes l = {0};
    if (!jinja_lex(j, s, n, &tok, &n_tok)) return false;
    parser *q = jj_alloc(j, 1, sizeof *q); /* macros keep pointers to its symbols */
    if (!q) return false;
    *q = (parser){.j = j, .syms = syms, .t = tok};
    static const char *const names[] = {"loop", "caller", "kwargs", "varargs"};
    for (int i = 0; i < 4; i++) {
        const jstr *name = str_lit(j, names[i]);
        jsym *sym = name ? jsym_get(syms, name) : NULL;
        if (!sym) return false;
        *(i ? &q->special[i - 1] : &q->loop) = sym;
    }
    if (!parse_body(q, NULL, &l) || !(*out = make(q, N_SCOPE, NULL, NULL))) return false;
    (*out)->list = l.v, (*out)->n = l.n;
    return true;
}
