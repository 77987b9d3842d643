/* shape.c - see shape.h. */
#include <stdio.h>
#include <string.h>

#include "container.h"
#include "shape.h"

typedef struct {
    gpu_shape *s;
    ct_writer *w;
    uint32_t axis[AXIS_COUNT];
    uint32_t first[ROLE_COUNT]; /* the tensor of layer 0 */
} shape_writer;

void gpu_shape_init(gpu_shape *s, bool dry)
{
    *s = (gpu_shape){0};
    arch *a = &s->a;
    arch_default(a);
    memcpy(a->family, "llama", 6);
    a->n_layers = dry ? 2 : 32;
    a->hidden_size = dry ? 128 : 4096;
    a->n_heads = dry ? 4 : 32;
    a->n_kv_heads = dry ? 2 : 8;
    a->head_dim = a->v_head_dim = a->rope_dims = dry ? 64 : 128;
    a->ffn_size = dry ? 256 : 14336;
    a->vocab_size = dry ? 512 : 128256;
    a->max_ctx = 8192;
    a->norm_eps = 1e-5;
    a->attn_scale = dry ? 0.125 : 0.08838834764831845;
    a->tied_head = 1;
    a->attn[0].rope_theta = 500000;
}

/* Eight scales of 2^-12, then 256 codes of no order. */
static void fill_tile(uint8_t *tile, uint64_t seed)
{
    const uint16_t scale = 0x0c00;
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u;
    for (int r = 0; r < TILE_ROWS; r++) memcpy(tile + 2 * r, &scale, sizeof scale);
    for (size_t i = 2 * TILE_ROWS; i < Q8_TILE; i += sizeof x) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(tile + i, &x, sizeof x);
    }
}

/* ct_read_fn: matrices in q8, vectors of ones. */
static tess_status put_box(void *user, uint32_t t, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, void *dst,
                           uint32_t thread, tess_error *err)
{
    const shape_writer *x = user;
    const float one = 1;
    UNUSED(thread);
    UNUSED(err);
    if (t == x->first[ROLE_ATTN_NORM] || t == x->first[ROLE_FFN_NORM] || t == x->first[ROLE_FINAL_NORM]) {
        for (uint64_t i = 0; i < n_rows * n_k; i++) memcpy((uint8_t *)dst + i * sizeof one, &one, sizeof one);
        return TESS_OK;
    }
    const uint64_t tiles = ceil_div(n_rows, TILE_ROWS) * ceil_div(n_k, GROUP_K);
    for (uint64_t i = 0; i < tiles; i++) fill_tile((uint8_t *)dst + i * Q8_TILE, ((uint64_t)t << 48) + (row0 << 24) + k0 + i);
    return TESS_OK;
}

static tess_status add_tensor(shape_writer *x, uint32_t role, int32_t layer, tess_error *err)
{
    const role_info *r = role_get(role);
    char name[160];
    uint64_t rows, cols;
    uint32_t index;
    if (!r || !role_shape(&x->s->a, role, PART_DATA, layer, &rows, &cols) || role == ROLE_HEAD) return TESS_OK;
    role_name(role, PART_DATA, layer, -1, name, sizeof name);
    ct_tensor t = {.name = name,
                   .dtype = cols ? DT_Q8 : DT_F32,
                   .rank = cols ? 2 : 1,
                   .shape = {rows, cols},
                   .layer = layer,
                   .role = role,
                   .part = PART_DATA,
                   .alias = layer > 0 ? x->first[role] : CT_NO_ALIAS,
                   .split_dim = 255};
    const uint32_t kind = !cols ? AXIS_NONE : r->row_axis ? r->row_axis : r->k_axis;
    if (kind) t.axis = x->axis[kind], t.split_dim = r->row_axis == AXIS_NONE;
    TRY(ct_add_tensor(x->w, &t, &index, err));
    if (layer <= 0) x->first[role] = index;
    const double elements = (double)rows * (double)MAX(cols, (uint64_t)1),
                 bytes = cols ? elements / GROUP_K * (GROUP_K + 2) : 4 * elements;
    if (layer == 0) x->s->layer_bytes += bytes, x->s->layer_macs += cols ? elements : 0;
    if (layer < 0) x->s->head_bytes += bytes, x->s->head_macs += cols ? elements : 0; /* the embedding, which is the head */
    return TESS_OK;
}

static tess_status add_all(shape_writer *x, tess_error *err)
{
    for (uint32_t kind = AXIS_Q_HEADS; kind < AXIS_COUNT; kind++) {
        arch_axis a;
        if (arch_axis_of(&x->s->a, kind, &a)) TRY(ct_add_axis(x->w, &a, &x->axis[kind], err));
    }
    for (uint32_t role = ROLE_NONE + 1; role < ROLE_COUNT; role++) {
        const role_info *r = role_get(role);
        if (!r || role_instances(&x->s->a, role)) continue;
        for (int32_t l = r->per_layer ? 0 : -1; l < (r->per_layer ? (int32_t)x->s->a.n_layers : 0); l++)
            TRY(add_tensor(x, role, l, err));
    }
    return TESS_OK;
}

static tess_status add_keys(shape_writer *x, tess_error *err)
{
    kvs_builder *b;
    void *data = NULL;
    size_t len;
    TRY(kvs_builder_open(&mem_libc, &b, err));
    arch_put(&x->s->a, b);
    tess_status st = kvs_build(b, &data, &len, err);
    if (st >= 0) st = ct_set_kv(x->w, data, len, err);
    kvs_builder_close(b);
    mem_free(&mem_libc, data);
    return st;
}

tess_status gpu_shape_write(gpu_shape *s, const char *path, tess_error *err)
{
    const ct_write_options o = {.kind = CT_KIND_MODEL, .tp = 1, .store = CT_STORE_RAW, .force = true, .writer = "gpu_bench"};
    shape_writer x = {.s = s};
    pool *threads = NULL;
    memset(x.first, 0xff, sizeof x.first);
    s->layer_bytes = s->head_bytes = s->layer_macs = s->head_macs = 0;
    tess_status st = ct_writer_open(path, &o, &mem_libc, &x.w, err);
    if (st >= 0) st = pool_open(&mem_libc, NULL, 0, &threads, err);
    if (st >= 0) st = add_all(&x, err);
    if (st >= 0) st = add_keys(&x, err);
    if (st >= 0) st = ct_add_blob(x.w, "config.json", "{}", 2, err);
    if (st >= 0) st = ct_write(x.w, threads, put_box, &x, NULL, NULL, err);
    pool_close(threads);
    ct_writer_close(x.w);
    return st;
}
