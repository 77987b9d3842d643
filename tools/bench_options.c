/* bench_options.c - the command line of bench-model; see bench.h. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum {
    O_MODEL = 1,
    O_PROMPT,
    O_DECODE,
    O_DEPTH,
    O_THREADS,
    O_REPS,
    O_TP,
    O_DEVICES,
    O_SPLIT,
    O_KV,
    O_COMPUTE,
    O_CHUNK,
    O_PAGE,
    O_STREAM,
    O_NO_VERIFY,
    O_PEER,
    O_JSON,
    O_CSV,
    O_OUTPUT,
    O_VERSION,
    O_HELP
};

static const cli_option options[] = {
    {NULL, 0, NULL, "what to measure (LIST: numbers separated by commas)"},
    {"-m --model", O_MODEL, "FILE", "the model (.tess); also as a plain argument"},
    {"-p --n-prompt", O_PROMPT, "LIST", "prompts of so many tokens; 0 leaves them out (512)"},
    {"-n --n-gen", O_DECODE, "LIST", "so many tokens, one after another; 0 leaves them out (64)"},
    {"-d --n-depth", O_DEPTH, "LIST", "tokens that the KV cache holds before the test begins (0)"},
    {"-r --repetitions", O_REPS, "N", "times that each test is run (5)"},
    {"--peer", O_PEER, "CMD", "after each repetition, ask this command for the same and print the ratio"},

    {NULL, 0, NULL, "machine"},
    {"-t --threads", O_THREADS, "LIST", "CPU threads over all ranks (all CPUs that the process may use)"},
    {"--tp -tp --tensor-parallel-size", O_TP, "R", "tensor-parallel ranks, 1 to 8 (all devices; 1 on the CPU)"},
    {"--devices --device -dev", O_DEVICES, "LIST", "cpu, or cuda:0,1 (cpu)"},
    {"--split -ts --tensor-split", O_SPLIT, "3,1", "share of the weights of each rank"},
    {"--stream", O_STREAM, "WHEN", "keep layers in memory of the host: on, off, auto: where they do not fit (auto)"},
    {"--kv -ctk --kv-cache-dtype", O_KV, "LIST", "KV cache: f32, f16, int8 (f16)"},
    {"--page", O_PAGE, "N", "tokens in a page of the KV cache: 16, 32, 64 (32)"},
    {"-ub --ubatch-size", O_CHUNK, "N", "tokens of a prompt that are computed at once (512)"},
    {"--compute", O_COMPUTE, "HOW", "auto, exact, f32"},
    {"--no-verify", O_NO_VERIFY, NULL, "do not check the hashes of the weights while loading"},

    {NULL, 0, NULL, "output (stdout)"},
    {"--json", O_JSON, NULL, "one JSON object"},
    {"--csv", O_CSV, NULL, "CSV with a line of names"},
    {"-o --output", O_OUTPUT, "HOW", "the same by name: table, csv, json (table)"},
    {"--version", O_VERSION, NULL, "version and what the library was built with"},
    {"-h --help", O_HELP, NULL, "this text"},
};

static const char *const kv_words[] = {"f16", "f32", "int8", "auto", "q8_0"};
static const uint32_t kv_values[] = {TESS_KV_F16, TESS_KV_F32, TESS_KV_INT8, TESS_KV_F16, TESS_KV_INT8};
static const char *const compute_words[] = {"auto", "exact", "f32"};
static const int32_t compute_values[] = {TESS_COMPUTE_AUTO, TESS_COMPUTE_EXACT, TESS_COMPUTE_F32};
static const char *const stream_words[] = {"auto", "on", "off"};
static const int32_t stream_values[] = {TESS_STREAM_AUTO, TESS_STREAM_ON, TESS_STREAM_OFF};
static const char *const page_words[] = {"16", "32", "64"};
static const char *const format_words[] = {"table", "csv", "json"};

const char *bench_kv_name(uint32_t kv)
{
    for (size_t i = 0; i < sizeof kv_values / sizeof *kv_values; i++)
        if (kv_values[i] == kv) return kv_words[i];
    return "auto";
}

static bool set_u32(const char *name, const char *v, int64_t lo, int64_t hi, uint32_t *out)
{
    int64_t n;
    if (!cli_int(name, v, lo, hi, &n)) return false;
    *out = (uint32_t)n;
    return true;
}

/* A list of whole numbers, or of KV types when `kv`; entries that are 0 are dropped unless lo or keep_zero says
 * otherwise. */
