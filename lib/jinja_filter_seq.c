/*
 * jinja_filter_seq.c - filters of sequences. See jinja_eval.h.
 *
 * What jinja2 makes as generators (map, select, batch, ...) is computed at once here and handed out as an
 * iterator, which can be read only once and has no length, as there.
 */
#include "jinja_eval.h"

#include "jinja_lex.h"

#define FILTER(name) static bool name(jj *j, val self, const jargs *a, val *out)

/* ---- attributes and keys -------------------------------------------------------------------------- */

/* item.a.b.0 for the attribute "a.b.0"; an integer is an index; missing or None: the item. */
static bool get_path(jj *j, val item, val attr, val def, val *out)
{
    *out = item;
    if (attr.type == V_MISSING || attr.type == V_NONE) return true;
    if (attr.type != V_STR) return jinja_item(j, item, attr, out);
    const jstr *s = attr.u.s;
    for (size_t from = 0, to; from <= s->len; from = to + 1) {
        val part;
        int64_t i;
        for (to = from; to < s->len && s->s[to] != '.';) to++;
        if (!str_sub(j, s, from, to, &part)) return false;
        bool digits =
            to > from && strspn(s->s + from, "0123456789") >= to - from && text_parse_int(part.u.s, 10, &i);
        if (!jinja_item(j, *out, digits ? v_int(i) : part, out)) return false;
        if (out->type == V_UNDEF && def.type != V_MISSING && def.type != V_NONE) *out = def;
    }
    return true;
}
static bool fold_case(jj *j, val v, bool sensitive, val *out)
{
    *out = v;
    return sensitive || v.type != V_STR || text_convert(j, v.u.s, CASE_LOWER, out);
}
static bool key_of(jj *j, val item, val attr, bool sensitive, val *out)
{
    return get_path(j, item, attr, v_missing(), out) && fold_case(j, *out, sensitive, out);
}
/* The list of keys for "a,b.c"; also one key is a list, which makes equal values equal that have no order. */
static bool keys_of(jj *j, val item, val attr, bool sensitive, val *out)
{
    val parts, comma;
    if (attr.type != V_STR) {
        val *one = jj_alloc(j, 1, sizeof *one);
        return one && key_of(j, item, attr, sensitive, one) && v_list(j, V_LIST, one, 1, out);
    }
    if (!v_lit(j, ",", &comma) || !text_split(j, attr.u.s, comma, -1, false, &parts)) return false;
    val *v = jj_alloc(j, parts.u.l->n, sizeof *v);
    if (!v) return false;
    for (uint32_t i = 0; i < parts.u.l->n; i++)
        if (!key_of(j, item, parts.u.l->v[i], sensitive, &v[i])) return false;
    return v_list(j, V_LIST, v, parts.u.l->n, out);
}

/* ---- sorting -------------------------------------------------------------------------------------- */

typedef struct {
    val key, item;
} keyed;

