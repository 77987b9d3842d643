/*
 * batch.c - several prompts at once in one context: they share every forward pass, and each gets the text that it would
 * get alone. Lines of stdin are prompts; the answers come in the order of the lines.
 *
 *   printf 'Once upon a time\nThe sea\n' | ./batch model.tess
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera.h>

enum { MAX_PROMPTS = 16, MAX_IDS = 1024, NEW_IDS = 32 };

typedef struct {
    tess_seq seq;
    tess_token out[NEW_IDS];
    size_t n_out;
} answer;

static void check(tess_status st, const tess_error *err)
{
    if (st >= 0) return;
    fprintf(stderr, "error: %s\n", err->text);
    exit(1);
}

static void add_prompt(const tess_model *model, tess_ctx *ctx, const char *line, answer *a)
{
    tess_error err;
    tess_token ids[MAX_IDS];
    tess_seq_params sp;
    size_t n;
    check(tess_tokenize(model, line, strlen(line), TESS_TOK_ADD_SPECIAL, ids, MAX_IDS, &n, &err), &err);
    tess_seq_params_init(&sp);
    sp.max_new = NEW_IDS;
    check(tess_seq_open(ctx, &sp, &a->seq, &err), &err);
    check(tess_seq_append(ctx, a->seq, ids, n, &err), &err);
}

int main(int argc, char **argv)
{
    tess_error err;
    tess_model *model;
    tess_ctx *ctx;
    tess_ctx_params cp;
    static answer answers[MAX_PROMPTS];
    size_t n_prompts = 0;
    char line[4096];

    if (argc != 2) return fprintf(stderr, "usage: batch MODEL.tess <PROMPTS\n"), 1;
    check(tess_model_open(argv[1], NULL, &model, &err), &err);
    tess_ctx_params_init(&cp);
    cp.max_seqs = MAX_PROMPTS;
    check(tess_ctx_open(model, &cp, &ctx, &err), &err);
    while (n_prompts < MAX_PROMPTS && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        add_prompt(model, ctx, line, &answers[n_prompts++]);
    }
    for (tess_status st = TESS_OK; st != TESS_IDLE;) {
        tess_event ev[2 * MAX_PROMPTS];
        size_t n;
        check(st = tess_step(ctx, ev, 2 * MAX_PROMPTS, &n, &err), &err);
        for (size_t i = 0; i < n; i++)
            for (answer *a = answers; ev[i].kind == TESS_EV_TOKEN && a < answers + n_prompts; a++)
                if (a->seq == ev[i].seq) a->out[a->n_out++] = ev[i].token;
    }
    for (size_t i = 0; i < n_prompts; i++) {
        char text[16384];
        size_t n;
        check(tess_detokenize(model, answers[i].out, answers[i].n_out, 0, text, sizeof text, &n, &err), &err);
        printf("%zu:%.*s\n", i + 1, (int)n, text);
    }
    tess_ctx_close(ctx);
    tess_model_close(model);
    return 0;
}
