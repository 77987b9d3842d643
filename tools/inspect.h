/*
 * inspect.h - the parts of inspect-model.
 *
 * inspect-model.c  command line, summary as text, --verify
 * inspect_list.c   --tensors, --chunks, --blobs as text
 * inspect_plan.c   --plan: what each rank would hold, as numbers and as text
 * inspect_json.c   everything as JSON
 *
 * Text from a file goes to the terminal through print_text only, which escapes control characters and broken
 * UTF-8.
 */
#ifndef TESS_INSPECT_H
#define TESS_INSPECT_H
#include "cli.h"
#include "container.h"

typedef struct {
    const char *path, *chunks; /* chunks: name of a tensor, or NULL */
    bool json, tensors, blobs, verify;
    int depth;                 /* CT_VERIFY_* */
    uint32_t plan, threads;    /* plan: ranks, 0 = not asked for */
} inspect_options;
typedef struct {
    const inspect_options *o;
    const ct_file *f;
    const ct_info *i;
    bool has_arch;
    arch a;
} inspect;

typedef struct { uint64_t tensors, params, logical, stored, raw_chunks, zstd_chunks; } type_sum;
type_sum inspect_sum(const inspect *s, uint32_t dtype);
uint64_t inspect_stored(const inspect *s, const ct_tensor *t);  /* bytes in the file; 0 for an alias */
uint64_t inspect_logical(const inspect *s, const ct_tensor *t); /* bytes of the values; of an alias too */
const char *inspect_kind(uint32_t kind);
const char *inspect_axis(uint32_t kind);
void inspect_hex(const uint8_t *p, size_t n, char *out); /* out: 2n + 1 bytes */
void print_text(const char *s, size_t n);
void print_bytes(uint64_t n); /* "12.3 MB" */

void inspect_list_tensors(const inspect *s);
int inspect_list_chunks(const inspect *s); /* exit code */
void inspect_list_blobs(const inspect *s);

/* What rank r of `ranks` would hold; ranges are half-open. */
typedef struct {
    uint64_t q_lo, q_hi, kv_lo, kv_hi, ffn_lo, ffn_hi, vocab_lo, vocab_hi;
    uint64_t weight_bytes;  /* decoded weights that it needs, replicated ones included */
    uint64_t read_bytes;    /* stored bytes of the chunks that they lie in */
    uint64_t kv_bytes;      /* KV cache of one token: int8 values and f16 scales */
    uint64_t replicated_kv; /* kv heads that another rank holds as well */
} plan_rank;
bool inspect_plan_rank(const inspect *s, uint32_t ranks, uint32_t r, plan_rank *out);
int inspect_print_plan(const inspect *s); /* exit code */

int inspect_print_json(const inspect *s);
int inspect_verify(const inspect *s);
#endif
