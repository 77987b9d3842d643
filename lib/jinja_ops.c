/* jinja_ops.c - operators with Python's meaning; integers have 64 bits and overflow is an error. See
 * jinja_eval.h. */
#include "jinja_eval.h"

#include <math.h>

#include "jinja_lex.h"

static bool overflow(jj *j) { return jj_fail(j, "integer does not fit in 64 bits"); }

static bool int_pow(jj *j, int64_t a, int64_t n, val *out)
{
    if (n < 0) {
        if (a == 0) return jj_fail(j, "0 cannot be raised to a negative power");
        return *out = v_float(pow((double)a, (double)n)), true;
    }
    int64_t r = 1;
    while (n) {
        if ((n & 1) && __builtin_mul_overflow(r, a, &r)) return overflow(j);
        n >>= 1;
        if (n && __builtin_mul_overflow(a, a, &a)) return overflow(j);
    }
    return *out = v_int(r), true;
}

static bool int_binary(jj *j, uint8_t op, int64_t a, int64_t b, val *out)
{
    int64_t r = 0;
    bool bad = false;
    switch (op) {
    case T_PLUS: bad = __builtin_add_overflow(a, b, &r); break;
    case T_MINUS: bad = __builtin_sub_overflow(a, b, &r); break;
    case T_MUL: bad = __builtin_mul_overflow(a, b, &r); break;
    case T_POW: return int_pow(j, a, b, out);
    default:
        if (b == 0) return jj_fail(j, "division by zero");
        if (op == T_DIV) return *out = v_float((double)((long double)a / (long double)b)), true;
        if (b == -1) { /* INT64_MIN / -1 traps */
            bad = op == T_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = op == T_MOD ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0)) r += op == T_MOD ? b : -1;
    }
    if (bad) return overflow(j);
    *out = v_int(r);
    return true;
}

static bool float_binary(jj *j, uint8_t op, double a, double b, val *out)
{
    double r;
    if ((op == T_DIV || op == T_MOD || op == T_FLOORDIV) && b == 0) return jj_fail(j, "division by zero");
    switch (op) {
    case T_PLUS: r = a + b; break;
    case T_MINUS: r = a - b; break;
    case T_MUL: r = a * b; break;
    case T_DIV: r = a / b; break;
    case T_POW:
        if (a == 0 && b < 0) return jj_fail(j, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) return jj_fail(j, "complex numbers are not supported");
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b)) return jj_fail(j, "the result is too large");
        break;
    default: /* floor division and its rest */
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        if (r == 0) r = copysign(0, b);
        if (op == T_FLOORDIV) {
            double q = (a - r) / b, fl = floor(q);
            r = q == 0 ? copysign(0, a / b) : q - fl > 0.5 ? fl + 1 : fl;
        }
    }
    *out = v_float(r);
    return true;
}

static bool join_lists(jj *j, val a, val b, val *out)
{
    uint64_t n = (uint64_t)a.u.l->n + b.u.l->n;
    val *v = jj_alloc(j, n, sizeof *v);
    if (!v || n > UINT32_MAX || !jj_step(j, n)) return false;
    if (a.u.l->n) memcpy(v, a.u.l->v, a.u.l->n * sizeof *v);
    if (b.u.l->n) memcpy(v + a.u.l->n, b.u.l->v, b.u.l->n * sizeof *v);
    return v_list(j, (jtype)a.type, v, (uint32_t)n, out);
}
/* A safe string escapes what is added to it. */
static bool join_strings(jj *j, const jstr *a, const jstr *b, val *out)
{
    sb t = {.j = j};
    bool safe = a->safe || b->safe;
    val x = v_str(a), y = v_str(b);
    if (safe && (!jinja_escape(j, a, &x) || !jinja_escape(j, b, &y))) return false;
    if (!sb_str(&t, x.u.s) || !sb_str(&t, y.u.s) || !sb_done(&t, out)) return false;
    if (!safe) return true;
    jstr *r = jj_alloc(j, 1, sizeof *r);
    if (!r) return false;
    *r = *out->u.s;
    r->safe = true;
    *out = v_str(r);
    return true;
}
static bool repeat(jj *j, val a, int64_t n, val *out)
{
    if (n < 0) n = 0;
    if (a.type == V_STR) {
        sb t = {.j = j};
        if (a.u.s->len && n > JJ_MAX_TEXT) n = JJ_MAX_TEXT; /* sb_put refuses what is too long */
        for (int64_t i = 0; a.u.s->len && i < n; i++)
            if (!sb_str(&t, a.u.s) || !jj_step(j, 1)) return false;
        return sb_done(&t, out);
    }
    uint64_t total;
    if (!u64_mul(a.u.l->n, (uint64_t)n, &total) || total > UINT32_MAX)
        return jj_fail(j, "a list would be too long");
    val *v = jj_alloc(j, total, sizeof *v);
    if (!v || !jj_step(j, total)) return false;
    for (uint64_t i = 0; i < total; i++) v[i] = a.u.l->v[i % a.u.l->n];
    return v_list(j, (jtype)a.type, v, (uint32_t)total, out);
}

