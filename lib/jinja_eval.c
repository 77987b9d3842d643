/*
 * jinja_eval.c - expressions. See jinja_eval.h.
 *
 * jinja_eval is the only recursion; its cases are functions of their own that are never inlined, so that a
 * level of nesting costs little stack.
 */
#include "jinja_eval.h"

#include "jinja_lex.h"

static NOINLINE bool eval_name(const jframe *f, const node *n, val *out)
{
    if (jinja_lookup(f, n->sym, out)) {
        if (out->type == V_MISSING) *out = v_undef(n->sym->name, V_MISSING); /* a parameter without argument */
        return true;
    }
    const jfunc *fn = jfunc_find(jinja_globals, jinja_n_globals, n->sym->name);
    *out = fn ? (val){.type = V_FUNC, .u.fn = fn} : v_undef(n->sym->name, V_MISSING);
    return true;
}

static NOINLINE bool eval_list(jj *j, jframe *f, const node *n, val *out)
{
    val *v = jj_alloc(j, n->n, sizeof *v);
    if (!v) return false;
    for (uint32_t i = 0; i < n->n; i++)
        if (!jinja_eval(j, f, n->list[i], &v[i])) return false;
    return v_list(j, n->kind == N_TUPLE ? V_TUPLE : V_LIST, v, n->n, out);
}
static NOINLINE bool eval_dict(jj *j, jframe *f, const node *n, val *out)
{
    jdict *d = dict_new(j);
    if (!d) return false;
    for (uint32_t i = 0; i < n->n; i += 2) {
        val k, v;
        if (!jinja_eval(j, f, n->list[i], &k) || !jinja_eval(j, f, n->list[i + 1], &v) || !dict_set(j, d, k, v))
            return false;
    }
    *out = (val){.type = V_DICT, .u.d = d};
    return true;
}

static NOINLINE bool eval_item(jj *j, jframe *f, const node *n, val *out)
{
    val obj, key;
    if (!jinja_eval(j, f, n->a, &obj) || !jinja_eval(j, f, n->b, &key)) return false;
    j->line = n->line;
    return jinja_item(j, obj, key, out);
}
static NOINLINE bool eval_attr(jj *j, jframe *f, const node *n, val *out)
{
    val obj;
    if (!jinja_eval(j, f, n->a, &obj)) return false;
    j->line = n->line;
    return jinja_attr(j, obj, n->sym->name, out);
}
static NOINLINE bool eval_slice(jj *j, jframe *f, const node *n, val *out)
{
    val obj, bounds[3];
    if (!jinja_eval(j, f, n->a, &obj)) return false;
    for (int i = 0; i < 3; i++) {
        bounds[i] = v_none();
        if (n->list[i] && !jinja_eval(j, f, n->list[i], &bounds[i])) return false;
    }
    j->line = n->line;
    return jinja_slice(j, obj, bounds, out);
}

/* ---- calls ---------------------------------------------------------------------------------------- */

static bool spread_positional(jj *j, val star, val **pos, uint32_t *n)
{
    jlist more;
    if (!v_items(j, star, &more)) return false;
    val *all = jj_alloc(j, (uint64_t)*n + more.n, sizeof *all);
    if (!all) return false;
    if (*n) memcpy(all, *pos, *n * sizeof *all);
    if (more.n) memcpy(all + *n, more.v, more.n * sizeof *all);
    *pos = all;
    *n += more.n;
    return true;
}
static bool spread_keywords(jj *j, val star2, const jstr **name, val *kw, uint32_t *n)
{
    for (uint32_t i = 0; i < star2.u.d->n; i++) {
        const jentry *e = &star2.u.d->e[i];
        if (e->k.type != V_STR) return jj_fail(j, "keywords must be strings");
        for (uint32_t k = 0; k < *n; k++)
            if (str_eq(name[k], e->k.u.s)) return jj_fail(j, "a keyword argument is given twice");
        name[*n] = e->k.u.s;
        kw[(*n)++] = e->v;
    }
    return jj_step(j, *n);
}

