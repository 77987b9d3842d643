/* jinja_value.c - values: equality, order, iteration, dicts, arguments. See jinja_value.h. */
#include "jinja_value.h"

#include <math.h>
#include <stdio.h>

#include "hash.h"

bool jj_fail(jj *j, const char *fmt, ...)
{
    if (j->st < 0) return false;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->st = ERR(j->err, TESS_E_TEMPLATE, "chat template line %u: %s", j->line, text);
    return false;
}

void *jj_alloc(jj *j, uint64_t n, size_t size)
{
    size_t bytes;
    if (j->st < 0) return NULL;
    if (!size_mul3(n, size, 1, &bytes) || bytes > JJ_MAX_MEMORY - MIN(j->a.used, (size_t)JJ_MAX_MEMORY)) {
        jj_fail(j, "needs more than %d MiB of memory", JJ_MAX_MEMORY >> 20);
        return NULL;
    }
    void *p = arena_alloc(&j->a, n, size);
    if (!p)
        j->st = ERR(j->err, TESS_E_NOMEM, "out of memory for %zu bytes while rendering a chat template", bytes);
    return p;
}

bool jj_step(jj *j, uint64_t n)
{
    j->steps += n;
    return j->steps <= JJ_MAX_STEPS
               ? true
               : jj_fail(j, "more than %d steps; the template does not seem to end", JJ_MAX_STEPS);
}

bool jj_enter(jj *j)
{
    if (++j->depth <= JJ_MAX_EVAL_DEPTH) return true;
    return jj_fail(j, "nested deeper than %d levels", JJ_MAX_EVAL_DEPTH);
}

/* ---- making values -------------------------------------------------------------------------------- */

bool v_list(jj *j, jtype type, val *v, uint32_t n, val *out)
{
    jlist *l = jj_alloc(j, 1, sizeof *l);
    if (!l) return false;
    *l = (jlist){v, n};
    *out = (val){.type = (uint8_t)type, .u.l = l};
    return true;
}
bool v_iterator(jj *j, jlist items, val *out)
{
    jiter *it = jj_alloc(j, 1, sizeof *it);
    if (!it) return false;
    *it = (jiter){items, 0};
    *out = (val){.type = V_ITER, .u.it = it};
    return true;
}
bool v_view(jj *j, const jdict *d, char kind, val *out)
{
    jview *w = jj_alloc(j, 1, sizeof *w);
    if (!w) return false;
    *w = (jview){d, kind};
    *out = (val){.type = V_VIEW, .u.view = w};
    return true;
}
bool v_method(jj *j, val self, const jfunc *fn, val *out)
{
    jmethod *m = jj_alloc(j, 1, sizeof *m);
    if (!m) return false;
    *m = (jmethod){self, fn};
    *out = (val){.type = V_METHOD, .u.method = m};
    return true;
}

const char *v_type_name(val v)
{
    static const char *const names[] = {"Undefined", "NoneType",  "bool",      "int",         "float",
                                        "str",       "list",      "tuple",     "dict",        "range",
                                        "dict view", "generator", "Namespace", "LoopContext", "Macro",
                                        "function",  "method",    "Cycler",    "Joiner",      "missing"};
    return v.type < ARRAY_LEN(names) ? names[v.type] : "object";
}

bool v_undef_fail(jj *j, val v)
{
    if (!v.u.s) return jj_fail(j, "the value is undefined");
    int n = (int)MIN(v.u.s->len, 100u);
    if (v.base == V_MISSING) return jj_fail(j, "'%.*s' is undefined", n, v.u.s->s);
    return jj_fail(j, "'%s object' has no attribute '%.*s'", v_type_name((val){.type = v.base}), n, v.u.s->s);
}

/* ---- numbers, truth, equality, order -------------------------------------------------------------- */

bool v_is_num(val v) { return v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT; }
double v_num(val v) { return v.type == V_FLOAT ? v.u.f : v.type == V_INT ? (double)v.u.i : (double)v.u.b; }
bool v_as_int(val v, int64_t *out)
{
    if (v.type != V_INT && v.type != V_BOOL) return false;
    *out = v.type == V_INT ? v.u.i : (int64_t)v.u.b;
    return true;
}
int64_t range_len(const jrange *r)
{
    if (r->step > 0)
        return r->start >= r->stop
                   ? 0
                   : (int64_t)(((uint64_t)r->stop - (uint64_t)r->start - 1) / (uint64_t)r->step + 1);
    return r->start <= r->stop
               ? 0
               : (int64_t)(((uint64_t)r->start - (uint64_t)r->stop - 1) / (0 - (uint64_t)r->step) + 1);
}