static bool is_seq(val v) { return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE; }

bool jinja_binary(jj *j, uint8_t op, val a, val b, val *out)
{
    int64_t x, y;
    if (a.type == V_UNDEF) return v_undef_fail(j, a);
    if (v_as_int(a, &x) && v_as_int(b, &y)) return int_binary(j, op, x, y, out);
    if (v_is_num(a) && v_is_num(b)) return float_binary(j, op, v_num(a), v_num(b), out);
    if (op == T_MOD && a.type == V_STR) return format_percent(j, a.u.s, b, out);
    if (b.type == V_UNDEF) return v_undef_fail(j, b);
    if (op == T_PLUS && a.type == V_STR && b.type == V_STR) return join_strings(j, a.u.s, b.u.s, out);
    if (op == T_PLUS && a.type == b.type && is_seq(a)) return join_lists(j, a, b, out);
    if (op == T_MUL && is_seq(a) && v_as_int(b, &y)) return repeat(j, a, y, out);
    if (op == T_MUL && is_seq(b) && v_as_int(a, &x)) return repeat(j, b, x, out);
    if (op == T_PLUS && a.type == V_STR)
        return jj_fail(j, "can only concatenate str (not \"%s\") to str", v_type_name(b));
    return jj_fail(j, "unsupported operand types: '%s' and '%s'", v_type_name(a), v_type_name(b));
}

bool jinja_negate(jj *j, val a, bool minus, val *out)
{
    int64_t i;
    if (a.type == V_UNDEF) return v_undef_fail(j, a);
    if (a.type == V_FLOAT) return *out = v_float(minus ? -a.u.f : a.u.f), true;
    if (!v_as_int(a, &i)) return jj_fail(j, "bad operand type for unary operator: '%s'", v_type_name(a));
    if (minus && __builtin_sub_overflow((int64_t)0, i, &i)) return overflow(j);
    *out = v_int(i);
    return true;
}

/* ---- comparisons ---------------------------------------------------------------------------------- */

static bool in_list(jj *j, val item, const val *v, uint32_t n, bool *out)
{
    *out = false;
    for (uint32_t i = 0; i < n && !*out; i++)
        if (!v_eq(j, item, v[i], out)) return false;
    return true;
}

bool jinja_contains(jj *j, val item, val in, bool *out)
{
    const val *found;
    jlist items;
    *out = false;
    switch (in.type) {
    case V_UNDEF: return true;
    case V_STR:
        if (item.type != V_STR)
            return jj_fail(j, "'in <string>' requires string as left operand, not %s", v_type_name(item));
        *out = str_find(in.u.s, item.u.s, 0) != SIZE_MAX;
        return jj_step(j, in.u.s->len / 64);
    case V_LIST:
    case V_TUPLE: return in_list(j, item, in.u.l->v, in.u.l->n, out);
    case V_NS:
    case V_DICT:
        if (in.type == V_NS) return jj_fail(j, "argument of type 'Namespace' is not iterable");
        if (!dict_find(j, in.u.d, item, &found)) return false;
        *out = found != NULL;
        return true;
    case V_ITER: /* consumes up to the match */
        while (!*out && in.u.it->pos < in.u.it->items.n)
            if (!v_eq(j, item, in.u.it->items.v[in.u.it->pos++], out)) return false;
        return true;
    case V_VIEW:
    case V_RANGE: return v_items(j, in, &items) && in_list(j, item, items.v, items.n, out);
    default: return jj_fail(j, "argument of type '%s' is not iterable", v_type_name(in));
    }
}

