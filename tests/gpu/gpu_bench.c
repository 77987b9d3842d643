/* gpu_bench.c - command line, parts, time; see gpu_bench.h. Exit codes: 0 done, 1 usage, 4 no device, 5 a part failed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_bench.h"

enum { EXIT_USAGE = 1, EXIT_DEVICE = 4, EXIT_PART = 5, MAX_TURNS = 4096 };

/* seconds: what the part takes at least; it does not begin when less is left. */
static const struct {
    const char *name;
    double seconds;
    tess_status (*run)(gpu_bench *b, tess_error *err);
} parts[] = {
    {"machine", 5, part_machine}, {"model", 60, part_model}, {"attention", 20, part_attention},
    {"linear", 15, part_linear},  {"ranks", 5, part_ranks},
};

double gpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- memory of a part ---- */

tess_status gpu_alloc(gpu_bench *b, size_t n, uint32_t seed, void **out, tess_error *err)
{
    n = (n + 255) & ~(size_t)255;
    *out = NULL;
    if (b->n_owned == ARRAY_LEN(b->owned)) return ERR(err, TESS_E_NOMEM, "more than %zu buffers", ARRAY_LEN(b->owned));
    int code = device_alloc(out, n);
    if (code) return ERR(err, TESS_E_NOMEM, "no %zu MB of device memory: %s", n >> 20, device_error(code));
    b->owned[b->n_owned++] = *out;
    if (seed) DEV_TRY(probe_fill(*out, n, seed, b->stream), "fill");
    return TESS_OK;
}

tess_status gpu_upload(gpu_bench *b, const void *src, size_t n, void **out, tess_error *err)
{
    void *pin;
    TRY(gpu_alloc(b, n, 0, out, err));
    DEV_TRY(device_host_alloc(&pin, n), "pinned memory");
    memcpy(pin, src, n);
    int code = device_copy(*out, pin, n, b->stream);
    if (!code) code = device_stream_sync(b->stream);
    device_host_free(pin);
    DEV_TRY(code, "copy");
    return TESS_OK;
}

void gpu_free_all(gpu_bench *b)
{
    (void)device_select(b->device);
    (void)device_stream_sync(b->stream);
    while (b->n_owned) device_free(b->owned[--b->n_owned]);
}

uint32_t gpu_copies(const gpu_bench *b, uint64_t bytes, uint32_t most)
{
    uint64_t cache = b->probe.l2_bytes ? b->probe.l2_bytes : 64u << 20, n = b->dry ? 2 : ceil_div(4 * cache, bytes);
    return (uint32_t)MIN(MAX(n, (uint64_t)1), (uint64_t)most);
}

/* ---- time ---- */

