/* run_options.h - the command line of run-model as a struct. Floats that were not given are NAN, whole numbers RUN_UNSET. */
#ifndef TESS_RUN_OPTIONS_H
#define TESS_RUN_OPTIONS_H

#include "cli.h"

enum { RUN_UNSET = INT32_MIN, RUN_MAX_STOPS = 64 };
typedef enum { RUN_GENERATE, RUN_TOKENIZE, RUN_DETOKENIZE, RUN_RENDER_CHAT, RUN_PPL, RUN_LIST_DEVICES } run_mode;

typedef struct {
    run_mode mode;
    const char *model;
    /* Prompt: at most one of these. */
    const char *prompt;      /* "-" = stdin */
    const char *prompt_file; /* "-" = stdin */
    const char *prompt_ids;
    bool file_as_is; /* keep the file's last newline */
    bool escape, raw, add_special;
    const char *system, *system_file, *template_text, *template_file;
    /* Output. */
    const char *out_file, *logits_file, *ppl_file, *kl_file;
    bool echo, special, print_ids, verbose;
    /* Generation. */
    int64_t n_predict; /* -1: to the end of the text or of the context */
    float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int32_t top_k, repeat_last_n;
    int64_t seed; /* -1: a random one */
    bool ignore_eos;
    const char *stop[RUN_MAX_STOPS];
    tess_token stop_id[RUN_MAX_STOPS];
    uint32_t n_stop, n_stop_id;
    /* Machine. */
    uint32_t ranks, threads, ctx_size, chunk, page;
    int32_t kv, compute, stream;
    const char *devices, *split;
    bool no_verify;
} run_options;

/* Parses argv. Returns -1 when the work can start, else the exit code (help and version are done here). */
int run_options_parse(run_options *o, int argc, char **argv);
#endif
