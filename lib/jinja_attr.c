/*
 * jinja_attr.c - attributes, items, methods of lists and dicts, and the global functions. See jinja_eval.h.
 *
 * "a.b" tries the attribute first and then the item, "a['b']" the other way round. Methods that would change a
 * list or a dict do not exist, as in the immutable sandbox: they are undefined, and calling them fails.
 */
#include "jinja_eval.h"

#include "os.h"

/* ---- methods of containers ------------------------------------------------------------------------ */

static bool dict_items_m(jj *j, val self, const jargs *a, val *out)
{
    return jj_bind(j, "items", a, "", 0, NULL) && v_view(j, self.u.d, 'i', out);
}
static bool dict_keys_m(jj *j, val self, const jargs *a, val *out)
{
    return jj_bind(j, "keys", a, "", 0, NULL) && v_view(j, self.u.d, 'k', out);
}
static bool dict_values_m(jj *j, val self, const jargs *a, val *out)
{
    return jj_bind(j, "values", a, "", 0, NULL) && v_view(j, self.u.d, 'v', out);
}
static bool dict_get_m(jj *j, val self, const jargs *a, val *out)
{
    val v[2];
    const val *found;
    if (a->n_kw) return jj_fail(j, "dict.get() takes no keyword arguments");
    if (!jj_bind(j, "get", a, "key default", 1, v) || !dict_find(j, self.u.d, v[0], &found)) return false;
    *out = found ? *found : v[1].type == V_MISSING ? v_none() : v[1];
    return true;
}
static bool copy_m(jj *j, val self, const jargs *a, val *out)
{
    *out = self; /* nothing can change it */
    return jj_bind(j, "copy", a, "", 0, NULL);
}
static bool list_count_m(jj *j, val self, const jargs *a, val *out)
{
    val v;
    int64_t n = 0;
    if (!jj_bind(j, "count", a, "value", 1, &v)) return false;
    for (uint32_t i = 0; i < self.u.l->n; i++) {
        bool same;
        if (!v_eq(j, self.u.l->v[i], v, &same)) return false;
        n += same;
    }
    *out = v_int(n);
    return true;
}
static bool list_index_m(jj *j, val self, const jargs *a, val *out)
{
    val v[3];
    int64_t from, to, n = self.u.l->n;
    if (!jj_bind(j, "index", a, "value start stop", 1, v) || !arg_int(j, "index", v[1], 0, &from) ||
        !arg_int(j, "index", v[2], n, &to))
        return false;
    from = from < 0 ? MAX(from + n, 0) : from;
    to = to < 0 ? to + n : MIN(to, n);
    for (int64_t i = from; i < to; i++) {
        bool same;
        if (!v_eq(j, self.u.l->v[i], v[0], &same)) return false;
        if (same) return *out = v_int(i), true;
    }
    return jj_fail(j, "index: the value is not in the list");
}

static const jfunc dict_methods[] = {{"items", dict_items_m}, {"keys", dict_keys_m}, {"values", dict_values_m},
                                     {"get", dict_get_m},     {"copy", copy_m},      {"clear", NULL},
                                     {"pop", NULL},           {"popitem", NULL},     {"setdefault", NULL},
                                     {"update", NULL},        {"fromkeys", NULL}};
static const jfunc list_methods[] = {{"count", list_count_m}, {"index", list_index_m}, {"copy", copy_m},
                                     {"append", NULL},        {"clear", NULL},         {"extend", NULL},
                                     {"insert", NULL},        {"pop", NULL},           {"remove", NULL},
                                     {"reverse", NULL},       {"sort", NULL}};

/* ---- loop, macro, cycler -------------------------------------------------------------------------- */

