/*
 * tessera.h - the public interface of libtessera: language models from one .tess file.
 *
 * Two handles. A tess_model holds weights, tokenizer and chat template; it is immutable once open, and any
 * number of threads may use it at once. A tess_ctx holds the mutable part: scheduler, KV pages, sequences;
 * one thread at a time uses it, except tess_ctx_cancel, which is allowed from any thread and from a signal
 * handler. Different handles need no lock between them, but for two models on several devices each: see
 * tess_step.
 *
 * The library never ends the process, prints, reads the environment, installs signal handlers or keeps
 * global state. Every call that can fail returns a tess_status (0 done, < 0 error, > 0 information) and takes
 * a last argument tess_error *, which may be NULL; on an error it holds one sentence that names the file or
 * argument, the place and what to do. On failure out-parameters are set to 0 or NULL.
 *
 * Structs that may grow start with struct_size. Fill them with their init macro, which passes the size that
 * the caller was compiled with; fields that a newer caller sets and an older library does not know must be 0
 * or the call fails with TESS_E_ARG. Enum values and fields are only ever appended. tess_error and tess_event
 * are frozen.
 *
 * Ownership: who opens closes, in any order (a context keeps its model alive). Returned pointers belong to
 * the handle, and the comment says until when they hold.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TESS_API __attribute__((visibility("default")))
#else
#define TESS_API
#endif

#define TESS_VERSION_NUMBER 100 /* major * 10000 + minor * 100 + patch, of this header */

/* ---- status and errors ---------------------------------------------------------------------------- */

typedef int32_t tess_status;
enum {
    TESS_OK = 0,
    TESS_IDLE = 1,           /* tess_step: no sequence had anything to do */
    TESS_E_ARG = -1,         /* an argument is wrong; nothing was changed */
    TESS_E_NOMEM = -2,       /* memory ran out or would not suffice; nothing was changed */
    TESS_E_IO = -3,          /* the operating system refused; os_code holds errno */
    TESS_E_FORMAT = -4,      /* a file is not what it should be */
    TESS_E_CHECKSUM = -5,    /* a file is damaged */
    TESS_E_UNSUPPORTED = -6, /* a model, option or file feature that this library does not know */
    TESS_E_DEVICE = -7,      /* an accelerator failed or is missing */
    TESS_E_BUFFER = -8,      /* the caller's buffer is too small; the needed size is given */
    TESS_E_KV_FULL = -9,     /* no KV page is free; every sequence is as before the call */
    TESS_E_CANCELLED = -10,  /* tess_ctx_cancel or a progress callback; every sequence is as before the call */
    TESS_E_BROKEN = -11,     /* a device was lost; the context can only be closed */
    TESS_E_NONFINITE = -12,  /* a sequence produced logits that are not finite; that sequence is stopped */
    TESS_E_TEMPLATE = -13    /* a chat template failed, or raised its own exception */
};

typedef struct {
    tess_status status;
    int32_t os_code; /* errno or device code, 0 if none */
    char text[504];  /* one line, without a newline at its end */
} tess_error;

TESS_API uint32_t tess_version_number(void);                 /* of the library that was linked */
TESS_API const char *tess_build_info(void);                  /* static string: version, CPU variants, CUDA */
TESS_API const char *tess_status_name(tess_status status);   /* static string such as "TESS_E_ARG" */

/* ---- host callbacks ------------------------------------------------------------------------------- */

enum { TESS_LOG_DEBUG = 0, TESS_LOG_INFO = 1, TESS_LOG_WARN = 2 };

/* Memory and log of the embedding program; copied at open, inherited by every context of the model.
 * NULL members: libc memory, silence. alloc and release must both be set or both be NULL; alloc gets a power
 * of two as align and returns NULL when out of memory; release gets the size that alloc got. log may be
 * called from worker threads, alloc and release from any thread. A callback never calls back into the handle. */
typedef struct {
    uint32_t struct_size, reserved;
    void *user;
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*release)(void *user, void *ptr, size_t size);
    void (*log)(void *user, int32_t level, const char *text);
} tess_host;
TESS_API void tess_host_init_(tess_host *p, size_t size);
#define tess_host_init(p) tess_host_init_((p), sizeof *(p))

