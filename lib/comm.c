/* comm.c - see comm.h. */
#include "comm.h"
#include "device.h"

typedef struct {
    uint32_t device;
    void *stream, *reached; /* reached: an event, recorded at every barrier */
    uint8_t *outbox;        /* two halves; NULL: none */
    size_t half;
    bool direct[MAX_RANKS]; /* which owners this rank reads */
} comm_rank;
struct comm {
    const mem *m;
    device_list devices;
    comm_rank rank[MAX_RANKS];
};

const device_list *comm_devices(const comm *c) { return &c->devices; }
int comm_select(comm *c, uint32_t rank) { return device_select(c->rank[rank].device); }
void *comm_stream(const comm *c, uint32_t rank) { return c->rank[rank].stream; }
bool comm_direct(const comm *c, uint32_t reader, uint32_t owner) { return c->rank[reader].direct[owner]; }

bool comm_blind(const comm *c, uint32_t owner)
{
    for (uint32_t r = 0; r < c->devices.n; r++)
        if (!c->rank[r].direct[owner]) return true;
    return false;
}

static tess_status open_rank(comm *c, uint32_t r, tess_error *err)
{
    comm_rank *k = &c->rank[r];
    k->device = c->devices.id[r];
    int code = comm_select(c, r);
    if (!code) code = device_stream_open(&k->stream);
    if (!code) code = device_event_open(&k->reached);
    return code ? devices_fail(&c->devices, r, "the device can not be used", code, err) : TESS_OK;
}

static void find_access(comm *c)
{
    for (uint32_t r = 0; r < c->devices.n; r++)
        for (uint32_t o = 0; o < c->devices.n; o++) {
            uint32_t device = c->rank[r].device, peer = c->rank[o].device;
            c->rank[r].direct[o] = device == peer || (device_peer_possible(device, peer) && device_peer_enable(device, peer) == 0);
        }
}

tess_status comm_open(const mem *m, const device_list *d, comm **out, tess_error *err)
{
    tess_status st = TESS_OK;
    comm *c = mem_zalloc(m, sizeof *c);
    *out = NULL;
    if (!c) return ERR(err, TESS_E_NOMEM, "no memory for %u ranks", d->n);
    c->m = m;
    c->devices = *d;
    for (uint32_t r = 0; st >= 0 && r < d->n; r++) st = open_rank(c, r, err);
    if (st < 0) {
        comm_close(c);
        return st;
    }
    find_access(c);
    *out = c;
    return TESS_OK;
}

void comm_close(comm *c)
{
    if (!c) return;
    for (uint32_t r = 0; r < c->devices.n; r++) {
        comm_rank *k = &c->rank[r];
        if (comm_select(c, r) == 0 && k->stream) (void)device_stream_sync(k->stream);
    }
    for (uint32_t r = 0; r < c->devices.n; r++) {
        comm_rank *k = &c->rank[r];
        (void)comm_select(c, r);
        device_stream_close(k->stream);
        device_event_close(k->reached);
        device_host_free(k->outbox);
    }
    mem_free(c->m, c);
}

uint64_t comm_memory(comm *c)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < c->devices.n; r++) {
        device_props d;
        bool again = false;
        for (uint32_t o = 0; o < r; o++) again = again || c->rank[o].device == c->rank[r].device;
        if (!again && device_get(c->rank[r].device, &d) == 0) sum += d.mem_free;
    }
    return sum;
}

int comm_barrier(comm *c)
{
    int code = 0;
    if (c->devices.n < 2) return 0;
    for (uint32_t r = 0; !code && r < c->devices.n; r++) {
        code = comm_select(c, r);
        if (!code) code = device_event_record(c->rank[r].reached, c->rank[r].stream);
    }
    for (uint32_t r = 0; !code && r < c->devices.n; r++) {
        code = comm_select(c, r);
        for (uint32_t o = 0; !code && o < c->devices.n; o++)
            if (o != r) code = device_event_wait(c->rank[o].reached, c->rank[r].stream);
    }
    return code;
}

tess_status comm_sync(comm *c, bool *lost, tess_error *err)
{
    tess_status st = TESS_OK;
    *lost = false;
    for (uint32_t r = 0; r < c->devices.n; r++) {
        int code = comm_select(c, r);
        if (!code) code = device_stream_sync(c->rank[r].stream);
        if (!code) continue;
        if (st >= 0) st = devices_fail(&c->devices, r, "the device failed", code, err);
        if (!device_usable(c->rank[r].device)) *lost = true;
    }
    return st;
}

tess_status comm_outbox_open(comm *c, uint32_t owner, size_t half_bytes, tess_error *err)
{
    comm_rank *k = &c->rank[owner];
    void *p;
    size_t bytes;
    int code = size_mul3(half_bytes, 2, 1, &bytes) ? device_host_alloc(&p, bytes) : 1;
    if (code) return ERR(err, TESS_E_NOMEM, "no %zu MB of pinned memory for sums between devices", half_bytes >> 19);
    k->outbox = p;
    k->half = half_bytes;
    return TESS_OK;
}

uint8_t *comm_outbox(const comm *c, uint32_t owner, uint32_t turn) { return c->rank[owner].outbox + (turn & 1) * c->rank[owner].half; }
