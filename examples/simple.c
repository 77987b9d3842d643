/*
 * simple.c - the shortest program around libtessera: one prompt, greedy text to stdout.
 *
 *   cc simple.c $(pkg-config --cflags --libs tessera) -o simple && ./simple model.tess "Once upon a time"
 */
#include <stdio.h>
#include <string.h>
#include <tessera.h>

static int complain(const tess_error *err)
{
    fprintf(stderr, "error: %s\n", err->text);
    return 1;
}

int main(int argc, char **argv)
{
    tess_error err;
    tess_model *model;
    tess_ctx *ctx;
    tess_seq seq;
    tess_seq_params sp;
    tess_stream *stream;
    tess_token ids[4096];
    size_t n_ids;

    if (argc != 3) return fprintf(stderr, "usage: simple MODEL.tess PROMPT\n"), 1;
    if (tess_model_open(argv[1], NULL, &model, &err) < 0) return complain(&err);
    if (tess_tokenize(model, argv[2], strlen(argv[2]), TESS_TOK_ADD_SPECIAL, ids, 4096, &n_ids, &err) < 0) return complain(&err);
    if (tess_ctx_open(model, NULL, &ctx, &err) < 0) return complain(&err);

    tess_seq_params_init(&sp); /* temperature 0: the most likely token each time */
    sp.max_new = 64;
    if (tess_seq_open(ctx, &sp, &seq, &err) < 0) return complain(&err);
    if (tess_seq_append(ctx, seq, ids, n_ids, &err) < 0) return complain(&err);
    if (tess_stream_open(model, NULL, &stream, &err) < 0) return complain(&err);

    const char *text;
    size_t len;
    for (;;) {
        tess_event ev[2];
        size_t n;
        int32_t stopped;
        tess_status st = tess_step(ctx, ev, 2, &n, &err);
        if (st < 0) return complain(&err);
        if (st == TESS_IDLE) break; /* the sequence is done */
        for (size_t i = 0; i < n; i++) {
            if (ev[i].kind != TESS_EV_TOKEN) continue;
            if (tess_stream_push(stream, ev[i].token, &text, &len, &stopped, &err) < 0) return complain(&err);
            fwrite(text, 1, len, stdout);
            fflush(stdout);
        }
    }
    if (tess_stream_flush(stream, &text, &len, &err) < 0) return complain(&err);
    fwrite(text, 1, len, stdout);
    putchar('\n');
    tess_stream_close(stream);
    tess_ctx_close(ctx);
    tess_model_close(model);
    return 0;
}
