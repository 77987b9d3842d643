/*
 * kv_prefix.c - pages that sequences with the same beginning share.
 *
 * K and V of a position follow from the ids up to it, and from the key of the rope table alone: all else - model, type and size of
 * pages, ranks - is the same for all pages of a pool. So a page that is full is known by all ids up to its end. The pages are
 * kept in a tree: a node stands for one page of ids behind those of its parent, and has the page of each group of layers, as far as it is
 * there. A node is found by a hash of its ids, seeded by that of its parent, and is the right one when its parent and all its ids are.
 *
 * A node keeps its pages when no sequence has them any more, until their bytes are more than the limit or wanted for
 * other pages. Then the node used least recently gives its own first; as its parents are used whenever it is, they give theirs
 * later. A sequence that writes into a page that a node keeps, having been cut, takes it out of the tree, or gets a copy where others
 * read it too.
 */
#include "hash.h"
#include "kv.h"

struct kv_node {
    kv_node *parent, *chain, *newer, *older; /* chain: of its bucket */
    uint64_t hash;
    uint32_t key, n_children;
    kv_page *pages[ARCH_MAX_ATTN_KINDS]; /* by group; NULL: not there */
    int32_t ids[];                       /* [page_tokens] */
};

void kv_prefix_open(kv_pool *p, uint64_t limit) { p->prefix.limit = limit; }

/* ---- the order of use ---- */

static void unlink_node(kv_prefix *x, kv_node *n)
{
    *(n->newer ? &n->newer->older : &x->newest) = n->older;
    *(n->older ? &n->older->newer : &x->oldest) = n->newer;
}

static void link_newest(kv_prefix *x, kv_node *n)
{
    n->newer = NULL;
    n->older = x->newest;
    *(x->newest ? &x->newest->newer : &x->oldest) = n;
    x->newest = n;
}

/* n was used, and so were its parents, which count as used after it. */
static void touch(kv_prefix *x, kv_node *n)
{
    for (; n; n = n->parent) {
        unlink_node(x, n);
        link_newest(x, n);
    }
}

/* ---- the tree ---- */

static kv_node **bucket_of(const kv_prefix *x, uint64_t hash) { return &x->buckets[hash & (x->n_buckets - 1)]; }

static uint64_t hash_of(const kv_pool *p, const kv_node *parent, uint32_t key, const int32_t *ids)
{
    return hash64(ids, p->page_tokens * sizeof *ids, parent ? parent->hash : key);
}

static kv_node *find(const kv_pool *p, const kv_node *parent, uint32_t key, const int32_t *ids)
{
    const kv_prefix *x = &p->prefix;
    kv_node *n = x->n_buckets ? *bucket_of(x, hash_of(p, parent, key, ids)) : NULL;
    while (n && (n->parent != parent || n->key != key || memcmp(n->ids, ids, p->page_tokens * sizeof *ids) != 0)) n = n->chain;
    return n;
}

/* As many buckets as nodes, or more. */
static bool grow(kv_pool *p)
{
    kv_prefix *x = &p->prefix;
    if (x->n_nodes < x->n_buckets) return true;
    const uint32_t n = MAX(2 * x->n_buckets, 64u);
    kv_node **buckets = mem_calloc(p->m, n, sizeof *buckets);
    if (!buckets) return false;
    mem_free(p->m, x->buckets);
    x->buckets = buckets;
    x->n_buckets = n;
    for (kv_node *i = x->newest; i; i = i->older) {
        i->chain = *bucket_of(x, i->hash);
        *bucket_of(x, i->hash) = i;
    }
    return true;
}

static kv_node *add(kv_pool *p, kv_node *parent, uint32_t key, const int32_t *ids)
{
    kv_prefix *x = &p->prefix;
    kv_node *n = grow(p) ? mem_zalloc(p->m, sizeof *n + p->page_tokens * sizeof *ids) : NULL;
    if (!n) return NULL;
    n->parent = parent;
    n->key = key;
    n->hash = hash_of(p, parent, key, ids);
    memcpy(n->ids, ids, p->page_tokens * sizeof *ids);
    n->chain = *bucket_of(x, n->hash);
    *bucket_of(x, n->hash) = n;
    link_newest(x, n);
    x->n_nodes++;
    if (parent) parent->n_children++;
    return n;
}

static bool is_bare(const kv_pool *p, const kv_node *n)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (n->pages[g]) return false;
    return n->n_children == 0;
}

