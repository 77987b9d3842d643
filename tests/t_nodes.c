/*
 * t_nodes.c - ranks on several NUMA nodes (lib/nodes.h): made-up nodes, each with a part of the CPUs of this machine. Which thread first
 * writes a page of memory is what decides where it lies; here such pages are protected until then, and the fault says on which CPU it
 * was. So it is seen who writes copies of weights and KV pages first, and that the results are those of one node.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctx.h"
#include "model.h"
#include "model_kit.h"
#include "root_kit.h"

enum { PAGE = 4096, LEAST = 16 << 10, REGIONS = 512, REGION_PAGES = 1024, VOCAB = 272, STEPS = 6 };

static char file[256];
static cpus nodes2[2]; /* two nodes; the same in the other order */
static bool two_cpus;

/* ---- memory of the host, watched ---- */

/* cpu: of the first access to a page; NONE: none yet; USED: it lay somewhere before */
enum { NONE = -1, USED = -2 };
typedef struct { uint8_t *at; size_t len; int16_t cpu[REGION_PAGES]; } region;
static region regions[REGIONS];
static size_t n_regions, live, peak; /* live, peak: bytes, not of watched ones */
static bool watch;

static region *region_of(const void *p)
{
    for (size_t i = 0; i < n_regions; i++)
        if ((uintptr_t)p - (uintptr_t)regions[i].at < regions[i].len) return &regions[i];
    return NULL;
}

/* Several threads can meet at one page: the first one counts. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    UNUSED(context);
    region *r = region_of(info->si_addr);
    if (!r) {
        (void)signal(sig, SIG_DFL);
        return;
    }
    size_t i = (size_t)((uint8_t *)info->si_addr - r->at) / PAGE;
    unsigned char there = 0;
    int16_t none = NONE, cpu = mincore(r->at + i * PAGE, PAGE, &there) != 0 || there & 1 ? (int16_t)USED : (int16_t)sched_getcpu();
    (void)__atomic_compare_exchange_n(&r->cpu[i], &none, cpu, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (mprotect(r->at + i * PAGE, PAGE, PROT_READ | PROT_WRITE) != 0) (void)signal(sig, SIG_DFL);
}

/* Memory that had another use before. The first page has the size that mem.c writes down: it is open from the start. */
static void *watched(size_t size)
{
    region *r = &regions[n_regions];
    size_t len = (size + PAGE - 1) / PAGE * PAGE;
    if (n_regions == REGIONS || len > (size_t)REGION_PAGES * PAGE) return NULL;
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    memset(p, 0xff, len);
    if (mprotect((uint8_t *)p + PAGE, len - PAGE, PROT_NONE) != 0) return NULL;
    *r = (region){.at = p, .len = size};
    for (size_t i = 0; i < REGION_PAGES; i++) r->cpu[i] = NONE;
    n_regions++;
    return p;
}

static void *host_alloc(void *user, size_t size, size_t align)
{
    UNUSED(user);
    if (watch && size >= LEAST) return watched(size);
    size_t now = __atomic_add_fetch(&live, size, __ATOMIC_RELAXED);
    if (now > peak) peak = now;
    return aligned_alloc(align, (size + align - 1) / align * align);
}
static void host_release(void *user, void *p, size_t size)
{
    UNUSED(user);
    region *r = region_of(p);
    if (r) {
        munmap(r->at, (r->len + PAGE - 1) / PAGE * PAGE);
        r->len = 0;
        return;
    }
    __atomic_sub_fetch(&live, size, __ATOMIC_RELAXED);
    free(p);
}

/* ---- what the machine is said to be ---- */

static const char *mem_available; /* what /proc/meminfo says; NULL: the truth */
FILE *fopen(const char *path, const char *mode)
{
    if (mem_available && strcmp(path, "/proc/meminfo") == 0) return fmemopen((void *)(uintptr_t)mem_available, strlen(mem_available), "r");
    int fd = strchr(mode, 'w') ? creat(path, 0666) : open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? NULL : fdopen(fd, strchr(mode, 'w') ? "w" : "r");
}

/* A list of CPUs or nodes, in a file of the nodes' folder. */
static void put_list(const char *name, const uint16_t *id, uint32_t n)
{
    char path[64], *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    for (uint32_t i = 0; i < n; i++) fprintf(f, "%s%u", i ? "," : "", id[i]);
    assert_int_equal(fclose(f), 0);
    snprintf(path, sizeof path, "sys/devices/system/node/%s", name);
    put(path, text);
    free(text);
}

