/*
 * tok_bpe.c - byte pair merging: of all neighbours that have a merge, the one of lowest rank is merged first, of equal rank the
 * leftmost, until none is left.
 *
 * Short words scan an array of ranks for the minimum. Long words keep linked symbols and a heap of (rank, position): O(n log n),
 * whatever the text. An entry of the heap is stale when the pair at its position has another rank by now; since merging only
 * lengthens symbols, an equal rank is the same pair.
 */
#include "tok_int.h"

enum { SHORT = 48 };

static size_t merge_short(const tok *t, uint32_t *ids, size_t n)
{
    uint32_t rank[SHORT], made[SHORT]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i + 1 < n; i++) {
        const merge_slot *m = merge_find(t, ids[i], ids[i + 1]);
        rank[i] = m ? m->rank : TOK_NONE;
        made[i] = m ? m->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == TOK_NONE) break;
        ids[best] = made[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(rank + best, rank + best + 1, (n - best) * sizeof *rank);
        memmove(made + best, made + best + 1, (n - best) * sizeof *made);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const merge_slot *m = merge_find(t, ids[i], ids[i + 1]);
            rank[i] = m ? m->rank : TOK_NONE;
            made[i] = m ? m->id : 0;
        }
    }
    return n;
}

/* ---- a heap of u64, least first ---- */

static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t v = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c]) c++;
        if (v <= h[c]) break;
        h[i] = h[c];
    }
    h[i] = v;
}
static void sift_up(uint64_t *h, size_t i)
{
    uint64_t v = h[i];
    for (size_t p; i && (p = (i - 1) / 2, v < h[p]); i = p) h[i] = h[p];
    h[i] = v;
}

static bool heap_push(tok_run *r, size_t *n, const uint32_t *ids, size_t a, size_t b)
{
    const merge_slot *m = merge_find(r->t, ids[a], ids[b]);
    if (!m) return true;
    if (*n == r->heap_cap && !mem_grow(&r->t->m, &r->heap, &r->heap_cap, *n + 1, sizeof *r->heap)) return false;
    r->heap[*n] = (uint64_t)m->rank << 32 | a;
    sift_up(r->heap, (*n)++);
    return true;
}

/* Neighbours of symbol i; n = none. A merged-away symbol has id TOK_NONE. */
typedef struct { uint32_t prev, next; } link;

static bool merge_all(tok_run *r, uint32_t *ids, link *l, size_t n)
{
    size_t used = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        const merge_slot *m = merge_find(r->t, ids[i], ids[i + 1]);
        if (m) r->heap[used++] = (uint64_t)m->rank << 32 | i;
    }
    for (size_t i = used / 2; i-- > 0;) sift_down(r->heap, used, i);
    while (used) {
        uint64_t top = r->heap[0];
        r->heap[0] = r->heap[--used];
        if (used) sift_down(r->heap, used, 0);
        uint32_t a = (uint32_t)top, b = l[a].next;
        if (ids[a] == TOK_NONE || b == n) continue;
        const merge_slot *m = merge_find(r->t, ids[a], ids[b]);
        if (!m || m->rank != top >> 32) continue;
        ids[a] = m->id;
        ids[b] = TOK_NONE;
        uint32_t after = l[a].next = l[b].next;
        if (after != n) l[after].prev = a;
        if (l[a].prev != n && !heap_push(r, &used, ids, l[a].prev, a)) return false;
        if (after != n && !heap_push(r, &used, ids, a, after)) return false;
    }
    return true;
}

static size_t merge_long(tok_run *r, uint32_t *ids, size_t n)
{
    size_t bytes;
    if (n >= TOK_NONE || !size_mul3(n, sizeof(link), 1, &bytes)) return SIZE_MAX;
    link *l = tok_run_work(r, 1, bytes);
    if (!l || !mem_grow(&r->t->m, &r->heap, &r->heap_cap, n, sizeof *r->heap)) return SIZE_MAX;
    for (size_t i = 0; i < n; i++) l[i] = (link){i ? (uint32_t)(i - 1) : (uint32_t)n, (uint32_t)(i + 1)};
    if (!merge_all(r, ids, l, n)) return SIZE_MAX;
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] != TOK_NONE) ids[k++] = ids[i];
    return k;
}

size_t bpe_merge(tok_run *r, uint32_t *ids, size_t n) { return n <= SHORT ? merge_short(r->t, ids, n) : merge_long(r, ids, n); }