bool v_truth(val v)
{
    switch (v.type) {
    case V_UNDEF:
    case V_NONE:
    case V_MISSING: return false;
    case V_BOOL: return v.u.b;
    case V_INT: return v.u.i != 0;
    case V_FLOAT: return v.u.f != 0;
    case V_STR: return v.u.s->len > 0;
    case V_LIST:
    case V_TUPLE: return v.u.l->n > 0;
    case V_DICT: return v.u.d->n > 0;
    case V_RANGE: return range_len(v.u.r) > 0;
    case V_VIEW: return v.u.view->d->n > 0;
    default: return true;
    }
}

/* Exact: long double holds every int64 and every double. */
static int num_cmp(val a, val b)
{
    long double x = a.type == V_FLOAT ? (long double)a.u.f
                    : a.type == V_INT ? (long double)a.u.i
                                      : (long double)a.u.b;
    long double y = b.type == V_FLOAT ? (long double)b.u.f
                    : b.type == V_INT ? (long double)b.u.i
                                      : (long double)b.u.b;
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

static bool list_eq(jj *j, const jlist *a, const jlist *b, bool *out)
{
    *out = a->n == b->n;
    for (uint32_t i = 0; *out && i < a->n; i++)
        if (!v_eq(j, a->v[i], b->v[i], out)) return false;
    return true;
}
static bool dict_eq(jj *j, const jdict *a, const jdict *b, bool *out)
{
    *out = a->n == b->n;
    for (uint32_t i = 0; *out && i < a->n; i++) {
        const val *other;
        if (!dict_find(j, b, a->e[i].k, &other)) return false;
        if (!other) *out = false;
        else if (!v_eq(j, a->e[i].v, *other, out)) return false;
    }
    return true;
}

bool v_eq(jj *j, val a, val b, bool *out)
{
    if (!jj_step(j, 1)) return false;
    if (v_is_num(a) && v_is_num(b)) return *out = num_cmp(a, b) == 0, true;
    if (a.type != b.type) return *out = false, true;
    bool ok = true;
    switch (a.type) {
    case V_UNDEF:
    case V_NONE:
    case V_MISSING: *out = true; break;
    case V_STR: *out = str_eq(a.u.s, b.u.s); break;
    case V_LIST:
    case V_TUPLE:
        ok = jj_enter(j) && list_eq(j, a.u.l, b.u.l, out);
        j->depth--;
        break;
    case V_DICT:
        ok = jj_enter(j) && dict_eq(j, a.u.d, b.u.d, out);
        j->depth--;
        break;
    case V_RANGE:
        *out = range_len(a.u.r) == range_len(b.u.r) &&
               (range_len(a.u.r) == 0 ||
                (a.u.r->start == b.u.r->start && (range_len(a.u.r) == 1 || a.u.r->step == b.u.r->step)));
        break;
    default: *out = a.u.d == b.u.d; break; /* identity */
    }
    return ok;
}

static bool list_cmp(jj *j, const jlist *a, const jlist *b, int *out)
{
    uint32_t n = MIN(a->n, b->n);
    for (uint32_t i = 0; i < n; i++) {
        bool same;
        if (!v_eq(j, a->v[i], b->v[i], &same)) return false;
        if (!same) return v_cmp(j, a->v[i], b->v[i], out);
    }
    *out = a->n < b->n ? -1 : a->n > b->n;
    return true;
}

bool v_cmp(jj *j, val a, val b, int *out)
{
    if (!jj_step(j, 1)) return false;
    if (v_is_num(a) && v_is_num(b)) return *out = num_cmp(a, b), true;
    if (a.type == V_UNDEF) return v_undef_fail(j, a);
    if (b.type == V_UNDEF) return v_undef_fail(j, b);
    if (a.type == V_STR && b.type == V_STR) return *out = str_cmp(a.u.s, b.u.s), true;
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        bool ok = jj_enter(j) && list_cmp(j, a.u.l, b.u.l, out);
        j->depth--;
        return ok;
    }
    return jj_fail(j, "'<' or '>' is not supported between '%s' and '%s'", v_type_name(a), v_type_name(b));
}

/* ---- iteration ------------------------------------------------------------------------------------ */