static int set_up(void **state)
{
    cpu_set_t mine;
    cpus here;
    const uint16_t both[2] = {0, 1};
    if (make_root(state) != 0 || sched_getaffinity(0, sizeof mine, &mine) != 0) return -1;
    snprintf(file, sizeof file, "%s/m.tess", root);
    cpus_now(&here);
    two_cpus = here.n >= 2 && sched_setaffinity(0, sizeof mine, &mine) == 0;
    for (uint32_t order = 0, half = here.n / 2; two_cpus && order < 2; order++) {
        put_list("online", both, 2);
        put_list(order ? "node1/cpulist" : "node0/cpulist", here.id, half);
        put_list(order ? "node0/cpulist" : "node1/cpulist", here.id + half, half);
        for (uint32_t i = 2 * half; i < here.n; i++) CPU_CLR(here.id[i], &mine);
        cpus_read(&nodes2[order], root, &mine);
        nodes2[order].quota = 0;
    }
    return 0;
}

static void need_two(void)
{
    const struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    if (!two_cpus) {
        printf("skip: one CPU, or this process may not set its affinity mask\n");
        skip();
    }
    assert_int_equal(sigaction(SIGSEGV, &a, NULL), 0); /* cmocka has one of its own before each test */
}

/* ---- models ---- */

typedef struct { uint32_t tp, store, dtype; bool experts; } kind;

static void write_model(const kind *k)
{
    model_kit x;
    tess_error e;
    model_kit_init(&x);
    x.tp = k->tp, x.store = k->store, x.dtype = k->dtype;
    x.both_signs = true;
    x.a.hidden_size = 256;
    x.a.head_dim = x.a.v_head_dim = x.a.rope_dims = 64;
    x.a.ffn_size = 1024;
    if (k->experts) {
        x.a.n_experts = 4, x.a.experts_used = 2, x.a.moe_ffn_size = 128;
        x.a.layer_moe[0] = x.a.layer_moe[1] = 1;
    }
    if (!model_kit_write(&x, file, &e)) fail_msg("%s", e.text);
}

static tess_model *open_model(const cpus *on, uint32_t ranks, int32_t threads)
{
    tess_model *m;
    tess_error e;
    tess_model_params p;
    tess_host h;
    tess_host_init(&h);
    h.alloc = host_alloc, h.release = host_release;
    tess_model_params_init(&p);
    p.host = &h;
    p.n_ranks = ranks;
    p.n_threads = (uint32_t)threads;
    if (model_open(file, &p, on, &m, &e) < 0) fail_msg("%s", e.text);
    return m;
}

static tess_ctx *open_ctx(tess_model *m)
{
    tess_ctx *c;
    tess_error e;
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_seqs = 2;
    p.kv_dtype = TESS_KV_F32;
    p.page_tokens = 32;
    p.prefix_bytes = -1;
    if (tess_ctx_open(m, &p, &c, &e) < 0) fail_msg("%s", e.text);
    return c;
}

typedef struct { float last[VOCAB]; int32_t ids[STEPS]; } result;

static tess_seq start(tess_ctx *c, int n)
{
    int32_t ids[128];
    tess_seq s;
    tess_error e;
    tess_seq_params p;
    tess_seq_params_init(&p);
    p.max_new = STEPS;
    p.flags = TESS_SEQ_IGNORE_EOS | TESS_SEQ_FEED_LAST;
    for (int i = 0; i < n; i++) ids[i] = (i * 37 + 11) % VOCAB;
    if (tess_seq_open(c, &p, &s, &e) < 0 || tess_seq_append(c, s, ids, (size_t)n, &e) < 0) fail_msg("%s", e.text);
    return s;
}
static void finish(tess_ctx *c, tess_seq s, result *r)
{
    tess_event ev[8];
    tess_error e;
    tess_status st = TESS_OK;
    memset(r, 0, sizeof *r);
    for (unsigned n_ids = 0; st != TESS_IDLE;) {
        size_t n;
        if ((st = tess_step(c, ev, 8, &n, &e)) < 0) fail_msg("%s", e.text);
        for (size_t i = 0; i < n; i++)
            if (ev[i].seq == s && ev[i].kind == TESS_EV_TOKEN && n_ids < STEPS) r->ids[n_ids++] = ev[i].token;
    }
    const float *logits = tess_seq_logits(c, s, NULL);
    assert_non_null(logits);
    memcpy(r->last, logits, sizeof r->last);
}
static void run(tess_model *m, result *r)
{
    tess_ctx *c = open_ctx(m);
    finish(c, start(c, 50), r);
    tess_ctx_close(c);
    for (int i = 0; i < VOCAB; i++) assert_true(r->last[i] == r->last[i]);
}

