/* cu_kv.cuh - addresses in KV pages; ops.h states the layout. */
#ifndef TESS_CU_KV_CUH
#define TESS_CU_KV_CUH
#include "cu_ops.cuh"

/* One kv head of one layer in the page of position pos; pages: of the row's sequence. */
DEV uint8_t *kv_head(const op_kv &pg, uint8_t *const *pages, uint32_t pos, uint32_t head)
{
    return pages[pos / pg.page_tokens] + pg.layer_off + head * pg.head_bytes;
}
/* Element of K: dimension 0 of slot s. Dimension d is kv_k_step(d) elements on. */
template <uint32_t DT> DEV size_t kv_k_at(const op_kv &pg, uint32_t s)
{
    if (DT == DT_I8) return ((size_t)(s / TILE_ROWS) * ((pg.k_dim + 3) / 4) * TILE_ROWS + s % TILE_ROWS) * 4;
    return (size_t)(s / TILE_ROWS) * pg.k_dim * TILE_ROWS + s % TILE_ROWS;
}
template <uint32_t DT> DEV size_t kv_k_step(uint32_t d)
{
    return DT == DT_I8 ? (size_t)(d / 4) * TILE_ROWS * 4 + d % 4 : (size_t)d * TILE_ROWS;
}
/* The f16 scales of K or of V of an int8 page, one for each slot. */
DEV uint16_t *kv_scales(const op_kv &pg, uint8_t *head, bool v)
{
    return reinterpret_cast<uint16_t *>(head + pg.s_off) + (v ? pg.page_tokens : 0);
}
#endif
