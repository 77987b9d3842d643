/* json.c - see json.h. The depth is checked by a scan before jansson sees the text, because its own limit
 * (2048) is not ours to set, and its parser recurses. */
#include "json.h"

#include <math.h>
#include <stdlib.h>

/* Deepest nesting of brackets outside strings. Text that is not JSON gives some number; the parser refuses it
 * later. */
static uint32_t max_depth(const char *p, size_t n)
{
    uint32_t depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (p[i] == '\\') i++;
            else if (p[i] == '"') in_string = false;
        } else if (p[i] == '"') in_string = true;
        else if (p[i] == '{' || p[i] == '[') {
            if (++depth > deepest) deepest = depth;
        } else if ((p[i] == '}' || p[i] == ']') && depth > 0) depth--;
    }
    return deepest;
}

/* Turns integers of 19 digits or more into reals of nearly the same value and the same length: "...456" into
 * "...4e2". */
static void soften_big_integers(char *p, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (p[i] == '\\') i++;
            else if (p[i] == '"') in_string = false;
            continue;
        }
        if (p[i] == '"') in_string = true;
        size_t end = i;
        while (end < n && p[end] >= '0' && p[end] <= '9') end++;
        if (end == i) continue;
        bool real = (end < n && (p[end] == '.' || p[end] == 'e' || p[end] == 'E')) ||
                    (i > 0 && (p[i - 1] == '.' || p[i - 1] == 'e' || p[i - 1] == 'E' || p[i - 1] == '+'));
        if (!real && end - i >= 19) memcpy(p + end - 2, "e2", 2);
        i = end - 1;
    }
}

/* Parses again with big integers as reals; only files that hold one pay for the copy. */
static json_t *load_softened(const char *text, size_t len, size_t how, json_error_t *e)
{
    char *copy = malloc(len + 1);
    if (!copy) return NULL;
    memcpy(copy, text, len);
    soften_big_integers(copy, len);
    json_t *v = json_loadb(copy, len, how, e);
    free(copy);
    return v;
}

tess_status jsonr_parse(const char *text, size_t len, uint32_t flags, const char *what, json_t **out,
                        tess_error *err)
{
    *out = NULL;
    if (max_depth(text, len) > JSONR_MAX_DEPTH)
        return ERR(err, TESS_E_FORMAT, "%s: JSON is nested deeper than %d", what, JSONR_MAX_DEPTH);
    json_error_t e;
    size_t how = JSON_REJECT_DUPLICATES | ((flags & JSONR_ALLOW_NUL) ? JSON_ALLOW_NUL : 0);
    *out = json_loadb(text, len, how, &e);
    if (!*out && json_error_code(&e) == json_error_numeric_overflow) *out = load_softened(text, len, how, &e);
    if (*out) return TESS_OK;
    if (json_error_code(&e) == json_error_out_of_memory)
        return ERR(err, TESS_E_NOMEM, "%s: no memory to parse it", what);
    return ERR(err, TESS_E_FORMAT, "%s: line %d, column %d: %s", what, e.line, e.column, e.text);
}

tess_status jsonr_parse_object(const char *text, size_t len, uint32_t flags, const char *what, json_t **out,
                               tess_error *err)
{
    TRY(jsonr_parse(text, len, flags, what, out, err));
    if (json_is_object(*out)) return TESS_OK;
    const char *type = jsonr_type(*out);
    json_decref(*out);
    *out = NULL;
    return ERR(err, TESS_E_FORMAT, "%s: is %s, want an object", what, type);
}

bool jsonr_u64(const json_t *v, uint64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

bool jsonr_f64(const json_t *v, double *out)
{
    if (!json_is_number(v)) return false;
    *out = json_number_value(v);
    return isfinite(*out);
}

const char *jsonr_type(const json_t *v)
{
    if (!v) return "missing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_NULL: return "null";
    default: return "true or false";
    }
}