/* Stable merge sort of n > 0 elements; b is room for n. */
static bool merge_sort(jj *j, keyed *v, keyed *b, uint32_t n, bool reverse)
{
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t lo = 0; lo < n; lo += 2 * width) {
            uint64_t mid = MIN(lo + width, n), hi = MIN(lo + 2 * width, n), l = lo, r = mid;
            for (uint64_t k = lo; k < hi; k++) {
                int c = -1;
                if (l < mid && r < hi && !v_cmp(j, v[l].key, v[r].key, &c)) return false;
                bool left = l < mid && (r >= hi || (reverse ? c >= 0 : c <= 0) || c == 2);
                b[k] = left ? v[l++] : v[r++];
            }
        }
        memcpy(v, b, n * sizeof *v);
    }
    return true;
}
static bool sort_items(jj *j, jlist items, val attr, bool sensitive, bool multi, bool reverse, val *out)
{
    keyed *v = jj_alloc(j, items.n, sizeof *v), *b = jj_alloc(j, items.n, sizeof *b);
    val *sorted = jj_alloc(j, items.n, sizeof *sorted);
    if (!v || !b || !sorted) return false;
    for (uint32_t i = 0; i < items.n; i++) {
        v[i].item = items.v[i];
        if (!(multi ? keys_of : key_of)(j, items.v[i], attr, sensitive, &v[i].key)) return false;
    }
    if (items.n && !merge_sort(j, v, b, items.n, reverse)) return false;
    for (uint32_t i = 0; i < items.n; i++) sorted[i] = v[i].item;
    return v_list(j, V_LIST, sorted, items.n, out);
}
FILTER(f_sort)
{
    val v[3];
    jlist items;
    if (!jj_bind(j, "sort", a, "reverse case_sensitive attribute", 0, v) || !v_items(j, self, &items))
        return false;
    return sort_items(j, items, v[2], v_truth(v[1]), true, v_truth(v[0]), out);
}
FILTER(f_dictsort)
{
    val v[3];
    jlist items;
    if (!jj_bind(j, "dictsort", a, "case_sensitive by reverse", 0, v)) return false;
    if (self.type == V_UNDEF) return v_undef_fail(j, self);
    if (self.type != V_DICT) return jj_fail(j, "dictsort wants a mapping, not '%s'", v_type_name(self));
    bool by_value = v[1].type == V_STR && str_is(v[1].u.s, "value");
    if (v[1].type != V_MISSING && !by_value && !(v[1].type == V_STR && str_is(v[1].u.s, "key")))
        return jj_fail(j, "you can only sort by either \"key\" or \"value\"");
    if (!v_view(j, self.u.d, 'i', &self) || !v_items(j, self, &items)) return false;
    return sort_items(j, items, v_int(by_value), v_truth(v[0]), false, v_truth(v[2]), out);
}
static bool extreme(jj *j, val self, const jargs *a, int want, val *out)
{
    val v[2], best_key = v_missing(), key;
    jlist items;
    if (!jj_bind(j, "min or max", a, "case_sensitive attribute", 0, v) || !v_items(j, self, &items))
        return false;
    *out = v_undef(NULL, V_UNDEF);
    for (uint32_t i = 0; i < items.n; i++) {
        int c = want;
        if (!key_of(j, items.v[i], v[1], v_truth(v[0]), &key)) return false;
        if (i && !v_cmp(j, key, best_key, &c)) return false;
        if (c == want) best_key = key, *out = items.v[i];
    }
    return true;
}
FILTER(f_min) { return extreme(j, self, a, -1, out); }
FILTER(f_max) { return extreme(j, self, a, 1, out); }