/* Characters of a safe string are plain ones. */
static bool chars_of(jj *j, const jstr *text, jlist *out)
{
    const jstr plain = {.s = text->s, .t = text->t, .len = text->len, .n_cp = text->n_cp}, *s = &plain;
    *out = (jlist){jj_alloc(j, s->n_cp, sizeof(val)), s->n_cp};
    if (!out->v) return false;
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_cp; i++) {
        size_t end = at + 1;
        while (end < s->len && ((uint8_t)s->s[end] & 0xc0) == 0x80) end++;
        if (!str_sub(j, s, at, end, &out->v[i])) return false;
        at = end;
    }
    return true;
}
static bool dict_items(jj *j, const jdict *d, char kind, jlist *out)
{
    *out = (jlist){jj_alloc(j, d->n, sizeof(val)), d->n};
    if (!out->v) return false;
    for (uint32_t i = 0; i < d->n; i++) {
        if (kind == 'k') out->v[i] = d->e[i].k;
        else if (kind == 'v') out->v[i] = d->e[i].v;
        else {
            val *pair = jj_alloc(j, 2, sizeof *pair);
            if (!pair) return false;
            pair[0] = d->e[i].k, pair[1] = d->e[i].v;
            if (!v_list(j, V_TUPLE, pair, 2, &out->v[i])) return false;
        }
    }
    return true;
}
static bool range_items(jj *j, const jrange *r, jlist *out)
{
    uint32_t n = (uint32_t)range_len(r);
    *out = (jlist){jj_alloc(j, n, sizeof(val)), n};
    if (!out->v) return false;
    for (uint32_t i = 0; i < n; i++) out->v[i] = v_int(r->start + r->step * (int64_t)i);
    return true;
}

bool v_items(jj *j, val v, jlist *out)
{
    *out = (jlist){NULL, 0};
    bool ok = true;
    switch (v.type) {
    case V_UNDEF: break;
    case V_STR: ok = chars_of(j, v.u.s, out); break;
    case V_LIST:
    case V_TUPLE: *out = *v.u.l; break;
    case V_DICT: ok = dict_items(j, v.u.d, 'k', out); break;
    case V_VIEW: ok = dict_items(j, v.u.view->d, v.u.view->kind, out); break;
    case V_RANGE: ok = range_items(j, v.u.r, out); break;
    case V_ITER:
        if (v.u.it->pos < v.u.it->items.n)
            *out = (jlist){v.u.it->items.v + v.u.it->pos, v.u.it->items.n - v.u.it->pos};
        v.u.it->pos = v.u.it->items.n;
        break;
    default: return jj_fail(j, "'%s' object is not iterable", v_type_name(v));
    }
    return ok && jj_step(j, out->n);
}

bool v_len(jj *j, val v, int64_t *out)
{
    switch (v.type) {
    case V_UNDEF: *out = 0; return true;
    case V_STR: *out = v.u.s->n_cp; return true;
    case V_LIST:
    case V_TUPLE: *out = v.u.l->n; return true;
    case V_DICT: *out = v.u.d->n; return true;
    case V_VIEW: *out = v.u.view->d->n; return true;
    case V_RANGE: *out = range_len(v.u.r); return true;
    default: return jj_fail(j, "object of type '%s' has no len()", v_type_name(v));
    }
}

/* ---- dicts ---------------------------------------------------------------------------------------- */

static bool v_hash(jj *j, val v, uint64_t *out)
{
    int64_t i;
    if (v_as_int(v, &i)) return *out = hash64(&i, sizeof i, 1), true;
    switch (v.type) {
    case V_FLOAT:
        if (v.u.f >= -0x1p63 && v.u.f < 0x1p63 && v.u.f == (double)(int64_t)v.u.f) {
            i = (int64_t)v.u.f; /* equal numbers have equal hashes */
            *out = hash64(&i, sizeof i, 1);
        } else {
            *out = hash64(&v.u.f, sizeof v.u.f, 2);
        }
        return true;
    case V_STR: *out = hash64(v.u.s->s, v.u.s->len, 3); return true;
    case V_NONE: *out = 4; return true;
    case V_TUPLE:
        *out = 5;
        if (!jj_enter(j)) return false;
        for (uint32_t k = 0; k < v.u.l->n; k++) {
            uint64_t h;
            if (!v_hash(j, v.u.l->v[k], &h)) return false;
            *out = *out * 0x9e3779b97f4a7c15u + h;
        }
        j->depth--;
        return jj_step(j, v.u.l->n);
    case V_UNDEF: *out = 6; return true;
    case V_RANGE:
    case V_FUNC:
    case V_METHOD:
    case V_MACRO: *out = 7; return true;
    default: return jj_fail(j, "unhashable type: '%s'", v_type_name(v));
    }
}

jdict *dict_new(jj *j) { return jj_alloc(j, 1, sizeof(jdict)); }

