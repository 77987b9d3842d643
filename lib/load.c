/*
 * load.c - brings the weights of a container into the form that kernels read.
 *
 * Every piece becomes a TILE8 image: raw pieces are used where they are mapped, others are decoded into memory of the model.
 * The hash of every chunk is checked on the way, also of mapped ones, unless TESS_MODEL_NO_VERIFY. Vectors (norms, biases)
 * become f32. Then each rank gets op_weights: rows of row-split tensors, leaves of column-split ones. Ranks on several nodes get
 * copies of these parts in the end (nodes.h).
 */
#include "model.h"
#include "os.h"
#include "program.h"

typedef struct { uint32_t piece; uint64_t chunk0, n_chunks; } load_item;
typedef struct {
    tess_model *m;
    const ct_info *info;
    bool verify;
    ct_scratch **scratch; /* one a thread */
    load_item *items;
    uint64_t n_items, done, total;
    uint32_t stop;        /* atomic; set on the first error or cancellation */
    uint32_t lock;        /* atomic; guards err */
    tess_error err;
    const tess_model_params *params;
} load_state;

static const ct_tensor *tensor_of(const load_state *s, uint32_t piece) { return &s->info->tensors[s->info->pieces[piece].tensor]; }

static void load_fail(load_state *s, const tess_error *e)
{
    if (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQ_REL) == 0) s->err = *e;
    __atomic_store_n(&s->stop, 1, __ATOMIC_RELEASE);
}

/* One item is a run of chunks of one piece: check the mapped bytes, or decode the rows into the piece's own memory. */
static void load_one(void *arg, uint64_t i, uint32_t thread)
{
    load_state *s = arg;
    if (__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) return;
    const load_item *it = &s->items[i];
    const ct_piece *p = &s->info->pieces[it->piece];
    tess_error e;
    tess_status st = TESS_OK;
    if (!s->m->owned[it->piece]) {
        for (uint64_t c = 0; st >= 0 && s->verify && c < it->n_chunks; c++)
            st = ct_check_chunk(s->m->file, p->first_chunk + it->chunk0 + c, s->scratch[thread], &e);
    } else {
        const ct_tensor *t = tensor_of(s, it->piece);
        uint64_t row0 = it->chunk0 * p->rows_per_chunk, rows = MIN(it->n_chunks * p->rows_per_chunk, p->n_rows - row0);
        uint64_t width = p->n_k * dtype_get(t->dtype)->block_bytes;
        uint8_t *dst = (uint8_t *)s->m->owned[it->piece] + (t->rank == 1 ? 0 : row0 * width);
        st = ct_read_rows(s->m->file, it->piece, row0, rows, t->rank == 1 ? LAYOUT_ROWS : LAYOUT_TILE8, dst, (size_t)width,
                          s->scratch[thread], &e);
    }
    if (st < 0) load_fail(s, &e);
    uint64_t stored = 0;
    for (uint64_t c = 0; c < it->n_chunks; c++) stored += s->info->chunks[p->first_chunk + it->chunk0 + c].csize;
    __atomic_add_fetch(&s->m->read_bytes, stored, __ATOMIC_RELAXED);
    uint64_t done = __atomic_add_fetch(&s->done, p->n_chunks ? p->usize * it->n_chunks / p->n_chunks : 0, __ATOMIC_RELAXED);
    if (thread == 0 && s->params && s->params->progress && s->params->progress(s->params->progress_user, MIN(done, s->total), s->total)) {
        ERR(&e, TESS_E_CANCELLED, "loading was cancelled");
        load_fail(s, &e);
    }
}

/* Pieces that the host needs: all when ranks are on the CPU, else vectors and the tables of which a token takes a row. */
static bool on_host(const load_state *s, uint32_t piece)
{
    const ct_tensor *t = tensor_of(s, piece);
    return !s->m->place || t->rank == 1 || t->role == ROLE_EMBED || t->role == ROLE_POS_EMBED;
}