bool jinja_compare(jj *j, uint8_t op, val a, val b, bool *out)
{
    int c;
    if (op == T_EQ || op == T_NE) {
        if (!v_eq(j, a, b, out)) return false;
        *out ^= op == T_NE;
        return true;
    }
    if (op == CMP_IN || op == CMP_NOT_IN) {
        if (!jinja_contains(j, a, b, out)) return false;
        *out ^= op == CMP_NOT_IN;
        return true;
    }
    if (!v_cmp(j, a, b, &c)) return false;
    *out = c != 2 && (op == T_LT ? c < 0 : op == T_LE ? c <= 0 : op == T_GT ? c > 0 : c >= 0);
    return true;
}

/* ---- slices --------------------------------------------------------------------------------------- */

static bool slice_bound(jj *j, val v, int64_t def, int64_t lo, int64_t hi, int64_t n, int64_t *out)
{
    *out = def;
    if (v.type == V_NONE) return true;
    if (v.type == V_UNDEF) return v_undef_fail(j, v);
    if (!v_as_int(v, out))
        return jj_fail(j, "slice indices must be integers or None, not '%s'", v_type_name(v));
    if (*out < 0) *out = *out < -n ? lo : *out + n;
    *out = MIN(MAX(*out, lo), hi);
    return true;
}
/* Indices of a slice over n elements: first, step and how many. */
static bool slice_range(jj *j, const val b[3], int64_t n, jrange *r)
{
    r->step = 1;
    if (b[2].type == V_UNDEF) return v_undef_fail(j, b[2]);
    if (b[2].type != V_NONE && !v_as_int(b[2], &r->step))
        return jj_fail(j, "slice indices must be integers or None");
    if (r->step == 0) return jj_fail(j, "slice step cannot be zero");
    r->step = MIN(MAX(r->step, -INT64_MAX / 2), INT64_MAX / 2);
    bool down = r->step < 0;
    int64_t lo = down ? -1 : 0, hi = down ? n - 1 : n;
    return slice_bound(j, b[0], down ? hi : lo, lo, hi, n, &r->start) &&
           slice_bound(j, b[1], down ? lo : hi, lo, hi, n, &r->stop);
}
static bool slice_str(jj *j, const jstr *s, const jrange *r, val *out)
{
    int64_t n = range_len(r);
    if (n == 0) return str_sub(j, s, 0, 0, out);
    if (r->step == 1)
        return str_sub(j, s, str_offset(s, (uint32_t)r->start), str_offset(s, (uint32_t)r->stop), out);
    jlist chars;
    sb b = {.j = j};
    if (!v_items(j, v_str(s), &chars)) return false;
    for (int64_t i = 0; i < n; i++)
        if (!sb_str(&b, chars.v[r->start + i * r->step].u.s)) return false;
    return sb_done(&b, out);
}

bool jinja_slice(jj *j, val a, const val bounds[3], val *out)
{
    jrange r;
    if (a.type == V_UNDEF) return v_undef_fail(j, a);
    if (!is_seq(a) && a.type != V_RANGE) return jj_fail(j, "'%s' object can not be sliced", v_type_name(a));
    int64_t n = a.type == V_STR ? a.u.s->n_cp : a.type == V_RANGE ? range_len(a.u.r) : (int64_t)a.u.l->n;
    if (!slice_range(j, bounds, n, &r)) return false;
    if (a.type == V_STR) return slice_str(j, a.u.s, &r, out);
    n = range_len(&r);
    if (a.type == V_RANGE) {
        jrange *q = jj_alloc(j, 1, sizeof *q);
        if (!q) return false;
        *q = (jrange){a.u.r->start + r.start * a.u.r->step, a.u.r->start + r.stop * a.u.r->step,
                      a.u.r->step * r.step};
        *out = (val){.type = V_RANGE, .u.r = q};
        return true;
    }
    if (n > 0 && r.step == 1) return v_list(j, (jtype)a.type, a.u.l->v + r.start, (uint32_t)n, out);
    val *v = jj_alloc(j, (uint64_t)n, sizeof *v);
    if (!v || !jj_step(j, (uint64_t)n)) return false;
    for (int64_t i = 0; i < n; i++) v[i] = a.u.l->v[r.start + i * r.step];
    return v_list(j, (jtype)a.type, v, (uint32_t)n, out);
}
