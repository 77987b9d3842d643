/*
 * run_prompt.c - from what the user gave to the ids that the model reads.
 *
 * Text goes through the model's chat template as one user message when there is a template and --raw is not given. The
 * template's own special tokens count, those that stand in the message are plain text. With --raw the text is encoded as it
 * is, its special tokens included, with what the tokenizer puts around a text.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

int run_tokenize(run_state *r, const char *text, size_t n, uint32_t flags, run_ids *out)
{
    size_t need = n / 3 + 16;
    for (int attempt = 0; attempt < 2; attempt++) {
        out->p = run_grow(out->p, &out->cap, out->n + need, sizeof *out->p);
        tess_status st = tess_tokenize(r->model, text, n, flags, out->p + out->n, out->cap - out->n, &need, &r->err);
        if (st == TESS_E_BUFFER) continue;
        if (st < 0) break;
        out->n += need;
        return 0;
    }
    return cli_fail(&r->err);
}

int run_detokenize(run_state *r, const run_ids *ids, uint32_t flags, run_bytes *out)
{
    size_t need = ids->n * 8 + 64;
    for (int attempt = 0; attempt < 2; attempt++) {
        out->p = run_grow(out->p, &out->cap, need + 1, 1);
        tess_status st = tess_detokenize(r->model, ids->p, ids->n, flags, out->p, out->cap, &need, &r->err);
        if (st == TESS_E_BUFFER) continue;
        if (st < 0) break;
        out->n = need;
        return 0;
    }
    return cli_fail(&r->err);
}

static int chat_tokenize(run_state *r, const run_bytes *json, run_ids *out)
{
    size_t need = json->n / 3 + 64;
    for (int attempt = 0; attempt < 2; attempt++) {
        out->p = run_grow(out->p, &out->cap, need, sizeof *out->p);
        tess_status st = tess_chat_tokenize(r->model, json->p, json->n, out->p, out->cap, &need, &r->err);
        if (st == TESS_E_BUFFER) continue;
        if (st < 0) break;
        out->n = need;
        return 0;
    }
    return cli_fail(&r->err);
}

static void put_message(run_bytes *json, const char *role, const run_bytes *text)
{
    run_puts(json, json->p[json->n - 1] == '[' ? "{\"role\":\"" : ",{\"role\":\"");
    run_puts(json, role);
    run_puts(json, "\",\"content\":");
    run_put_json(json, text->p, text->n);
    run_puts(json, "}");
}

/* A text option or the file of its twin, whichever is given; *out stays empty when neither is. */
static int text_or_file(const char *text, const char *file, run_bytes *out)
{
    if (file) return run_read(file, out);
    if (text) run_puts(out, text);
    return 0;
}

static int chat_prompt(run_state *r, const run_bytes *text, run_ids *out)
{
    const run_options *o = r->o;
    run_bytes json = {0}, system = {0}, template = {0};
    int rc = text_or_file(o->system, o->system_file, &system);
    if (!rc) rc = text_or_file(o->template_text, o->template_file, &template);
    if (!rc) {
        run_puts(&json, "{\"messages\":[");
        if (o->system || o->system_file) put_message(&json, "system", &system);
        put_message(&json, "user", text);
        run_puts(&json, "],\"add_generation_prompt\":true");
        if (o->template_text || o->template_file) {
            run_puts(&json, ",\"template\":");
            run_put_json(&json, template.p, template.n);
        }
        run_puts(&json, "}");
        rc = chat_tokenize(r, &json, out);
    }
    free(json.p);
    free(system.p);
    free(template.p);
    return rc;
}

/* -e: the escapes of the shell's users; a backslash before anything else stays. */
static void unescape(run_bytes *text)
{
    static const char from[] = "nrt\\\"'", to[] = "\n\r\t\\\"'";
    size_t n = 0;
    for (size_t i = 0; i < text->n; i++) {
        const char *hit = text->p[i] == '\\' && i + 1 < text->n && text->p[i + 1] ? strchr(from, text->p[i + 1]) : NULL;
        text->p[n++] = hit ? to[hit - from] : text->p[i];
        if (hit) i++;
    }
    text->n = n;
}

int run_prompt_read(const run_options *o, run_bytes *text)
{
    if (o->prompt_ids) return 0;
    if (o->prompt && strcmp(o->prompt, "-") != 0) {
        run_puts(text, o->prompt);
        if (o->escape) unescape(text);
        return 0;
    }
    if (o->prompt_file) {
        int rc = run_read(o->prompt_file, text);
        if (!rc && !o->file_as_is && text->n && text->p[text->n - 1] == '\n') text->n--;
        return rc;
    }
    if (!o->prompt && isatty(0)) {
        cli_error("no prompt is given: -p TEXT, -f FILE, or text on stdin");
        return CLI_EXIT_USAGE;
    }
    return run_read("-", text);
}

int run_prompt_ids(run_state *r, run_ids *out)
{
    const run_options *o = r->o;
    if (o->prompt_ids) return run_parse_ids("--prompt-ids", o->prompt_ids, out);
    const run_bytes *text = &r->prompt;
    int rc = 0;
    bool own_template = o->template_text || o->template_file;
    if (text->n == 0 && r->info.bos < 0) {
        cli_error("the prompt is empty, and this model has no token to start a text with: give one with -p, -f or stdin");
        rc = CLI_EXIT_USAGE;
    } else if ((o->system || o->system_file) && !own_template && !r->info.has_chat_template) {
        cli_error("a system message needs a chat template, and this model has none; see --chat-template-file");
        rc = CLI_EXIT_USAGE;
    } else if (!o->raw && (own_template || r->info.has_chat_template)) rc = chat_prompt(r, text, out);
    else rc = run_tokenize(r, text->p, text->n, TESS_TOK_ADD_SPECIAL, out);
    if (rc || out->n) return rc;
    if (r->info.bos < 0) {
        cli_error("the prompt has no tokens");
        return CLI_EXIT_USAGE;
    }
    out->p = run_grow(out->p, &out->cap, 1, sizeof *out->p);
    out->p[out->n++] = r->info.bos;
    return 0;
}
