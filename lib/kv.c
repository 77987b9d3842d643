/* kv.c - see kv.h. */
#include "kv.h"

static uint32_t group_of(kv_pool *p, uint32_t window)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (p->groups[g].window == window) return g;
    p->groups[p->n_groups] = (kv_group){.window = window};
    return p->n_groups++;
}

static void group_layout(kv_group *g, uint32_t rank, const arch *a, uint32_t n_heads, uint32_t dtype, uint32_t page_tokens)
{
    op_kv *kv_ = &g->kv[rank];
    *kv_ = (op_kv){.dtype = dtype, .page_tokens = page_tokens, .n_kv_heads = n_heads, .k_dim = arch_k_dim(a), .v_dim = arch_v_dim(a)};
    op_kv_layout(kv_);
    g->layer_bytes[rank] = kv_->head_bytes * n_heads;
    g->page_bytes[rank] = g->layer_bytes[rank] * g->n_layers;
    g->total_bytes += g->page_bytes[rank];
}

tess_status kv_pool_open(kv_pool *p, const mem *m, const arch *a, const shard_plan *s, uint32_t dtype, uint32_t page_tokens,
                         uint64_t budget, tess_error *err)
{
    *p = (kv_pool){.m = m, .n_ranks = s->n_ranks, .page_tokens = page_tokens, .budget = budget};
    if (page_tokens != 16 && page_tokens != 32 && page_tokens != 64)
        return ERR(err, TESS_E_ARG, "pages of %u tokens are not possible; use 16, 32 or 64", page_tokens);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        uint32_t g = group_of(p, a->attn[a->layer_attn[i]].window);
        p->layer_group[i] = (uint8_t)g;
        p->layer_index[i] = (uint16_t)p->groups[g].n_layers++;
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t r = 0; r < s->n_ranks; r++)
            group_layout(&p->groups[g], r, a, s->rank[r].kv_head.hi - s->rank[r].kv_head.lo, dtype, page_tokens);
    return TESS_OK;
}

void kv_pool_place(kv_pool *p, const kv_memory *memory) { p->memory = memory; }

static void page_delete(kv_pool *p, kv_page *g)
{
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        if (!p->memory) mem_free(p->m, g->data[r]);
        else if (g->data[r]) p->memory->release(p->memory->user, r, g->data[r]);
    }
    mem_free(p->m, g);
}

static uint8_t *page_data(const kv_pool *p, uint32_t rank, uint64_t bytes)
{
    return p->memory ? p->memory->alloc(p->memory->user, rank, (size_t)bytes) : mem_alloc(p->m, (size_t)bytes);
}

static bool page_copy(const kv_pool *p, uint32_t rank, void *dst, const void *src, uint64_t bytes)
{
    if (p->memory) return p->memory->copy(p->memory->user, rank, dst, src, (size_t)bytes);
    memcpy(dst, src, (size_t)bytes);
    return true;
}

/* Frees the spare pages of all groups, so that their bytes can serve another group. */
static void drop_spare(kv_pool *p)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        while (p->groups[g].free) {
            kv_page *page = p->groups[g].free;
            p->groups[g].free = page->next;
            p->allocated -= p->groups[g].total_bytes;
            page_delete(p, page);
        }
}

void kv_pool_close(kv_pool *p)
{
    if (p->m) drop_spare(p);
    *p = (kv_pool){0};
}

static tess_status page_new(kv_pool *p, uint32_t group, kv_page **out, tess_error *err)
{
    kv_group *g = &p->groups[group];
    kv_page *page = g->free;
    if (page) g->free = page->next;
    else {
        if (p->budget - p->allocated < g->total_bytes) drop_spare(p);
        if (p->budget - p->allocated < g->total_bytes)
            return ERR(err, TESS_E_KV_FULL,
                       "the KV memory is used up: %llu of %llu bytes hold pages; allow more, or use fewer or shorter sequences",
                       (unsigned long long)p->allocated, (unsigned long long)p->budget);
        page = mem_zalloc(p->m, sizeof *page);
        bool ok = page != NULL;
        for (uint32_t r = 0; ok && r < p->n_ranks; r++) ok = (page->data[r] = page_data(p, r, g->page_bytes[r])) != NULL;
        if (!ok) {
            if (page) page_delete(p, page);
            return ERR(err, TESS_E_NOMEM, "no memory for a KV page of %llu bytes", (unsigned long long)g->total_bytes);
        }
        p->allocated += g->total_bytes;
        p->pages_made++;
    }
    page->refs = 1;
    page->next = NULL;
    p->pages_live++;
    *out = page;
    return TESS_OK;
}