/* ---- devices -------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t struct_size, index; /* index: as in "cuda:0" */
    char name[128];
    uint64_t mem_total, mem_free; /* bytes */
    uint32_t major, minor;        /* compute capability */
} tess_device_info;
TESS_API void tess_device_info_init_(tess_device_info *p, size_t size);
#define tess_device_info_init(p) tess_device_info_init_((p), sizeof *(p))
/* How many CUDA devices there are. DEVICE: none can be used, and the text says why (no driver, a build without CUDA). */
TESS_API tess_status tess_device_count(uint32_t *n, tess_error *err);
TESS_API tess_status tess_device_get(uint32_t index, tess_device_info *out, tess_error *err);

/* ---- model ---------------------------------------------------------------------------------------- */

typedef struct tess_model tess_model;
typedef int32_t tess_token;

enum {
    TESS_MODEL_TOKENIZER_ONLY = 1, /* open tokenizer and template, no weights */
    TESS_MODEL_NO_VERIFY = 2,      /* do not check the hashes of the weights while loading */
    TESS_MODEL_NO_MMAP = 4         /* read weights into memory even where they could be mapped */
};
/* AUTO: EXACT, but on devices steps of many rows are computed near it and faster (docs/numerics.md). EXACT: equal bits whatever the company,
 * cut and number of ranks. F32: q8 and q4 weights as floats. */
enum { TESS_COMPUTE_AUTO = 0, TESS_COMPUTE_EXACT = 1, TESS_COMPUTE_F32 = 2 };
/* Weights of layers stay in memory of the host and are copied to the devices in every step: where they do not fit, always, never. */
enum { TESS_STREAM_AUTO = 0, TESS_STREAM_ON = 1, TESS_STREAM_OFF = 2 };

typedef struct {
    uint32_t struct_size;
    uint32_t flags;        /* TESS_MODEL_* */
    uint32_t n_ranks;      /* tensor-parallel ranks, 1 to 8, the first of those listed; 0 = one per listed device, 1 on the CPU */
    uint32_t n_threads;    /* CPU threads over all ranks; 0 = as many as the process may use */
    int32_t compute;       /* TESS_COMPUTE_* */
    int32_t stream;        /* TESS_STREAM_*; for ranks on devices */
    const char *devices;   /* NULL or "cpu"; "cuda:0,1" (a device named twice has two ranks); "cuda" = all */
    const char *split;     /* NULL, or a share for each rank: "3,1" */
    int32_t (*progress)(void *user, uint64_t done, uint64_t total); /* bytes; nonzero cancels; calling thread */
    void *progress_user;
    const tess_host *host; /* NULL = defaults */
} tess_model_params;
TESS_API void tess_model_params_init_(tess_model_params *p, size_t size);
#define tess_model_params_init(p) tess_model_params_init_((p), sizeof *(p))

/* Opens the container at path (any part of a split set) and loads what the ranks need. p may be NULL.
 * Errors: ARG, NOMEM, IO, FORMAT, CHECKSUM, UNSUPPORTED, DEVICE, CANCELLED. *out is NULL on failure. */
TESS_API tess_status tess_model_open(const char *path, const tess_model_params *p, tess_model **out,
                                     tess_error *err);
TESS_API void tess_model_close(tess_model *m); /* NULL is fine */

