/*
 * tables.c - linked into t_*_simde: the tables whose kernels are emulated. The library's tables name the functions of the objects
 * that stand before it, which are those compiled with avx512.h.
 */
#include "base.h"
#include "ops.h"

size_t emulated_tables(op_table *out, const char **why); /* ops_common.h asks */

size_t emulated_tables(op_table *out, const char **why)
{
#ifdef HAVE_SIMDE
    static const struct {
        const op_table *table;
        const char *name;
    } all[] = {
        {&op_table_avxvnni, "avxvnni (SIMDe)"}, {&op_table_avx512, "avx512 (SIMDe)"}, {&op_table_avx512vnni, "avx512vnni (SIMDe)"},
    };
    *why = "this CPU lacks AVX2, on which the others are emulated";
    for (size_t i = 0; i < ARRAY_LEN(all); i++) out[i] = *all[i].table, out[i].name = all[i].name;
    return op_table_get("avx2") ? ARRAY_LEN(all) : 0;
#else
    (void)out;
    *why = "no SIMDe (libsimde-dev): AVX-512 and AVX-VNNI are not emulated";
    return 0;
#endif
}
