/*
 * jinja_parse.c - expressions: recursive descent over the tokens; the grammar and its precedences are those of
 * jinja2. See jinja_parse.h; statements are in jinja_statement.c.
 *
 * Binary operators are parsed by precedence climbing, so that a bracket costs few stack frames; every cycle of
 * the recursion passes parse_enter(), which bounds the depth.
 */
#include "jinja_parse_priv.h"

#include "hash.h"

/* Precedences, loosest first. */
enum { P_OR, P_AND, P_COMPARE, P_SUM, P_CONCAT, P_PRODUCT, P_POWER };

static node *parse_unary(parser *p, bool with_filter);
static node *parse_binary(parser *p, int min);
static node *parse_postfix(parser *p, node *a);
static node *parse_primary(parser *p);

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

node *parse_fail(parser *p, const char *what)
{
    p->j->line = p->t->line;
    if (p->t->type == T_EOF) jj_fail(p->j, "%s, but the template ends", what);
    else if (p->t->type == T_NAME)
        jj_fail(p->j, "%s, got '%.*s'", what, (int)MIN(p->t->v.u.s->len, 60u), p->t->v.u.s->s);
    else jj_fail(p->j, "%s", what);
    return NULL;
}
bool parse_enter(parser *p)
{
    if (++p->depth <= JJ_MAX_PARSE_DEPTH) return true;
    parse_fail(p, "nested too deeply");
    return false;
}
node *parse_make(parser *p, nkind kind, node *a, node *b)
{
    node *n = jj_alloc(p->j, 1, sizeof *n);
    if (n) n->kind = (uint8_t)kind, n->line = p->t->line, n->a = a, n->b = b;
    return n;
}
bool parse_add(parser *p, nodes *l, node *n)
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
jsym *expect_name(parser *p)
{
    if (!at_tok(p, T_NAME)) return parse_fail(p, "expected a name"), NULL;
    jsym *s = jsym_get(p->syms, p->t->v.u.s);
    next_tok(p);
    return s;
}
/* "name" or "name.name" of filters and tests. */
static jsym *expect_dotted(parser *p)
{
    jsym *s = expect_name(p);
    while (s && at_tok(p, T_DOT)) {
        sb b = {.j = p->j};
        val v;
        next_tok(p);
        jsym *more = expect_name(p);
        if (!more || !sb_str(&b, s->name) || !sb_puts(&b, ".") || !sb_str(&b, more->name) || !sb_done(&b, &v))
            return NULL;
        s = jsym_get(p->syms, v.u.s);
    }
    return s;
}

/* ---- expressions ---------------------------------------------------------------------------------- */

