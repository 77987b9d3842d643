/* dispatch.c - which table of operations runs on this CPU, and the sizes that all of them share. */
#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Not every compiler knows "f16c" in __builtin_cpu_supports. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static const op_table *table_avx2(void)
{
    __builtin_cpu_init();
    bool ok = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return ok ? &op_table_avx2 : NULL;
}
#else
static const op_table *table_avx2(void) { return NULL; }
#endif

const op_table *op_table_get(const char *name)
{
    const op_table *avx2 = table_avx2();
    if (!name || strcmp(name, "auto") == 0) return avx2 ? avx2 : &op_table_ref;
    if (strcmp(name, "avx2") == 0) return avx2;
    return strcmp(name, "ref") == 0 ? &op_table_ref : NULL;
}

/*
 * Attention needs scratch only when chunks are split over the threads: per head and chunk of every row m, l and o[v_dim].
 * That is done for few rows per thread, and is left out when the scratch given is too small, so large contexts are bounded
 * here by what one row needs or SCRATCH_MAX floats, whichever is more.
 */
enum { SPLIT_ROWS = 4, SCRATCH_MAX = 16 << 20 };

size_t op_attn_scratch(uint32_t n_tokens, uint32_t n_heads, uint32_t v_dim, uint32_t max_pos, uint32_t n_threads)
{
    uint64_t rows = MIN((uint64_t)n_tokens, SPLIT_ROWS * (uint64_t)n_threads);
    uint64_t chunks = ceil_div(max_pos, ATTN_CHUNK), row = (chunks + 1) * n_heads * ((uint64_t)v_dim + 2);
    return (size_t)MIN(rows * row, MAX(row, (uint64_t)SCRATCH_MAX));
}

void op_kv_layout(op_kv *pg)
{
    uint64_t esize = pg->dtype == DT_F32 ? 4 : pg->dtype == DT_F16 ? 2 : 1;
    uint64_t k = pg->dtype == DT_I8 ? ceil_div(pg->k_dim, 4) * 4 : pg->k_dim;
    uint64_t k_bytes = k * pg->page_tokens * esize, v_bytes = (uint64_t)pg->v_dim * pg->page_tokens * esize;
    pg->v_off = ceil_div(k_bytes, 64) * 64;
    pg->s_off = pg->v_off + ceil_div(v_bytes, 64) * 64;
    uint64_t s_bytes = pg->dtype == DT_I8 ? 2 * 2 * (uint64_t)pg->page_tokens : 0;
    pg->head_bytes = pg->s_off + ceil_div(s_bytes, 64) * 64;
}