typedef struct {
    uint32_t struct_size;
    uint32_t vocab_size;     /* rows of the output head */
    uint32_t n_tokens;       /* ids that the tokenizer knows */
    uint32_t max_seq_tokens; /* context that the model was made for */
    uint32_t n_layers, hidden_size, n_heads, n_kv_heads;
    uint32_t n_ranks, n_threads;
    tess_token bos, eos, pad, unk; /* -1 = none; eos is the first of the list */
    uint32_t n_eos;
    uint32_t has_chat_template, has_weights;
    uint64_t file_bytes, weight_bytes, param_count;
    const char *family, *weight_type; /* owned by the model */
    const tess_token *eos_list;       /* n_eos ids that end a generation; owned by the model */
    float temperature, top_p, min_p, repetition_penalty; /* generation_config of the model; < 0 = not given */
    int32_t top_k, do_sample;                            /* -1 = not given */
    uint64_t token_bytes, token_macs; /* weights that one token reads, and its multiply-adds with them: all but tables
                                         of which a token takes one row */
    uint64_t read_bytes;              /* of the file, as stored: weights that were read and checked at open */
    uint64_t device_bytes;            /* memory of devices that the model takes, all ranks; 0 on the CPU */
    uint64_t stream_bytes;            /* weights that stay on the host and are copied in every step (TESS_STREAM_*) */
} tess_model_info;
TESS_API void tess_model_info_init_(tess_model_info *p, size_t size);
#define tess_model_info_init(p) tess_model_info_init_((p), sizeof *(p))
TESS_API tess_status tess_model_get_info(const tess_model *m, tess_model_info *out, tess_error *err);

/* Async-signal-safe: writes "PATH offset N" into text (n bytes, always terminated) and returns 1 when addr lies in
 * the mapped weights of m, else 0. For a SIGBUS handler of the program. */
TESS_API int32_t tess_fault_describe(const tess_model *m, const void *addr, char *text, size_t n);

/* ---- text and tokens ------------------------------------------------------------------------------ */

enum {
    TESS_TOK_ADD_SPECIAL = 1,   /* what the post-processor adds, such as a BOS */
    TESS_TOK_PLAIN = 2,         /* do not recognize special tokens in the text */
    TESS_DETOK_SPECIAL = 4      /* detokenize: print special tokens as well */
};
/* Text (len bytes; invalid UTF-8 becomes U+FFFD) to ids. cap is the room in out; on TESS_E_BUFFER *n is the need.
 * Any thread. Errors: ARG, NOMEM, BUFFER, UNSUPPORTED (no tokenizer in the file). */
TESS_API tess_status tess_tokenize(const tess_model *m, const char *text, size_t len, uint32_t flags,
                                   tess_token *out, size_t cap, size_t *n, tess_error *err);
/* Ids to text, as one batch. On TESS_E_BUFFER *n is the need. The text is not zero-terminated. */
TESS_API tess_status tess_detokenize(const tess_model *m, const tess_token *ids, size_t n_ids, uint32_t flags,
                                     char *out, size_t cap, size_t *n, tess_error *err);
/* The token's text as it stands in the vocabulary, zero-terminated, owned by m; NULL when there is no such id. */
TESS_API const char *tess_token_text(const tess_model *m, tess_token id, size_t *len);

/* Chat: json is an object {"messages": [...], "template"?: text, "add_generation_prompt"?: bool, "bos_token"?,
 * "eos_token"?, "tools"?: [...], "variables"?: {...}}; what is missing comes from the model (m may be NULL when
 * template is given). Renders the text. Errors: ARG (json), TEMPLATE, NOMEM, BUFFER (*n = need). */
TESS_API tess_status tess_chat_render(const tess_model *m, const char *json, size_t len, char *out, size_t cap,
                                      size_t *n, tess_error *err);
/* The same as ids. Special tokens count only where the template wrote them: text of a message can not become one. */
TESS_API tess_status tess_chat_tokenize(const tess_model *m, const char *json, size_t len, tess_token *out,
                                        size_t cap, size_t *n, tess_error *err);

/* Streaming detokenizer: never emits half a character, and holds back text that may be the start of a stop string. */
typedef struct tess_stream tess_stream;
typedef struct {
    uint32_t struct_size;
    uint32_t flags;         /* TESS_DETOK_SPECIAL */
    uint32_t n_stop, reserved;
    const char *const *stop; /* stop strings, zero-terminated, copied */
} tess_stream_params;
TESS_API void tess_stream_params_init_(tess_stream_params *p, size_t size);
#define tess_stream_params_init(p) tess_stream_params_init_((p), sizeof *(p))
TESS_API tess_status tess_stream_open(const tess_model *m, const tess_stream_params *p, tess_stream **out,
                                      tess_error *err);