/* Decides for every piece between map and copy; allocates copies. Quantized and float pieces alike. */
static tess_status place_pieces(load_state *s, tess_error *err)
{
    tess_model *m = s->m;
    uint64_t copies = 0;
    for (uint32_t i = 0; i < s->info->n_pieces; i++) {
        const ct_piece *p = &s->info->pieces[i];
        const ct_tensor *t = tensor_of(s, i);
        s->total += p->usize;
        if (t->rank > 1 && !dtype_get(t->dtype)->is_float && !dtype_is_quant(t->dtype))
            return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor %s has type %s, which no weight can have", s->info->path, t->name,
                       dtype_get(t->dtype)->name);
        if (!on_host(s, i)) continue;
        if (t->rank == 2 && t->layout == LAYOUT_TILE8 && p->raw_contig && (m->tiles[i] = ct_map_piece(m->file, i))) continue;
        uint64_t k[MAX_LEAVES] = {p->n_k}, bytes; /* floats need no leaves; q8/q4 sizes are those of the file */
        if (t->rank == 1) k[0] = p->n_k * p->n_rows;
        bool fits = t->rank == 1 ? u64_mul(k[0], 4, &bytes)
                  : dtype_is_quant(t->dtype) ? (bytes = p->usize, true)
                  : layout_bytes(t->dtype, LAYOUT_TILE8, p->n_rows, k, 1, &bytes);
        if (!fits || !u64_add(copies, bytes, &copies)) return ERR(err, TESS_E_FORMAT, "%s: tensor %s is too large", s->info->path, t->name);
        uint64_t avail = os_mem_available();
        if (avail && copies > avail)
            return ERR(err, TESS_E_NOMEM, "%s: the weights need %llu MB of memory, %llu MB are available", s->info->path,
                       (unsigned long long)(copies >> 20), (unsigned long long)(avail >> 20));
        m->owned[i] = mem_alloc(&m->m, (size_t)bytes);
        if (!m->owned[i]) return ERR(err, TESS_E_NOMEM, "no memory for %llu bytes of tensor %s", (unsigned long long)bytes, t->name);
        m->tiles[i] = m->owned[i];
    }
    return TESS_OK;
}

/* Items of about 4 chunks, in file order. */
static tess_status make_items(load_state *s, tess_error *err)
{
    enum { CHUNKS = 4 };
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->info->n_pieces; i++) n += ceil_div(s->info->pieces[i].n_chunks, CHUNKS);
    s->items = mem_calloc(&s->m->m, MAX(n, 1u), sizeof *s->items);
    if (!s->items) return ERR(err, TESS_E_NOMEM, "no memory to plan the loading");
    for (uint32_t i = 0; i < s->info->n_pieces; i++)
        for (uint64_t c = 0; on_host(s, i) && c < s->info->pieces[i].n_chunks; c += CHUNKS)
            s->items[s->n_items++] = (load_item){i, c, MIN((uint64_t)CHUNKS, s->info->pieces[i].n_chunks - c)};
    return TESS_OK;
}

static tess_status load_pieces(load_state *s, pool *p, tess_error *err)
{
    const mem *m = &s->m->m;
    uint32_t n = pool_size(p);
    tess_status st = TESS_OK;
    s->m->tiles = arena_alloc(&s->m->store, s->info->n_pieces + 1u, sizeof *s->m->tiles);
    s->m->owned = arena_alloc(&s->m->store, s->info->n_pieces + 1u, sizeof *s->m->owned);
    s->scratch = mem_calloc(m, n, sizeof *s->scratch);
    if (!s->m->tiles || !s->m->owned || !s->scratch) st = ERR(err, TESS_E_NOMEM, "no memory to load the model");
    for (uint32_t i = 0; st >= 0 && i < n; i++) st = ct_scratch_open(m, &s->scratch[i], err);
    if (st >= 0) st = place_pieces(s, err);
    if (st >= 0) st = make_items(s, err);
    if (st >= 0) pool_each(p, s->n_items, load_one, s);
    if (st >= 0 && s->stop) {
        if (err) *err = s->err;
        st = s->err.status;
    }
    for (uint32_t i = 0; s->scratch && i < n; i++) ct_scratch_close(s->scratch[i]);
    mem_free(m, s->scratch);
    mem_free(m, s->items);
    return st;
}

/* ---- views ---- */

/* What names a weight, and the rank that reads it. expert: -1 = none. ON_HOST: a table that stays in memory of the host. */
enum { ON_HOST = MAX_RANKS };
typedef struct { uint32_t role; int32_t layer, expert; uint32_t rank; } load_key;

/* Vectors and small tables that kernels read: from the arena, or memory that gets twins on the devices. */
static void *load_alloc(tess_model *m, uint64_t n, size_t size)
{
    return m->place ? place_twin(m->place, n, size) : arena_alloc(&m->store, n, size);
}