static void page_unref(kv_pool *p, uint32_t group, kv_page *page)
{
    if (!page) return;
    if (page->refs == 2) p->pages_shared--;
    if (--page->refs > 0) return;
    page->next = p->groups[group].free;
    p->groups[group].free = page;
    p->pages_live--;
}

static bool table_room(kv_pool *p, kv_table *t, size_t want)
{
    if (want <= t->cap) return true;
    size_t cap = t->cap, unused;
    if (!mem_grow(p->m, &t->pages, &cap, want, sizeof *t->pages)) return false;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        unused = t->cap;
        if (!mem_grow(p->m, &t->base[r], &unused, want, sizeof *t->base[r])) return false;
    }
    t->cap = cap;
    return true;
}

static void table_set(const kv_pool *p, kv_table *t, size_t i, kv_page *page)
{
    t->pages[i] = page;
    for (uint32_t r = 0; r < p->n_ranks; r++) t->base[r][i] = page ? page->data[r] : NULL;
}

/* A page that others hold as well is replaced by a copy. */
static tess_status make_own(kv_pool *p, uint32_t group, kv_table *t, size_t i, tess_error *err)
{
    kv_page *old = t->pages[i], *page;
    if (old->refs == 1) return TESS_OK;
    TRY(page_new(p, group, &page, err));
    bool ok = true;
    for (uint32_t r = 0; ok && r < p->n_ranks; r++) ok = page_copy(p, r, page->data[r], old->data[r], p->groups[group].page_bytes[r]);
    if (!ok) {
        page_unref(p, group, page);
        return ERR(err, TESS_E_DEVICE, "a KV page could not be copied on its device");
    }
    page_unref(p, group, old);
    table_set(p, t, i, page);
    return TESS_OK;
}

tess_status kv_table_reserve(kv_pool *p, uint32_t group, kv_table *t, uint64_t from, uint64_t to, tess_error *err)
{
    size_t first = (size_t)(from / p->page_tokens), end = (size_t)ceil_div(to, p->page_tokens);
    if (!table_room(p, t, end)) return ERR(err, TESS_E_NOMEM, "no memory for a block table of %zu pages", end);
    for (size_t i = first; i < MIN(end, t->n); i++)
        if (t->pages[i]) TRY(make_own(p, group, t, i, err));
    while (t->n < end) {
        kv_page *page;
        TRY(page_new(p, group, &page, err));
        table_set(p, t, t->n++, page);
    }
    return TESS_OK;
}

void kv_table_truncate(kv_pool *p, uint32_t group, kv_table *t, uint64_t keep)
{
    size_t n = (size_t)ceil_div(keep, p->page_tokens);
    while (t->n > n) page_unref(p, group, t->pages[--t->n]);
}

void kv_table_pass(kv_pool *p, uint32_t group, kv_table *t, uint64_t pos)
{
    uint32_t w = p->groups[group].window;
    if (w == 0 || pos + 1 <= w) return;
    size_t dead = MIN(t->n, (size_t)((pos + 1 - w) / p->page_tokens));
    for (size_t i = dead; i > 0 && t->pages[i - 1]; i--) { /* earlier ones were given back before */
        page_unref(p, group, t->pages[i - 1]);
        table_set(p, t, i - 1, NULL);
    }
}

tess_status kv_table_fork(kv_pool *p, const kv_table *src, uint64_t keep, kv_table *dst, tess_error *err)
{
    size_t n = MIN(src->n, (size_t)ceil_div(keep, p->page_tokens));
    if (!table_room(p, dst, n)) return ERR(err, TESS_E_NOMEM, "no memory for a block table of %zu pages", n);
    for (size_t i = 0; i < n; i++) {
        kv_page *page = src->pages[i];
        if (page && ++page->refs == 2) p->pages_shared++;
        table_set(p, dst, i, page);
    }
    dst->n = n;
    return TESS_OK;
}

void kv_table_free(kv_pool *p, uint32_t group, kv_table *t)
{
    kv_table_truncate(p, group, t, 0);
    mem_free(p->m, t->pages);
    for (uint32_t r = 0; r < p->n_ranks; r++) mem_free(p->m, t->base[r]);
    *t = (kv_table){0};
}

uint64_t kv_bytes_per_page(const kv_pool *p)
{
    uint64_t n = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) n += p->groups[g].total_bytes;
    return n;
}
