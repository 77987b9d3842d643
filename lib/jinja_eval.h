/*
 * jinja_eval.h - running a template: scopes, expressions, statements, and what they call.
 *
 * A frame holds the variables of one scope; looking up walks outwards. Loops (each iteration), macros, with,
 * and block bodies have their own frame, "if" has none; that is where assignments of jinja2 stay. Frames live
 * in the arena, so a macro may keep the frame it was defined in.
 */
#ifndef TESS_JINJA_EVAL_H
#define TESS_JINJA_EVAL_H
#include "jinja_parse.h"

typedef struct jvar jvar;
struct jvar { const jsym *sym; val v; jvar *next; };
struct jframe { jframe *parent; jvar *vars; };

struct jmacro { const node *def; jframe *frame; };
struct jloop {
    const node *def; /* N_FOR */
    jframe *frame;   /* around the loop */
    jlist items;
    uint32_t at, depth0;
    val last_changed; /* tuple, or V_MISSING */
};

/* Expressions (jinja_eval.c). */
bool jinja_eval(jj *j, jframe *f, const node *n, val *out);
bool jinja_call(jj *j, val fn, const jargs *args, val *out);
bool jinja_filter(jj *j, const jstr *name, val self, const jargs *args, val *out);
bool jinja_test(jj *j, const jstr *name, val self, const jargs *args, bool *out);
bool jinja_args(jj *j, jframe *f, const jcall *c, jargs *out);

/* Statements (jinja_exec.c). */
bool jinja_frame_set(jj *j, jframe *f, const jsym *sym, val v);
jframe *jinja_frame_new(jj *j, jframe *parent);
bool jinja_lookup(const jframe *f, const jsym *sym, val *out);
bool jinja_run(jj *j, jframe *f, const node *root, sb *out);
bool jinja_call_macro(jj *j, const jmacro *m, const jargs *args, val *out);
bool jinja_call_loop(jj *j, const jloop *l, const jargs *args, val *out);

/* Operators (jinja_ops.c). */
bool jinja_binary(jj *j, uint8_t op, val a, val b, val *out);
bool jinja_negate(jj *j, val a, bool minus, val *out);
bool jinja_compare(jj *j, uint8_t op, val a, val b, bool *out);
bool jinja_contains(jj *j, val item, val in, bool *out);
bool jinja_slice(jj *j, val a, const val bounds[3], val *out);

/* Attributes, items and methods (jinja_attr.c, jinja_method.c). */
bool jinja_attr(jj *j, val obj, const jstr *name, val *out);
bool jinja_item(jj *j, val obj, val key, val *out);
bool jinja_own_attr(jj *j, val obj, const jstr *name, val *out); /* without items; V_MISSING when absent */
const jfunc *jinja_str_method(const jstr *name);
extern const jfunc jinja_globals[];
extern const size_t jinja_n_globals;

/* Filters and tests (jinja_filter.c, jinja_filter_seq.c, jinja_test.c). */
const jfunc *jinja_text_filter(const jstr *name);
const jfunc *jinja_seq_filter(const jstr *name);
const jfunc *jinja_find_test(const jstr *name);
bool jinja_escape(jj *j, const jstr *s, val *out); /* HTML; a safe string stays */

/* Text work that filters and methods share (jinja_text.c). */
typedef enum { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_SWAP } text_case;
bool text_convert(jj *j, const jstr *s, text_case how, val *out);
bool text_strip(jj *j, const jstr *s, val chars, bool left, bool right, val *out);
bool text_replace(jj *j, const jstr *s, const jstr *from, const jstr *to, int64_t count, val *out);
bool text_split(jj *j, const jstr *s, val sep, int64_t max, bool from_right, val *out);
bool text_lines(jj *j, const jstr *s, bool keep_ends, val *out);
bool text_join(jj *j, const jstr *sep, const jlist *items, bool convert, val *out);
bool text_parse_int(const jstr *s, int64_t base, int64_t *out); /* int(s, base) */
bool text_parse_float(const jstr *s, double *out);              /* float(s) */

/* Formatting (jinja_format.c). */
bool format_percent(jj *j, const jstr *fmt, val args, val *out);               /* fmt % args */
bool format_braces(jj *j, const jstr *fmt, const jargs *args, val *out);       /* fmt.format(...) */
bool format_time(jj *j, const jstr *fmt, uint64_t unix_seconds, val *out);     /* strftime in local time */
#endif
