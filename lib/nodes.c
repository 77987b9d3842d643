/* nodes.c - see nodes.h. */
#include <stdlib.h>

#include "model.h"
#include "os.h"

typedef struct { place_want w; uint8_t *copy; } node_part; /* copy: belongs to `copies` */
struct nodes {
    const mem *m;
    node_part *parts;
    size_t n_parts, cap_parts;
    void **copies;
    size_t n_copies, cap_copies;
};

static uint32_t team_size(const tess_model *m) { return MAX(m->n_threads, m->shards.n_ranks); }

bool nodes_used(const tess_model *m)
{
    uint32_t lo, hi;
    return m->devices.n == 0 && cpus_place(&m->cpus, team_size(m), m->shards.n_ranks, 0, &lo, &hi);
}

tess_status nodes_open(const mem *m, nodes **out, tess_error *err)
{
    *out = mem_zalloc(m, sizeof **out);
    if (!*out) return ERR(err, TESS_E_NOMEM, "no memory to plan the weights of nodes");
    (*out)->m = m;
    return TESS_OK;
}

void nodes_close(nodes *n)
{
    if (!n) return;
    for (size_t i = 0; i < n->n_copies; i++) mem_free(n->m, n->copies[i]);
    mem_free(n->m, n->copies);
    mem_free(n->m, n->parts);
    mem_free(n->m, n);
}

tess_status nodes_part(nodes *n, const place_want *w, tess_error *err)
{
    if (!mem_grow(n->m, &n->parts, &n->cap_parts, n->n_parts + 1, sizeof *n->parts))
        return ERR(err, TESS_E_NOMEM, "no memory to plan the weights of nodes");
    n->parts[n->n_parts++] = (node_part){.w = *w};
    return TESS_OK;
}

void nodes_retarget(nodes *n, const uint8_t **data, uint64_t *stride)
{
    place_want *w = &n->parts[n->n_parts - 1].w;
    w->data = data;
    w->stride = stride;
}

/* ---- weights ---- */

static bool copied(const tess_model *m, const node_part *p) { return p->w.rank < m->shards.n_ranks; }
static uint64_t part_bytes(const node_part *p) { return p->w.n_blocks * p->w.len; } /* at most those of the piece */

/* Memory of which nothing lies anywhere yet, but for the ends that share a page with others. */
static void *fresh_alloc(const mem *m, size_t n)
{
    void *p = mem_alloc(m, n);
    if (p) os_page_drop(p, n);
    return p;
}

typedef struct { const tess_model *m; const node_part *parts; size_t n; } copy_job;

static void copy_share(const node_part *p, uint32_t t, uint32_t n)
{
    const uint8_t *src = *p->w.data;
    uint64_t lo, hi, stride = *p->w.stride;
    pool_share(p->w.n_blocks, 1, t, n, &lo, &hi);
    if (stride == p->w.len) memcpy(p->copy + lo * stride, src + lo * stride, (size_t)((hi - lo) * stride));
    else
        for (uint64_t b = lo; b < hi; b++) memcpy(p->copy + b * p->w.len, src + b * stride, (size_t)p->w.len);
}

/* A thread copies for its own rank. */
static void copy_parts(void *arg, uint32_t thread, uint32_t n_threads)
{
    const copy_job *j = arg;
    const uint32_t ranks = j->m->shards.n_ranks;
    uint32_t r = 0;
    while (thread >= n_threads * (r + 1) / ranks) r++;
    const uint32_t first = n_threads * r / ranks, end = n_threads * (r + 1) / ranks;
    for (size_t i = 0; i < j->n; i++)
        if (j->parts[i].w.rank == r) copy_share(&j->parts[i], thread - first, end - first);
}

/* The bytes of a piece that are not read any more. */
static void drop_piece(tess_model *m, uint32_t piece)
{
    if (!m->owned[piece]) os_page_drop(m->tiles[piece], (size_t)ct_get(m->file)->pieces[piece].usize);
    mem_free(&m->m, m->owned[piece]);
    m->owned[piece] = NULL;
    m->tiles[piece] = NULL;
}