static const ct_tensor *find_tensor(const tess_model *m, const load_key *k, uint32_t part)
{
    char name[160];
    const ct_info *info = ct_get(m->file);
    role_name(k->role, part, k->layer, k->expert, name, sizeof name);
    int64_t i = ct_find(m->file, name);
    if (i < 0) return NULL;
    const ct_tensor *t = &info->tensors[i];
    return t->alias == CT_NO_ALIAS ? t : &info->tensors[t->alias];
}

/* The tensor of a role, its shape compared with what the arch demands; *t stays NULL when the model has no such weight. */
static tess_status need_tensor(const tess_model *m, const load_key *k, uint32_t part, const ct_tensor **t, tess_error *err)
{
    uint64_t rows, cols;
    char name[160];
    *t = NULL;
    if (!role_shape(&m->a, k->role, part, k->layer, &rows, &cols)) return TESS_OK;
    const ct_tensor *f = find_tensor(m, k, part);
    role_name(k->role, part, k->layer, k->expert, name, sizeof name);
    if (!f) return ERR(err, TESS_E_FORMAT, "%s: tensor %s is missing", ct_get(m->file)->path, name);
    uint64_t want_rank = cols ? 2 : 1;
    if (f->rank != want_rank || f->shape[0] != rows || (cols && f->shape[1] != cols))
        return ERR(err, TESS_E_FORMAT, "%s: tensor %s is [%llu, %llu], the architecture demands [%llu, %llu]",
                   ct_get(m->file)->path, name, (unsigned long long)f->shape[0],
                   (unsigned long long)(f->rank > 1 ? f->shape[1] : 1), (unsigned long long)rows,
                   (unsigned long long)(cols ? cols : 1));
    *t = f;
    return TESS_OK;
}

static tess_status load_vector(tess_model *m, const load_key *k, uint32_t part, const float **out, tess_error *err)
{
    const ct_tensor *t;
    *out = NULL;
    TRY(need_tensor(m, k, part, &t, err));
    if (!t) return TESS_OK;
    if (!dtype_get(t->dtype)->is_float || t->n_pieces != 1)
        return ERR(err, TESS_E_FORMAT, "%s: tensor %s must be one piece of floats", ct_get(m->file)->path, t->name);
    float *v = load_alloc(m, t->shape[0], sizeof *v);
    if (!v) return ERR(err, TESS_E_NOMEM, "no memory for tensor %s", t->name);
    dtype_to_f32(t->dtype, m->tiles[t->first_piece], v, (size_t)t->shape[0]);
    *out = v;
    return TESS_OK;
}

/* Weights as the kernels take them: where the kind adds 1 to them, that is done here; where the file has none, they are 1. */
static tess_status finish_norm(tess_model *m, uint64_t n, model_norm *norm, tess_error *err)
{
    bool ones = !norm->w && m->a.norm_affine == 0;
    if (!ones && (!norm->w || m->a.norm_kind != NORM_LAYER_PLUS1)) return TESS_OK;
    float *v = load_alloc(m, n, sizeof *v);
    if (!v) return ERR(err, TESS_E_NOMEM, "no memory for norms");
    for (uint64_t i = 0; i < n; i++) v[i] = ones ? 1.0f : norm->w[i] + 1.0f;
    norm->w = v;
    return TESS_OK;
}

/* The norms of all heads, one after another. */
static tess_status load_each(tess_model *m, uint32_t role, int32_t layer, model_norm *out, tess_error *err)
{
    const arch *a = &m->a;
    uint32_t n = role_instances(a, role);
    float *v = load_alloc(m, (uint64_t)n * a->head_dim, sizeof *v);
    if (!v) return ERR(err, TESS_E_NOMEM, "no memory for norms of heads");
    for (uint32_t h = 0; h < n; h++) {
        const float *one;
        load_key k = {role, layer, (int32_t)h, 0};
        TRY(load_vector(m, &k, PART_DATA, &one, err));
        memcpy(v + (size_t)h * a->head_dim, one, a->head_dim * sizeof *v);
    }
    *out = (model_norm){.w = v};
    return TESS_OK;
}

