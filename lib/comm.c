/* comm.c - see comm.h. */
#include "comm.h"
#include "comm_ops.h"
#include "cuda_ops.h"
#include "device.h"

/* A flag has a line of memory to itself. */
enum { FLAG_STRIDE = 128 / sizeof(uint32_t), FLAG_WORDS = COMM_MAX * FLAG_STRIDE, OWN_WORDS = FLAG_WORDS + FLAG_STRIDE };
#define DEADLINE_NS 20000000000u

typedef struct {
    uint32_t device, leader; /* leader: the rank that stands for the device */
    void *stream, *reached;  /* reached: an event, recorded at every barrier */
    uint32_t *flags;         /* of a leader, on its device: [from rank], and behind them the barriers that it has passed */
    uint8_t *outbox;         /* two halves; NULL: none */
    size_t half;
} comm_rank;
/* Pinned: what ranks report, and the flags of ranks that others may not write to. */
typedef struct {
    comm_record record[COMM_MAX];
    uint32_t abort, pad[FLAG_STRIDE - 1];
    uint32_t flags[COMM_MAX][FLAG_WORDS]; /* [of][from] */
} comm_host;
struct comm {
    const mem *m;
    device_list devices;
    comm_rank rank[MAX_RANKS];
    uint32_t n_leaders;
    uint64_t deadline_ns;
    comm_host *host; /* NULL: one device */
};

const device_list *comm_devices(const comm *c) { return &c->devices; }
int comm_select(comm *c, uint32_t rank) { return device_select(c->rank[rank].device); }
void *comm_stream(const comm *c, uint32_t rank) { return c->rank[rank].stream; }
uint32_t comm_leaders(const comm *c) { return c->n_leaders; }
uint32_t comm_leader(const comm *c, uint32_t rank) { return c->rank[rank].leader; }
bool comm_direct(const comm *c, uint32_t reader, uint32_t owner) { return c->devices.direct[reader] >> owner & 1; }

bool comm_blind(const comm *c, uint32_t owner)
{
    for (uint32_t r = 0; r < c->devices.n; r++)
        if (!comm_direct(c, r, owner)) return true;
    return false;
}

/* ---- open, close ---- */

static tess_status open_rank(comm *c, uint32_t r, tess_error *err)
{
    comm_rank *k = &c->rank[r];
    void *p = NULL;
    k->device = c->devices.id[r];
    while (c->rank[k->leader].device != k->device) k->leader++;
    c->n_leaders += k->leader == r;
    int code = comm_select(c, r);
    if (!code) code = device_stream_open(&k->stream);
    if (!code) code = device_event_open(&k->reached);
    if (!code && k->leader == r) code = op_cuda_load();
    if (!code && k->leader == r) code = device_alloc(&p, OWN_WORDS * sizeof *k->flags);
    k->flags = p;
    return code ? devices_fail(&c->devices, r, "the device can not be used", code, err) : TESS_OK;
}

/* There was no barrier yet, and nobody has failed. Nothing runs at this time. */
static int set_flags(comm *c)
{
    int code = 0;
    if (!c->host) return 0;
    *c->host = (comm_host){.abort = 0}; /* all flags are comm_code(0) */
    for (uint32_t r = 0; !code && r < c->devices.n; r++) {
        comm_rank *k = &c->rank[r];
        if (k->leader != r) continue;
        code = comm_select(c, r);
        if (!code) code = device_fill(k->flags, 0, OWN_WORDS * sizeof *k->flags, k->stream);
        if (!code) code = device_stream_sync(k->stream);
    }
    return code;
}

tess_status comm_open(const mem *m, const device_list *d, uint64_t deadline_ns, comm **out, tess_error *err)
{
    _Static_assert((int)COMM_MAX == (int)MAX_RANKS, "a flag for every rank");
    tess_status st = TESS_OK;
    void *host = NULL;
    comm *c = mem_zalloc(m, sizeof *c);
    *out = NULL;
    if (!c) return ERR(err, TESS_E_NOMEM, "no memory for %u ranks", d->n);
    c->m = m;
    c->devices = *d;
    c->deadline_ns = deadline_ns ? deadline_ns : DEADLINE_NS;
    for (uint32_t r = 0; st >= 0 && r < d->n; r++) st = open_rank(c, r, err);
    if (st >= 0 && c->n_leaders > 1 && device_host_alloc(&host, sizeof *c->host))
        st = ERR(err, TESS_E_NOMEM, "no pinned memory for %u ranks", d->n);
    c->host = host;
    if (st >= 0 && set_flags(c)) st = ERR(err, TESS_E_DEVICE, "the flags between devices could not be set");
    if (st < 0) comm_close(c);
    else *out = c;
    return st;
}