NOINLINE bool jinja_args(jj *j, jframe *f, const jcall *c, jargs *out)
{
    val *pos = NULL, *kw = NULL, star;
    uint32_t n_pos = c->n_pos, n_kw = 0;
    *out = (jargs){0};
    if (n_pos && !(pos = jj_alloc(j, n_pos, sizeof *pos))) return false;
    for (uint32_t i = 0; i < n_pos; i++)
        if (!jinja_eval(j, f, c->pos[i], &pos[i])) return false;
    if (c->star && (!jinja_eval(j, f, c->star, &star) || !spread_positional(j, star, &pos, &n_pos)))
        return false;
    out->pos = pos, out->n_pos = n_pos;
    if (!c->n_kw && !c->star2) return true;
    star = (val){.type = V_MISSING};
    if (c->star2 && !jinja_eval(j, f, c->star2, &star)) return false;
    if (c->star2 && star.type != V_DICT) return jj_fail(j, "the argument behind ** must be a mapping");
    uint64_t room = (uint64_t)c->n_kw + (c->star2 ? star.u.d->n : 0);
    const jstr **name = jj_alloc(j, room, sizeof *name);
    if (!name || !(kw = jj_alloc(j, room, sizeof *kw))) return false;
    for (; n_kw < c->n_kw; n_kw++) {
        name[n_kw] = c->kw_name[n_kw];
        if (!jinja_eval(j, f, c->kw[n_kw], &kw[n_kw])) return false;
    }
    if (c->star2 && !spread_keywords(j, star, name, kw, &n_kw)) return false;
    out->kw_name = name, out->kw = kw, out->n_kw = n_kw;
    return true;
}

bool jinja_call(jj *j, val fn, const jargs *args, val *out)
{
    switch (fn.type) {
    case V_FUNC: return fn.u.fn->fn(j, v_none(), args, out);
    case V_METHOD: return fn.u.method->fn->fn(j, fn.u.method->self, args, out);
    case V_MACRO: return jinja_call_macro(j, fn.u.macro, args, out);
    case V_LOOP: return jinja_call_loop(j, fn.u.loop, args, out);
    case V_JOINER:
        if (fn.u.cycle->used) return *out = fn.u.cycle->items.v[0], true;
        fn.u.cycle->used = true;
        return v_lit(j, "", out);
    case V_UNDEF: return v_undef_fail(j, fn);
    default: return jj_fail(j, "'%s' object is not callable", v_type_name(fn));
    }
}
static NOINLINE bool eval_call(jj *j, jframe *f, const node *n, val *out)
{
    val fn;
    jargs args;
    if (!jinja_eval(j, f, n->a, &fn) || !jinja_args(j, f, n->u.args, &args)) return false;
    j->line = n->line;
    return jinja_call(j, fn, &args, out);
}

bool jinja_filter(jj *j, const jstr *name, val self, const jargs *args, val *out)
{
    const jfunc *fn = jinja_text_filter(name);
    if (!fn) fn = jinja_seq_filter(name);
    if (!fn) return jj_fail(j, "there is no filter named '%.*s'", (int)MIN(name->len, 60u), name->s);
    return fn->fn(j, self, args, out);
}
bool jinja_test(jj *j, const jstr *name, val self, const jargs *args, bool *out)
{
    val v;
    const jfunc *fn = jinja_find_test(name);
    if (!fn) return jj_fail(j, "there is no test named '%.*s'", (int)MIN(name->len, 60u), name->s);
    if (!fn->fn(j, self, args, &v)) return false;
    *out = v_truth(v);
    return true;
}
static NOINLINE bool eval_filter(jj *j, jframe *f, const node *n, val *out)
{
    val self;
    jargs args;
    if (n->a) {
        if (!jinja_eval(j, f, n->a, &self)) return false;
    } else {
        self = j->block_text;
    }
    if (!jinja_args(j, f, n->u.args, &args)) return false;
    j->line = n->line;
    return jinja_filter(j, n->sym->name, self, &args, out);
}
static NOINLINE bool eval_test(jj *j, jframe *f, const node *n, val *out)
{
    val self;
    jargs args;
    bool r;
    if (!jinja_eval(j, f, n->a, &self) || !jinja_args(j, f, n->u.args, &args)) return false;
    j->line = n->line;
    if (!jinja_test(j, n->sym->name, self, &args, &r)) return false;
    *out = v_bool(r);
    return true;
}