/* ---- who was first ---- */

static bool on_node(const cpus *c, uint32_t rank, int cpu)
{
    for (uint32_t i = c->first[rank]; i < c->first[rank + 1]; i++)
        if (c->id[i] == cpu) return true;
    return false;
}

/* Every page that was written was written first by the rank; `all`: all were. The number of pages; ends that share a page with others
 * do not count. */
static uint32_t first_writers(const cpus *c, uint32_t rank, const void *p, bool all)
{
    region *r = region_of(p);
    uint32_t n = 0;
    assert_non_null(r);
    for (size_t i = 1; i < r->len / PAGE; i++) {
        if (r->cpu[i] == NONE && !all) continue;
        if (!on_node(c, rank, r->cpu[i])) fail_msg("page %zu of %zu of rank %u was first written on CPU %d", i, r->len / PAGE, rank, r->cpu[i]);
        n++;
    }
    return n;
}

static uint32_t check_linear(const cpus *c, uint32_t rank, const model_linear *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->w.n_parts * l->w.n_leaves; i++)
        if (region_of(l->w.runs[i].data)) n += first_writers(c, rank, l->w.runs[i].data, true);
        else assert_true(l->w.runs[i].n_rows * l->w.runs[i].n_k < LEAST); /* too small to be watched */
    return n;
}

/* All weights of the layers and the head are in watched copies, written by their ranks. */
static void check_weights(const tess_model *m, bool experts)
{
    uint32_t pages[2] = {0, 0};
    for (uint32_t i = 0; i < 2 * m->a.n_layers; i++) {
        const model_layer_rank *l = &m->layers[i];
        const model_linear *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < ARRAY_LEN(all); j++) pages[i % 2] += check_linear(&m->cpus, i % 2, all[j]);
        for (uint32_t e = 0; experts && e < 2; e++) {
            const uint8_t *const w[] = {l->exp_gate[e].data, l->exp_up[e].data, l->exp_down[e].data};
            for (size_t j = 0; j < ARRAY_LEN(w); j++) pages[i % 2] += first_writers(&m->cpus, i % 2, w[j], true);
        }
    }
    for (uint32_t r = 0; r < 2; r++) pages[r] += check_linear(&m->cpus, r, &m->rank[r].head);
    for (uint32_t r = 0; r < 2; r++) assert_true(pages[r] > 100);
}

/* Bytes of the file's map that are in memory. */
static size_t resident(void)
{
    char line[512];
    size_t sum = 0, kb;
    bool mine = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' ')) mine = strstr(line, file) != NULL;
        else if (mine && sscanf(line, "Rss: %zu kB", &kb) == 1) sum += kb << 10;
    }
    if (f) fclose(f);
    return sum;
}

static void weights_lie_with_ranks(void **state)
{
    const kind kinds[] = {{2, CT_STORE_RAW, DT_BF16, false}, {1, CT_STORE_RAW, DT_BF16, false}, {1, CT_STORE_RAW, DT_Q8, false}, {1, CT_STORE_RAW, DT_BF16, true}};
    UNUSED(state);
    need_two();
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        for (uint32_t order = 0; order < 2; order++) {
            result want, got;
            write_model(&kinds[i]);
            tess_model *m = open_model(&nodes2[order], 1, 2); /* one rank: all stays mapped */
            assert_null(m->nodes);
            assert_true(resident() > ct_get(m->file)->file_bytes * 3 / 4);
            run(m, &want);
            tess_model_close(m);
            n_regions = 0;
            watch = true;
            m = open_model(&nodes2[order], 2, (int32_t)nodes2[order].n);
            watch = false;
            assert_non_null(m->nodes);
            check_weights(m, kinds[i].experts);
            assert_true(resident() < ct_get(m->file)->file_bytes / 2); /* the token table, and what the kernel maps around a fault */
            run(m, &got);
            assert_memory_equal(&got, &want, sizeof got);
            tess_model_close(m);
            assert_int_equal(live, 0);
        }
}

