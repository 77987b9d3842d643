/*
 * json.h - strict reading of JSON with jansson: what every reader of a foreign file in formats/ goes through.
 *
 * Refused beyond what jansson refuses (bytes after the end, invalid UTF-8): keys that occur twice in one
 * object, and nesting deeper than 64. Integers are exact: a number with a fraction or an exponent is not an
 * integer. An integer beyond 63 bits is read as a real number, because tokenizer_config.json says 10^30 for "no
 * limit"; where an integer is wanted it is therefore refused.
 */
#ifndef TESS_JSON_H
#define TESS_JSON_H
#include <jansson.h>

#include "base.h"

enum { JSONR_MAX_DEPTH = 64 };
enum { JSONR_ALLOW_NUL = 1 }; /* \u0000 in string values */

/* Parses all of text. `what` names it in messages: "DIR/config.json". *out is owned by the caller
 * (json_decref). */
tess_status jsonr_parse(const char *text, size_t len, uint32_t flags, const char *what, json_t **out,
                        tess_error *err);
/* The same, and the document must be an object. */
tess_status jsonr_parse_object(const char *text, size_t len, uint32_t flags, const char *what, json_t **out,
                               tess_error *err);
/* A whole number from 0; false for anything else, 3.0 included. */
bool jsonr_u64(const json_t *v, uint64_t *out);
/* Any finite number. */
bool jsonr_f64(const json_t *v, double *out);
/* Name of the type of v for messages: "a string"; NULL gives "missing". */
const char *jsonr_type(const json_t *v);
#endif
