/* feed.c - see feed.h. */
#include "feed.h"
#include "device.h"
#include "os.h"

#define NONE UINT32_MAX
enum { RING = 4, ALIGN = 256, MOST_PIECE = 4 << 20 };

typedef struct {
    uint32_t device;
    uint64_t *off;        /* [n_layers + 1] of the layers in `host`; NULL: the rank is not fed */
    uint8_t *host;
    bool pinned;
    uint8_t *buffer[2];   /* on the device */
    void *stream;         /* of the copies */
    void *there[2], *left[2];
    uint32_t holds[2];    /* layer whose copy was given; NONE: none was, or not all of it */
    uint32_t layer;       /* the rank's stream is at; NONE: before the first */
    uint8_t *ring;        /* RING pieces, pinned; NULL: host is pinned itself */
    size_t piece;
    void *taken[RING];    /* recorded behind the copy out of a piece */
    uint32_t turn;        /* pieces so far */
} feed_rank;
struct feed {
    const mem *m;
    device_list devices;
    uint32_t n_layers;
    uint64_t promised; /* pageable memory, of which nothing was touched yet */
    os_lock *one_run;
    feed_rank rank[MAX_RANKS];
};

/* ---- open, close ---- */

tess_status feed_open(const mem *m, const device_list *d, uint32_t n_layers, feed **out, tess_error *err)
{
    feed *f = *out = mem_zalloc(m, sizeof *f);
    if (!f) return ERR(err, TESS_E_NOMEM, "no memory to stream %u layers", n_layers);
    f->m = m;
    f->devices = *d;
    f->n_layers = n_layers;
    f->one_run = os_lock_open(m);
    if (f->one_run) return TESS_OK;
    feed_close(f);
    *out = NULL;
    return ERR(err, TESS_E_NOMEM, "no memory to stream %u layers", n_layers);
}

static void close_rank(const feed *f, feed_rank *k)
{
    (void)device_select(k->device);
    if (k->stream) (void)device_stream_sync(k->stream);
    for (uint32_t b = 0; b < 2; b++) {
        device_event_close(k->there[b]);
        device_event_close(k->left[b]);
    }
    for (uint32_t i = 0; i < RING; i++) device_event_close(k->taken[i]);
    device_stream_close(k->stream);
    device_host_free(k->ring);
    if (k->pinned) device_host_free(k->host);
    else mem_free(f->m, k->host);
    mem_free(f->m, k->off);
    *k = (feed_rank){0};
}

void feed_close(feed *f)
{
    if (!f) return;
    for (uint32_t r = 0; r < MAX_RANKS; r++)
        if (f->rank[r].off) close_rank(f, &f->rank[r]);
    os_lock_close(f->m, f->one_run);
    mem_free(f->m, f);
}

/* Pinned memory for all layers of a rank; else pageable memory and a ring. */
static tess_status take_host(feed *f, feed_rank *k, uint64_t most, tess_error *err)
{
    const uint64_t bytes = k->off[f->n_layers], free_now = os_mem_available(), have = free_now - MIN(free_now, f->promised);
    void *p = NULL;
    if (free_now && bytes > have)
        return ERR(err, TESS_E_NOMEM, "the layers of cuda:%u need %llu MB of memory of the host, %llu MB are available", k->device,
                   (unsigned long long)(bytes >> 20), (unsigned long long)(have >> 20));
    k->pinned = (free_now == 0 || bytes <= have / 2) && device_host_alloc(&p, (size_t)bytes) == 0;
    if (k->pinned) return k->host = p, TESS_OK;
    f->promised += bytes;
    k->host = mem_alloc(f->m, (size_t)bytes);
    k->piece = (size_t)MIN(MAX(most / RING / ALIGN, 1u), (uint64_t)MOST_PIECE / ALIGN) * ALIGN;
    if (!k->host || device_host_alloc(&p, RING * k->piece))
        return ERR(err, TESS_E_NOMEM, "no %llu MB of memory of the host for the layers of cuda:%u",
                   (unsigned long long)(bytes >> 20) + 1, k->device);
    k->ring = p;
    return TESS_OK;
}

static int open_events(feed_rank *k)
{
    int code = device_select(k->device);
    if (!code) code = device_stream_open(&k->stream);
    for (uint32_t b = 0; !code && b < 2; b++) {
        code = device_event_open(&k->there[b]);
        if (!code) code = device_event_open(&k->left[b]);
        k->holds[b] = NONE;
    }
    for (uint32_t i = 0; !code && k->ring && i < RING; i++) code = device_event_open(&k->taken[i]);
    return code;
}