/* All parts of one piece. */
static tess_status move_piece(tess_model *m, pool *threads, node_part *parts, size_t n, tess_error *err)
{
    nodes *own = m->nodes;
    bool keep = false;
    if (!mem_grow(own->m, &own->copies, &own->cap_copies, own->n_copies + n, sizeof *own->copies))
        return ERR(err, TESS_E_NOMEM, "no memory to place the weights on nodes");
    for (size_t i = 0; i < n; i++) {
        if (!copied(m, &parts[i])) {
            keep = true;
            continue;
        }
        parts[i].copy = fresh_alloc(own->m, (size_t)part_bytes(&parts[i]));
        if (!parts[i].copy)
            return ERR(err, TESS_E_NOMEM, "no memory for %llu bytes of weights of rank %u",
                       (unsigned long long)part_bytes(&parts[i]), parts[i].w.rank);
        own->copies[own->n_copies++] = parts[i].copy;
    }
    copy_job j = {m, parts, n};
    pool_run(threads, copy_parts, &j);
    for (size_t i = 0; i < n; i++)
        if (copied(m, &parts[i])) *parts[i].w.data = parts[i].copy, *parts[i].w.stride = parts[i].w.len;
    if (!keep) drop_piece(m, parts->w.piece);
    return TESS_OK;
}

static int by_piece(const void *a, const void *b)
{
    const node_part *x = a, *y = b;
    return x->w.piece < y->w.piece ? -1 : x->w.piece > y->w.piece;
}

/* Parts from i on that are of the same piece, up to the result. */
static size_t piece_end(const nodes *n, size_t i)
{
    size_t end = i;
    while (end < n->n_parts && n->parts[end].w.piece == n->parts[i].w.piece) end++;
    return end;
}

/* What the copies take beyond the decoded pieces whose place they take must be there. */
static bool has_room(const tess_model *m, uint64_t *bytes)
{
    const nodes *n = m->nodes;
    uint64_t freed = 0, avail = os_mem_available();
    *bytes = 0;
    for (size_t i = 0, end; i < n->n_parts; i = end) {
        bool keep = false;
        end = piece_end(n, i);
        for (size_t j = i; j < end; j++) {
            keep = keep || !copied(m, &n->parts[j]);
            if (copied(m, &n->parts[j])) *bytes += part_bytes(&n->parts[j]);
        }
        if (!keep && m->owned[n->parts[i].w.piece]) freed += ct_get(m->file)->pieces[n->parts[i].w.piece].usize;
    }
    return avail == 0 || *bytes <= freed || *bytes - freed <= avail;
}

tess_status nodes_weights(tess_model *m, pool *threads, tess_error *err)
{
    nodes *n = m->nodes;
    uint64_t bytes;
    qsort(n->parts, n->n_parts, sizeof *n->parts, by_piece);
    if (!has_room(m, &bytes))
        mem_log(&m->m, TESS_LOG_WARN,
                "the weights would take %llu MB on the nodes of their ranks, which are not available: they stay where they are",
                (unsigned long long)(bytes >> 20));
    else {
        for (size_t i = 0, end; i < n->n_parts; i = end) {
            end = piece_end(n, i);
            TRY(move_piece(m, threads, &n->parts[i], end - i, err));
        }
        mem_log(&m->m, TESS_LOG_INFO, "%u ranks on %u nodes have %llu MB of weights there", m->shards.n_ranks, m->cpus.n_nodes,
                (unsigned long long)(bytes >> 20));
    }
    mem_free(n->m, n->parts);
    n->parts = NULL;
    n->n_parts = n->cap_parts = 0;
    return TESS_OK;
}

/* ---- KV pages ---- */

void *nodes_page_alloc(void *user, uint32_t rank, size_t size)
{
    const tess_model *m = user;
    UNUSED(rank);
    return fresh_alloc(&m->m, size);
}

void nodes_page_free(void *user, uint32_t rank, void *page)
{
    const tess_model *m = user;
    UNUSED(rank);
    mem_free(&m->m, page);
}

/* The copy is what first writes a page that was shared: the caller goes to the rank's node for it. */
bool nodes_page_copy(void *user, uint32_t rank, void *dst, const void *src, size_t n)
{
    const tess_model *m = user;
    const uint32_t team = team_size(m), ranks = m->shards.n_ranks;
    cpu_set_t was;
    uint32_t lo, hi;
    bool there = cpus_place(&m->cpus, team, ranks, team * rank / ranks, &lo, &hi) && cpus_take(&m->cpus, lo, hi, &was);
    memcpy(dst, src, n);
    if (there) cpus_give_back(&was);
    return true;
}
