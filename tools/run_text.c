/* run_text.c - text to ids, ids to text, chat to text: stdin to stdout, without weights. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

int run_tokenize_stdin(run_state *r)
{
    run_bytes text = {0}, out = {0};
    run_ids ids = {0};
    int rc = run_read("-", &text);
    if (!rc) rc = run_tokenize(r, text.p, text.n, r->o->add_special ? TESS_TOK_ADD_SPECIAL : 0, &ids);
    if (!rc) {
        run_puts(&out, "[");
        for (size_t i = 0; i < ids.n; i++) {
            char number[16];
            snprintf(number, sizeof number, "%s%d", i ? ", " : "", ids.p[i]);
            run_puts(&out, number);
        }
        run_puts(&out, "]\n");
        rc = run_write(1, "stdout", out.p, out.n);
    }
    free(text.p);
    free(out.p);
    free(ids.p);
    return rc;
}

static int ids_from_json(const run_bytes *text, run_ids *out)
{
    json_error_t e;
    json_t *list = json_loadb(text->p, text->n, 0, &e);
    int rc = 0;
    if (!json_is_array(list)) {
        if (list) cli_error("stdin: want a JSON array of token ids");
        else cli_error("stdin: want a JSON array of token ids; line %d, column %d: %s", e.line, e.column, e.text);
        rc = CLI_EXIT_USAGE;
    }
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > INT32_MAX) {
            cli_error("stdin: element %zu is not a token id", i);
            rc = CLI_EXIT_USAGE;
            break;
        }
        out->p = run_grow(out->p, &out->cap, out->n + 1, sizeof *out->p);
        out->p[out->n++] = (tess_token)id;
    }
    json_decref(list);
    return rc;
}

int run_detokenize_stdin(run_state *r)
{
    run_bytes text = {0}, out = {0};
    run_ids ids = {0};
    int rc = run_read("-", &text);
    if (!rc) rc = ids_from_json(&text, &ids);
    if (!rc) rc = run_detokenize(r, &ids, TESS_DETOK_SPECIAL, &out); /* the inverse of --tokenize: nothing is left out */
    if (!rc) rc = run_write(1, "stdout", out.p, out.n);
    free(text.p);
    free(out.p);
    free(ids.p);
    return rc;
}

int run_render_chat(run_state *r)
{
    run_bytes json = {0}, out = {0};
    size_t need = 0;
    int rc = run_read("-", &json);
    for (int attempt = 0; attempt < 2 && !rc; attempt++) {
        if (need == 0) need = json.n * 2 + 4096;
        out.p = run_grow(out.p, &out.cap, need, 1);
        tess_status st = tess_chat_render(r->model, json.p, json.n, out.p, out.cap, &need, &r->err);
        if (st == TESS_E_BUFFER && attempt == 0) continue;
        if (st < 0) rc = cli_fail(&r->err);
        else out.n = need;
        break;
    }
    if (!rc) rc = run_write(1, "stdout", out.p, out.n);
    free(json.p);
    free(out.p);
    return rc;
}