void comm_close(comm *c)
{
    if (!c) return;
    comm_abort(c);
    for (uint32_t r = 0; r < c->devices.n; r++)
        if (c->rank[r].stream && comm_select(c, r) == 0) (void)device_stream_sync(c->rank[r].stream);
    for (uint32_t r = 0; r < c->devices.n; r++) {
        comm_rank *k = &c->rank[r];
        (void)comm_select(c, r);
        device_stream_close(k->stream);
        device_event_close(k->reached);
        device_free(k->flags);
        device_host_free(k->outbox);
    }
    device_host_free(c->host);
    mem_free(c->m, c);
}

uint64_t comm_memory(comm *c)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < c->devices.n; r++) {
        device_props d;
        if (c->rank[r].leader == r && device_get(c->rank[r].device, &d) == 0) sum += d.mem_free;
    }
    return sum;
}

/* ---- the barrier ---- */

/* Stream of `rank` waits for what is now in the stream of `other`, on the same device. */
static int join(comm *c, uint32_t rank, uint32_t other)
{
    int code = device_event_record(c->rank[other].reached, c->rank[other].stream);
    return code ? code : device_event_wait(c->rank[other].reached, c->rank[rank].stream);
}

/* Where the flag of `of` lies that `from` writes. */
static uint32_t *flag_at(const comm *c, uint32_t of, uint32_t from)
{
    return (comm_direct(c, from, of) ? c->rank[of].flags : c->host->flags[of]) + from * FLAG_STRIDE;
}

static int raise_flags(comm *c, uint32_t r)
{
    comm_flags_args a = {.passed = c->rank[r].flags + FLAG_WORDS,
                         .record = &c->host->record[r],
                         .abort = &c->host->abort,
                         .deadline_ns = c->deadline_ns};
    for (uint32_t o = 0; o < c->devices.n; o++) {
        if (o == r || c->rank[o].leader != o) continue;
        a.out[o] = flag_at(c, o, r);
        a.in[o] = flag_at(c, r, o);
    }
    return comm_flags(&a, c->rank[r].stream);
}

int comm_barrier(comm *c, uint32_t leader)
{
    int code = 0;
    for (uint32_t r = leader + 1; !code && r < c->devices.n; r++)
        if (c->rank[r].leader == leader) code = join(c, leader, r);
    return code || c->n_leaders == 1 ? code : raise_flags(c, leader);
}

int comm_pass(comm *c, uint32_t leader)
{
    int code = 0;
    for (uint32_t r = leader + 1; !code && r < c->devices.n; r++)
        if (c->rank[r].leader == leader) code = join(c, r, leader);
    return code;
}

void comm_abort(comm *c)
{
    if (c->host) __atomic_store_n(&c->host->abort, 1, __ATOMIC_RELEASE);
}

/* What a rank reported while it waited for others. */
static tess_status check_records(const comm *c, tess_error *err)
{
    for (uint32_t kind = COMM_DAMAGED; kind >= COMM_LATE; kind--)
        for (uint32_t r = 0; r < c->devices.n; r++) {
            const comm_record *k = &c->host->record[r];
            if (k->kind != kind || k->peer >= c->devices.n) continue;
            device_name waits = devices_name(&c->devices, r), late = devices_name(&c->devices, k->peer);
            if (kind == COMM_LATE)
                return ERR(err, TESS_E_DEVICE, "%s did not reach barrier %u within %llu ms; %s waited for it", late.text, k->epoch,
                           (unsigned long long)(c->deadline_ns / 1000000), waits.text);
            return ERR(err, TESS_E_DEVICE, "a flag from %s to %s arrived damaged (%#x at barrier %u)", late.text, waits.text,
                       k->value, k->epoch);
        }
    return c->host->abort ? ERR(err, TESS_E_DEVICE, "the ranks gave up a barrier") : TESS_OK;
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
        comm_abort(c); /* the others need not wait for it */
        if (!device_usable(c->rank[r].device)) *lost = true;
    }
    if (!c->host || *lost) return st;
    tess_status waits = check_records(c, st < 0 ? NULL : err);
    if (waits < 0 && set_flags(c)) *lost = true;
    return st < 0 ? st : waits;
}

/* ---- outboxes ---- */

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