/* ---- operators ------------------------------------------------------------------------------------ */

static NOINLINE bool eval_binary(jj *j, jframe *f, const node *n, val *out)
{
    val a, b;
    if (!jinja_eval(j, f, n->a, &a) || !jinja_eval(j, f, n->b, &b)) return false;
    j->line = n->line;
    return jinja_binary(j, n->op, a, b, out);
}
static NOINLINE bool eval_compare(jj *j, jframe *f, const node *n, val *out)
{
    val a, b;
    bool r = true;
    if (!jinja_eval(j, f, n->list[0], &a)) return false;
    for (uint32_t i = 1; r && i < n->n; i++) {
        if (!jinja_eval(j, f, n->list[i], &b)) return false;
        j->line = n->line;
        if (!jinja_compare(j, n->u.ops[i - 1], a, b, &r)) return false;
        a = b;
    }
    *out = v_bool(r);
    return true;
}
static NOINLINE bool eval_concat(jj *j, jframe *f, const node *n, val *out)
{
    sb b = {.j = j};
    for (uint32_t i = 0; i < n->n; i++) {
        val v;
        if (!jinja_eval(j, f, n->list[i], &v) || !sb_val(&b, v)) return false;
    }
    return sb_done(&b, out);
}
static NOINLINE bool eval_cond(jj *j, jframe *f, const node *n, val *out)
{
    val test;
    if (!jinja_eval(j, f, n->b, &test)) return false;
    if (v_truth(test)) return jinja_eval(j, f, n->a, out);
    if (n->c) return jinja_eval(j, f, n->c, out);
    *out = v_undef(NULL, V_UNDEF);
    return true;
}
static NOINLINE bool eval_unary(jj *j, jframe *f, const node *n, val *out)
{
    val a;
    if (!jinja_eval(j, f, n->a, &a)) return false;
    j->line = n->line;
    if (n->kind == N_NOT) return *out = v_bool(!v_truth(a)), true;
    return jinja_negate(j, a, n->kind == N_NEG, out);
}
/* "and", "or" give one of their operands. */
static NOINLINE bool eval_logic(jj *j, jframe *f, const node *n, val *out)
{
    if (!jinja_eval(j, f, n->a, out)) return false;
    return v_truth(*out) == (n->kind == N_OR) || jinja_eval(j, f, n->b, out);
}

bool jinja_eval(jj *j, jframe *f, const node *n, val *out)
{
    bool ok;
    if (n->kind == N_CONST) return *out = n->u.v, jj_step(j, 1);
    if (n->kind == N_NAME) return eval_name(f, n, out) && jj_step(j, 1);
    j->line = n->line;
    if (!jj_step(j, 1) || !jj_enter(j)) return false;
    switch (n->kind) {
    case N_LIST:
    case N_TUPLE: ok = eval_list(j, f, n, out); break;
    case N_DICT: ok = eval_dict(j, f, n, out); break;
    case N_ATTR: ok = eval_attr(j, f, n, out); break;
    case N_ITEM: ok = eval_item(j, f, n, out); break;
    case N_SLICE: ok = eval_slice(j, f, n, out); break;
    case N_CALL: ok = eval_call(j, f, n, out); break;
    case N_FILTER: ok = eval_filter(j, f, n, out); break;
    case N_TEST: ok = eval_test(j, f, n, out); break;
    case N_NEG:
    case N_POS:
    case N_NOT: ok = eval_unary(j, f, n, out); break;
    case N_BINARY: ok = eval_binary(j, f, n, out); break;
    case N_AND:
    case N_OR: ok = eval_logic(j, f, n, out); break;
    case N_COMPARE: ok = eval_compare(j, f, n, out); break;
    case N_CONCAT: ok = eval_concat(j, f, n, out); break;
    case N_COND: ok = eval_cond(j, f, n, out); break;
    default: ok = jj_fail(j, "not an expression"); break;
    }
    j->depth--;
    return ok;
}
