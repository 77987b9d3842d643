/*
 * program.h - the forward pass as a list of operations over numbered activation slots.
 *
 * Built once from arch and rank count; the same list serves every rank, which differ only in widths and weights. A slot is one
 * value, written by one instruction (x, the residual stream, is a new slot after every addition). plan.c lays the slots of
 * one rank into one arena by lifetime and says where barriers are needed; exec.c runs the list; a step allocates nothing.
 *
 * Two programs: the body (ids to the last hidden state of every row) and the head (chosen rows to logits).
 */
#ifndef TESS_PROGRAM_H
#define TESS_PROGRAM_H
#include "model.h"

enum { PROG_EMBED = 1, PROG_NORM, PROG_LINEAR, PROG_ROPE, PROG_KV_WRITE, PROG_ATTN, PROG_ACT, PROG_REDUCE, PROG_LOGITS,
       PROG_QUANT /* in[0] as groups for q8 and q4 weights; weight names one that reads them; in[2]: of pairs */,
       PROG_HEAD_SUMS /* squares of each head */, PROG_NORM_SUMS /* in[0] normed by the sums in[1] of all ranks */,
       PROG_ROUTE /* router logits to ids and weights */, PROG_PAIRS /* ids to the list of pairs */, PROG_GATHER /* rows to pairs */,
       PROG_EXPERTS /* linear of each expert on its pairs */, PROG_PAIR_ACT, PROG_MIX /* pairs to partials */, PROG_GATE, PROG_CLAMP,
       PROG_ABSORB /* queries into the latent space */, PROG_EXPAND /* and back to values */ };
/* Width of a slot in floats per row, by what it holds; partials have one such row per leaf of the rank, pairs (a row
 * and one of its experts) one per expert used. */
enum { W_HIDDEN = 0, W_Q, W_K, W_V, W_ATTN, W_FFN, W_PART_O, W_PART_DOWN, W_LOGITS, W_SUMS,
       W_SHARED, W_PART_SHARED, W_PART_EXPERT, W_ROUTER, W_ROUTE, W_PAIRS, W_PAIR_X, W_PAIR_H, W_ONE,
       W_GROUPS_HIDDEN, W_GROUPS_ATTN, W_GROUPS_FFN, W_GROUPS_SHARED, W_GROUPS_PAIR_X, W_GROUPS_PAIR_H /* op_group [group][row of the run] */,
       W_Q_A, W_LATENT, W_Q_LATENT, W_ATTN_LATENT, W_COUNT };
/* Weights that an instruction names; layer tells which. */
enum { WT_NONE = 0, WT_Q, WT_K, WT_V, WT_O, WT_GATE, WT_UP, WT_DOWN, WT_HEAD, WT_POS,
       WT_ROUTER, WT_SH_GATE, WT_SH_UP, WT_SH_DOWN, WT_SH_SWITCH, WT_EXP_GATE, WT_EXP_UP, WT_EXP_DOWN,
       WT_NORM_ATTN, WT_NORM_FFN, WT_NORM_POST_ATTN, WT_NORM_POST_FFN, WT_NORM_Q, WT_NORM_K, WT_NORM_FINAL, WT_NORM_EMBED,
       WT_Q_A, WT_KV_A, WT_NORM_Q_A, WT_NORM_KV_A };
enum { NO_SLOT = 0xffff };

typedef struct {
    uint8_t op, weight;
    uint8_t sync;       /* barrier before it: 0 none, 1 the rank's team, 2 all ranks; set by plan_make */
    uint8_t sync_few;   /* the same when the rows are few; see fuse.c */
    uint8_t how, cut;   /* HOW_*, CUT_*: with few rows */
    uint8_t joined;     /* instructions behind it that a device does in the same launch; they begin no group of their own */
    uint8_t in_place;   /* out is in[0] */
    uint8_t scaled;     /* reduce: times the model's residual_scale */
    uint16_t layer;
    uint16_t in[3];     /* NO_SLOT = none; meaning by op: linear x, groups of x; act gate, up; kv_write k, v; reduce partials, residual */
    uint16_t out;
} prog_instr;
typedef struct { uint8_t width; bool shared; /* read by other ranks */ bool each; /* few rows: every thread has its own */ uint32_t first, last; /* instructions, by plan_make */ uint64_t off; } prog_slot;
typedef struct {
    const mem *m;
    prog_instr *code;
    size_t n_code, cap_code;
    prog_slot *slots;
    size_t n_slots, cap_slots;
    uint16_t in_slot, out_slot; /* head: hidden rows in; body: hidden rows out; head: logits out */
    const uint32_t *quant;      /* while building: see program_body */
    uint16_t groups_of, groups; /* while building: the slot quantized last, and its groups */
    uint32_t n_ranks;           /* by program_fuse */
    bool fused;                 /* program_fuse was here: few rows go the ways of fuse.c */
    bool stops;                 /* program_join was, for one rank: a run can be stopped before each attention */
    bool failed;
} program;

/* quant: of each layer the bits 1 << WT_* of the weights that take quantized activations; NULL: none do. */
tess_status program_body(const arch *a, const uint32_t *quant, const mem *m, program *out, tess_error *err);
tess_status program_head(const arch *a, bool quant, const mem *m, program *out, tess_error *err);
void program_free(program *p);

/* fuse.c: ways of the instructions when the rows are few */
enum { FEW_ROWS = 4 };
enum { HOW_SHARE = 0, HOW_EACH, HOW_OWN };
enum { CUT_HIDDEN = 0, CUT_HEADS, CUT_FFN, CUT_SHARED, CUT_COUNT };
/* Before plan_make. n_threads: of each rank. */
void program_fuse(program *p, const arch *a, const shard_plan *s, const uint32_t *n_threads);
/* The other way, of devices: sets `joined`. Before plan_make, and not of a program that program_fuse saw. What is joined to the end of a
 * layer may be of the next one, but then reads no weights of it other than norms, which never come and go (feed.h). */
void program_join(program *p, uint32_t n_ranks);
/* Columns of each width that a thread computes in OWN instructions; of a slot of groups the columns that they stand for. */
void fuse_columns(const arch *a, const shard_rank *s, uint32_t thread, uint32_t n_threads, shard_range own[W_COUNT]);

/* plan.c */
typedef struct {
    uint32_t rows;              /* most rows of one run */
    uint64_t *off;              /* [n_slots] offset of each slot in the rank's arena, in floats */
    uint32_t stride[W_COUNT];   /* floats per row */
    uint32_t leaves[W_COUNT];   /* 1, or leaves of partials on this rank, or pairs of a row */
    uint64_t floats;            /* size of the arena */
    uint64_t *each_off;         /* [n_slots] with few rows, in a thread's own memory */
    uint64_t each_floats;
} plan;
/* Widths of rank r; lifetimes to offsets. Also fills sync of the program (the same for every rank: it is made from lifetimes
 * and overlaps of all ranks, so that barriers agree). */
tess_status plan_make(program *p, const arch *a, const shard_plan *s, uint32_t rank, uint32_t rows, plan *out, tess_error *err);
void plan_free(const mem *m, plan *p);
#endif
