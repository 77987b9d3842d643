/* dispatch.c - which table of operations runs on this CPU, and the sizes that all of them share. */
#include "cpu.h"

static bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

uint32_t cpu_sets(const cpu_words *w)
{
    enum { FMA = 1 << 12, OSXSAVE = 1 << 27, F16C = 1 << 29 }; /* c1 */
    enum { AVX2 = 1 << 5, F = 1 << 16, DQ = 1 << 17, BW = 1 << 30 }; /* b7; the last three and VL: of AVX-512 */
    const uint32_t VL = 1u << 31;
    enum { VNNI512 = 1 << 11, VNNI = 1 << 4, YMM = 0x06, ZMM = 0xe6 }; /* c7, a71, xcr0 */
    uint32_t sets = 0;
    if (!has(w->c1, FMA | OSXSAVE | F16C) || !has(w->b7, AVX2) || !has(w->xcr0, YMM)) return 0;
    sets |= CPU_AVX2;
    if (has(w->a71, VNNI)) sets |= CPU_AVXVNNI;
    if (!has(w->b7, F | DQ | BW) || !has(w->b7, VL) || !has(w->xcr0, ZMM)) return sets;
    sets |= CPU_AVX512;
    return has(w->c7, VNNI512) ? sets | CPU_AVX512VNNI : sets;
}

#if defined(__x86_64__)
#include <cpuid.h>

static cpu_words cpu_ask(void)
{
    cpu_words w = {0};
    uint32_t a, b, c, d, most = 0;
    if (!__get_cpuid(1, &a, &b, &w.c1, &d)) return w;
    if (w.c1 & bit_OSXSAVE) __asm__ volatile("xgetbv" : "=a"(w.xcr0), "=d"(d) : "c"(0));
    if (__get_cpuid_count(7, 0, &most, &w.b7, &w.c7, &d) && most >= 1) __get_cpuid_count(7, 1, &w.a71, &b, &c, &d);
    return w;
}

/* Best first. */
static const struct {
    uint32_t set;
    const op_table *table;
} tables[] = {
    {CPU_AVX512VNNI, &op_table_avx512vnni}, {CPU_AVX512, &op_table_avx512}, {CPU_AVXVNNI, &op_table_avxvnni},
    {CPU_AVX2, &op_table_avx2},             {0, &op_table_ref},
};
#else
static cpu_words cpu_ask(void) { return (cpu_words){0}; }
static const struct {
    uint32_t set;
    const op_table *table;
} tables[] = {{0, &op_table_ref}};
#endif

const op_table *op_table_get(const char *name)
{
    cpu_words w = cpu_ask();
    uint32_t sets = cpu_sets(&w);
    bool any = !name || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < ARRAY_LEN(tables); i++)
        if (has(sets, tables[i].set) && (any || strcmp(name, tables[i].table->name) == 0)) return tables[i].table;
    return NULL;
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
