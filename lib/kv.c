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

/* Frees the spare pages of all groups, so that their bytes can serve another group; false: there were none. */
static bool drop_spare(kv_pool *p)
{
    bool some = false;
    for (uint32_t g = 0; g < p->n_groups; g++)
        while (p->groups[g].free) {
            kv_page *page = p->groups[g].free;
            p->groups[g].free = page->next;
            p->allocated -= p->groups[g].total_bytes;
            page_delete(p, page);
            some = true;
        }
    return some;
}

void kv_pool_close(kv_pool *p)
{
    if (p->m) kv_prefix_close(p), (void)drop_spare(p);
    *p = (kv_pool){0};
}

/* A page of new memory; NULL: there is none. */
static kv_page *page_make(kv_pool *p, const kv_group *g)
{
    kv_page *page = mem_zalloc(p->m, sizeof *page);
    bool ok = page != NULL;
    for (uint32_t r = 0; ok && r < p->n_ranks; r++) ok = (page->data[r] = page_data(p, r, g->page_bytes[r])) != NULL;
    if (!ok) {
        if (page) page_delete(p, page);
        return NULL;
    }
    p->allocated += g->total_bytes;
    p->pages_made++;
    return page;
}

/* A spare page, or a new one; what others left behind goes before one is refused. */
static tess_status page_new(kv_pool *p, uint32_t group, kv_page **out, tess_error *err)
{
    kv_group *g = &p->groups[group];
    kv_page *page = NULL;
    bool fits;
    do {
        fits = p->budget - p->allocated >= g->total_bytes;
        if (g->free) page = g->free, g->free = page->next;
        else if (fits) page = page_make(p, g);
    } while (!page && (drop_spare(p) || kv_prefix_drop(p)));
    if (!page && fits) return ERR(err, TESS_E_NOMEM, "no memory for a KV page of %llu bytes", (unsigned long long)g->total_bytes);
    if (!page)
        return ERR(err, TESS_E_KV_FULL,
                   "the KV memory is used up: %llu of %llu bytes hold pages; allow more, or use fewer or shorter sequences",
                   (unsigned long long)p->allocated, (unsigned long long)p->budget);
    page->refs = 1;
    page->next = NULL;
    p->pages_live++;
    *out = page;
    return TESS_OK;
}

static void page_ref(kv_pool *p, uint32_t group, kv_page *page)
{
    page->refs++;
    if (page->refs == 2) p->pages_shared++;
    if (page->refs > 1) return;
    p->pages_live++; /* it was kept */
    p->prefix.bytes -= p->groups[group].total_bytes;
    p->prefix.pages--;
}

void kv_page_spare(kv_pool *p, uint32_t group, kv_page *page)
{
    p->prefix.bytes -= p->groups[group].total_bytes;
    p->prefix.pages--;
    page->next = p->groups[group].free;
    p->groups[group].free = page;
}

static void page_unref(kv_pool *p, uint32_t group, kv_page *page)
{
    if (!page) return;
    if (page->refs == 2) p->pages_shared--;
    if (--page->refs > 0) return;
    p->pages_live--;
    p->prefix.bytes += p->groups[group].total_bytes;
    p->prefix.pages++;
    if (!page->node) kv_page_spare(p, group, page);
    while (p->prefix.bytes > p->prefix.limit && kv_prefix_drop(p)) {}
}

bool kv_table_room(kv_pool *p, kv_table *t, size_t want)
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

void kv_table_share(kv_pool *p, uint32_t group, kv_table *t, size_t i, kv_page *page)
{
    if (page) page_ref(p, group, page);
    table_set(p, t, i, page);
}

/* A page that others hold as well is replaced by a copy. */
static tess_status make_own(kv_pool *p, uint32_t group, kv_table *t, size_t i, tess_error *err)
{
    kv_page *old = t->pages[i], *page;
    if (old->refs == 1) return kv_prefix_forget(p, group, old), TESS_OK;
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
    if (!kv_table_room(p, t, end)) return ERR(err, TESS_E_NOMEM, "no memory for a block table of %zu pages", end);
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
    t->passed = MIN(t->passed, t->n);
}

size_t kv_first_page(const kv_pool *p, uint32_t group, uint64_t pos)
{
    const uint32_t w = p->groups[group].window;
    return w == 0 || pos + 1 <= w ? 0 : (size_t)((pos + 1 - w) / p->page_tokens);
}

void kv_table_pass(kv_pool *p, uint32_t group, kv_table *t, uint64_t pos)
{
    size_t dead = MIN(t->n, kv_first_page(p, group, pos));
    for (; t->passed < dead; t->passed++) {
        page_unref(p, group, t->pages[t->passed]);
        table_set(p, t, t->passed, NULL);
    }
}

tess_status kv_table_fork(kv_pool *p, uint32_t group, const kv_table *src, uint64_t keep, kv_table *dst, tess_error *err)
{
    size_t n = MIN(src->n, (size_t)ceil_div(keep, p->page_tokens));
    if (!kv_table_room(p, dst, n)) return ERR(err, TESS_E_NOMEM, "no memory for a block table of %zu pages", n);
    for (size_t i = 0; i < n; i++) kv_table_share(p, group, dst, i, src->pages[i]);
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