static bool dict_probe(jj *j, const jdict *d, val k, uint64_t hash, uint32_t *at)
{
    for (uint64_t i = hash;; i++) {
        uint32_t e = d->index[i & (d->n_index - 1)];
        bool same = false;
        *at = (uint32_t)(i & (d->n_index - 1));
        if (!e) return true;
        if (d->e[e - 1].hash == hash && !v_eq(j, d->e[e - 1].k, k, &same)) return false;
        if (same) return true;
    }
}
static bool dict_grow(jj *j, jdict *d)
{
    uint32_t cap = d->cap ? d->cap * 2 : 4, n_index = cap * 2;
    jentry *e = jj_alloc(j, cap, sizeof *e);
    uint32_t *index = jj_alloc(j, n_index, sizeof *index);
    if (!e || !index) return false;
    if (d->n) memcpy(e, d->e, d->n * sizeof *e);
    for (uint32_t i = 0; i < d->n; i++) {
        uint64_t at = e[i].hash;
        while (index[at & (n_index - 1)]) at++;
        index[at & (n_index - 1)] = i + 1;
    }
    d->e = e, d->cap = cap, d->index = index, d->n_index = n_index;
    return true;
}

bool dict_find(jj *j, const jdict *d, val k, const val **out)
{
    uint64_t hash;
    uint32_t at;
    *out = NULL;
    if (!v_hash(j, k, &hash)) return false;
    if (d->n == 0) return true;
    if (!dict_probe(j, d, k, hash, &at)) return false;
    if (d->index[at]) *out = &d->e[d->index[at] - 1].v;
    return true;
}
const val *dict_get(jj *j, const jdict *d, const char *key)
{
    jstr s = {.s = key, .len = (uint32_t)strlen(key)};
    const val *out = NULL;
    return dict_find(j, d, v_str(&s), &out) ? out : NULL;
}
bool dict_set(jj *j, jdict *d, val k, val v)
{
    uint64_t hash;
    uint32_t at;
    if (d->n == d->cap && !dict_grow(j, d)) return false;
    if (!v_hash(j, k, &hash) || !dict_probe(j, d, k, hash, &at)) return false;
    if (d->index[at]) return d->e[d->index[at] - 1].v = v, true;
    d->e[d->n] = (jentry){k, v, hash};
    d->index[at] = ++d->n;
    return jj_step(j, 1);
}

/* ---- arguments ------------------------------------------------------------------------------------ */

/* Position of the name in spec; UINT32_MAX when it is not there. */
static uint32_t spec_find(const char *spec, const jstr *name)
{
    for (uint32_t i = 0; *spec; i++) {
        size_t n = strcspn(spec, " ");
        if (n == name->len && memcmp(spec, name->s, n) == 0) return i;
        spec += n + (spec[n] == ' ');
    }
    return UINT32_MAX;
}

bool jj_bind(jj *j, const char *fn, const jargs *a, const char *spec, uint32_t n_required, val *out)
{
    uint32_t n_spec = *spec != 0;
    for (const char *p = spec; *p; p++) n_spec += *p == ' ';
    if (a->n_pos > n_spec) return jj_fail(j, "%s() takes at most %u arguments, got %u", fn, n_spec, a->n_pos);
    for (uint32_t i = 0; i < n_spec; i++) out[i] = i < a->n_pos ? a->pos[i] : v_missing();
    for (uint32_t i = 0; i < a->n_kw; i++) {
        uint32_t at = spec_find(spec, a->kw_name[i]);
        int len = (int)MIN(a->kw_name[i]->len, 60u);
        if (at == UINT32_MAX)
            return jj_fail(j, "%s() got an unexpected keyword argument '%.*s'", fn, len, a->kw_name[i]->s);
        if (out[at].type != V_MISSING)
            return jj_fail(j, "%s() got multiple values for argument '%.*s'", fn, len, a->kw_name[i]->s);
        out[at] = a->kw[i];
    }
    for (uint32_t i = 0; i < n_required; i++)
        if (out[i].type == V_MISSING) return jj_fail(j, "%s() needs %u arguments", fn, n_required);
    return true;
}

bool arg_int(jj *j, const char *fn, val v, int64_t def, int64_t *out)
{
    *out = def;
    if (v.type == V_MISSING || v.type == V_NONE) return true;
    if (v.type == V_UNDEF) return v_undef_fail(j, v);
    if (!v_as_int(v, out)) return jj_fail(j, "%s() wants an integer, not '%s'", fn, v_type_name(v));
    return true;
}

const jfunc *jfunc_find(const jfunc *table, size_t n, const jstr *name)
{
    for (size_t i = 0; i < n; i++)
        if (str_is(name, table[i].name)) return &table[i];
    return NULL;
}
