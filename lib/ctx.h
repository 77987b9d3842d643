/*
 * ctx.h - a context: sequences, the scheduler, one step of the batch.
 *
 * A sequence is its ids (prompt and output), the number n_done of them whose K and V are in pages, and its block tables. What
 * is pending, ids[n_done..n), is run by ctx_step: first one row of every sequence that decodes, then prompt chunks in the
 * order of opening until max_step_tokens rows are taken. State changes only after the forward pass succeeded, so a failed
 * or cancelled step leaves every sequence as it was (pages already taken stay with their sequence; their slots count as unwritten).
 * When pages run out, a sequence that has nothing to run, or else the youngest, gives its own back and is computed again later.
 * Before a prompt is run, the pages that are kept for its beginning become its own (kv_prefix.c), but for a sequence whose every
 * row has to be computed.
 *
 * Contexts of one model on several devices take turns with all that they ask of these (tess_model.turn): a body with what it needs, a
 * head, opening and closing. Between two launches of a barrier, one on each device, the kernel of the first waits for the second, and
 * what another thread asks may wait for that kernel and keep the second launch out: freeing memory does, and so may streams that
 * share a queue of the device. No callback is called in a turn but those of memory and log.
 */
#ifndef TESS_CTX_H
#define TESS_CTX_H
#include "exec.h"
#include "sampler.h"

typedef struct {
    bool open, finished, parked; /* parked: had nothing to run and lost its pages; its logits still hold */
    uint32_t generation;
    tess_seq_params p;
    tess_token *stop;
    int32_t *ids;
    size_t n, cap, n_done, n_prompt, n_out;
    uint64_t draws, opened; /* opened: order of opening */
    float *logits;          /* after ids[n_done - 1], when has_logits */
    bool has_logits;
    sampler_best *best;     /* in their place when a device gave no more than the next draw needs (has_best) */
    bool has_best;
    uint32_t rope_key;      /* see exec_rope_key; K of all positions is made alike */
    kv_table tables[ARCH_MAX_ATTN_KINDS];
} ctx_seq;

struct tess_ctx {
    mem m;
    tess_model *model;
    tess_ctx_params p;      /* resolved */
    comm *comm;             /* ranks on devices; NULL: none are */
    kv_memory pages;        /* where pages come from, with ranks on devices or on several nodes */
    kv_pool kv;
    exec *exec;
    ctx_seq *seqs;          /* [max_seqs] */
    uint64_t opened, preemptions, tokens_shared;
    uint32_t cancel;        /* atomic */
    sampler_work work;
    /* one step's arrays, [max_step_tokens] or [max_seqs] */
    int32_t *ids;
    uint32_t *pos, *seq_of, *want, *batch_seq, *take;
    uint8_t *const **tables[ARCH_MAX_ATTN_KINDS][MAX_RANKS];
    uint32_t *rope_key; /* [max_seqs] */
};

tess_status ctx_open(tess_model *m, const tess_ctx_params *p, tess_ctx **out, tess_error *err);
void ctx_close(tess_ctx *c);
tess_status ctx_seq_open(tess_ctx *c, const tess_seq_params *p, tess_seq *out, tess_error *err);
ctx_seq *ctx_seq_get(tess_ctx *c, tess_seq s); /* NULL: unknown or stale */
tess_status ctx_seq_append(tess_ctx *c, ctx_seq *s, const int32_t *ids, size_t n, tess_error *err);
tess_status ctx_seq_fork(tess_ctx *c, ctx_seq *src, size_t keep, tess_seq *out, tess_error *err);
void ctx_seq_truncate(tess_ctx *c, ctx_seq *s, size_t keep);
/* A sequence that was cut, or a fork that ends earlier, has no logits to go on from unless ids follow: its last id waits again. */
void ctx_seq_rerun_last(tess_ctx *c, ctx_seq *s);
void ctx_seq_close(tess_ctx *c, ctx_seq *s);
/* step.c */
tess_status ctx_step(tess_ctx *c, tess_event *ev, size_t *n, tess_error *err);
#endif
