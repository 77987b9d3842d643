/*
 * jinja_value.h - values of the template language: Python's semantics, with strings that know where they came
 * from.
 *
 * All memory comes from one arena of the render (`jj`) and is freed with it; values are plain 16-byte structs
 * that are copied freely, what they point to is never changed after it was made (a namespace, an iterator, a
 * loop are the exceptions). A string is UTF-8 bytes and, when some of them are untrusted, a parallel array `t`
 * with one byte for each byte of text: 1 = came from the messages. NULL t: all of it is trusted. Every
 * operation on text moves both together through `sb`, so the marks are exact to the byte.
 *
 * Errors: functions return false (or NULL) after jj_fail or a failed allocation put the reason into the jj;
 * callers pass it up at once. Nothing else has to be undone, since all memory is the arena's.
 */
#ifndef TESS_JINJA_VALUE_H
#define TESS_JINJA_VALUE_H
#include "mem.h"

/* Limits of one render. */
enum {
    JJ_MAX_TEMPLATE = 1 << 20,     /* bytes */
    JJ_MAX_TEXT = 64 << 20,        /* bytes of any string, and so of the output */
    JJ_MAX_MEMORY = 512 << 20,     /* bytes of the arena */
    JJ_MAX_STEPS = 5 << 20,        /* evaluated nodes, list elements touched, 64-byte pieces of text copied */
    JJ_MAX_PARSE_DEPTH = 400,      /* about two for each bracket: 200 brackets */
    JJ_MAX_EVAL_DEPTH = 400,       /* nested nodes while running, over macro calls */
    JJ_MAX_DATA_DEPTH = 64,        /* nesting of the JSON input */
    JJ_MAX_RANGE = 100000          /* elements of range(), as the sandbox of jinja2 has it */
};

typedef enum {
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_VIEW,
    V_ITER,
    V_NS,
    V_LOOP,
    V_MACRO,
    V_FUNC,
    V_METHOD,
    V_CYCLER,
    V_JOINER,
    V_MISSING /* an argument that was not given */
} jtype;

typedef struct jstr {
    const char *s;
    const uint8_t *t;
    uint32_t len, n_cp;
    bool safe;
} jstr; /* n_cp: characters */
typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jrange { int64_t start, stop, step; } jrange;
typedef struct jview jview;
typedef struct jiter jiter;
typedef struct jloop jloop;
typedef struct jmacro jmacro;
typedef struct jmethod jmethod;
typedef struct jcycle jcycle;
typedef struct jfunc jfunc;

typedef struct val {
    uint8_t type; /* jtype */
    uint8_t base; /* V_UNDEF: type of the object that lacks the attribute; V_MISSING when a variable is meant */
    union {
        bool b;
        int64_t i;
        double f;
        const jstr *s; /* V_STR; V_UNDEF: the name, or NULL */
        const jlist *l;
        jdict *d;      /* V_DICT, V_NS */
        const jrange *r;
        const jview *view;
        jiter *it;
        jloop *loop;
        const jmacro *macro;
        const jfunc *fn;
        const jmethod *method;
        jcycle *cycle; /* V_CYCLER, V_JOINER */
    } u;
} val;

struct jlist { val *v; uint32_t n; };
typedef struct { val k, v; uint64_t hash; } jentry;
struct jdict {
    jentry *e;
    uint32_t n, cap;
    uint32_t *index;
    uint32_t n_index;
};                                           /* insertion order; index: 1 + entry */
struct jview { const jdict *d; char kind; }; /* 'k' keys, 'v' values, 'i' items */
struct jiter { jlist items; uint32_t pos; };
struct jcycle { jlist items; uint32_t pos; bool used; };

typedef struct jframe jframe;
typedef struct jj {
    arena a;
    tess_error *err;
    tess_status st;
    uint32_t line;  /* of the node that is being run, for errors */
    uint32_t depth; /* nested evaluation */
    uint64_t steps;
    val block_text; /* of a filter block or a block set, on its way to the innermost filter */
} jj;

/* Arguments of a call: keyword names are parallel to kw. */
typedef struct {
    const val *pos;
    uint32_t n_pos;
    const jstr *const *kw_name;
    const val *kw;
    uint32_t n_kw;
} jargs;
typedef bool (*jfn)(jj *j, val self, const jargs *a, val *out);
struct jfunc { const char *name; jfn fn; };      /* also rows of the tables of filters and tests */
struct jmethod { val self; const jfunc *fn; };

/* ---- errors, memory, limits ---- */
bool jj_fail(jj *j, const char *fmt, ...) PRINTF_LIKE(2, 3); /* always false */
void *jj_alloc(jj *j, uint64_t n, size_t size);              /* zeroed */
bool jj_step(jj *j, uint64_t n);
bool jj_enter(jj *j); /* one level deeper; pair with j->depth-- */