static bool loop_cycle(jj *j, val self, const jargs *a, val *out)
{
    if (!a->n_pos) return jj_fail(j, "no items for cycling given");
    *out = a->pos[self.u.loop->at % a->n_pos];
    return true;
}
static bool loop_changed(jj *j, val self, const jargs *a, val *out)
{
    val now;
    bool same = false;
    if (!v_list(j, V_TUPLE, (val *)(uintptr_t)a->pos, a->n_pos, &now)) return false;
    if (self.u.loop->last_changed.type != V_MISSING && !v_eq(j, self.u.loop->last_changed, now, &same))
        return false;
    self.u.loop->last_changed = now;
    *out = v_bool(!same);
    return true;
}
static bool loop_attr(jj *j, val obj, const jstr *name, val *out)
{
    static const jfunc methods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};
    const jloop *l = obj.u.loop;
    int64_t n = l->items.n, i = l->at;
    const jfunc *fn = jfunc_find(methods, ARRAY_LEN(methods), name);
    if (fn) return v_method(j, obj, fn, out);
    if (str_is(name, "index")) *out = v_int(i + 1);
    else if (str_is(name, "index0")) *out = v_int(i);
    else if (str_is(name, "revindex")) *out = v_int(n - i);
    else if (str_is(name, "revindex0")) *out = v_int(n - i - 1);
    else if (str_is(name, "first")) *out = v_bool(i == 0);
    else if (str_is(name, "last")) *out = v_bool(i == n - 1);
    else if (str_is(name, "length")) *out = v_int(n);
    else if (str_is(name, "depth")) *out = v_int((int64_t)l->depth0 + 1);
    else if (str_is(name, "depth0")) *out = v_int(l->depth0);
    else if (str_is(name, "previtem")) *out = i > 0 ? l->items.v[i - 1] : v_undef(name, V_LOOP);
    else if (str_is(name, "nextitem")) *out = i + 1 < n ? l->items.v[i + 1] : v_undef(name, V_LOOP);
    else *out = v_undef(name, V_LOOP);
    return true;
}
static bool macro_attr(jj *j, const jmacro *m, const jstr *name, val *out)
{
    const jparams *p = m->def->u.params;
    if (str_is(name, "name")) return *out = m->def->sym ? v_str(m->def->sym->name) : v_none(), true;
    if (str_is(name, "caller")) return *out = v_bool(p->uses_caller), true;
    if (!str_is(name, "arguments")) return *out = v_undef(name, V_MACRO), true;
    val *v = jj_alloc(j, p->n, sizeof *v);
    if (!v) return false;
    for (uint32_t i = 0; i < p->n; i++) v[i] = v_str(p->name[i]->name);
    return v_list(j, V_TUPLE, v, p->n, out);
}
static bool cycler_next(jj *j, val self, const jargs *a, val *out)
{
    jcycle *c = self.u.cycle;
    *out = c->items.v[c->pos];
    c->pos = (c->pos + 1) % c->items.n;
    return jj_bind(j, "next", a, "", 0, NULL);
}
static bool cycler_reset(jj *j, val self, const jargs *a, val *out)
{
    self.u.cycle->pos = 0;
    *out = v_none();
    return jj_bind(j, "reset", a, "", 0, NULL);
}
static bool cycler_attr(jj *j, val obj, const jstr *name, val *out)
{
    static const jfunc methods[] = {{"next", cycler_next}, {"reset", cycler_reset}};
    const jfunc *fn = jfunc_find(methods, ARRAY_LEN(methods), name);
    if (fn) return v_method(j, obj, fn, out);
    *out = str_is(name, "current") ? obj.u.cycle->items.v[obj.u.cycle->pos] : v_undef(name, V_CYCLER);
    return true;
}

/* ---- attributes and items ------------------------------------------------------------------------- */