/* Deletes n, and then its parents, as long as they are of no use. */
static void prune(kv_pool *p, kv_node *n)
{
    kv_prefix *x = &p->prefix;
    while (n && is_bare(p, n)) {
        kv_node *parent = n->parent, **at = bucket_of(x, n->hash);
        while (*at != n) at = &(*at)->chain;
        *at = n->chain;
        unlink_node(x, n);
        x->n_nodes--;
        if (parent) parent->n_children--;
        mem_free(p->m, n);
        n = parent;
    }
}

/* ---- what sequences do ---- */

void kv_prefix_keep(kv_pool *p, uint32_t key, const int32_t *ids, size_t n, const kv_table *tables)
{
    const uint32_t page = p->page_tokens;
    kv_node *node = NULL;
    for (size_t i = 0; p->prefix.limit && (i + 1) * page <= n; i++) {
        kv_node *next = find(p, node, key, ids + i * page);
        if (!next) next = add(p, node, key, ids + i * page);
        if (!next) break; /* no memory: not an error, only less is shared */
        node = next;
        for (uint32_t g = 0; g < p->n_groups; g++) {
            kv_page *own = i < tables[g].n ? tables[g].pages[i] : NULL;
            if (!own || own->node || node->pages[g]) continue;
            node->pages[g] = own;
            own->node = node;
        }
    }
    touch(&p->prefix, node);
    prune(p, node);
}

/* The pages [from, to) of group g, the last of which is in node `last`; those that no position >= to * page_tokens sees are left out. */
static void share(kv_pool *p, uint32_t g, kv_table *t, size_t from, size_t to, const kv_node *last)
{
    const size_t seen = kv_first_page(p, g, (uint64_t)to * p->page_tokens);
    for (size_t i = to; i-- > from; last = last->parent) kv_table_share(p, g, t, i, i >= seen ? last->pages[g] : NULL);
    t->n = to;
}

/* How many pages from the first on a sequence with `ids` can have, *last being the node of the last one: all that positions
 * behind them see must be there, in the tree or, below `own`, in its tables. */
static size_t longest(const kv_pool *p, uint32_t key, const int32_t *ids, size_t n, const kv_table *tables, size_t own, kv_node **last)
{
    const uint32_t page = p->page_tokens;
    size_t whole[ARCH_MAX_ATTN_KINDS] = {0}, best = 0; /* whole: from this page on none is missing */
    kv_node *node = NULL;
    for (size_t i = 0; (i + 1) * page <= n && (node = find(p, node, key, ids + i * page)); i++) {
        bool all = true;
        for (uint32_t g = 0; g < p->n_groups; g++) {
            if (!node->pages[g] && (i >= own || !tables[g].pages[i])) whole[g] = i + 1;
            all = all && whole[g] <= kv_first_page(p, g, (i + 1) * page);
        }
        if (all) best = i + 1, *last = node;
    }
    return best;
}

size_t kv_prefix_take(kv_pool *p, uint32_t key, const int32_t *ids, size_t n, kv_table *tables, size_t done)
{
    const size_t own = done / p->page_tokens;
    kv_node *last = NULL;
    const size_t best = longest(p, key, ids, n, tables, own, &last);
    if (best <= own) return done;
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (!kv_table_room(p, &tables[g], best)) return done;
    touch(&p->prefix, last);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        kv_table_truncate(p, g, &tables[g], done);
        share(p, g, &tables[g], own, best, last);
    }
    for (uint32_t g = 0; g < p->n_groups; g++) kv_table_pass(p, g, &tables[g], (uint64_t)best * p->page_tokens);
    return best * p->page_tokens;
}

/* ---- what the pool does ---- */

void kv_prefix_forget(kv_pool *p, uint32_t group, kv_page *page)
{
    kv_node *n = page->node;
    if (!n) return;
    page->node = NULL;
    n->pages[group] = NULL;
    prune(p, n);
}

bool kv_prefix_drop(kv_pool *p)
{
    for (kv_node *n = p->prefix.oldest; n; n = n->newer) {
        bool some = false;
        for (uint32_t g = 0; g < p->n_groups; g++) {
            kv_page *page = n->pages[g];
            if (!page || page->refs) continue;
            some = true;
            n->pages[g] = NULL;
            page->node = NULL;
            kv_page_spare(p, g, page);
        }
        if (!some) continue;
        prune(p, n);
        return true;
    }
    return false;
}

void kv_prefix_close(kv_pool *p)
{
    while (kv_prefix_drop(p)) {}
    mem_free(p->m, p->prefix.buckets);
    p->prefix = (kv_prefix){0};
}