static tess_status load_norm(tess_model *m, uint32_t role, int32_t layer, model_norm *out, tess_error *err)
{
    load_key k = {role, layer, -1, 0};
    bool heads = role == ROLE_Q_NORM || role == ROLE_K_NORM || role == ROLE_Q_A_NORM || role == ROLE_KV_A_NORM;
    if (heads && m->a.qk_norm == QK_NORM_EACH && role != ROLE_Q_A_NORM && role != ROLE_KV_A_NORM)
        return load_each(m, role == ROLE_Q_NORM ? ROLE_Q_EACH : ROLE_K_EACH, layer, out, err);
    TRY(load_vector(m, &k, PART_DATA, &out->w, err));
    TRY(load_vector(m, &k, PART_BIAS, &out->b, err));
    return heads ? TESS_OK : finish_norm(m, m->a.hidden_size, out, err);
}

static uint64_t stride_of(const ct_tensor *t, const ct_piece *p, const arch_axis *x)
{
    uint64_t k[MAX_LEAVES] = {p->n_k}, n = 1, stride = 0;
    if (t->split_dim == 1)
        for (n = 0; n < p->n_leaves; n++) k[n] = axis_elem(x, x->leaf[p->leaf0 + n + 1]) - axis_elem(x, x->leaf[p->leaf0 + n]);
    layout_stride(t->dtype, LAYOUT_TILE8, k, (uint32_t)n, &stride);
    return stride;
}

/* The address of a part of a piece: on the host at once, on a device when all parts are known. *w->stride is that of the piece. */
static tess_status view_place(tess_model *m, const place_want *w, tess_error *err)
{
    if (m->place && w->rank != ON_HOST) return place_part(m->place, w, err);
    *w->data = m->tiles[w->piece] + w->block0 * *w->stride + w->off;
    return m->nodes ? nodes_part(m->nodes, w, err) : TESS_OK;
}

/* Rows [rows.lo, rows.hi) of a tensor that is whole along K. */
static tess_status view_rows(tess_model *m, uint32_t rank, const ct_tensor *t, shard_range rows, op_weight *w, tess_error *err)
{
    const ct_info *info = ct_get(m->file);
    op_run *runs = arena_alloc(&m->store, t->n_pieces, sizeof *runs);
    if (!runs) return ERR(err, TESS_E_NOMEM, "no memory for tensor %s", t->name);
    *w = (op_weight){.dtype = t->dtype, .n_rows = rows.hi - rows.lo, .n_k = (uint32_t)t->shape[1], .n_leaves = 1, .runs = runs};
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        const ct_piece *p = &info->pieces[t->first_piece + i];
        uint64_t lo = MAX((uint64_t)rows.lo, p->row0), hi = MIN((uint64_t)rows.hi, p->row0 + p->n_rows);
        if (lo >= hi) continue;
        uint64_t at = lo - p->row0, stride = stride_of(t, p, NULL);
        op_run *run = &runs[w->n_parts++];
        *run = (op_run){NULL, stride, (uint32_t)(at % TILE_ROWS), (uint32_t)(lo - rows.lo), (uint32_t)(hi - lo), 0, (uint32_t)t->shape[1]};
        const place_want want = {.rank = rank,
                                 .piece = t->first_piece + i,
                                 .block0 = at / TILE_ROWS,
                                 .len = stride,
                                 .n_blocks = ceil_div(hi - p->row0, TILE_ROWS) - at / TILE_ROWS,
                                 .data = &run->data,
                                 .stride = &run->block_stride};
        TRY(view_place(m, &want, err));
    }
    return TESS_OK;
}

/* Where leaf `leaf` starts within a row block of piece p. */
static uint64_t leaf_offset(const ct_tensor *t, const ct_piece *p, const arch_axis *x, uint32_t leaf)
{
    ct_piece before = *p;
    before.n_leaves = leaf - p->leaf0;
    return before.n_leaves ? stride_of(t, &before, x) : 0;
}