/* An attribute in the narrow sense; *out V_MISSING when there is none. */
bool jinja_own_attr(jj *j, val obj, const jstr *name, val *out)
{
    const jfunc *fn = NULL;
    *out = v_missing();
    switch (obj.type) {
    case V_DICT: fn = jfunc_find(dict_methods, ARRAY_LEN(dict_methods), name); break;
    case V_LIST: fn = jfunc_find(list_methods, ARRAY_LEN(list_methods), name); break;
    case V_TUPLE:
        if (obj.base && (str_is(name, "grouper") || str_is(name, "list")))
            return *out = obj.u.l->v[name->s[0] == 'l'], true;
        fn = jfunc_find(list_methods, 2, name);
        break;
    case V_RANGE: {
        jlist items;
        if (!(fn = jfunc_find(list_methods, 2, name))) return true;
        if (!v_items(j, obj, &items) || !v_list(j, V_LIST, items.v, items.n, &obj)) return false;
        break;
    }
    case V_STR: fn = jinja_str_method(name); break;
    case V_LOOP: return loop_attr(j, obj, name, out);
    case V_MACRO: return macro_attr(j, obj.u.macro, name, out);
    case V_CYCLER: return cycler_attr(j, obj, name, out);
    case V_NS: {
        const val *found;
        if (!dict_find(j, obj.u.d, v_str(name), &found)) return false;
        if (found) *out = *found;
        return true;
    }
    default: break;
    }
    if (!fn) return true;
    if (!fn->fn) return *out = v_undef(name, obj.type), true; /* not allowed here */
    return v_method(j, obj, fn, out);
}

/* The element of a container; *out V_MISSING when there is none. */
static bool own_item(jj *j, val obj, val key, val *out)
{
    const val *found = NULL;
    int64_t i;
    *out = v_missing();
    if (obj.type == V_DICT) {
        bool hashable = key.type != V_LIST && key.type != V_DICT && key.type != V_NS;
        if (hashable && !dict_find(j, obj.u.d, key, &found)) return false;
        if (found) *out = *found;
        return true;
    }
    if (!v_as_int(key, &i)) return true;
    int64_t n = obj.type == V_STR                           ? obj.u.s->n_cp
                : obj.type == V_RANGE                       ? range_len(obj.u.r)
                : obj.type == V_LIST || obj.type == V_TUPLE ? (int64_t)obj.u.l->n
                                                            : 0;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return true;
    if (obj.type == V_RANGE) return *out = v_int(obj.u.r->start + obj.u.r->step * i), true;
    if (obj.type != V_STR) return *out = obj.u.l->v[i], true;
    size_t from = str_offset(obj.u.s, (uint32_t)i), to = from + 1;
    while (to < obj.u.s->len && ((uint8_t)obj.u.s->s[to] & 0xc0) == 0x80) to++;
    return jj_step(j, from / 64) && str_sub(j, obj.u.s, from, to, out);
}

bool jinja_attr(jj *j, val obj, const jstr *name, val *out)
{
    if (obj.type == V_UNDEF) return v_undef_fail(j, obj);
    if (!jinja_own_attr(j, obj, name, out)) return false;
    if (out->type == V_MISSING && !own_item(j, obj, v_str(name), out)) return false;
    if (out->type == V_MISSING) *out = v_undef(name, obj.type);
    return true;
}
bool jinja_item(jj *j, val obj, val key, val *out)
{
    if (obj.type == V_UNDEF) return v_undef_fail(j, obj);
    if (!own_item(j, obj, key, out)) return false;
    if (out->type == V_MISSING && key.type == V_STR && !jinja_own_attr(j, obj, key.u.s, out)) return false;
    if (out->type == V_MISSING) *out = v_undef(key.type == V_STR ? key.u.s : NULL, obj.type);
    return true;
}

/* ---- global functions ----------------------------------------------------------------------------- */