FILTER(f_unique)
{
    val v[2], key;
    jlist items;
    const val *found;
    jdict *seen = dict_new(j);
    if (!seen || !jj_bind(j, "unique", a, "case_sensitive attribute", 0, v) || !v_items(j, self, &items))
        return false;
    jlist kept = {jj_alloc(j, items.n, sizeof(val)), 0};
    if (!kept.v) return false;
    for (uint32_t i = 0; i < items.n; i++) {
        if (!key_of(j, items.v[i], v[1], v_truth(v[0]), &key) || !dict_find(j, seen, key, &found)) return false;
        if (found) continue;
        if (!dict_set(j, seen, key, v_none())) return false;
        kept.v[kept.n++] = items.v[i];
    }
    return v_iterator(j, kept, out);
}
FILTER(f_groupby)
{
    val v[3], sorted, key, last = v_none();
    jlist items;
    if (!jj_bind(j, "groupby", a, "attribute default case_sensitive", 1, v) || !v_items(j, self, &items))
        return false;
    bool sensitive = v_truth(v[2]);
    keyed *k = jj_alloc(j, items.n, sizeof *k), *b = jj_alloc(j, items.n, sizeof *b);
    val *groups = jj_alloc(j, items.n, sizeof *groups), *members = jj_alloc(j, items.n, sizeof *members);
    if (!k || !b || !groups || !members) return false;
    for (uint32_t i = 0; i < items.n; i++) {
        k[i].item = items.v[i];
        if (!get_path(j, items.v[i], v[0], v[1], &key) || !fold_case(j, key, sensitive, &k[i].key))
            return false;
    }
    if (items.n && !merge_sort(j, k, b, items.n, false)) return false;
    uint32_t n = 0;
    for (uint32_t i = 0, from = 0; i < items.n; i++) {
        bool same = false;
        members[i] = k[i].item;
        if (i && !v_eq(j, k[i].key, last, &same)) return false;
        if (!same) from = i;
        last = k[i].key;
        bool ends = i + 1 == items.n;
        if (!ends && !v_eq(j, k[i + 1].key, last, &same)) return false;
        if (!ends && same) continue;
        val *pair = jj_alloc(j, 2, sizeof *pair);
        if (!pair || !get_path(j, k[from].item, v[0], v[1], &pair[0]) ||
            !v_list(j, V_LIST, members + from, i + 1 - from, &pair[1]))
            return false;
        if (!v_list(j, V_TUPLE, pair, 2, &groups[n])) return false;
        groups[n++].base = 1; /* has .grouper and .list */
    }
    return v_list(j, V_LIST, groups, n, &sorted) && (*out = sorted, true);
}

/* ---- map and select ------------------------------------------------------------------------------- */

FILTER(f_map)
{
    jlist items = {NULL, 0};
    if (!v_truth(self)) return v_iterator(j, items, out);
    val v[2] = {v_missing(), v_missing()};
    bool by_attr = a->n_pos == 0 && a->n_kw > 0;
    if (by_attr && !jj_bind(j, "map", a, "attribute default", 1, v)) return false;
    if (!by_attr && (a->n_pos == 0 || a->pos[0].type != V_STR))
        return jj_fail(j, "map requires a filter argument");
    jargs rest = *a;
    if (!by_attr) rest.pos++, rest.n_pos--;
    if (!v_items(j, self, &items)) return false;
    val *mapped = jj_alloc(j, items.n, sizeof *mapped);
    if (!mapped || !jj_enter(j)) return false;
    for (uint32_t i = 0; i < items.n; i++) {
        bool ok = by_attr ? get_path(j, items.v[i], v[0], v[1], &mapped[i])
                          : jinja_filter(j, a->pos[0].u.s, items.v[i], &rest, &mapped[i]);
        if (!ok) return false;
    }
    j->depth--;
    return v_iterator(j, (jlist){mapped, items.n}, out);
}

/* keep: what the test must give; by_attr: the first argument names the attribute that is tested. */
static bool select_items(jj *j, val self, const jargs *a, bool keep, bool by_attr, val *out)
{
    jlist items = {NULL, 0}, kept;
    if (!v_truth(self)) return v_iterator(j, items, out);
    if (by_attr && !a->n_pos) return jj_fail(j, "missing parameter for attribute name");
    uint32_t off = by_attr;
    const val *test = a->n_pos > off ? &a->pos[off] : NULL;
    if (test && test->type != V_STR) return jj_fail(j, "the name of a test must be a string");
    jargs rest = *a;
    if (test) rest.pos += off + 1, rest.n_pos -= off + 1;
    if (!v_items(j, self, &items)) return false;
    kept = (jlist){jj_alloc(j, items.n, sizeof(val)), 0};
    if (!kept.v) return false;
    for (uint32_t i = 0; i < items.n; i++) {
        val v = items.v[i];
        bool yes;
        if (by_attr && !get_path(j, v, a->pos[0], v_missing(), &v)) return false;
        if (!test) yes = v_truth(v);
        else if (!jinja_test(j, test->u.s, v, &rest, &yes)) return false;
        if (yes == keep) kept.v[kept.n++] = items.v[i];
    }
    return v_iterator(j, kept, out);
}
FILTER(f_select) { return select_items(j, self, a, true, false, out); }
FILTER(f_reject) { return select_items(j, self, a, false, false, out); }
FILTER(f_selectattr) { return select_items(j, self, a, true, true, out); }
FILTER(f_rejectattr) { return select_items(j, self, a, false, true, out); }

