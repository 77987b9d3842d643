/*
 * bench_report.c - statistics and the three forms of output; see bench.h. Table and CSV are printed row by row
 * as tests end, JSON as one object at the end.
 *
 * One description of the columns serves CSV and JSON, so that both have the same names and values.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

struct bench_report {
    bench_format format;
    bool peer;
    json_t *results, *machine, *model;
    bench_speed best; /* highest of all tests */
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_stats bench_stats_of(const double *v, uint32_t n)
{
    double s[BENCH_MAX_REPS];
    if (n == 0) return (bench_stats){0};
    memcpy(s, v, n * sizeof *v);
    qsort(s, n, sizeof *s, compare_doubles);
    return (bench_stats){s[0], n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2, s[n - 1]};
}

/* ---- columns ---- */

typedef struct { const char *name; bool number; double value; const char *text; } column;
enum { MAX_COLUMNS = 32 };

static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }
static double peak_of(const bench_test *t, const bench_result *v)
{
    return t->int8 ? v->speed.int8_gmac_s : v->speed.f32_gmac_s;
}

static size_t columns_of(const bench_report *r, const bench_test *t, const bench_result *v, column *c)
{
    double read = v->rate.median * t->token_bytes * 1e-9, macs = v->rate.median * t->token_macs * 1e-9;
    const column all[] = {
        {"test", false, 0, t->decode ? "decode" : "prompt"},
        {"depth", true, t->depth, NULL},
        {"tokens", true, t->tokens, NULL},
        {"threads", true, t->threads, NULL},
        {"ranks", true, t->ranks, NULL},
        {"kv", false, 0, bench_kv_name(t->kv)},
        {"type", false, 0, t->type},
        {"tokens_per_s", true, v->rate.median, NULL},
        {"min", true, v->rate.min, NULL},
        {"max", true, v->rate.max, NULL},
        {"bytes_per_token", true, t->token_bytes, NULL},
        {"read_gb_s", true, read, NULL},
        {"machine_read_gb_s", true, v->speed.read_gb_s, NULL},
        {"fraction_of_read", true, share(read, v->speed.read_gb_s), NULL},
        {"gmac_s", true, macs, NULL},
        {"machine_peak_gmac_s", true, peak_of(t, v), NULL},
        {"fraction_of_peak", true, share(macs, peak_of(t, v)), NULL},
        {"load", true, v->load, NULL},
        {"peer_tokens_per_s", true, v->peer.median, NULL},
        {"peer_min", true, v->peer.min, NULL},
        {"peer_max", true, v->peer.max, NULL},
        {"ratio", true, v->ratio.median, NULL},
        {"ratio_min", true, v->ratio.min, NULL},
        {"ratio_max", true, v->ratio.max, NULL},
    };
    size_t n = sizeof all / sizeof *all - (r->peer ? 0 : 6);
    memcpy(c, all, n * sizeof *c);
    return n;
}

/* ---- the three forms ---- */

static void print_csv(const column *c, size_t n, bool names)
{
    for (size_t i = 0; i < n; i++) {
        const char *before = i ? "," : "";
        if (names) printf("%s%s", before, c[i].name);
        else if (c[i].number) printf("%s%.6g", before, c[i].value);
        else printf("%s%s", before, c[i].text);
    }
    putchar('\n');
}

static json_t *json_value(const column *c)
{
    double v = c->value;
    bool whole = v >= 0 && v < 1e15 && v == (double)(json_int_t)v;
    if (!c->number) return json_string(c->text);
    return whole ? json_integer((json_int_t)v) : json_real(v);
}

/* NULL: no memory, or a number that JSON has no form for. */
static json_t *json_of(const column *c, size_t n)
{
    json_t *o = json_object();
    for (size_t i = 0; o && i < n; i++)
        if (json_object_set_new(o, c[i].name, json_value(&c[i])) < 0) {
            json_decref(o);
            o = NULL;
        }
    return o;
}

static void print_heading(const bench_report *r)
{
    printf("%-6s %6s %6s %3s %5s %4s %4s %9s %9s %9s %8s %7s %6s %7s %6s %5s", "test", "depth", "tokens", "thr",
           "ranks", "kv", "type", "tokens/s", "min", "max", "MB/token", "GB/s", "% read", "Gmac/s", "% peak",
           "load");
    if (r->peer) printf(" %9s %6s %6s %6s", "peer", "ratio", "min", "max");
    putchar('\n');
}

