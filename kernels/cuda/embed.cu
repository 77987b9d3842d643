/* embed.cu - rows of a table by id. */
#include "cu_weight.cuh"

enum { EMBED_PARTS = 32 };
typedef struct {
    op_run run[EMBED_PARTS];
    uint32_t n, dtype;
} embed_parts;

/* The row block that holds row `row` of the rank, and the lane in it; NULL: none does. */
DEV const uint8_t *find_row(const embed_parts &p, uint32_t row, uint32_t *lane)
{
    for (uint32_t i = 0; i < p.n; i++) {
        const op_run &r = p.run[i];
        if (row < r.row0 || row - r.row0 >= r.n_rows) continue;
        uint64_t at = (uint64_t)r.row_skip + row - r.row0;
        *lane = at % TILE_ROWS;
        return r.data + at / TILE_ROWS * r.block_stride;
    }
    return nullptr;
}

static __global__ void embed_rows(op_embed_args a, embed_parts parts)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.n_tokens) {
        int64_t id = a.ids[t];
        uint32_t lane = 0;
        const uint8_t *block = id >= a.row_lo && id < a.row_hi ? find_row(parts, (uint32_t)(id - a.row_lo), &lane) : nullptr;
        a.y[t * a.ys + i] = block ? block_value(parts.dtype, block, lane, i) * a.scale : 0.0f;
    }
}

int cu_embed(const op_embed_args *a, void *stream)
{
    embed_parts parts = {};
    if (a->n_tokens == 0 || a->n == 0) return cudaSuccess;
    if (a->w->n_parts > EMBED_PARTS) return cudaErrorInvalidValue;
    parts.n = a->w->n_parts;
    parts.dtype = a->w->dtype;
    for (uint32_t i = 0; i < parts.n; i++) parts.run[i] = a->w->runs[i];
    return LAUNCH(embed_rows, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a, parts);
}

int cu_embed_load(void) { return cu_load(embed_rows); }