/* Leaves [leaf.lo, leaf.hi) of a tensor that is split along K; every leaf lies in one piece. */
static tess_status view_leaves(tess_model *m, uint32_t rank, const ct_tensor *t, const arch_axis *x, shard_range leaf, op_weight *w,
                               tess_error *err)
{
    const ct_info *info = ct_get(m->file);
    uint64_t k0 = axis_elem(x, x->leaf[leaf.lo]), k1 = axis_elem(x, x->leaf[leaf.hi]);
    op_run *runs = arena_alloc(&m->store, MAX_LEAVES, sizeof *runs);
    if (!runs) return ERR(err, TESS_E_NOMEM, "no memory for tensor %s", t->name);
    *w = (op_weight){.dtype = t->dtype, .n_rows = (uint32_t)t->shape[0], .n_k = (uint32_t)(k1 - k0), .n_leaves = leaf.hi - leaf.lo, .n_parts = 1, .runs = runs};
    for (uint32_t l = leaf.lo; l < leaf.hi; l++) {
        const ct_piece *p = &info->pieces[t->first_piece];
        uint32_t i = 0;
        while (i < t->n_pieces && !(l >= p[i].leaf0 && l < p[i].leaf0 + p[i].n_leaves)) i++;
        if (i == t->n_pieces) return ERR(err, TESS_E_FORMAT, "%s: leaf %u of tensor %s is in no piece", info->path, l, t->name);
        uint64_t lo = axis_elem(x, x->leaf[l]), hi = axis_elem(x, x->leaf[l + 1]);
        op_run *run = &runs[l - leaf.lo];
        *run = (op_run){NULL, stride_of(t, &p[i], x), 0, 0, w->n_rows, (uint32_t)(lo - k0), (uint32_t)(hi - lo)};
        const place_want want = {.rank = rank,
                                 .piece = t->first_piece + i,
                                 .off = leaf_offset(t, &p[i], x, l),
                                 .n_blocks = ceil_div(w->n_rows, TILE_ROWS),
                                 .len = leaf_offset(t, &p[i], x, l + 1) - leaf_offset(t, &p[i], x, l),
                                 .data = &run->data,
                                 .stride = &run->block_stride};
        TRY(view_place(m, &want, err));
    }
    return TESS_OK;
}

/* The pieces of t must be those that the view needs, also when t is the target of an alias: columns are cut along k_axis, or
 * not at all when all of them are one leaf; where there is no k_axis only rows may be cut. */
static tess_status check_split(const tess_model *m, const ct_tensor *t, const arch_axis *k_axis, tess_error *err)
{
    const ct_info *info = ct_get(m->file);
    bool columns = t->split_dim == 1, fits = !columns;
    if (k_axis) {
        fits = columns ? info->axes[t->axis].kind == k_axis->kind : t->n_pieces == 1 && k_axis->n_leaves == 1;
        fits = fits && k_axis->dim == t->shape[1];
    }
    return fits ? TESS_OK
                : ERR(err, TESS_E_FORMAT, "%s: tensor %s is split in a way that its place in the model does not allow", info->path,
                      t->name);
}

/* A row-parallel weight keeps the K of its leaves; a file of this tensor that is not split along K has one piece for all. */
static tess_status load_linear(tess_model *m, load_key k, shard_range rows_or_leaves, const arch_axis *k_axis, model_linear *out,
                               tess_error *err)
{
    const ct_tensor *t;
    const float *bias;
    TRY(need_tensor(m, &k, PART_DATA, &t, err));
    if (!t) return TESS_OK;
    TRY(check_split(m, t, k_axis, err));
    TRY(load_vector(m, &k, PART_BIAS, &bias, err));
    if (k_axis) {
        out->bias = bias;
        return view_leaves(m, k.rank, t, k_axis, rows_or_leaves, &out->w, err);
    }
    out->bias = bias ? bias + rows_or_leaves.lo : NULL;
    return view_rows(m, k.rank, t, rows_or_leaves, &out->w, err);
}

static shard_range scaled(shard_range r, uint32_t by) { return (shard_range){r.lo * by, r.hi * by}; }

/* A matrix of an expert: whole, in one piece; *types gets the bit of its dtype. */
static tess_status load_expert(tess_model *m, load_key k, shard_range rows, op_expert *out, uint32_t *types, tess_error *err)
{
    model_linear l = {0};
    TRY(load_linear(m, k, rows, NULL, &l, err));
    if (l.w.n_rows == 0) return TESS_OK; /* the model has no such weight */
    if (l.w.n_parts != 1)
        return ERR(err, TESS_E_FORMAT, "%s: expert %d of layer %d is cut into pieces", ct_get(m->file)->path, k.expert, k.layer);
    *out = (op_expert){l.w.runs->data, l.w.runs->block_stride, l.bias, l.w.dtype};
    *types |= 1u << l.w.dtype;
    if (m->place) place_retarget(m->place, &out->data, &out->block_stride);
    if (m->nodes) nodes_retarget(m->nodes, &out->data, &out->block_stride);
    return TESS_OK;
}