/* ---- pieces --------------------------------------------------------------------------------------- */

FILTER(f_first)
{
    jlist items;
    if (!jj_bind(j, "first", a, "", 0, NULL)) return false;
    *out = v_undef(NULL, V_UNDEF);
    if (self.type == V_ITER) { /* takes only one */
        jiter *it = self.u.it;
        if (it->pos < it->items.n) *out = it->items.v[it->pos++];
        return true;
    }
    if (self.type == V_STR && self.u.s->n_cp) return jinja_item(j, self, v_int(0), out);
    if (!v_items(j, self, &items)) return false;
    if (items.n) *out = items.v[0];
    return true;
}
FILTER(f_last)
{
    jlist items;
    if (!jj_bind(j, "last", a, "", 0, NULL)) return false;
    if (self.type == V_ITER) return jj_fail(j, "'generator' object is not reversible");
    *out = v_undef(NULL, V_UNDEF);
    if (self.type == V_STR && self.u.s->n_cp) return jinja_item(j, self, v_int(-1), out);
    if (!v_items(j, self, &items)) return false;
    if (items.n) *out = items.v[items.n - 1];
    return true;
}
FILTER(f_list)
{
    jlist items;
    return jj_bind(j, "list", a, "", 0, NULL) && v_items(j, self, &items) &&
           v_list(j, V_LIST, items.v, items.n, out);
}
FILTER(f_reverse)
{
    jlist items;
    if (!jj_bind(j, "reverse", a, "", 0, NULL)) return false;
    if (self.type == V_STR) return jinja_slice(j, self, (const val[3]){v_none(), v_none(), v_int(-1)}, out);
    if (!v_items(j, self, &items)) return false;
    val *v = jj_alloc(j, items.n, sizeof *v);
    if (!v) return false;
    for (uint32_t i = 0; i < items.n; i++) v[i] = items.v[items.n - 1 - i];
    if (self.type == V_ITER) return v_list(j, V_LIST, v, items.n, out);
    return v_iterator(j, (jlist){v, items.n}, out);
}
FILTER(f_join)
{
    val v[2];
    jlist items;
    const jstr *sep;
    if (!jj_bind(j, "join", a, "d attribute", 0, v) || !v_items(j, self, &items)) return false;
    if (v[0].type == V_MISSING && !v_lit(j, "", &v[0])) return false;
    if (!v_to_str(j, v[0], &sep)) return false;
    if (v[1].type != V_MISSING && v[1].type != V_NONE) {
        val *mapped = jj_alloc(j, items.n, sizeof *mapped);
        if (!mapped) return false;
        for (uint32_t i = 0; i < items.n; i++)
            if (!get_path(j, items.v[i], v[1], v_missing(), &mapped[i])) return false;
        items.v = mapped;
    }
    return text_join(j, sep, &items, true, out);
}
FILTER(f_sum)
{
    val v[2], item;
    jlist items;
    if (!jj_bind(j, "sum", a, "attribute start", 0, v) || !v_items(j, self, &items)) return false;
    *out = v[1].type == V_MISSING ? v_int(0) : v[1];
    if (out->type == V_STR) return jj_fail(j, "sum() can't sum strings");
    for (uint32_t i = 0; i < items.n; i++)
        if (!get_path(j, items.v[i], v[0], v_missing(), &item) || !jinja_binary(j, T_PLUS, *out, item, out))
            return false;
    return true;
}
FILTER(f_items)
{
    jlist items = {NULL, 0};
    if (!jj_bind(j, "items", a, "", 0, NULL)) return false;
    if (self.type == V_UNDEF) return v_iterator(j, items, out);
    if (self.type != V_DICT) return jj_fail(j, "can only get item pairs from a mapping");
    return v_view(j, self.u.d, 'i', &self) && v_items(j, self, &items) && v_iterator(j, items, out);
}