static void print_row(const bench_report *r, const bench_test *t, const bench_result *v)
{
    double read = v->rate.median * t->token_bytes * 1e-9, macs = v->rate.median * t->token_macs * 1e-9;
    printf("%-6s %6u %6u %3u %5u %4s %4s %9.2f %9.2f %9.2f %8.2f %7.2f %6.1f %7.1f %6.1f %5.2f",
           t->decode ? "decode" : "prompt", t->depth, t->tokens, t->threads, t->ranks, bench_kv_name(t->kv),
           t->type, v->rate.median, v->rate.min, v->rate.max, t->token_bytes * 1e-6, read,
           100 * share(read, v->speed.read_gb_s), macs, 100 * share(macs, peak_of(t, v)), v->load);
    if (r->peer)
        printf(" %9.2f %6.2f %6.2f %6.2f", v->peer.median, v->ratio.median, v->ratio.min, v->ratio.max);
    putchar('\n');
}

/* ---- the report ---- */

int bench_report_open(const bench_options *o, const tess_model_info *info, const bench_machine *m,
                      bench_report **out)
{
    bench_report *r = *out = calloc(1, sizeof *r);
    if (!r) return bench_no_memory();
    r->format = o->format;
    r->peer = o->peer != NULL;
    r->results = json_array();
    r->machine =
        json_pack("{s:s,s:s,s:I,s:I}", "cpu", bench_machine_cpu(m), "flags", bench_machine_flags(m), "cpus",
                  (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "cache_bytes", (json_int_t)bench_machine_cache(m));
    r->model =
        json_pack("{s:s,s:s,s:s,s:I,s:I}", "file", o->model, "family", info->family, "type", info->weight_type,
                  "params", (json_int_t)info->param_count, "weight_bytes", (json_int_t)info->weight_bytes);
    if (!r->results || !r->machine || !r->model) return bench_no_memory();
    if (r->format == BENCH_CSV) {
        column c[MAX_COLUMNS];
        print_csv(c, columns_of(r, &(bench_test){0}, &(bench_result){0}, c), true);
    }
    if (r->format == BENCH_TABLE) {
        printf("%s: %s, %.1f million parameters in %s, %.1f MB\n", o->model, info->family,
               (double)info->param_count * 1e-6, info->weight_type, (double)info->weight_bytes * 1e-6);
        printf("%s: %ld CPUs, last cache %.1f MB, %s\n", bench_machine_cpu(m), sysconf(_SC_NPROCESSORS_ONLN),
               (double)bench_machine_cache(m) / 1048576, bench_machine_flags(m));
        print_heading(r);
    }
    return cli_flush();
}

static double higher(double a, double b) { return a > b ? a : b; }

int bench_report_add(bench_report *r, const bench_test *t, const bench_result *v)
{
    column c[MAX_COLUMNS];
    size_t n = columns_of(r, t, v, c);
    r->best.read_gb_s = higher(r->best.read_gb_s, v->speed.read_gb_s);
    r->best.f32_gmac_s = higher(r->best.f32_gmac_s, v->speed.f32_gmac_s);
    r->best.int8_gmac_s = higher(r->best.int8_gmac_s, v->speed.int8_gmac_s);
    if (r->format == BENCH_CSV) print_csv(c, n, false);
    else if (r->format == BENCH_TABLE) print_row(r, t, v);
    else if (json_array_append_new(r->results, json_of(c, n)) < 0) return bench_no_memory();
    return cli_flush();
}

int bench_report_end(bench_report *r)
{
    if (r->format == BENCH_TABLE) {
        printf("machine: reads %.2f GB/s; %.1f Gmac/s in f32", r->best.read_gb_s, r->best.f32_gmac_s);
        if (r->best.int8_gmac_s > 0) printf(", %.1f in int8", r->best.int8_gmac_s);
        puts(" (highest of the run)");
    }
    if (r->format != BENCH_JSON) return cli_flush();
    json_t *peaks = json_pack("{s:f,s:f,s:f}", "read_gb_s", r->best.read_gb_s, "peak_gmac_s", r->best.f32_gmac_s, "peak_int8_gmac_s",
                              r->best.int8_gmac_s);
    json_t *out = json_pack("{s:O,s:O,s:O}", "results", r->results, "machine", r->machine, "model", r->model);
    if (json_object_update(r->machine, peaks) < 0) {
        json_decref(out);
        out = NULL;
    }
    json_decref(peaks);
    int rc = out ? 0 : bench_no_memory();
    if (!rc && (json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0 || putchar('\n') == EOF))
        rc = cli_flush();
    json_decref(out);
    return rc ? rc : cli_flush();
}

void bench_report_close(bench_report *r)
{
    if (!r) return;
    json_decref(r->results);
    json_decref(r->machine);
    json_decref(r->model);
    free(r);
}