static bool tuple_end(const parser *p, const char *end_name)
{
    return at_tok(p, T_VAR_END) || at_tok(p, T_BLOCK_END) || at_tok(p, T_RPAREN) ||
           (end_name && at_name(p, end_name));
}
NOINLINE node *parse_tuple(parser *p, bool cond, bool in_brackets, const char *end_name)
{
    nodes l = {0};
    node *result = NULL;
    bool is_tuple = false;
    while (true) {
        if (l.n && !expect_tok(p, T_COMMA, "expected ','")) return NULL;
        if (tuple_end(p, end_name)) break;
        node *e = cond ? parse_expr(p) : parse_binary(p, P_OR);
        if (!e || !parse_add(p, &l, e)) return NULL;
        if (!at_tok(p, T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && l.n) return l.v[0];
    if (!is_tuple && !in_brackets) return parse_fail(p, "expected an expression");
    if ((result = parse_make(p, N_TUPLE, NULL, NULL))) result->list = l.v, result->n = l.n;
    return result;
}

static NOINLINE node *parse_list(parser *p)
{
    nodes l = {0};
    node *n = parse_make(p, N_LIST, NULL, NULL);
    next_tok(p);
    while (n && !skip_tok(p, T_RBRACKET)) {
        if (l.n && !expect_tok(p, T_COMMA, "expected ',' or ']'")) return NULL;
        if (skip_tok(p, T_RBRACKET)) break;
        node *e = parse_expr(p);
        if (!e || !parse_add(p, &l, e)) return NULL;
    }
    if (n) n->list = l.v, n->n = l.n;
    return n;
}
static NOINLINE node *parse_dict(parser *p)
{
    nodes l = {0};
    node *n = parse_make(p, N_DICT, NULL, NULL);
    next_tok(p);
    while (n && !skip_tok(p, T_RBRACE)) {
        if (l.n && !expect_tok(p, T_COMMA, "expected ',' or '}'")) return NULL;
        if (skip_tok(p, T_RBRACE)) break;
        node *k = parse_expr(p), *v;
        if (!k || !expect_tok(p, T_COLON, "expected ':'") || !(v = parse_expr(p)) || !parse_add(p, &l, k) ||
            !parse_add(p, &l, v))
            return NULL;
    }
    if (n) n->list = l.v, n->n = l.n;
    return n;
}

node *parse_constant(parser *p, val v)
{
    node *n = parse_make(p, N_CONST, NULL, NULL);
    if (n) n->u.v = v;
    next_tok(p);
    return n;
}
static NOINLINE node *parse_name(parser *p)
{
    if (at_name(p, "true") || at_name(p, "True")) return parse_constant(p, v_bool(true));
    if (at_name(p, "false") || at_name(p, "False")) return parse_constant(p, v_bool(false));
    if (at_name(p, "none") || at_name(p, "None")) return parse_constant(p, v_none());
    if (p->macro) {
        p->macro->uses_caller |= at_name(p, "caller");
        p->macro->uses_varargs |= at_name(p, "varargs");
        p->macro->uses_kwargs |= at_name(p, "kwargs");
    }
    node *n = parse_make(p, N_NAME, NULL, NULL);
    if (n && !(n->sym = expect_name(p))) return NULL;
    return n;
}
/* Adjacent strings are one. */
static NOINLINE node *parse_strings(parser *p)
{
    node *n = parse_constant(p, p->t->v);
    while (n && at_tok(p, T_STRING)) {
        sb b = {.j = p->j};
        if (!sb_str(&b, n->u.v.u.s) || !sb_str(&b, p->t->v.u.s) || !sb_done(&b, &n->u.v)) return NULL;
        next_tok(p);
    }
    return n;
}
static node *parse_primary(parser *p)
{
    node *n;
    switch (p->t->type) {
    case T_NAME: return parse_name(p);
    case T_STRING: return parse_strings(p);
    case T_INT:
    case T_FLOAT: return parse_constant(p, p->t->v);
    case T_LBRACKET: return parse_list(p);
    case T_LBRACE: return parse_dict(p);
    case T_LPAREN:
        next_tok(p);
        n = parse_tuple(p, true, true, NULL);
        return n && expect_tok(p, T_RPAREN, "expected ')'") ? n : NULL;
    default: return parse_fail(p, "expected an expression");
    }
}

/* From "(" to behind ")". */
static NOINLINE jcall *parse_args(parser *p)
{
    jcall *c = jj_alloc(p->j, 1, sizeof *c);
    nodes pos = {0}, kw = {0}, names = {0}; /* names: N_NAME nodes, turned into strings below */
    if (!c || !expect_tok(p, T_LPAREN, "expected '('")) return NULL;
    for (bool first = true; !skip_tok(p, T_RPAREN); first = false) {
        if (!first && !expect_tok(p, T_COMMA, "expected ',' or ')'")) return NULL;
        if (!first && skip_tok(p, T_RPAREN)) break;
        bool ok;
        if (skip_tok(p, T_MUL)) ok = !c->star && !c->star2 && (c->star = parse_expr(p));
        else if (skip_tok(p, T_POW)) ok = !c->star2 && (c->star2 = parse_expr(p));
        else if (at_tok(p, T_NAME) && p->t[1].type == T_ASSIGN) {
            node *name = parse_make(p, N_NAME, NULL, NULL), *v;
            ok = !c->star2 && name && (name->sym = expect_name(p));
            next_tok(p);
            ok = ok && (v = parse_expr(p)) && parse_add(p, &kw, v) && parse_add(p, &names, name);
        } else {
            node *e = NULL;
            ok = !c->star && !c->star2 && !kw.n && (e = parse_expr(p)) && parse_add(p, &pos, e);
        }
        if (!ok) return parse_fail(p, "invalid arguments of a call"), NULL;
    }
    c->pos = pos.v, c->n_pos = pos.n, c->kw = kw.v, c->n_kw = kw.n;
    c->kw_name = jj_alloc(p->j, kw.n, sizeof *c->kw_name);
    for (uint32_t i = 0; c->kw_name && i < kw.n; i++) c->kw_name[i] = names.v[i]->sym->name;
    return c->kw_name ? c : NULL;
}

static NOINLINE node *parse_slice(parser *p, node *a, node *from)
{
    node *n = parse_make(p, N_SLICE, a, NULL);
    if (!n || !(n->list = jj_alloc(p->j, 3, sizeof *n->list))) return NULL;
    n->list[0] = from, n->n = 3;
    for (int i = 1; i < 3 && skip_tok(p, T_COLON); i++) {
        if (at_tok(p, T_RBRACKET) || at_tok(p, T_COLON)) continue;
        if (!(n->list[i] = parse_expr(p))) return NULL;
    }
    return expect_tok(p, T_RBRACKET, "expected ']'") ? n : NULL;
}
static NOINLINE node *parse_subscript(parser *p, node *a)
{
    nodes l = {0};
    node *n = NULL, *e = NULL;
    if (skip_tok(p, T_DOT)) {
        if (at_tok(p, T_INT)) return (e = parse_constant(p, p->t->v)) ? parse_make(p, N_ITEM, a, e) : NULL;
        if ((n = parse_make(p, N_ATTR, a, NULL)) && !(n->sym = expect_name(p))) return NULL;
        return n;
    }
    next_tok(p);
    if (!at_tok(p, T_COLON) && !(e = parse_expr(p))) return NULL;
    if (at_tok(p, T_COLON)) return parse_slice(p, a, e);
    if (at_tok(p, T_COMMA)) {
        if (!parse_add(p, &l, e)) return NULL;
        while (skip_tok(p, T_COMMA))
            if (!(e = parse_expr(p)) || !parse_add(p, &l, e)) return NULL;
        if (!(e = parse_make(p, N_TUPLE, NULL, NULL))) return NULL;
        e->list = l.v, e->n = l.n;
    }
    return expect_tok(p, T_RBRACKET, "expected ']'") ? parse_make(p, N_ITEM, a, e) : NULL;
}
static node *parse_call(parser *p, node *a)
{
    node *n = parse_make(p, N_CALL, a, NULL);
    return n && (n->u.args = parse_args(p)) ? n : NULL;
}
static node *parse_postfix(parser *p, node *a)
{
    while (a) {
        if (at_tok(p, T_DOT) || at_tok(p, T_LBRACKET)) a = parse_subscript(p, a);
        else if (at_tok(p, T_LPAREN)) a = parse_call(p, a);
        else break;
    }
    return a;
}

/* After "|" or at the name behind "{% filter". */
NOINLINE node *parse_filter(parser *p, node *a)
{
    node *n = parse_make(p, N_FILTER, a, NULL);
    if (!n || !(n->sym = expect_dotted(p))) return NULL;
    n->u.args = at_tok(p, T_LPAREN) ? parse_args(p) : jj_alloc(p->j, 1, sizeof(jcall));
    return n->u.args ? n : NULL;
}
node *parse_filters(parser *p, node *a)
{
    node *n = a;
    while (skip_tok(p, T_PIPE))
        if (!(n = parse_filter(p, n))) return NULL;
    return n;
}
static bool starts_test_arg(const parser *p)
{
    switch (p->t->type) {
    case T_STRING:
    case T_INT:
    case T_FLOAT:
    case T_LPAREN:
    case T_LBRACKET:
    case T_LBRACE: return true;
    case T_NAME: return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and");
    default: return false;
    }
}
/* After "is". */
static NOINLINE node *parse_test(parser *p, node *a)
{
    bool negated = skip_name(p, "not");
    node *n = parse_make(p, N_TEST, a, NULL);
    if (!n || !(n->sym = expect_dotted(p))) return NULL;
    if (at_tok(p, T_LPAREN)) {
        if (!(n->u.args = parse_args(p))) return NULL;
    } else {
        if (!(n->u.args = jj_alloc(p->j, 1, sizeof(jcall)))) return NULL;
        if (starts_test_arg(p)) {
            if (at_name(p, "is")) return parse_fail(p, "tests can not be chained with 'is'");
            n->u.args->pos = jj_alloc(p->j, 1, sizeof(node *));
            n->u.args->n_pos = 1;
            if (!n->u.args->pos || !(n->u.args->pos[0] = parse_postfix(p, parse_primary(p)))) return NULL;
        }
    }
    return negated ? parse_make(p, N_NOT, n, NULL) : n;
}
static node *parse_unary(parser *p, bool with_filter)
{
    node *n;
    if (!parse_enter(p)) return NULL;
    if (at_tok(p, T_MINUS) || at_tok(p, T_PLUS)) {
        nkind kind = at_tok(p, T_MINUS) ? N_NEG : N_POS;
        next_tok(p);
        if ((n = parse_unary(p, false))) n = parse_make(p, kind, n, NULL);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (n && with_filter) {
        if (skip_tok(p, T_PIPE)) n = parse_filter(p, n);
        else if (skip_name(p, "is")) n = parse_test(p, n);
        else if (at_tok(p, T_LPAREN)) n = parse_call(p, n);
        else break;
    }
    p->depth--;
    return n;
}

static int precedence(const parser *p)
{
    switch (p->t->type) {
    case T_EQ:
    case T_NE:
    case T_LT:
    case T_LE:
    case T_GT:
    case T_GE: return P_COMPARE;
    case T_PLUS:
    case T_MINUS: return P_SUM;
    case T_TILDE: return P_CONCAT;
    case T_MUL:
    case T_DIV:
    case T_FLOORDIV:
    case T_MOD: return P_PRODUCT;
    case T_POW: return P_POWER;
    case T_NAME:
        if (at_name(p, "or")) return P_OR;
        if (at_name(p, "and")) return P_AND;
        if (at_name(p, "in") || (at_name(p, "not") && p->t[1].type == T_NAME && str_is(p->t[1].v.u.s, "in")))
            return P_COMPARE;
        return -1;
    default: return -1;
    }
}
static NOINLINE node *parse_compare(parser *p, node *a)
{
    nodes l = {0};
    uint8_t ops[64];
    uint32_t n_ops = 0;
    if (!parse_add(p, &l, a)) return NULL;
    while (precedence(p) == P_COMPARE) {
        uint8_t op = p->t->type;
        if (op == T_NAME) op = at_name(p, "in") ? CMP_IN : CMP_NOT_IN;
        if (op == CMP_NOT_IN) next_tok(p);
        next_tok(p);
        if (n_ops == sizeof ops) return parse_fail(p, "too many comparisons in one chain");
        ops[n_ops++] = op;
        node *e = parse_binary(p, P_SUM);
        if (!e || !parse_add(p, &l, e)) return NULL;
    }
    node *n = parse_make(p, N_COMPARE, NULL, NULL);
    if (!n || !(n->u.ops = jj_alloc(p->j, n_ops, 1))) return NULL;
    memcpy(n->u.ops, ops, n_ops);
    n->list = l.v, n->n = l.n;
    return n;
}
static NOINLINE node *parse_concat(parser *p, node *a)
{
    nodes l = {0};
    node *n = parse_make(p, N_CONCAT, NULL, NULL);
    if (!n || !parse_add(p, &l, a)) return NULL;
    while (skip_tok(p, T_TILDE)) {
        node *e = parse_binary(p, P_PRODUCT);
        if (!e || !parse_add(p, &l, e)) return NULL;
    }
    n->list = l.v, n->n = l.n;
    return n;
}
/* Operators of at least this precedence; all of them bind to the left. */
static node *parse_binary(parser *p, int min)
{
    node *a;
    int prec;
    if (!parse_enter(p)) return NULL;
    if (min <= P_COMPARE && skip_name(p, "not"))
        a = (a = parse_binary(p, P_COMPARE)) ? parse_make(p, N_NOT, a, NULL) : NULL;
    else a = parse_unary(p, true);
    while (a && (prec = precedence(p)) >= min) {
        if (prec == P_COMPARE) a = parse_compare(p, a);
        else if (prec == P_CONCAT) a = parse_concat(p, a);
        else {
            uint8_t op = p->t->type;
            next_tok(p);
            node *b = parse_binary(p, prec + 1);
            a = b ? parse_make(p, prec == P_OR ? N_OR : prec == P_AND ? N_AND : N_BINARY, a, b) : NULL;
            if (a) a->op = op;
        }
    }
    p->depth--;
    return a;
}
node *parse_expr(parser *p)
{
    node *a = parse_binary(p, P_OR);
    while (a && skip_name(p, "if")) {
        node *test = parse_binary(p, P_OR), *other = NULL;
        if (!test) return NULL;
        if (skip_name(p, "else")) {
            if (!parse_enter(p) || !(other = parse_expr(p))) return NULL;
            p->depth--;
        }
        if ((a = parse_make(p, N_COND, a, test))) a->c = other;
    }
    return a;
}
node *parse_or(parser *p) { return parse_binary(p, P_OR); }