/* The experts of rank r, and what every rank holds whole: router and the switch of the shared expert. */
static tess_status load_experts(tess_model *m, int32_t layer, uint32_t r, model_layer_rank *l, tess_error *err)
{
    const arch *a = &m->a;
    const shard_rank *s = &m->shards.rank[r];
    const load_key correction = {ROLE_ROUTER_CORRECTION, layer, -1, r};
    uint32_t n = s->expert.hi - s->expert.lo;
    shard_range inner = {0, a->moe_ffn_size}, outer = {0, a->hidden_size};
    TRY(load_linear(m, (load_key){ROLE_ROUTER, layer, -1, r}, (shard_range){0, a->n_experts}, NULL, &l->router, err));
    TRY(load_vector(m, &correction, PART_DATA, &l->router_correction, err));
    TRY(load_linear(m, (load_key){ROLE_SH_GATE, layer, -1, r}, s->shared, NULL, &l->sh_gate, err));
    TRY(load_linear(m, (load_key){ROLE_SH_UP, layer, -1, r}, s->shared, NULL, &l->sh_up, err));
    TRY(load_linear(m, (load_key){ROLE_SH_DOWN, layer, -1, r}, s->shared_leaf, &m->shards.shared, &l->sh_down, err));
    TRY(load_linear(m, (load_key){ROLE_SH_SWITCH, layer, -1, r}, (shard_range){0, 1}, NULL, &l->sh_switch, err));
    l->exp_gate = load_alloc(m, MAX(n, 1u), sizeof *l->exp_gate);
    l->exp_up = load_alloc(m, MAX(n, 1u), sizeof *l->exp_up);
    l->exp_down = load_alloc(m, MAX(n, 1u), sizeof *l->exp_down);
    if (!l->exp_gate || !l->exp_up || !l->exp_down) return ERR(err, TESS_E_NOMEM, "no memory for %u experts", n);
    for (uint32_t e = 0; e < n; e++) {
        int32_t id = (int32_t)(s->expert.lo + e);
        TRY(load_expert(m, (load_key){ROLE_EXP_GATE, layer, id, r}, inner, &l->exp_gate[e], &l->exp_gate_types, err));
        TRY(load_expert(m, (load_key){ROLE_EXP_UP, layer, id, r}, inner, &l->exp_up[e], &l->exp_up_types, err));
        TRY(load_expert(m, (load_key){ROLE_EXP_DOWN, layer, id, r}, outer, &l->exp_down[e], &l->exp_down_types, err));
    }
    return TESS_OK;
}

/* Latent attention: what every rank holds whole, and the matrices of the rank's heads. */
static tess_status load_latent(tess_model *m, int32_t layer, uint32_t r, model_layer_rank *l, tess_error *err)
{
    const arch *a = &m->a;
    const shard_rank *s = &m->shards.rank[r];
    uint32_t n = s->q_head.hi - s->q_head.lo;
    l->k_b = arena_alloc(&m->store, MAX(n, 1u), sizeof *l->k_b);
    l->v_b = arena_alloc(&m->store, MAX(n, 1u), sizeof *l->v_b);
    if (!l->k_b || !l->v_b) return ERR(err, TESS_E_NOMEM, "no memory for %u heads", n);
    TRY(load_linear(m, (load_key){ROLE_Q_A, layer, -1, r}, (shard_range){0, a->q_lora}, NULL, &l->q_a, err));
    TRY(load_linear(m, (load_key){ROLE_KV_A, layer, -1, r}, (shard_range){0, a->kv_lora + a->rope_dims}, NULL, &l->kv_a, err));
    for (uint32_t h = 0; h < n; h++) {
        shard_range one = {s->q_head.lo + h, s->q_head.lo + h + 1};
        TRY(load_linear(m, (load_key){ROLE_K_B, layer, -1, r}, scaled(one, a->kv_lora), NULL, &l->k_b[h], err));
        TRY(load_linear(m, (load_key){ROLE_V_B, layer, -1, r}, scaled(one, a->v_head_dim), NULL, &l->v_b[h], err));
    }
    return load_linear(m, (load_key){ROLE_LATENT_O, layer, -1, r}, s->q_leaf, &m->shards.v, &l->o, err);
}