static bool set_list(const char *name, const char *v, bool kv, bool keep_zero, int64_t lo, int64_t hi, bench_list *out)
{
    out->n = 0;
    for (const char *s = v;; s++) {
        char word[32];
        size_t len = strcspn(s, ",");
        int at;
        uint32_t n;
        if (len >= sizeof word || out->n == BENCH_MAX_LIST) {
            cli_error("%s: \"%s\" is not a list of at most %d short words", name, v, BENCH_MAX_LIST);
            return false;
        }
        memcpy(word, s, len);
        word[len] = 0;
        if (kv) {
            if (!cli_choice(name, word, kv_words, sizeof kv_words / sizeof *kv_words, &at)) return false;
            n = kv_values[at];
        } else if (!set_u32(name, word, lo, hi, &n)) return false;
        if (n || keep_zero) out->v[out->n++] = n;
        s += len;
        if (!*s) return true;
    }
}

static bool set_machine(bench_options *o, int id, const char *name, const char *v)
{
    int at;
    switch (id) {
    case O_THREADS: return set_list(name, v, false, false, 1, 1024, &o->threads);
    case O_TP: return set_u32(name, v, 1, 8, &o->ranks);
    case O_DEVICES: o->devices = v; return true;
    case O_SPLIT: o->split = v; return true;
    case O_KV: return set_list(name, v, true, false, 0, 0, &o->kv);
    case O_CHUNK: return set_u32(name, v, 1, 1 << 20, &o->chunk);
    case O_PAGE:
        if (!cli_choice(name, v, page_words, 3, &at)) return false;
        o->page = 16u << at;
        return true;
    case O_STREAM:
        if (!cli_choice(name, v, stream_words, 3, &at)) return false;
        o->stream = stream_values[at];
        return true;
    default:
        if (!cli_choice(name, v, compute_words, 3, &at)) return false;
        o->compute = compute_values[at];
        return true;
    }
}

static bool set_option(bench_options *o, int id, const char *name, const char *v)
{
    int at;
    switch (id) {
    case CLI_POSITIONAL:
        if (o->model) return cli_error("unexpected argument \"%s\"", v), false;
        o->model = v;
        return true;
    case O_MODEL: o->model = v; return true;
    case O_PROMPT: return set_list(name, v, false, false, 0, 1 << 24, &o->prompt);
    case O_DECODE: return set_list(name, v, false, false, 0, 1 << 24, &o->decode);
    case O_DEPTH: return set_list(name, v, false, true, 0, 1 << 24, &o->depth);
    case O_REPS: return set_u32(name, v, 1, BENCH_MAX_REPS, &o->reps);
    case O_PEER: o->peer = v; return true;
    case O_NO_VERIFY: o->no_verify = true; return true;
    case O_JSON: o->format = BENCH_JSON; return true;
    case O_CSV: o->format = BENCH_CSV; return true;
    case O_OUTPUT:
        if (!cli_choice(name, v, format_words, 3, &at)) return false;
        o->format = (bench_format)at;
        return true;
    default: return set_machine(o, id, name, v);
    }
}

static void print_help(void)
{
    fputs("usage: bench-model -m MODEL.tess [options]\n"
          "Measures how fast a model reads prompts and generates, beside what the machine can do at that "
          "moment.\n\n",
          stdout);
    cli_help(stdout, options, sizeof options / sizeof *options);
    fputs("\nexit codes: 0 done, 1 usage, 2 file, format or peer, 3 memory, 4 device, 5 run failed, 130 "
          "interrupted\n",
          stdout);
}

int bench_options_parse(bench_options *o, int argc, char **argv)
{
    *o = (bench_options){.prompt = {{512}, 1},
                         .decode = {{64}, 1},
                         .depth = {{0}, 1},
                         .threads = {{0}, 1},
                         .kv = {{TESS_KV_F16}, 1},
                         .reps = 5,
                         .chunk = 512,
                         .page = 32};
    cli_parser p;
    const char *value;
    cli_start(&p, "bench-model", options, sizeof options / sizeof *options, argc, argv);
    for (int id; (id = cli_next(&p, &value)) != CLI_END;) {
        if (id == CLI_BAD) return CLI_EXIT_USAGE;
        if (id == O_HELP) return print_help(), cli_flush();
        if (id == O_VERSION) return cli_version(p.program);
        if (!set_option(o, id, p.name, value)) return CLI_EXIT_USAGE;
    }
    const char *why = NULL;
    if (!o->model) why = "no model is given: bench-model -m MODEL.tess; --help tells more";
    else if (o->prompt.n == 0 && o->decode.n == 0) why = "-p 0 and -n 0 leave nothing to measure";
    else if (o->peer && !*o->peer) why = "--peer: the command is empty";
    if (why) cli_error("%s", why);
    return why ? CLI_EXIT_USAGE : -1;
}
