/* jinja_test.c - the tests behind "is". See jinja_eval.h. */
#include "jinja_eval.h"

#include <math.h>

#include "jinja_lex.h"

#define TEST(name) static bool name(jj *j, val self, const jargs *a, val *out)

/* Tests without arguments. */
static bool give(jj *j, const jargs *a, bool r, val *out)
{
    *out = v_bool(r);
    return jj_bind(j, "this test", a, "", 0, NULL);
}
TEST(t_defined) { return give(j, a, self.type != V_UNDEF, out); }
TEST(t_undefined) { return give(j, a, self.type == V_UNDEF, out); }
TEST(t_none) { return give(j, a, self.type == V_NONE, out); }
TEST(t_boolean) { return give(j, a, self.type == V_BOOL, out); }
TEST(t_true) { return give(j, a, self.type == V_BOOL && self.u.b, out); }
TEST(t_false) { return give(j, a, self.type == V_BOOL && !self.u.b, out); }
TEST(t_integer) { return give(j, a, self.type == V_INT, out); }
TEST(t_float) { return give(j, a, self.type == V_FLOAT, out); }
TEST(t_number) { return give(j, a, v_is_num(self), out); }
TEST(t_string) { return give(j, a, self.type == V_STR, out); }
TEST(t_mapping) { return give(j, a, self.type == V_DICT, out); }
TEST(t_sequence)
{
    bool r = self.type == V_STR || self.type == V_LIST || self.type == V_TUPLE || self.type == V_DICT ||
             self.type == V_RANGE || self.type == V_UNDEF;
    return give(j, a, r, out);
}
TEST(t_iterable)
{
    bool r = self.type == V_STR || self.type == V_LIST || self.type == V_TUPLE || self.type == V_DICT ||
             self.type == V_RANGE || self.type == V_UNDEF || self.type == V_VIEW || self.type == V_ITER ||
             self.type == V_LOOP;
    return give(j, a, r, out);
}
TEST(t_callable)
{
    bool r = self.type == V_FUNC || self.type == V_METHOD || self.type == V_MACRO || self.type == V_LOOP ||
             self.type == V_JOINER || self.type == V_UNDEF; /* the class has __call__ */
    return give(j, a, r, out);
}
TEST(t_escaped) { return give(j, a, self.type == V_STR && self.u.s->safe, out); }

static bool divides(jj *j, val self, val by, val *rest) { return jinja_binary(j, T_MOD, self, by, rest); }
TEST(t_odd)
{
    val r;
    bool same;
    if (!divides(j, self, v_int(2), &r) || !v_eq(j, r, v_int(1), &same)) return false;
    return give(j, a, same, out);
}
TEST(t_even)
{
    val r;
    bool same;
    if (!divides(j, self, v_int(2), &r) || !v_eq(j, r, v_int(0), &same)) return false;
    return give(j, a, same, out);
}
TEST(t_divisibleby)
{
    val by, r;
    bool same;
    if (!jj_bind(j, "divisibleby", a, "num", 1, &by) || !divides(j, self, by, &r) ||
        !v_eq(j, r, v_int(0), &same))
        return false;
    *out = v_bool(same);
    return true;
}

static bool text_question(jj *j, val self, const jargs *a, const char *method, val *out)
{
    const jstr *s, *name = str_lit(j, method);
    if (!name || !v_to_str(j, self, &s)) return false;
    return jinja_str_method(name)->fn(j, v_str(s), a, out);
}
TEST(t_lower) { return text_question(j, self, a, "islower", out); }
TEST(t_upper) { return text_question(j, self, a, "isupper", out); }

/* Comparisons with one argument. */
static bool compare(jj *j, val self, const jargs *a, uint8_t op, val *out)
{
    val other;
    bool r;
    if (!jj_bind(j, "this test", a, "other", 1, &other) || !jinja_compare(j, op, self, other, &r)) return false;
    *out = v_bool(r);
    return true;
}
TEST(t_eq) { return compare(j, self, a, T_EQ, out); }
TEST(t_ne) { return compare(j, self, a, T_NE, out); }
TEST(t_lt) { return compare(j, self, a, T_LT, out); }
TEST(t_le) { return compare(j, self, a, T_LE, out); }
TEST(t_gt) { return compare(j, self, a, T_GT, out); }
TEST(t_ge) { return compare(j, self, a, T_GE, out); }
TEST(t_in) { return compare(j, self, a, CMP_IN, out); }

TEST(t_sameas)
{
    val o;
    bool r = false;
    if (!jj_bind(j, "sameas", a, "other", 1, &o)) return false;
    if (o.type == self.type) {
        if (self.type == V_NONE) r = true;
        else if (self.type == V_BOOL || self.type == V_INT || self.type == V_STR) {
            if (!v_eq(j, self, o, &r)) return false; /* equal small values are one object in Python */
        } else {
            r = self.u.d == o.u.d;
        }
    }
    *out = v_bool(r);
    return true;
}
static bool known(jj *j, val self, const jargs *a, bool filter, val *out)
{
    bool r = self.type == V_STR && (filter ? jinja_text_filter(self.u.s) || jinja_seq_filter(self.u.s)
                                           : jinja_find_test(self.u.s) != NULL);
    return give(j, a, r, out);
}
TEST(t_filter) { return known(j, self, a, true, out); }
TEST(t_test) { return known(j, self, a, false, out); }

const jfunc *jinja_find_test(const jstr *name)
{
    static const jfunc tests[] = {{"defined", t_defined},
                                  {"undefined", t_undefined},
                                  {"none", t_none},
                                  {"string", t_string},
                                  {"mapping", t_mapping},
                                  {"iterable", t_iterable},
                                  {"sequence", t_sequence},
                                  {"number", t_number},
                                  {"integer", t_integer},
                                  {"float", t_float},
                                  {"boolean", t_boolean},
                                  {"true", t_true},
                                  {"false", t_false},
                                  {"callable", t_callable},
                                  {"escaped", t_escaped},
                                  {"odd", t_odd},
                                  {"even", t_even},
                                  {"divisibleby", t_divisibleby},
                                  {"lower", t_lower},
                                  {"upper", t_upper},
                                  {"sameas", t_sameas},
                                  {"filter", t_filter},
                                  {"test", t_test},
                                  {"in", t_in},
                                  {"eq", t_eq},
                                  {"==", t_eq},
                                  {"equalto", t_eq},
                                  {"ne", t_ne},
                                  {"!=", t_ne},
                                  {"lt", t_lt},
                                  {"<", t_lt},
                                  {"lessthan", t_lt},
                                  {"le", t_le},
                                  {"<=", t_le},
                                  {"gt", t_gt},
                                  {">", t_gt},
                                  {"greaterthan", t_gt},
                                  {"ge", t_ge},
                                  {">=", t_ge}};
    return jfunc_find(tests, ARRAY_LEN(tests), name);
}