static tess_status load_layer_norms(tess_model *m, uint32_t i, model_layer_norms *n, tess_error *err)
{
    int32_t layer = (int32_t)i;
    TRY(load_norm(m, ROLE_ATTN_NORM, layer, &n->attn, err));
    TRY(load_norm(m, ROLE_FFN_NORM, layer, &n->ffn, err));
    TRY(load_norm(m, ROLE_POST_ATTN_NORM, layer, &n->post_attn, err));
    TRY(load_norm(m, ROLE_POST_FFN_NORM, layer, &n->post_ffn, err));
    TRY(load_norm(m, ROLE_Q_NORM, layer, &n->q, err));
    TRY(load_norm(m, ROLE_K_NORM, layer, &n->k, err));
    TRY(load_norm(m, ROLE_Q_A_NORM, layer, &n->q_a, err));
    return load_norm(m, ROLE_KV_A_NORM, layer, &n->kv_a, err);
}

static tess_status load_layer(tess_model *m, uint32_t i, tess_error *err)
{
    int32_t layer = (int32_t)i;
    const arch *a = &m->a;
    if (m->place) place_layer(m->place, i);
    for (uint32_t r = 0; r < m->shards.n_ranks; r++) {
        const shard_rank *s = &m->shards.rank[r];
        model_layer_rank *l = &m->layers[(size_t)i * m->shards.n_ranks + r];
        TRY(load_linear(m, (load_key){ROLE_Q, layer, -1, r}, scaled(s->q_head, a->head_dim), NULL, &l->q, err));
        TRY(load_linear(m, (load_key){ROLE_K, layer, -1, r}, scaled(s->kv_head, a->head_dim), NULL, &l->k, err));
        TRY(load_linear(m, (load_key){ROLE_V, layer, -1, r}, scaled(s->kv_head, a->v_head_dim), NULL, &l->v, err));
        TRY(load_linear(m, (load_key){ROLE_O, layer, -1, r}, s->q_leaf, &m->shards.q, &l->o, err));
        TRY(load_linear(m, (load_key){ROLE_GATE, layer, -1, r}, s->ffn, NULL, &l->gate, err));
        TRY(load_linear(m, (load_key){ROLE_UP, layer, -1, r}, s->ffn, NULL, &l->up, err));
        TRY(load_linear(m, (load_key){ROLE_DOWN, layer, -1, r}, s->ffn_leaf, &m->shards.ffn, &l->down, err));
        if (a->kv_lora) TRY(load_latent(m, layer, r, l, err));
        TRY(load_vector(m, &(load_key){ROLE_SINKS, layer, -1, r}, PART_DATA, &l->sinks, err));
        if (a->layer_moe[i]) TRY(load_experts(m, layer, r, l, err));
    }
    return TESS_OK;
}

/* Which weights of layer i are q8 or q4: the same for every rank, as all kernels must cut the work alike. */
static void note_quant(tess_model *m, uint32_t i)
{
    for (uint32_t r = 0; r < m->shards.n_ranks; r++) {
        const model_layer_rank *l = &m->layers[(size_t)i * m->shards.n_ranks + r];
        const struct { uint32_t wt, dtype; } w[] = {
            {WT_Q, l->q.w.dtype}, {WT_K, l->k.w.dtype}, {WT_V, l->v.w.dtype}, {WT_O, l->o.w.dtype}, {WT_GATE, l->gate.w.dtype}, {WT_UP, l->up.w.dtype},
            {WT_DOWN, l->down.w.dtype}, {WT_ROUTER, l->router.w.dtype}, {WT_SH_GATE, l->sh_gate.w.dtype}, {WT_SH_UP, l->sh_up.w.dtype},
            {WT_SH_DOWN, l->sh_down.w.dtype}, {WT_SH_SWITCH, l->sh_switch.w.dtype}, {WT_Q_A, l->q_a.w.dtype}, {WT_KV_A, l->kv_a.w.dtype}};
        for (size_t j = 0; j < ARRAY_LEN(w); j++)
            if (dtype_is_quant(w[j].dtype)) m->quant[i] |= 1u << w[j].wt;
        const shard_range own = m->shards.rank[r].expert;
        for (uint32_t e = 0; m->a.layer_moe[i] && e < own.hi - own.lo; e++) {
            if (dtype_is_quant(l->exp_gate[e].dtype)) m->quant[i] |= 1u << WT_EXP_GATE;
            if (dtype_is_quant(l->exp_up[e].dtype)) m->quant[i] |= 1u << WT_EXP_UP;
            if (dtype_is_quant(l->exp_down[e].dtype)) m->quant[i] |= 1u << WT_EXP_DOWN;
        }
    }
}