static tess_status round_of(gpu_bench *b, gpu_work run, void *user, uint32_t *turn, uint32_t n, double *seconds, tess_error *err)
{
    float ms = 0;
    DEV_TRY(probe_mark(b->mark[0], b->stream), "event");
    for (uint32_t i = 0; i < n; i++, ++*turn) DEV_TRY(run(user, *turn, b->stream), "a kernel could not be started");
    DEV_TRY(probe_mark(b->mark[1], b->stream), "event");
    DEV_TRY(probe_ms(b->mark[0], b->mark[1], &ms), "a kernel failed");
    *seconds = (double)ms * 1e-3 / n;
    return TESS_OK;
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

tess_status gpu_time(gpu_bench *b, gpu_work run, void *user, double *seconds, tess_error *err)
{
    enum { ROUNDS = 7 };
    double s[ROUNDS], first;
    uint32_t turn = 0, rounds = b->once ? 1 : ROUNDS, n = 1;
    DEV_TRY(device_select(b->device), "the device can not be used");
    TRY(round_of(b, run, user, &turn, 1, &first, err)); /* touches memory and code */
    if (!b->once) {
        TRY(round_of(b, run, user, &turn, 3, &first, err));
        n = first > 0 && first < 10e-3 ? (uint32_t)MIN(10e-3 / first, (double)MAX_TURNS) + 1 : 2;
    }
    for (uint32_t i = 0; i < rounds; i++) TRY(round_of(b, run, user, &turn, n, &s[i], err));
    qsort(s, rounds, sizeof *s, compare);
    *seconds = MAX(s[rounds / 2], 1e-9);
    return TESS_OK;
}

/* ---- output ---- */

static void print_text(const char *key, const char *text)
{
    printf(", \"%s\": \"", key);
    for (; *text; text++)
        if ((unsigned char)*text >= ' ') printf("%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    putchar('"');
}

void gpu_print(const char *name, double value, const char *unit, double bound, const char *bound_is)
{
    printf("{\"name\": \"%s\", \"value\": %.6g", name, value);
    print_text("unit", unit);
    if (bound > 0) {
        printf(", \"bound\": %.6g", bound);
        print_text("bound_is", bound_is);
        printf(", \"fraction\": %.4f", value / bound);
    }
    puts("}");
    fflush(stdout);
}

static void print_note(const char *name, const char *key, const char *text)
{
    printf("{\"name\": \"%s\"", name);
    print_text(key, text);
    puts("}");
    fflush(stdout);
}
void gpu_skip(const char *name, const char *why) { print_note(name, "skip", why); }

bool gpu_late(const gpu_bench *b, const char *name)
{
    if (gpu_now() <= b->until) return false;
    gpu_skip(name, "no time left");
    return true;
}

/* ---- the device ---- */

/* Dense bf16 operations of a multiprocessor in a clock (f16 on 7.5), a multiply-add being two; int8 has twice as many. From NVIDIA's
 * papers on these architectures; 8.6, 8.9 and 12.0 as sold for workstations: with f32 sums consumer boards have half. */
static double bf16_per_clock(uint32_t major, uint32_t minor)
{
    switch (major * 10 + minor) {
    case 75: return 1024;
    case 80: return 2048;
    case 86:
    case 87:
    case 89: return 1024;
    case 90: return 4096;
    case 100:
    case 103: return 8192;
    case 120:
    case 121: return 1024;
    default: return 0;
    }
}

static tess_status open_device(gpu_bench *b, tess_error *err)
{
    uint32_t n = 0;
    int code = device_count(&n);
    if (code || n <= b->device)
        return ERR(err, TESS_E_DEVICE, "there is no device cuda:%u%s%s", b->device, code ? ": " : "",
                   code ? device_error(code) : "");
    if (!op_cuda_get()) return ERR(err, TESS_E_DEVICE, "this program was built without CUDA");
    DEV_TRY(device_get(b->device, &b->props), "the device can not be used");
    DEV_TRY(probe_get(b->device, &b->probe), "the device can not be used");
    DEV_TRY(op_cuda_load(), "loading kernels");
    DEV_TRY(probe_load(), "loading kernels");
    DEV_TRY(device_stream_open(&b->stream), "stream");
    for (int i = 0; i < 2; i++) DEV_TRY(probe_mark_open(&b->mark[i]), "event");
    b->memory = 2.0 * b->probe.mem_khz * 1e3 * b->probe.bus_bits / 8; /* two transfers a clock */
    b->bf16 = bf16_per_clock(b->props.major, b->props.minor) * b->props.n_sms * b->probe.clock_khz * 1e3;
    b->int8 = 2 * b->bf16;
    return TESS_OK;
}

static void close_device(gpu_bench *b)
{
    gpu_free_all(b);
    for (int i = 0; i < 2; i++) probe_mark_close(b->mark[i]);
    device_stream_close(b->stream);
}

/* ---- the run ---- */

static void run_part(gpu_bench *b, size_t i)
{
    tess_error err;
    double start = gpu_now();
    if (start + (b->dry ? 0 : parts[i].seconds) > b->until) {
        gpu_skip(parts[i].name, "no time left");
        return;
    }
    if (parts[i].run(b, &err) < 0) {
        print_note(parts[i].name, "error", err.text);
        b->failed++;
    }
    gpu_free_all(b);
    fprintf(stderr, "%s: %.1f s\n", parts[i].name, gpu_now() - start);
}

static bool known_part(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strcmp(parts[i].name, name) == 0) return true;
    return false;
}

static bool number(const char *text, double most, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return end != text && *end == 0 && errno == 0 && *out >= 0 && *out <= most;
}

int main(int argc, char **argv)
{
    gpu_bench b = {.dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp"};
    tess_error err;
    double seconds = 240, device = 0;
    int i = 1;
    bool ok = true;
    for (; ok && i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--dry") == 0) b.dry = b.once = true;
        else if (strcmp(argv[i], "--once") == 0) b.once = true;
        else if (value && strcmp(argv[i], "--dir") == 0) b.dir = argv[++i];
        else if (value && strcmp(argv[i], "--seconds") == 0) ok = number(argv[++i], 1e6, &seconds);
        else if (value && strcmp(argv[i], "--device") == 0) ok = number(argv[++i], 63, &device);
        else ok = false;
    }
    for (int j = i; j < argc; j++) ok = ok && known_part(argv[j]);
    if (!ok) {
        fputs("error: usage: gpu_bench [--dry|--once] [--seconds N] [--device N] [--dir FOLDER] "
              "[machine|model|attention|linear|ranks]...\n",
              stderr);
        return EXIT_USAGE;
    }
    b.device = (uint32_t)device;
    b.until = gpu_now() + seconds;
    if (open_device(&b, &err) < 0) {
        fprintf(stderr, "error: %s\n", err.text);
        return EXIT_DEVICE;
    }
    for (size_t p = 0; p < ARRAY_LEN(parts); p++) {
        bool wanted = i == argc;
        for (int j = i; j < argc; j++) wanted = wanted || strcmp(parts[p].name, argv[j]) == 0;
        if (wanted) run_part(&b, p);
    }
    close_device(&b);
    return b.failed ? EXIT_PART : 0;
}