tess_status feed_rank_open(feed *f, uint32_t r, const uint64_t *bytes, uint8_t *buffer, tess_error *err)
{
    feed_rank *k = &f->rank[r];
    uint64_t most[2] = {0};
    k->device = f->devices.id[r];
    k->layer = NONE;
    k->off = mem_calloc(f->m, f->n_layers + 1u, sizeof *k->off);
    if (!k->off) return ERR(err, TESS_E_NOMEM, "no memory to stream %u layers", f->n_layers);
    for (uint32_t i = 0; i < f->n_layers; i++) {
        k->off[i + 1] = k->off[i] + bytes[i]; /* the sum was checked by place.c */
        most[i & 1] = MAX(most[i & 1], bytes[i]);
    }
    k->buffer[0] = buffer;
    k->buffer[1] = buffer + most[0];
    TRY(take_host(f, k, MAX(most[0], most[1]), err));
    int code = open_events(k);
    return code ? devices_fail(&f->devices, r, "the device can not be used", code, err) : TESS_OK;
}

bool feed_pinned(const feed *f, uint32_t r) { return f->rank[r].pinned; }

uint8_t *feed_host(const feed *f, uint32_t r, uint32_t layer)
{
    const feed_rank *k = &f->rank[r];
    return k->off ? k->host + k->off[layer] : NULL;
}

uint8_t *feed_device(const feed *f, uint32_t r, uint32_t layer) { return f->rank[r].off ? f->rank[r].buffer[layer & 1] : NULL; }

/* ---- copies ---- */

static int copy_through_ring(feed_rank *k, uint8_t *dst, const uint8_t *src, size_t bytes)
{
    int code = 0;
    for (size_t at = 0; !code && at < bytes; at += k->piece) {
        const uint32_t i = k->turn++ % RING;
        const size_t n = MIN(k->piece, bytes - at);
        code = device_event_sync(k->taken[i]);
        if (code) break;
        memcpy(k->ring + i * k->piece, src + at, n);
        code = device_copy(dst + at, k->ring + i * k->piece, n, k->stream);
        if (!code) code = device_event_record(k->taken[i], k->stream);
    }
    return code;
}

/* The copy of a layer into its buffer, behind the last use of that. */
static int give(feed_rank *k, uint32_t layer)
{
    const uint32_t b = layer & 1;
    const size_t n = (size_t)(k->off[layer + 1] - k->off[layer]);
    const uint8_t *src = k->host + k->off[layer];
    int code = device_select(k->device);
    k->holds[b] = NONE;
    if (!code) code = device_event_wait(k->left[b], k->stream);
    if (!code) code = k->ring ? copy_through_ring(k, k->buffer[b], src, n) : device_copy(k->buffer[b], src, n, k->stream);
    if (!code) code = device_event_record(k->there[b], k->stream);
    if (!code) k->holds[b] = layer;
    return code;
}

/* ---- a run ---- */

int feed_first(feed *f, uint32_t *r)
{
    int code = 0;
    for (uint32_t i = 0; !code && i < f->devices.n; i++) {
        feed_rank *k = &f->rank[i];
        *r = i;
        for (uint32_t l = 0; !code && k->off && l < MIN(f->n_layers, 2u); l++)
            if (k->holds[l] != l) code = give(k, l);
    }
    return code;
}

int feed_begin(feed *f, uint32_t *r)
{
    os_lock_take(f->one_run);
    for (uint32_t i = 0; i < f->devices.n; i++) f->rank[i].layer = NONE; /* the last run may have ended anywhere */
    return feed_first(f, r);
}

int feed_leave(feed *f, uint32_t r, void *stream)
{
    feed_rank *k = &f->rank[r];
    if (!k->off || k->layer == NONE) return 0;
    return device_event_record(k->left[k->layer & 1], stream);
}

int feed_enter(feed *f, uint32_t r, uint32_t layer, void *stream)
{
    feed_rank *k = &f->rank[r];
    if (!k->off || (k->layer != NONE && layer <= k->layer)) return 0;
    int code = feed_leave(f, r, stream);
    if (!code && k->holds[layer & 1] != layer) code = give(k, layer);
    if (!code) code = device_event_wait(k->there[layer & 1], stream);
    k->layer = layer;
    return code;
}

void feed_end(feed *f) { os_lock_drop(f->one_run); }
