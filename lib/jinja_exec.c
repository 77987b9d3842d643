/* jinja_exec.c - statements: scopes, loops, macros. See jinja_eval.h. */
#include "jinja_eval.h"

typedef enum { FLOW_FAIL, FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;

static flow exec_body(jj *j, jframe *f, const node *n, sb *out);

/* ---- frames --------------------------------------------------------------------------------------- */

jframe *jinja_frame_new(jj *j, jframe *parent)
{
    jframe *f = jj_alloc(j, 1, sizeof *f);
    if (f) f->parent = parent;
    return f;
}
bool jinja_frame_set(jj *j, jframe *f, const jsym *sym, val v)
{
    for (jvar *x = f->vars; x; x = x->next)
        if (x->sym == sym) return x->v = v, true;
    jvar *x = jj_alloc(j, 1, sizeof *x);
    if (!x) return false;
    *x = (jvar){sym, v, f->vars};
    f->vars = x;
    return true;
}
bool jinja_lookup(const jframe *f, const jsym *sym, val *out)
{
    for (; f; f = f->parent)
        for (const jvar *x = f->vars; x; x = x->next)
            if (x->sym == sym) return *out = x->v, true;
    return false;
}

static NOINLINE bool assign(jj *j, jframe *f, const node *target, val v)
{
    if (target->kind == N_NAME) return jinja_frame_set(j, f, target->sym, v);
    if (target->kind == N_NSREF) {
        val ns;
        if (!jinja_lookup(f, target->sym, &ns)) return v_undef_fail(j, v_undef(target->sym->name, V_MISSING));
        if (ns.type != V_NS) return jj_fail(j, "cannot assign attribute on non-namespace object");
        return dict_set(j, ns.u.d, v_str(target->b->sym->name), v);
    }
    jlist items;
    if (v.type == V_UNDEF && target->n) return v_undef_fail(j, v);
    if (!v_items(j, v, &items)) return false;
    if (items.n != target->n) return jj_fail(j, "cannot unpack %u values into %u names", items.n, target->n);
    for (uint32_t i = 0; i < target->n; i++)
        if (!assign(j, f, target->list[i], items.v[i])) return false;
    return true;
}

/* ---- loops ---------------------------------------------------------------------------------------- */

/* Elements that pass the "if" of the loop. */
static NOINLINE bool loop_filter(jj *j, jframe *f, const node *n, jlist *items)
{
    val *kept = jj_alloc(j, items->n, sizeof *kept);
    uint32_t n_kept = 0;
    if (!kept) return false;
    for (uint32_t i = 0; i < items->n; i++) {
        jframe *inner = jinja_frame_new(j, f);
        val test;
        if (!inner || !assign(j, inner, n->a, items->v[i]) || !jinja_eval(j, inner, n->c, &test)) return false;
        if (v_truth(test)) kept[n_kept++] = items->v[i];
    }
    *items = (jlist){kept, n_kept};
    return true;
}

static NOINLINE flow run_loop(jj *j, jframe *f, const node *n, val iterable, uint32_t depth0, sb *out)
{
    jlist items;
    jloop *l;
    if (!v_items(j, iterable, &items) || (n->c && !loop_filter(j, f, n, &items))) return FLOW_FAIL;
    if (items.n == 0) {
        jframe *inner = n->d ? jinja_frame_new(j, f) : NULL;
        if (!n->d) return FLOW_NEXT;
        return inner ? exec_body(j, inner, n->d, out) : FLOW_FAIL;
    }
    if (!(l = jj_alloc(j, 1, sizeof *l))) return FLOW_FAIL;
    *l = (jloop){.def = n, .frame = f, .items = items, .depth0 = depth0, .last_changed = v_missing()};
    for (; l->at < items.n; l->at++) {
        jframe *inner = jinja_frame_new(j, f);
        if (!inner || !jinja_frame_set(j, inner, n->sym, (val){.type = V_LOOP, .u.loop = l})) return FLOW_FAIL;
        if (!assign(j, inner, n->a, items.v[l->at])) return FLOW_FAIL;
        flow r = exec_body(j, inner, n, out);
        if (r == FLOW_FAIL) return r;
        if (r == FLOW_BREAK) break;
    }
    return FLOW_NEXT;
}
static NOINLINE flow exec_for(jj *j, jframe *f, const node *n, sb *out)
{
    val iterable;
    if (!jinja_eval(j, f, n->b, &iterable)) return FLOW_FAIL;
    j->line = n->line;
    return run_loop(j, f, n, iterable, 0, out);
}

bool jinja_call_loop(jj *j, const jloop *l, const jargs *args, val *out)
{
    val items;
    sb b = {.j = j};
    if (!l->def->op) return jj_fail(j, "the loop must have the 'recursive' marker to be called recursively");
    if (!jj_bind(j, "loop", args, "iterable", 1, &items) || !jj_enter(j)) return false;
    if (items.type == V_UNDEF) return v_undef_fail(j, items);
    if (run_loop(j, l->frame, l->def, items, l->depth0 + 1, &b) == FLOW_FAIL) return false;
    j->depth--;
    return sb_done(&b, out);
}

/* ---- macros --------------------------------------------------------------------------------------- */

/* Takes keyword `name` out of kw (by marking it used); false when it is not there. */
static bool take_keyword(const jargs *a, bool *used, const jstr *name, val *out)
{
    for (uint32_t i = 0; i < a->n_kw; i++)
        if (!used[i] && str_eq(a->kw_name[i], name)) return used[i] = true, *out = a->kw[i], true;
    return false;
}
/* caller, kwargs and varargs, when the body uses them; arguments that nothing takes are errors. */
static NOINLINE bool bind_special(jj *j, jframe *f, const node *def, const jargs *a, bool *used)
{
    const jparams *p = def->u.params;
    val caller = v_undef(NULL, V_UNDEF), rest;
    jstr caller_name = {.s = "caller", .len = 6, .n_cp = 6};
    bool is_param = false;
    for (uint32_t i = 0; i < p->n; i++) is_param |= str_is(p->name[i]->name, "caller");
    if (p->uses_caller && !is_param) {
        take_keyword(a, used, &caller_name, &caller);
        if (!jinja_frame_set(j, f, p->special[0], caller)) return false;
    }
    if (p->uses_kwargs) {
        jdict *d = dict_new(j);
        if (!d) return false;
        for (uint32_t i = 0; i < a->n_kw; i++)
            if (!used[i] && !dict_set(j, d, v_str(a->kw_name[i]), a->kw[i])) return false;
        memset(used, 1, a->n_kw);
        if (!jinja_frame_set(j, f, p->special[1], (val){.type = V_DICT, .u.d = d})) return false;
    }
    if (p->uses_varargs) {
        uint32_t n = a->n_pos > p->n ? a->n_pos - p->n : 0;
        val *v = jj_alloc(j, n, sizeof *v);
        if (!v) return false;
        if (n) memcpy(v, a->pos + p->n, n * sizeof *v);
        if (!v_list(j, V_TUPLE, v, n, &rest) || !jinja_frame_set(j, f, p->special[2], rest)) return false;
    } else if (a->n_pos > p->n) {
        return jj_fail(j, "a macro takes not more than %u arguments, got %u", p->n, a->n_pos);
    }
    for (uint32_t i = 0; i < a->n_kw; i++)
        if (!used[i])
            return jj_fail(j, "a macro takes no keyword argument '%.*s'", (int)MIN(a->kw_name[i]->len, 60u),
                           a->kw_name[i]->s);
    return true;
}
static NOINLINE bool bind_params(jj *j, jframe *f, const node *def, const jargs *a)
{
    const jparams *p = def->u.params;
    bool *used = jj_alloc(j, a->n_kw, sizeof *used);
    if (!used) return false;
    for (uint32_t i = 0; i < p->n; i++) {
        val v = v_missing();
        if (i < a->n_pos) v = a->pos[i];
        else take_keyword(a, used, p->name[i]->name, &v);
        if (!jinja_frame_set(j, f, p->name[i], v)) return false;
    }
    if (!bind_special(j, f, def, a, used)) return false;
    for (uint32_t i = 0; i < p->n; i++) { /* defaults may use the parameters before them */
        val v = v_missing();
        jinja_lookup(f, p->name[i], &v);
        if (v.type != V_MISSING || !p->def[i]) continue;
        if (!jinja_eval(j, f, p->def[i], &v) || !jinja_frame_set(j, f, p->name[i], v)) return false;
    }
    return true;
}

NOINLINE bool jinja_call_macro(jj *j, const jmacro *m, const jargs *args, val *out)
{
    sb b = {.j = j};
    jframe *f = jinja_frame_new(j, m->frame);
    if (!f || !jj_enter(j) || !bind_params(j, f, m->def, args)) return false;
    if (exec_body(j, f, m->def, &b) == FLOW_FAIL) return false;
    j->depth--;
    return sb_done(&b, out);
}
static bool make_macro(jj *j, jframe *f, const node *def, val *out)
{
    jmacro *m = jj_alloc(j, 1, sizeof *m);
    if (!m) return false;
    *m = (jmacro){def, f};
    *out = (val){.type = V_MACRO, .u.macro = m};
    return true;
}

/* The call gets one more keyword: caller. */
static NOINLINE flow exec_call_block(jj *j, jframe *f, const node *n, sb *out)
{
    val fn, caller, text;
    jargs a;
    if (!jinja_eval(j, f, n->b->a, &fn) || !jinja_args(j, f, n->b->u.args, &a) ||
        !make_macro(j, f, n->a, &caller))
        return FLOW_FAIL;
    const jstr **name = jj_alloc(j, (uint64_t)a.n_kw + 1, sizeof *name);
    val *kw = jj_alloc(j, (uint64_t)a.n_kw + 1, sizeof *kw);
    if (!name || !kw || !(name[a.n_kw] = str_lit(j, "caller"))) return FLOW_FAIL;
    if (a.n_kw) memcpy(name, a.kw_name, a.n_kw * sizeof *name), memcpy(kw, a.kw, a.n_kw * sizeof *kw);
    kw[a.n_kw] = caller;
    a.kw_name = name, a.kw = kw, a.n_kw++;
    j->line = n->line;
    return jinja_call(j, fn, &a, &text) && sb_val(out, text) ? FLOW_NEXT : FLOW_FAIL;
}

/* ---- other statements ----------------------------------------------------------------------------- */

/* The body's text in a scope of its own. A jump out of it drops the text, as it does in jinja2. */
static NOINLINE flow capture(jj *j, jframe *f, const node *n, val *out)
{
    sb b = {.j = j};
    jframe *inner = jinja_frame_new(j, f);
    flow r = inner ? exec_body(j, inner, n, &b) : FLOW_FAIL;
    return r == FLOW_FAIL || !sb_done(&b, out) ? FLOW_FAIL : r;
}
static NOINLINE flow exec_set_block(jj *j, jframe *f, const node *n)
{
    val text;
    flow r = capture(j, f, n, &text);
    if (r != FLOW_NEXT) return r;
    j->block_text = text;
    if (n->b && !jinja_eval(j, f, n->b, &text)) return FLOW_FAIL;
    return assign(j, f, n->a, text) ? FLOW_NEXT : FLOW_FAIL;
}
static NOINLINE flow exec_filter_block(jj *j, jframe *f, const node *n, sb *out)
{
    val text;
    flow r = capture(j, f, n, &text);
    if (r != FLOW_NEXT) return r;
    j->block_text = text;
    return jinja_eval(j, f, n->a, &text) && sb_val(out, text) ? FLOW_NEXT : FLOW_FAIL;
}
static NOINLINE flow exec_with(jj *j, jframe *f, const node *n, sb *out)
{
    jframe *inner = jinja_frame_new(j, f);
    if (!inner) return FLOW_FAIL;
    for (uint32_t i = 0; i < n->b->n; i += 2) { /* values see the scope around it */
        val v;
        if (!jinja_eval(j, f, n->b->list[i + 1], &v) || !assign(j, inner, n->b->list[i], v)) return FLOW_FAIL;
    }
    return exec_body(j, inner, n, out);
}
static NOINLINE flow exec_if(jj *j, jframe *f, const node *n, sb *out)
{
    for (uint32_t i = 0; i < n->n; i++) {
        val test = v_bool(true);
        if (n->list[i]->a && !jinja_eval(j, f, n->list[i]->a, &test)) return FLOW_FAIL;
        if (v_truth(test)) return exec_body(j, f, n->list[i], out);
    }
    return FLOW_NEXT;
}
static NOINLINE flow exec_output(jj *j, jframe *f, const node *n, sb *out)
{
    val v;
    return jinja_eval(j, f, n->a, &v) && sb_val(out, v) ? FLOW_NEXT : FLOW_FAIL;
}
static NOINLINE flow exec_set(jj *j, jframe *f, const node *n)
{
    val v;
    return jinja_eval(j, f, n->b, &v) && (j->line = n->line, assign(j, f, n->a, v)) ? FLOW_NEXT : FLOW_FAIL;
}
static NOINLINE flow exec_macro(jj *j, jframe *f, const node *n)
{
    val m;
    return make_macro(j, f, n, &m) && jinja_frame_set(j, f, n->sym, m) ? FLOW_NEXT : FLOW_FAIL;
}

static flow exec_node(jj *j, jframe *f, const node *n, sb *out)
{
    jframe *inner;
    j->line = n->line;
    switch (n->kind) {
    case N_DATA: return sb_str(out, n->u.v.u.s) ? FLOW_NEXT : FLOW_FAIL;
    case N_OUTPUT: return exec_output(j, f, n, out);
    case N_IF: return exec_if(j, f, n, out);
    case N_FOR: return exec_for(j, f, n, out);
    case N_SET: return exec_set(j, f, n);
    case N_SETBLOCK: return exec_set_block(j, f, n);
    case N_MACRO: return exec_macro(j, f, n);
    case N_CALLBLOCK: return exec_call_block(j, f, n, out);
    case N_FILTERBLOCK: return exec_filter_block(j, f, n, out);
    case N_WITH: return exec_with(j, f, n, out);
    case N_SCOPE: return (inner = jinja_frame_new(j, f)) ? exec_body(j, inner, n, out) : FLOW_FAIL;
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    default: return jj_fail(j, "not a statement") ? FLOW_NEXT : FLOW_FAIL;
    }
}
/* n->list in frame f. */
static flow exec_body(jj *j, jframe *f, const node *n, sb *out)
{
    flow r = FLOW_NEXT;
    if (!jj_enter(j)) return FLOW_FAIL;
    for (uint32_t i = 0; r == FLOW_NEXT && i < n->n; i++) {
        if (!jj_step(j, 1)) return FLOW_FAIL;
        r = exec_node(j, f, n->list[i], out);
    }
    j->depth--;
    return r;
}

bool jinja_run(jj *j, jframe *f, const node *root, sb *out) { return exec_body(j, f, root, out) != FLOW_FAIL; }
