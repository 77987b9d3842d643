/*
 * chat.h - chat templates: an interpreter of the Jinja language that published templates use.
 *
 * Every string of the interpreter knows which of its bytes came from the messages (untrusted) and which from
 * the template; the spans of untrusted bytes in the output let the tokenizer refuse special tokens there.
 */
#ifndef TESS_CHAT_H
#define TESS_CHAT_H
#include "mem.h"

typedef struct { size_t off, len; } chat_span;
typedef struct {
    buf text;
    chat_span *plain;
    size_t n_plain;
} chat_out; /* plain: untrusted spans, ascending, merged */
/* Renders tmpl (tmpl_len bytes) with the variables of `json`: an object {messages, template?,
 * add_generation_prompt, bos_token, eos_token, tools, documents, variables: {...}}; the template of the json
 * wins over tmpl (NULL = none); defaults come from def_bos and def_eos (NULL = undefined). Errors: ARG (json),
 * TEMPLATE (line and reason; raise_exception's text), NOMEM. */
tess_status chat_render(const mem *m, const char *tmpl, size_t tmpl_len, const char *json, size_t json_len,
                        const char *def_bos, const char *def_eos, chat_out *out, tess_error *err);
void chat_out_free(const mem *m, chat_out *out);
#endif
