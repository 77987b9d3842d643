/* packed_priv.h - one quantized matrix, between packed.c, which finds the parts, and packed_read.c, which reads them. */
#ifndef TESS_PACKED_PRIV_H
#define TESS_PACKED_PRIV_H
#include <pthread.h>

#include "packed.h"

enum { FORM_GPTQ = 1, FORM_AWQ, FORM_BYTES, FORM_WORDS /* of 32 bits, along K */, FORM_NIBBLES /* two a byte, along K */ };
enum { TABLE_WHOLE = 0 /* the code */, TABLE_SIGNED, TABLE_E4M3, TABLE_E5M2, TABLE_E2M1, TABLE_COUNT };
enum { ZEROS_NONE = 0 /* all are `zero` */, ZEROS_GPTQ /* [group][words of n] */, ZEROS_AWQ, ZEROS_WORDS /* [words of n][group] */,
       ZEROS_SIGNED /* int8 [n][group] */ };

typedef struct {
    uint32_t form, bits, table, zeros_form, zero_rule;
    int32_t zero;
    uint32_t codes;                  /* tensors of the base source */
    int64_t scales, zeros, order;    /* order: group of each column; -1 = none */
    uint64_t rows, cols;             /* of the whole, all matrices together */
    uint64_t mat_rows;               /* rows of one matrix */
    uint64_t group, n_groups;        /* columns that share a scale; scales in a row */
    uint64_t row_group, scale_rows;  /* rows that share a scale; rows of scales of a matrix */
    bool scales_turned;              /* [group][row] instead of [row][group] */
} packed_tensor;

/* Codes, scales and zeros of rows [row0, row0 + n_rows) over all of K. scale and zero of row r (counted from row0) and
 * group g at [r * row_step + g * group_step]. */
typedef struct panel {
    struct panel *next;
    int64_t tensor;       /* -1: holds nothing */
    uint64_t row0, n_rows;
    uint8_t *code;        /* [n_rows][cols] */
    float *scale, *zero;
    uint32_t *group;      /* of each column */
    uint8_t *step;        /* a row of a part, as it lies in the file */
    size_t code_cap, scale_cap, zero_cap, group_cap, step_cap;
    size_t row_step, group_step;
} panel;

typedef struct {
    source *base;
    packed_tensor *t;     /* of the tensors of type SRC_COMPUTED, by src_tensor.ref */
    uint32_t n;
    size_t cap;
    float table[TABLE_COUNT][256];
    pthread_mutex_t lock;
    panel *idle;
} packed_impl;

void packed_tables(packed_impl *p);
tess_status packed_read(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, bool raw,
                        void *dst, tess_error *err);
tess_status packed_blocks(const source *s, uint32_t i, uint64_t row, uint64_t k0, uint64_t n_k, uint32_t dt, uint8_t *dst,
                          tess_error *err);
void packed_close(source *s);
/* The bytes [off, off + n) of tensor i of the base. */
tess_status packed_bytes(const source *base, uint32_t i, uint64_t off, void *dst, size_t n, tess_error *err);
#endif
