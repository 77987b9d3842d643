/* jinja_json.h - JSON in and out of the template language. */
#ifndef TESS_JINJA_JSON_H
#define TESS_JINJA_JSON_H
#include "jinja_value.h"

/* Parses strict JSON (RFC 8259; no duplicate keys, no lone surrogates, depth <= JJ_MAX_DATA_DEPTH) into values.
 * Strings below the top-level keys that untrusted_keys (NULL-terminated) names are marked as untrusted. Errors are
 * TESS_E_ARG with the byte offset. */
tess_status jinja_json_parse(jj *j, const char *s, size_t n, const char *const *untrusted_keys, val *out);

/* json.dumps. indent: NULL = one line. item, colon: the separators. */
typedef struct { bool ascii, sort_keys; const jstr *indent, *item, *colon; } json_style;
bool jinja_json_dump(sb *b, val v, const json_style *style);
#endif