/* ---- making values ---- */
static inline val v_none(void) { return (val){.type = V_NONE}; }
static inline val v_missing(void) { return (val){.type = V_MISSING}; }
static inline val v_bool(bool b) { return (val){.type = V_BOOL, .u.b = b}; }
static inline val v_int(int64_t i) { return (val){.type = V_INT, .u.i = i}; }
static inline val v_float(double f) { return (val){.type = V_FLOAT, .u.f = f}; }
static inline val v_str(const jstr *s) { return (val){.type = V_STR, .u.s = s}; }
static inline val v_undef(const jstr *name, uint8_t base)
{
    return (val){.type = V_UNDEF, .base = base, .u.s = name};
}
bool v_list(jj *j, jtype type, val *v, uint32_t n, val *out);  /* list or tuple over v, which is kept */
bool v_iterator(jj *j, jlist items, val *out);                 /* a generator that yields items once */
bool v_view(jj *j, const jdict *d, char kind, val *out);
bool v_method(jj *j, val self, const jfunc *fn, val *out);

/* ---- strings ---- */
jstr *str_new(jj *j, const char *s, size_t len, const uint8_t *t); /* keeps the pointers */
jstr *str_lit(jj *j, const char *zero_terminated);                 /* keeps the pointer */
bool v_lit(jj *j, const char *zero_terminated, val *out);
uint32_t str_count(const jstr *s, size_t len);                     /* characters in the first len bytes */
size_t str_offset(const jstr *s, uint32_t cp); /* byte offset of character cp; len when past the end */
bool str_sub(jj *j, const jstr *s, size_t from, size_t to, val *out); /* bytes [from, to), shared */
bool str_eq(const jstr *a, const jstr *b);
bool str_is(const jstr *a, const char *lit);
int str_cmp(const jstr *a, const jstr *b); /* bytewise, which is by code point in UTF-8 */
size_t str_find(const jstr *hay, const jstr *needle, size_t from); /* byte offset; SIZE_MAX = not there */
bool cp_is_space(uint32_t cp);             /* as str.isspace */

/* String builder; carries the marks. After a failure every put fails and the jj holds the reason. */
typedef struct { jj *j; char *s; uint8_t *t; size_t len, cap; } sb;
bool sb_put(sb *b, const char *s, size_t n, const uint8_t *t);
bool sb_puts(sb *b, const char *s);
bool sb_fill(sb *b, char c, uint64_t n);
bool sb_cp(sb *b, uint32_t cp, bool tainted);
bool sb_str(sb *b, const jstr *s);
bool sb_sub(sb *b, const jstr *s, size_t from, size_t to);
bool sb_num(sb *b, int64_t i);
bool sb_float(sb *b, double f);  /* as repr of Python */
bool sb_val(sb *b, val v);       /* as str() */
bool sb_repr(sb *b, val v);
bool sb_json_text(sb *b, const jstr *s, bool ascii); /* quoted and escaped as json.dumps does */
bool sb_done(sb *b, val *out);
bool v_to_str(jj *j, val v, const jstr **out); /* str(v); a string is returned as it is */

/* ---- behaviour ---- */
const char *v_type_name(val v);
bool v_truth(val v);
bool v_is_num(val v); /* bool, int, float */
double v_num(val v);
bool v_as_int(val v, int64_t *out); /* bool or int */
bool v_eq(jj *j, val a, val b, bool *out);
bool v_cmp(jj *j, val a, val b, int *out); /* -1, 0, 1; 2: unordered (NaN). Fails for types without an order */
bool v_items(jj *j, val v, jlist *out);    /* iterates; the elements; fails when v can not be iterated */
bool v_len(jj *j, val v, int64_t *out);
bool v_undef_fail(jj *j, val v);                   /* the error of using an undefined value */
int64_t range_len(const jrange *r);

jdict *dict_new(jj *j);
bool dict_set(jj *j, jdict *d, val k, val v);
bool dict_find(jj *j, const jdict *d, val k,
               const val **out); /* *out NULL: absent. Fails for unhashable keys */
const val *dict_get(jj *j, const jdict *d, const char *key);   /* NULL: absent */

/* ---- arguments ---- */
/* Puts the arguments into out[] in the order of the names in spec ("a b c"), V_MISSING where absent. The first
 * n_required must be there. fn names the function in errors. */
bool jj_bind(jj *j, const char *fn, const jargs *a, const char *spec, uint32_t n_required, val *out);
bool arg_int(jj *j, const char *fn, val v, int64_t def, int64_t *out); /* missing or None: def */
const jfunc *jfunc_find(const jfunc *table, size_t n, const jstr *name);
#endif
