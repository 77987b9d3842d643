/*
 * convert-hf.c - writes a .tess container from a Hugging Face directory, a GGUF file, another container or a
 * directory with tokenizer files; or a Hugging Face directory from a container.
 *
 * The output is complete under its name or not there. SIGINT and SIGTERM stop between boxes of weights, and the
 * temporary files are removed; a second signal ends the process at once.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"

static volatile sig_atomic_t signals_seen;

static void on_signal(int sig)
{
    (void)sig;
    signals_seen = 1;
}
bool convert_interrupted(void) { return signals_seen != 0; }

static void install_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
}

enum { O_OUT = 1, O_TYPE, O_TP, O_STORE, O_SPLIT, O_THREADS, O_FORCE, O_REFRESH, O_EXPORT, O_LORA, O_HELP, O_VERSION };
static const cli_option options[] = {
    {"-o --output", O_OUT, "FILE", "the container to write"},
    {"--type", O_TYPE, "TYPE", "auto (as in the source, default), f32, f16, bf16, q8, q4"},
    {"--tp", O_TP, "N", "lay the weights out for N ranks, 1 to 256 (default 1); the file runs on any number"},
    {"--store", O_STORE, "HOW", "auto (default), raw (mapped as it is) or zstd"},
    {"--split-max-size", O_SPLIT, "SIZE", "write several files of at most SIZE bytes, such as 4G; what one rank reads\nof one layer is never cut, so a part may be as large as that"},
    {"-j --threads", O_THREADS, "N", "threads (default: all CPUs that the process may use)"},
    {"--force", O_FORCE, NULL, "replace an existing output"},
    {"--refresh", O_REFRESH, NULL,
     "SRC is a .tess: build its settings and tokenizer tables anew from the\noriginal files that it holds"},
    {"--export", O_EXPORT, "DIR", "SRC is a .tess: write it as a Hugging Face directory instead"},
    {"--lora", O_LORA, "DIR[=SCALE]", "merge a PEFT LoRA adapter into the weights, before --type is applied; several are\nmerged in order"},
    {"-h --help", O_HELP, NULL, "this text"},
    {"--version", O_VERSION, NULL, "version and what the library was built with"},
};

static void help(void)
{
    fputs("usage: convert-hf SRC -o OUT.tess [options]\n"
          "SRC is a Hugging Face directory, a .gguf file, a .tess file, or a directory with tokenizer files "
          "only.\n\n",
          stdout);
    cli_help(stdout, options, sizeof options / sizeof options[0]);
}

static bool set_type(convert_options *o, const char *text)
{
    static const char *const words[] = {"auto", "f32", "f16", "bf16", "q8", "q4"};
    static const uint32_t dtype[] = {0, DT_F32, DT_F16, DT_BF16, DT_Q8, DT_Q4};
    int i;
    if (!cli_choice("--type", text, words, 6, &i)) return false;
    o->dtype = dtype[i];
    return true;
}

static bool set_number(const char *name, const char *text, int64_t hi, uint32_t *out)
{
    int64_t v;
    if (!cli_int(name, text, 1, hi, &v)) return false;
    *out = (uint32_t)v;
    return true;
}

/* -1: go on; else the exit code. */
static int parse(int argc, char **argv, convert_options *o)
{
    static const char *const stores[] = {"auto", "raw", "zstd"};
    cli_parser p;
    const char *v;
    int id, store;
    bool ok = true;
    cli_start(&p, "convert-hf", options, sizeof options / sizeof options[0], argc, argv);
    while (ok && (id = cli_next(&p, &v)) != CLI_END) {
        switch (id) {
        case CLI_POSITIONAL:
            if (o->src) cli_error("more than one SRC: %s and %s", o->src, v);
            ok = !o->src;
            o->src = v;
            break;
        case O_OUT: o->out = v; break;
        case O_TYPE: ok = set_type(o, v); break;
        case O_TP: ok = set_number("--tp", v, 256, &o->tp); break;
        case O_STORE:
            ok = cli_choice("--store", v, stores, 3, &store);
            if (ok) o->store = (uint32_t)store; /* CT_STORE_* in this order */
            break;
        case O_SPLIT: ok = cli_size("--split-max-size", v, 1 << 16, 1ull << 48, &o->split_max); break;
        case O_THREADS: ok = set_number("-j", v, 256, &o->threads); break;
        case O_FORCE: o->force = true; break;
        case O_REFRESH: o->refresh = true; break;
        case O_EXPORT: o->export_dir = v; break;
        case O_LORA:
            ok = o->n_lora < CONVERT_MAX_LORA;
            if (ok) o->lora[o->n_lora++] = v;
            else cli_error("--lora: more than %d adapters", CONVERT_MAX_LORA);
            break;
        case O_HELP: help(); return cli_flush();
        case O_VERSION: return cli_version(p.program);
        default: ok = false; break;
        }
    }
    if (!ok) return CLI_EXIT_USAGE;
    if (!o->src || !*o->src) cli_error("SRC is missing; convert-hf --help shows the usage");
    else if (!o->out == !o->export_dir)
        cli_error(o->out ? "-o and --export exclude each other" : "-o OUT.tess is missing");
    else return -1;
    return CLI_EXIT_USAGE;
}

static void say(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level >= TESS_LOG_INFO) cli_notice("%s", text);
}

int main(int argc, char **argv)
{
    convert_options o = {.tp = 1, .store = CT_STORE_AUTO, .threads = 0};
    convert_source c = {0};
    tess_error err = {0};
    mem m = mem_libc;
    int code = parse(argc, argv, &o);
    if (code >= 0) return code;
    m.log = say;
    install_signals();
    /* Said before any work; the writer looks again when it renames. */
    const char *target = o.out ? o.out : o.export_dir;
    if (o.out && os_is_dir(o.out)) {
        cli_error("%s: is a directory, not a regular file; -o names the file to write", o.out);
        return CLI_EXIT_FILE;
    }
    if (!o.force && os_exists(target)) {
        cli_error("%s: exists already; use --force to replace it", target);
        return CLI_EXIT_FILE;
    }
    tess_status st = convert_load(&o, &m, &c, &err);
    if (st == TESS_OK) st = o.out ? convert_write(&o, &c, &err) : convert_export(&o, &c, &err);
    convert_unload(&c);
    if (st == TESS_OK) return CLI_EXIT_OK;
    return st == TESS_E_ARG ? cli_fail(&err), CLI_EXIT_FILE : cli_fail(&err); /* usage was judged above */
}
