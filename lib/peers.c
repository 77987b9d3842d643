/* peers.c - see peers.h. */
#include "comm_ops.h"
#include "device.h"
#include "peers.h"

enum { WORDS = 4096, BYTES = WORDS * sizeof(uint32_t) };

typedef struct {
    uint32_t device;
    void *stream;
    uint32_t *words; /* on the device */
} side;
typedef struct {
    const mem *m;
    side side[MAX_RANKS]; /* of the rank that names a device first */
    uint32_t *host;       /* pinned */
    uint32_t seed;        /* a new one for each transfer: what an earlier one left does not count */
} trial;

static uint32_t first_rank(const device_list *d, uint32_t rank)
{
    uint32_t r = 0;
    while (d->id[r] != d->id[rank]) r++;
    return r;
}

static int open_side(side *s, uint32_t device)
{
    void *p = NULL;
    s->device = device;
    int code = device_select(device);
    if (!code) code = device_stream_open(&s->stream);
    if (!code) code = device_alloc(&p, BYTES);
    s->words = p;
    return code;
}

static void close_sides(trial *t, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        if (!t->side[r].stream) continue;
        (void)device_select(t->side[r].device);
        device_free(t->side[r].words);
        device_stream_close(t->side[r].stream);
    }
    device_host_free(t->host);
}

static int pattern(trial *t, side *by, uint32_t *dst)
{
    int code = device_select(by->device);
    if (!code) code = comm_write_pattern(dst, WORDS, ++t->seed, by->stream);
    return code ? code : device_stream_sync(by->stream);
}

/* Whether s->words hold the newest pattern. */
static bool arrived(trial *t, side *s)
{
    if (device_select(s->device) || device_copy(t->host, s->words, BYTES, s->stream) || device_stream_sync(s->stream)) return false;
    for (uint32_t i = 0; i < WORDS; i++)
        if (t->host[i] != comm_pattern(t->seed, i)) return false;
    return true;
}

/* By stores, copy engine and loads of a; which way failed, or NULL. */
static const char *try_pair(trial *t, side *a, side *b)
{
    if (pattern(t, a, b->words) || !arrived(t, b)) return "stores of a kernel";
    if (pattern(t, a, a->words) || device_copy(b->words, a->words, BYTES, a->stream) || device_stream_sync(a->stream) ||
        !arrived(t, b))
        return "the copy engine";
    if (pattern(t, b, b->words) || device_select(a->device) || comm_copy_words(a->words, b->words, WORDS, a->stream) ||
        device_stream_sync(a->stream) || !arrived(t, a))
        return "loads of a kernel";
    return NULL;
}

static bool pair_works(trial *t, uint32_t a, uint32_t b)
{
    uint32_t from = t->side[a].device, to = t->side[b].device;
    if (!device_peer_possible(from, to) || device_peer_enable(from, to)) {
        mem_log(t->m, TESS_LOG_INFO,
                "cuda:%u has no peer access to cuda:%u: sums between them go through pinned memory of the host", from, to);
        return false;
    }
    const char *bad = try_pair(t, &t->side[a], &t->side[b]);
    if (bad)
        mem_log(
            t->m, TESS_LOG_WARN,
            "cuda:%u is offered peer access to cuda:%u, but data do not arrive by %s: pinned memory of the host is used instead",
            from, to, bad);
    else mem_log(t->m, TESS_LOG_INFO, "cuda:%u has peer access to cuda:%u", from, to);
    return !bad;
}

tess_status peers_find(const mem *m, device_list *d, tess_error *err)
{
    trial t = {.m = m};
    tess_status st = TESS_OK;
    void *host = NULL;
    for (uint32_t r = 0; st >= 0 && r < d->n; r++) {
        int code = first_rank(d, r) == r ? open_side(&t.side[r], d->id[r]) : 0;
        if (code) st = devices_fail(d, r, "the device can not be used", code, err);
    }
    if (st >= 0 && device_host_alloc(&host, BYTES)) st = ERR(err, TESS_E_NOMEM, "no pinned memory to try the devices");
    t.host = host;
    for (uint32_t r = 0; st >= 0 && r < d->n; r++)
        for (uint32_t o = 0; o < d->n; o++) {
            uint32_t a = first_rank(d, r), b = first_rank(d, o);
            bool works = a == b || (a == r && b == o ? pair_works(&t, a, b) : (d->direct[a] >> b & 1) != 0);
            if (works) d->direct[r] |= 1u << o;
        }
    close_sides(&t, d->n);
    return st;
}