/* What is not in layers. */
static tess_status load_global(tess_model *m, tess_error *err)
{
    const arch *a = &m->a;
    model_linear whole = {0};
    TRY(load_linear(m, (load_key){ROLE_EMBED, -1, -1, ON_HOST}, (shard_range){0, a->vocab_size}, NULL, &whole, err));
    m->embed = whole.w;
    TRY(load_linear(m, (load_key){ROLE_POS_EMBED, -1, -1, ON_HOST}, (shard_range){0, a->max_ctx}, NULL, &whole, err));
    if (a->learned_pos) m->pos_embed = whole.w;
    TRY(load_norm(m, ROLE_FINAL_NORM, -1, &m->rank[0].final_norm, err));
    TRY(load_norm(m, ROLE_EMBED_NORM, -1, &m->rank[0].embed_norm, err));
    for (uint32_t i = 0; i < a->n_layers; i++) TRY(load_layer_norms(m, i, &m->rank[0].layers[i], err));
    for (uint32_t r = 0; r < m->shards.n_ranks; r++) {
        const shard_range rows = m->shards.rank[r].vocab;
        model_linear *head = &m->rank[r].head;
        m->rank[r] = m->rank[0];
        *head = (model_linear){0};
        TRY(load_linear(m, (load_key){a->tied_head ? ROLE_EMBED : ROLE_HEAD, -1, -1, r}, rows, NULL, head, err));
        if (!a->tied_head) continue;
        TRY(load_vector(m, &(load_key){ROLE_HEAD, -1, -1, r}, PART_BIAS, &head->bias, err));
        if (head->bias) head->bias += rows.lo;
    }
    m->head_quant = dtype_is_quant(m->rank[0].head.w.dtype);
    return TESS_OK;
}

static tess_status load_views(tess_model *m, tess_error *err)
{
    const arch *a = &m->a;
    m->rank[0].layers = arena_alloc(&m->store, a->n_layers, sizeof *m->rank[0].layers);
    m->layers = arena_alloc(&m->store, (uint64_t)a->n_layers * m->shards.n_ranks, sizeof *m->layers);
    m->quant = arena_alloc(&m->store, a->n_layers, sizeof *m->quant);
    if (!m->rank[0].layers || !m->layers || !m->quant) return ERR(err, TESS_E_NOMEM, "no memory for %u layers", a->n_layers);
    TRY(load_global(m, err));
    for (uint32_t i = 0; i < a->n_layers; i++) {
        TRY(load_layer(m, i, err));
        note_quant(m, i);
    }
    return TESS_OK;
}

static void count_weights(tess_model *m)
{
    const ct_info *info = ct_get(m->file);
    uint64_t by_dtype[DT_COUNT] = {0};
    for (uint32_t i = 0; i < info->n_pieces; i++) {
        const ct_piece *p = &info->pieces[i];
        const ct_tensor *t = &info->tensors[p->tensor];
        m->weight_bytes += p->usize;
        if (t->dtype < DT_COUNT) by_dtype[t->dtype] += p->usize;
        if (t->role == ROLE_POS_EMBED || (t->role == ROLE_EMBED && !m->a.tied_head)) continue; /* one row is read */
        m->token_bytes += p->usize;
        if (t->rank == 2) m->token_macs += p->n_rows * p->n_k;
    }
    for (uint32_t d = 1; d < DT_COUNT; d++)
        if (by_dtype[d] > by_dtype[m->weight_dtype]) m->weight_dtype = d;
}

tess_status model_load(tess_model *m, pool *p, const tess_model_params *params, tess_error *err)
{
    load_state s = {.m = m, .info = ct_get(m->file), .params = params, .verify = !params || !(params->flags & TESS_MODEL_NO_VERIFY)};
    if (m->devices.n) TRY(place_open(&m->m, m->a.n_layers, &m->place, err));
    if (nodes_used(m)) TRY(nodes_open(&m->m, &m->nodes, err));
    TRY(load_pieces(&s, p, err));
    count_weights(m);
    TRY(load_views(m, err));
    if (m->nodes) return nodes_weights(m, p, err);
    if (!m->place) return TESS_OK;
    place_progress g = {params, s.done, s.total};
    return place_weights(m, p, &g, err);
}