static bool g_range(jj *j, val self, const jargs *a, val *out)
{
    val v[3];
    jrange *r = jj_alloc(j, 1, sizeof *r);
    UNUSED(self);
    if (!r || !jj_bind(j, "range", a, "start stop step", 1, v)) return false;
    for (int i = 0; i < 3; i++)
        if (v[i].type == V_NONE) return jj_fail(j, "range() wants integers, not None");
    r->start = 0;
    if (v[1].type == V_MISSING) {
        if (!arg_int(j, "range", v[0], 0, &r->stop)) return false;
    } else if (!arg_int(j, "range", v[0], 0, &r->start) || !arg_int(j, "range", v[1], 0, &r->stop)) {
        return false;
    }
    if (!arg_int(j, "range", v[2], 1, &r->step)) return false;
    if (r->step == 0) return jj_fail(j, "range() arg 3 must not be zero");
    int64_t n = range_len(r);
    if (n < 0 || n > JJ_MAX_RANGE)
        return jj_fail(j, "range too big, at most %d elements are allowed", JJ_MAX_RANGE);
    *out = (val){.type = V_RANGE, .u.r = r};
    return true;
}
/* Of a mapping or an iterable of pairs, and keywords. */
static bool fill_dict(jj *j, const char *fn, const jargs *a, jdict *d)
{
    if (a->n_pos > 1) return jj_fail(j, "%s expected at most 1 argument, got %u", fn, a->n_pos);
    if (a->n_pos && a->pos[0].type == V_DICT) {
        for (uint32_t i = 0; i < a->pos[0].u.d->n; i++)
            if (!dict_set(j, d, a->pos[0].u.d->e[i].k, a->pos[0].u.d->e[i].v)) return false;
    } else if (a->n_pos) {
        jlist items, pair;
        if (!v_items(j, a->pos[0], &items)) return false;
        for (uint32_t i = 0; i < items.n; i++) {
            if (!v_items(j, items.v[i], &pair)) return false;
            if (pair.n != 2) return jj_fail(j, "%s: element %u has length %u; 2 is required", fn, i, pair.n);
            if (!dict_set(j, d, pair.v[0], pair.v[1])) return false;
        }
    }
    for (uint32_t i = 0; i < a->n_kw; i++)
        if (!dict_set(j, d, v_str(a->kw_name[i]), a->kw[i])) return false;
    return true;
}
static bool g_dict(jj *j, val self, const jargs *a, val *out)
{
    UNUSED(self);
    *out = (val){.type = V_DICT, .u.d = dict_new(j)};
    return out->u.d && fill_dict(j, "dict", a, out->u.d);
}
static bool g_namespace(jj *j, val self, const jargs *a, val *out)
{
    UNUSED(self);
    *out = (val){.type = V_NS, .u.d = dict_new(j)};
    return out->u.d && fill_dict(j, "namespace", a, out->u.d);
}
static bool g_raise(jj *j, val self, const jargs *a, val *out)
{
    val v;
    const jstr *s;
    UNUSED(self);
    UNUSED(out);
    if (!jj_bind(j, "raise_exception", a, "message", 1, &v) || !v_to_str(j, v, &s)) return false;
    return jj_fail(j, "%.*s", (int)MIN(s->len, 380u), s->s);
}
static bool g_strftime_now(jj *j, val self, const jargs *a, val *out)
{
    val v;
    UNUSED(self);
    if (!jj_bind(j, "strftime_now", a, "format", 1, &v)) return false;
    if (v.type != V_STR) return jj_fail(j, "strftime_now() wants a string, not '%s'", v_type_name(v));
    return format_time(j, v.u.s, os_unix_time(), out);
}
static bool new_cycle(jj *j, jtype type, const val *v, uint32_t n, val *out)
{
    jcycle *c = jj_alloc(j, 1, sizeof *c);
    val *items = jj_alloc(j, n, sizeof *items);
    if (!c || !items) return false;
    memcpy(items, v, n * sizeof *items);
    c->items = (jlist){items, n};
    *out = (val){.type = (uint8_t)type, .u.cycle = c};
    return true;
}
static bool g_cycler(jj *j, val self, const jargs *a, val *out)
{
    UNUSED(self);
    if (!a->n_pos || a->n_kw) return jj_fail(j, "cycler() wants at least one item");
    return new_cycle(j, V_CYCLER, a->pos, a->n_pos, out);
}
static bool g_joiner(jj *j, val self, const jargs *a, val *out)
{
    val sep;
    UNUSED(self);
    if (!jj_bind(j, "joiner", a, "sep", 0, &sep)) return false;
    if (sep.type == V_MISSING && !v_lit(j, ", ", &sep)) return false;
    return new_cycle(j, V_JOINER, &sep, 1, out);
}

const jfunc jinja_globals[] = {{"range", g_range},
                               {"dict", g_dict},
                               {"namespace", g_namespace},
                               {"raise_exception", g_raise},
                               {"strftime_now", g_strftime_now},
                               {"cycler", g_cycler},
                               {"joiner", g_joiner}};
const size_t jinja_n_globals = ARRAY_LEN(jinja_globals);