/* Adds one id. *text (not terminated, *len bytes) is what is final now; it holds until the next call on s.
 * *stopped becomes 1 when a stop string was completed: the text before it has then been given. */
TESS_API tess_status tess_stream_push(tess_stream *s, tess_token id, const char **text, size_t *len,
                                      int32_t *stopped, tess_error *err);
/* Gives what was held back (half characters as U+FFFD) and empties the stream. */
TESS_API tess_status tess_stream_flush(tess_stream *s, const char **text, size_t *len, tess_error *err);
TESS_API void tess_stream_close(tess_stream *s);

/* ---- context and sequences ------------------------------------------------------------------------ */

typedef struct tess_ctx tess_ctx;
typedef uint64_t tess_seq; /* slot and generation in one context; stale ids are detected; 0 is never valid */

enum { TESS_KV_AUTO = 0, TESS_KV_F32 = 1, TESS_KV_F16 = 2, TESS_KV_INT8 = 3 };

typedef struct {
    uint32_t struct_size;
    uint32_t max_seqs;        /* sequences that may be open at once; 0 = 1 */
    uint32_t max_step_tokens; /* tokens in one step, so the prefill chunk; 0 = 512 */
    uint32_t max_seq_tokens;  /* context; 0 = the model's */
    int32_t kv_dtype;         /* TESS_KV_*; auto = f16 */
    uint32_t page_tokens;     /* 16, 32 or 64; 0 = 32 */
    uint64_t kv_bytes;        /* limit of KV memory over all ranks; 0 = what max_seqs x context may need. Pages
                                 are taken as they are needed, never ahead */
    /* Called in tess_step for every row of logits that was asked for (TESS_SEQ_ALL_LOGITS, or the sampled rows):
     * pos is the position of the input token, logits has vocab_size floats and holds during the call only. */
    void (*on_logits)(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n);
    void *logits_user;
    /* A sequence that begins with the same ids as another one of the context, page by page, takes its KV pages instead of
     * computing them: the same bits (TESS_COMPUTE_AUTO: as near). Pages of sequences that are closed are kept for this, those used
     * least recently going first when others need their memory or they are more than this: bytes over all ranks;
     * 0 = 256 MB, -1 = no such sharing. */
    int64_t prefix_bytes;
} tess_ctx_params;
TESS_API void tess_ctx_params_init_(tess_ctx_params *p, size_t size);
#define tess_ctx_params_init(p) tess_ctx_params_init_((p), sizeof *(p))
TESS_API tess_status tess_ctx_open(tess_model *m, const tess_ctx_params *p, tess_ctx **out, tess_error *err);
TESS_API void tess_ctx_close(tess_ctx *c);  /* NULL is fine; closes its sequences */
TESS_API void tess_ctx_cancel(tess_ctx *c); /* the step under way, or else the next one, returns TESS_E_CANCELLED */

typedef struct {
    uint32_t struct_size;
    uint32_t flags;         /* TESS_SEQ_* */
    uint32_t max_new;       /* ids to generate; 0 = none: the caller samples and appends by hand */
    int32_t top_k;          /* 0 or less = off */
    float temperature;      /* 0 = greedy */
    float top_p, min_p;     /* 1 and 0 = off */
    float repeat_penalty;   /* 1 = off; over the last repeat_last_n ids of prompt and output */
    int32_t repeat_last_n;  /* -1 = all, 0 = off */
    float presence_penalty, frequency_penalty; /* 0 = off; over the output only */
    uint64_t seed;          /* of this sequence's own generator: batch mates never change a draw */
    uint32_t n_stop, reserved;
    const tess_token *stop; /* ids that end the sequence; with n_stop 0 the model's eos list counts */
} tess_seq_params;
enum {
    TESS_SEQ_ALL_LOGITS = 1, /* on_logits for every input row, the prompt's included: all are computed, none is shared */
    TESS_SEQ_IGNORE_EOS = 2, /* generate on after an id of the stop list */
    TESS_SEQ_FEED_LAST = 4   /* also run the last generated id, so that its logits are reported */
};
TESS_API void tess_seq_params_init_(tess_seq_params *p, size_t size);
#define tess_seq_params_init(p) tess_seq_params_init_((p), sizeof *(p))

