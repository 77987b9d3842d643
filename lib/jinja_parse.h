/*
 * jinja_parse.h - the tree of a template.
 *
 * One node type; which members count depends on the kind (listed there). Names are interned as `jsym`, so
 * scopes compare pointers. Filters, tests and callables are found by name when they run: a template may name
 * one that is unknown on a path that it never takes.
 */
#ifndef TESS_JINJA_PARSE_H
#define TESS_JINJA_PARSE_H
#include "jinja_value.h"

typedef struct jsym jsym;
struct jsym { const jstr *name; jsym *next; };

typedef enum {
    /* expressions */
    N_CONST, /* v */
    N_NAME,  /* sym */
    N_LIST,
    N_TUPLE,  /* list */
    N_DICT,   /* list: key, value, key, ... */
    N_ATTR,   /* a . sym */
    N_ITEM,   /* a [ b ] */
    N_SLICE,  /* a [ list[0] : list[1] : list[2] ], NULL = absent */
    N_CALL,   /* a ( args ) */
    N_FILTER, /* a | sym ( args ); a NULL: the text of a block */
    N_TEST,   /* a is sym ( args ) */
    N_NEG,
    N_POS,
    N_NOT,    /* a */
    N_BINARY, /* a op b, op: tok_type */
    N_AND,
    N_OR,
    N_COMPARE, /* list[0] ops[0] list[1] ops[1] list[2] ... */
    N_CONCAT,  /* list */
    N_COND,    /* a if b else c (NULL) */
    N_NSREF,   /* sym . b->sym, only as a target of set */
    /* statements; `list` is the body unless said otherwise */
    N_DATA,   /* v */
    N_OUTPUT, /* a */
    N_IF,     /* list of N_BRANCH */
    N_BRANCH, /* a (NULL = else), body */
    N_FOR, /* a target, b iterable, c filter or NULL, d N_BRANCH of else or NULL, op = recursive, sym "loop" */
    N_SET, /* a target, b value */
    N_SETBLOCK,    /* a target, b filters or NULL, body */
    N_MACRO,       /* sym (NULL = call block), params, body; */
    N_CALLBLOCK,   /* a N_MACRO of the body, b N_CALL */
    N_FILTERBLOCK, /* a filters, body */
    N_WITH,        /* b N_LIST: target, value, ...; body */
    N_SCOPE,       /* body */
    N_BREAK,
    N_CONTINUE
} nkind;

enum { CMP_IN = 200, CMP_NOT_IN = 201 }; /* beside T_EQ ... in ops */

typedef struct node node;
typedef struct {
    node **pos;
    uint32_t n_pos;
    const jstr **kw_name;
    node **kw;
    uint32_t n_kw;
    node *star, *star2;
} jcall;
/* special: symbols of caller, kwargs, varargs */
typedef struct {
    jsym **name;
    node **def;
    uint32_t n;
    bool uses_caller, uses_varargs, uses_kwargs;
    jsym **special;
} jparams;

struct node {
    uint8_t kind, op;
    uint32_t line;
    uint32_t n; /* of list */
    node **list;
    node *a, *b, *c, *d;
    jsym *sym;
    union { val v; jcall *args; jparams *params; uint8_t *ops; } u;
};

typedef struct { jj *j; jsym *table[256]; } jsyms;
jsym *jsym_get(jsyms *t, const jstr *name); /* NULL: no memory */
/* Root: a N_SCOPE. */
bool jinja_parse(jj *j, jsyms *syms, const char *s, size_t n, node **out);
#endif
