/* jinja_statement.c - statements: what stands in "{% %}", and text. See jinja_parse.h. */
#include "jinja_parse_priv.h"

static bool parse_body(parser *p, const char *const *ends, nodes *out);

/* ---- statements ----------------------------------------------------------------------------------- */

static NOINLINE node *parse_target_one(parser *p, bool with_ns)
{
    if (skip_tok(p, T_LPAREN)) {
        parse_fail(p, "brackets around targets are not supported");
        return NULL;
    }
    node *n = parse_make(p, N_NAME, NULL, NULL);
    if (at_name(p, "true") || at_name(p, "false") || at_name(p, "none") || at_name(p, "True") ||
        at_name(p, "False") || at_name(p, "None"))
        return parse_fail(p, "can not assign to a constant");
    if (!n || !(n->sym = expect_name(p))) return NULL;
    if (with_ns && skip_tok(p, T_DOT)) {
        node *attr = parse_make(p, N_NAME, NULL, NULL);
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
    if (!n || !may_tuple || !at_tok(p, T_COMMA)) return n;
    if (!parse_add(p, &l, n)) return NULL;
    while (skip_tok(p, T_COMMA) && at_tok(p, T_NAME) && !at_name(p, "in"))
        if (!(n = parse_target_one(p, with_ns)) || !parse_add(p, &l, n)) return NULL;
    if ((n = parse_make(p, N_TUPLE, NULL, NULL))) n->list = l.v, n->n = l.n;
    return n;
}

/* "%}", the body, and up to the tag in `ends`, whose name is the current token then. */
static bool parse_block(parser *p, const char *const *ends, node *into)
{
    nodes l = {0};
    skip_tok(p, T_COLON);
    if (!expect_tok(p, T_BLOCK_END, "expected the end of the tag") || !parse_body(p, ends, &l)) return false;
    into->list = l.v, into->n = l.n;
    return true;
}
static bool parse_block_to(parser *p, const char *end, node *into)
{
    if (!parse_block(p, (const char *const[]){end, NULL}, into)) return false;
    next_tok(p);
    return true;
}

static NOINLINE node *parse_if(parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    nodes branches = {0};
    node *n = parse_make(p, N_IF, NULL, NULL);
    bool more = true;
    while (n && more) {
        node *b = parse_make(p, N_BRANCH, NULL, NULL);
        if (!b || !(b->a = parse_tuple(p, false, false, NULL)) || !parse_block(p, ends, b) ||
            !parse_add(p, &branches, b))
            return NULL;
        more = at_name(p, "elif");
        bool has_else = at_name(p, "else");
        next_tok(p);
        if (!has_else) continue;
        b = parse_make(p, N_BRANCH, NULL, NULL);
        if (!b || !parse_block_to(p, "endif", b) || !parse_add(p, &branches, b)) return NULL;
    }
    if (n) n->list = branches.v, n->n = branches.n;
    return n;
}

static NOINLINE node *parse_for(parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    node *n = parse_make(p, N_FOR, NULL, NULL);
    if (!n || !(n->a = parse_target(p, false, true))) return NULL;
    n->sym = p->loop;
    for (uint32_t i = 0; i < MAX(n->a->n, 1u); i++)
        if ((n->a->kind == N_TUPLE ? n->a->list[i] : n->a)->sym == p->loop)
            return parse_fail(p, "can not assign to the special variable 'loop' here");
    if (!skip_name(p, "in")) return parse_fail(p, "expected 'in'");
    if (!(n->b = parse_tuple(p, false, false, "recursive"))) return NULL;
    if (skip_name(p, "if") && !(n->c = parse_expr(p))) return NULL;
    n->op = skip_name(p, "recursive");
    p->n_loops++;
    if (!parse_block(p, ends, n)) return NULL;
    p->n_loops--;
    bool has_else = at_name(p, "else");
    next_tok(p);
    if (has_else && (!(n->d = parse_make(p, N_BRANCH, NULL, NULL)) || !parse_block_to(p, "endfor", n->d)))
        return NULL;
    return n;
}

static NOINLINE node *parse_set(parser *p)
{
    node *n = parse_make(p, N_SET, NULL, NULL);
    if (!n || !(n->a = parse_target(p, true, true))) return NULL;
    if (skip_tok(p, T_ASSIGN)) return (n->b = parse_tuple(p, true, false, NULL)) ? n : NULL;
    n->kind = N_SETBLOCK;
    if (at_tok(p, T_PIPE) && !(n->b = parse_filters(p, NULL))) return NULL;
    return parse_block_to(p, "endset", n) ? n : NULL;
}

static NOINLINE bool parse_params(parser *p, jparams *m)
{
    nodes names = {0}, defs = {0};
    if (!expect_tok(p, T_LPAREN, "expected '('")) return false;
    bool any_default = false;
    while (!skip_tok(p, T_RPAREN)) {
        if (names.n && !expect_tok(p, T_COMMA, "expected ',' or ')'")) return false;
        node *name = parse_target_one(p, false), *def = NULL;
        if (!name) return false;
        if (skip_tok(p, T_ASSIGN)) {
            if (!(def = parse_expr(p))) return false;
            any_default = true;
        } else if (any_default)
            return parse_fail(p, "a parameter without default follows one with default"), false;
        if (!parse_add(p, &names, name) || !parse_add(p, &defs, def)) return false;
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
    node *n = parse_make(p, N_MACRO, NULL, NULL), *call = NULL;
    jparams *outer = p->macro;
    uint32_t loops = p->n_loops;
    if (!n || !(n->u.params = jj_alloc(p->j, 1, sizeof(jparams)))) return NULL;
    if (!is_call && !(n->sym = expect_name(p))) return NULL;
    p->macro = n->u.params;
    p->macro->special = p->special;
    if ((!is_call || at_tok(p, T_LPAREN)) && !parse_params(p, n->u.params)) return NULL;
    if (is_call) {
        p->macro = outer;
        if (!(call = parse_make(p, N_CALLBLOCK, n, NULL)) || !(call->b = parse_expr(p))) return NULL;
        if (call->b->kind != N_CALL) return parse_fail(p, "expected a call");
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
    node *n = parse_make(p, N_WITH, NULL, parse_make(p, N_LIST, NULL, NULL));
    if (!n || !n->b) return NULL;
    while (!at_tok(p, T_BLOCK_END)) {
        node *t, *v;
        if (l.n && !expect_tok(p, T_COMMA, "expected ','")) return NULL;
        if (!(t = parse_target(p, false, false)) || !expect_tok(p, T_ASSIGN, "expected '='") ||
            !(v = parse_expr(p)))
            return NULL;
        if (!parse_add(p, &l, t) || !parse_add(p, &l, v)) return NULL;
    }
    n->b->list = l.v, n->b->n = l.n;
    return parse_block_to(p, "endwith", n) ? n : NULL;
}
static NOINLINE node *parse_filter_block(parser *p)
{
    node *n = parse_make(p, N_FILTERBLOCK, NULL, NULL);
    if (!n || !(n->a = parse_filter(p, NULL)) || !(n->a = parse_filters(p, n->a))) return NULL;
    return parse_block_to(p, "endfilter", n) ? n : NULL;
}
static NOINLINE node *parse_print(parser *p)
{
    nodes l = {0};
    node *n = parse_make(p, N_IF, NULL, NULL), *b = parse_make(p, N_BRANCH, NULL, NULL);
    if (!n || !b) return NULL;
    while (!at_tok(p, T_BLOCK_END)) {
        node *out = parse_make(p, N_OUTPUT, NULL, NULL);
        if (l.n && !expect_tok(p, T_COMMA, "expected ','")) return NULL;
        if (!out || !(out->a = parse_expr(p)) || !parse_add(p, &l, out)) return NULL;
    }
    b->list = l.v, b->n = l.n;
    n->list = jj_alloc(p->j, 1, sizeof *n->list), n->n = 1;
    if (n->list) n->list[0] = b;
    return n->list ? n : NULL;
}
static node *parse_jump(parser *p, nkind kind)
{
    return p->n_loops ? parse_make(p, kind, NULL, NULL) : parse_fail(p, "break and continue belong in a loop");
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
    if (skip_name(p, "generation"))
        return (n = parse_make(p, N_SCOPE, NULL, NULL)) && parse_block_to(p, "endgeneration", n) ? n : NULL;
    return parse_fail(p, "unknown or unexpected tag");
}

static bool ends_body(const parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (at_name(p, *ends)) return true;
    return false;
}
/* Statements up to an end tag (NULL: the end of the template). */
static bool parse_body(parser *p, const char *const *ends, nodes *out)
{
    if (!parse_enter(p)) return false;
    while (!at_tok(p, T_EOF)) {
        node *n;
        if (at_tok(p, T_DATA)) {
            n = parse_constant(p, p->t->v);
            if (n) n->kind = N_DATA;
        } else if (skip_tok(p, T_VAR_BEGIN)) {
            n = parse_make(p, N_OUTPUT, NULL, NULL);
            if (n &&
                (!(n->a = parse_tuple(p, true, false, NULL)) || !expect_tok(p, T_VAR_END, "expected '}}'")))
                return false;
        } else {
            next_tok(p);
            if (ends_body(p, ends)) return p->depth--, true;
            n = parse_statement(p);
            if (n && !expect_tok(p, T_BLOCK_END, "expected '%}'")) return false;
        }
        if (!n || !parse_add(p, out, n)) return false;
    }
    p->depth--;
    return ends ? (parse_fail(p, "a block is not closed"), false) : true;
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
    if (!parse_body(q, NULL, &l) || !(*out = parse_make(q, N_SCOPE, NULL, NULL))) return false;
    (*out)->list = l.v, (*out)->n = l.n;
    return true;
}