TESS_API tess_status tess_seq_open(tess_ctx *c, const tess_seq_params *p, tess_seq *out, tess_error *err);
/* Appends n ids to be run. Errors: ARG (unknown sequence, id outside the vocabulary, or more than the context: the
 * text gives both numbers), NOMEM. On an error nothing was appended. */
TESS_API tess_status tess_seq_append(tess_ctx *c, tess_seq s, const tess_token *ids, size_t n, tess_error *err);
/* A new sequence with the first keep ids of src, which count as its prompt, and src's parameters; shares its KV pages. */
TESS_API tess_status tess_seq_fork(tess_ctx *c, tess_seq src, size_t keep, tess_seq *out, tess_error *err);
/* Keeps the first keep ids; a sequence that has no more than these stays as it is. Unless ids are appended, the next step runs the last one again, and generation goes on from there. */
TESS_API tess_status tess_seq_truncate(tess_ctx *c, tess_seq s, size_t keep, tess_error *err);
TESS_API void tess_seq_close(tess_ctx *c, tess_seq s);

enum { TESS_EV_TOKEN = 1, TESS_EV_DONE = 2 };
enum { TESS_DONE_STOP = 1, TESS_DONE_LENGTH = 2, TESS_DONE_ERROR = 3 };
typedef struct { /* frozen */
    tess_seq seq;
    tess_token token; /* TOKEN: the new id; DONE: -1, or the id of the stop list that was drawn: it is part of the
                         sequence, but no TOKEN event is sent for it */
    float logprob;    /* of token, before temperature and filters */
    uint32_t kind;    /* TESS_EV_* */
    uint32_t reason;  /* DONE: TESS_DONE_* */
} tess_event;

/* A device that failed: TESS_E_DEVICE, every sequence is as before the call, which may be tried again; or TESS_E_BROKEN: the
 * device is lost for the process, and the context can only be closed.
 * Contexts of one model that is on several devices take turns, in the order of asking. With two such models in a process
 * the caller has to see to that: while one of them steps, steps of the other one, and opening or closing it or a
 * context of it, may hold the step up until it fails (TESS_E_DEVICE after 20 s).
 * One batched forward pass over the sequences that have something to run; long prompts go in chunks. cap must be at
 * least 2 * max_seqs, so that no event is lost. TESS_IDLE: nothing to do. On KV_FULL, CANCELLED and NOMEM every
 * sequence is as before the call. NONFINITE: the events tell which sequence was stopped (TESS_DONE_ERROR). */
TESS_API tess_status tess_step(tess_ctx *c, tess_event *ev, size_t cap, size_t *n, tess_error *err);
/* Logits after the last id of s (vocab_size floats), NULL while ids of s wait to be run. Holds until the next call on c. */
TESS_API const float *tess_seq_logits(tess_ctx *c, tess_seq s, size_t *n);
/* Draws from a vector of logits as tess_step would: history holds the ids so far, the first n_prompt of them the
 * prompt; step counts the draws of this seed. No handle, no state. Errors: ARG, NONFINITE, NOMEM. */
TESS_API tess_status tess_sample(const float *logits, size_t n, const tess_token *history, size_t n_history,
                                 size_t n_prompt, const tess_seq_params *p, uint64_t step, tess_token *out,
                                 float *logprob, tess_error *err);

typedef struct {
    uint32_t struct_size, page_tokens, seqs_open, seqs_waiting;
    uint64_t pages_total, pages_used, pages_shared, bytes_per_page, preemptions; /* used: by sequences; shared: by several */
    uint64_t pages_kept;    /* of no sequence, for those to come (prefix_bytes) */
    uint64_t tokens_shared; /* that prompts did not compute, so far */
} tess_kv_stats;
TESS_API void tess_kv_stats_init_(tess_kv_stats *p, size_t size);
#define tess_kv_stats_init(p) tess_kv_stats_init_((p), sizeof *(p))
TESS_API tess_status tess_ctx_kv_stats(const tess_ctx *c, tess_kv_stats *out, tess_error *err);

#ifdef __cplusplus
}
#endif
#endif
