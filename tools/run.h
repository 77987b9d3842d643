/*
 * run.h - the parts of run-model.
 *
 * run-model.c      opens the model, signals, main
 * run_options.c    command line
 * run_io.c         reading prompts, writing output, growing memory, text as JSON
 * run_prompt.c     the prompt as ids: raw text, chat, given ids
 * run_generate.c   the generation loop
 * run_npy.c        logits into a .npy file
 * run_ppl.c        --ppl
 * run_kl.c         --kl
 * run_text.c       --tokenize, --detokenize, --render-chat
 *
 * Functions that return int give an exit code, 0 = done, and have printed the error line when it is not. Memory of the
 * command itself comes from run_grow, which ends the process with exit code 3 when there is none.
 */
#ifndef TESS_RUN_H
#define TESS_RUN_H

#include "run_options.h"

/* ---- run_io.c ---- */
typedef struct { char *p; size_t n, cap; } run_bytes;
typedef struct { tess_token *p; size_t n, cap; } run_ids;
void *run_grow(void *p, size_t *cap, size_t want, size_t size); /* never NULL */
void run_put(run_bytes *b, const void *p, size_t n);
void run_puts(run_bytes *b, const char *s);
/* text as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD. */
void run_put_json(run_bytes *b, const char *text, size_t n);
/* The whole of a file or, for "-", of stdin. */
int run_read(const char *path, run_bytes *out);
/* Writes to a descriptor; name is for the error line. */
int run_write(int fd, const char *name, const char *p, size_t n);
/* Non-negative whole numbers separated by commas. */
int run_parse_ids(const char *option, const char *text, run_ids *out);

/* ---- run-model.c ---- */
typedef struct {
    const run_options *o;
    run_bytes prompt; /* text, when there is one */
    tess_model *model;
    tess_model_info info;
    uint64_t start_ns; /* of the process */
    double load_s;
    tess_error err;
} run_state;
/* Whether the user pressed ^C. The context is what the handler cancels; NULL when there is none. */
bool run_interrupted(void);
void run_watch_ctx(tess_ctx *c);

/* ---- run_prompt.c ---- */
/* The prompt's text, before the model is opened: a missing file is said at once. */
int run_prompt_read(const run_options *o, run_bytes *text);
/* The prompt's ids, from r->prompt; needs r->model. */
int run_prompt_ids(run_state *r, run_ids *out);
/* Calls tess_tokenize with room as needed; appends. */
int run_tokenize(run_state *r, const char *text, size_t n, uint32_t flags, run_ids *out);
int run_detokenize(run_state *r, const run_ids *ids, uint32_t flags, run_bytes *out);

/* ---- run_npy.c ---- */
typedef struct { int fd; char *tmp; const char *path; size_t vocab; uint64_t rows; int os_code; } run_npy;
int run_npy_open(run_npy *f, const char *path, size_t vocab);
/* Row pos; a failure is remembered for run_npy_commit, since this is called from within tess_step. */
void run_npy_row(run_npy *f, uint64_t pos, const float *logits, size_t n);
int run_npy_commit(run_npy *f, uint64_t want_rows);
void run_npy_abort(run_npy *f); /* also after commit or without open (zeroed): no-op */

/* ---- run_kl.c ---- */
typedef struct {
    int fd;
    const char *path;
    uint64_t data, rows; /* offset and rows of the reference */
    size_t vocab;
    float *row;          /* NULL: not open */
    double *kl;          /* [n] of each prediction so far */
    size_t n, cap;
    uint64_t same;       /* predictions with the same best id */
    double ref_nll;
    int os_code;
} run_kl;
typedef struct { double mean, median, high /* 99 of 100 are at most this */, max, same_best, ref_nll; } run_kl_stats;
/* The functions below do nothing on one that is not open (zeroed). After a failure close it as well. */
int run_kl_open(run_kl *k, const char *path, size_t vocab);
int run_kl_expect(const run_kl *k, uint64_t rows); /* says when the reference has another number of predictions */
/* Prediction `row`, of the id `target`; a failure is remembered for run_kl_result. */
void run_kl_row(run_kl *k, uint64_t row, const float *logits, size_t n, tess_token target);
int run_kl_result(run_kl *k, run_kl_stats *s);
void run_kl_close(run_kl *k);

/* ---- the work ---- */
int run_generate(run_state *r);
int run_ppl(run_state *r);
int run_tokenize_stdin(run_state *r);
int run_detokenize_stdin(run_state *r);
int run_render_chat(run_state *r); /* r->model may be NULL */
/* Context parameters from the options. */
void run_ctx_params(const run_options *o, tess_ctx_params *p);

#endif