/* A list of n elements from v, and then fill up to total. */
static bool piece(jj *j, const val *v, uint64_t n, uint64_t total, val fill, val *out)
{
    val *p = jj_alloc(j, MAX(n, total), sizeof *p);
    if (!p || !jj_step(j, total)) return false;
    if (n) memcpy(p, v, n * sizeof *p);
    for (uint64_t i = n; i < total; i++) p[i] = fill;
    return v_list(j, V_LIST, p, (uint32_t)MAX(n, total), out);
}
FILTER(f_batch)
{
    val v[2];
    jlist items;
    int64_t size;
    if (!jj_bind(j, "batch", a, "linecount fill_with", 1, v) || !arg_int(j, "batch", v[0], 0, &size) ||
        !v_items(j, self, &items))
        return false;
    if (size < 1 || size > JJ_MAX_RANGE) return jj_fail(j, "batch: the size must be 1 to %d", JJ_MAX_RANGE);
    bool fill = v[1].type != V_MISSING && v[1].type != V_NONE;
    jlist l = {jj_alloc(j, (uint64_t)items.n / (uint64_t)size + 1, sizeof(val)), 0};
    if (!l.v) return false;
    for (uint64_t at = 0; at < items.n; at += (uint64_t)size) {
        uint64_t n = MIN((uint64_t)size, items.n - at);
        if (!piece(j, items.v + at, n, fill ? (uint64_t)size : n, v[1], &l.v[l.n++])) return false;
    }
    return v_iterator(j, l, out);
}
FILTER(f_slice)
{
    val v[2];
    jlist items;
    int64_t n;
    if (!jj_bind(j, "slice", a, "slices fill_with", 1, v) || !arg_int(j, "slice", v[0], 0, &n) ||
        !v_items(j, self, &items))
        return false;
    if (n < 1 || n > JJ_MAX_RANGE)
        return jj_fail(j, "slice: the number of slices must be 1 to %d", JJ_MAX_RANGE);
    bool fill = v[1].type != V_MISSING && v[1].type != V_NONE;
    uint64_t each = items.n / (uint64_t)n, extra = items.n % (uint64_t)n, at = 0;
    jlist l = {jj_alloc(j, (uint64_t)n, sizeof(val)), 0};
    if (!l.v) return false;
    for (uint64_t i = 0; i < (uint64_t)n; i++) {
        uint64_t k = each + (i < extra);
        if (!piece(j, k ? items.v + at : NULL, k, fill && i >= extra ? k + 1 : k, v[1], &l.v[l.n++]))
            return false;
        at += k;
    }
    return v_iterator(j, l, out);
}

const jfunc *jinja_seq_filter(const jstr *name)
{
    static const jfunc filters[] = {{"first", f_first},
                                    {"last", f_last},
                                    {"list", f_list},
                                    {"join", f_join},
                                    {"map", f_map},
                                    {"select", f_select},
                                    {"reject", f_reject},
                                    {"selectattr", f_selectattr},
                                    {"rejectattr", f_rejectattr},
                                    {"sort", f_sort},
                                    {"unique", f_unique},
                                    {"reverse", f_reverse},
                                    {"sum", f_sum},
                                    {"min", f_min},
                                    {"max", f_max},
                                    {"items", f_items},
                                    {"dictsort", f_dictsort},
                                    {"batch", f_batch},
                                    {"slice", f_slice},
                                    {"groupby", f_groupby}};
    return jfunc_find(filters, ARRAY_LEN(filters), name);
}