/* Decoded pieces are given back one by one while copies are made: never much more than one is there twice. */
static void no_more_memory(void **state)
{
    const kind k = {1, CT_STORE_ZSTD, DT_BF16, false};
    result want, got;
    size_t most[2], kept[2];
    UNUSED(state);
    need_two();
    write_model(&k);
    for (uint32_t two = 0; two < 2; two++) {
        peak = 0;
        tess_model *m = open_model(&nodes2[0], 1 + two, 2);
        kept[two] = live, most[two] = peak;
        run(m, two ? &got : &want);
        tess_model_close(m);
        assert_int_equal(live, 0);
    }
    printf("one node: %zu bytes, at most %zu; two: %zu, at most %zu\n", kept[0], most[0], kept[1], most[1]);
    assert_true(kept[0] > 3000000);
    assert_true(kept[1] < kept[0] + 32768);
    assert_true(most[1] < kept[0] * 7 / 4); /* two threads that decode have 1.64; all pieces and copies at a time would be 1.95 */
    assert_memory_equal(&got, &want, sizeof got);
}

static void pages_lie_with_ranks(void **state)
{
    const kind k = {2, CT_STORE_RAW, DT_BF16, false};
    UNUSED(state);
    need_two();
    write_model(&k);
    for (uint32_t order = 0; order < 2; order++) {
        result want, first, second;
        tess_error e;
        tess_seq fork;
        tess_model *m = open_model(&nodes2[order], 1, 1);
        run(m, &want);
        tess_model_close(m);
        m = open_model(&nodes2[order], 2, 2);
        n_regions = 0;
        watch = true;
        tess_ctx *c = open_ctx(m);
        tess_seq s = start(c, 50);
        finish(c, s, &first);
        if (tess_seq_fork(c, s, 50, &fork, &e) < 0) fail_msg("%s", e.text); /* its second page is shared, and copied when it is written */
        ctx_seq *f = ctx_seq_get(c, fork);
        const kv_page *shared = f->tables[0].pages[1];
        ctx_seq_rerun_last(c, f);
        finish(c, fork, &second);
        assert_ptr_not_equal(shared, f->tables[0].pages[1]);
        assert_ptr_equal(f->tables[0].pages[0], ctx_seq_get(c, s)->tables[0].pages[0]);
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(first_writers(&m->cpus, r, f->tables[0].base[r][0], true) > 0);
            assert_true(first_writers(&m->cpus, r, shared->data[r], false) > 0);
            assert_true(first_writers(&m->cpus, r, f->tables[0].base[r][1], true) > 0);
        }
        assert_memory_equal(&first, &want, sizeof first);
        assert_memory_equal(&second, &want, sizeof second);
        tess_ctx_close(c);
        watch = false;
        tess_model_close(m);
        assert_int_equal(live, 0);
    }
}

/* Too little memory for copies: weights stay mapped, and the model runs. */
static void no_room(void **state)
{
    const kind k = {2, CT_STORE_RAW, DT_BF16, false};
    char name[160];
    result want, got;
    UNUSED(state);
    need_two();
    write_model(&k);
    tess_model *m = open_model(&nodes2[0], 1, 2);
    run(m, &want);
    tess_model_close(m);
    peak = live;
    mem_available = "MemTotal: 9 kB\nMemAvailable: 1024 kB\n";
    m = open_model(&nodes2[0], 2, 2);
    mem_available = NULL;
    assert_true(peak < 1 << 20);
    role_name(ROLE_Q, PART_DATA, 0, -1, name, sizeof name);
    assert_non_null(m->tiles[ct_get(m->file)->tensors[ct_find(m->file, name)].first_piece]);
    run(m, &got);
    assert_memory_equal(&got, &want, sizeof got);
    tess_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_lie_with_ranks),
        cmocka_unit_test(no_more_memory),
        cmocka_unit_test(pages_lie_with_ranks),
        cmocka_unit_test(no_room),
    };
    return cmocka_run_group_tests(tests, set_up, remove_root);
}
