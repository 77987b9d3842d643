/*
 * inspect-model - what is in a .tess file, without reading its weights; with --verify, whether it is sound.
 *
 * Reads the index only, so it is quick on any size and safe on hostile files: whatever it prints has passed the
 * reader's rules. Exit codes: 0 done, 1 usage, 2 file, 3 memory; with --verify 0 sound, 1 corrupt, 2 cannot
 * check, 3 usage.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "family.h"
#include "inspect.h"
#include "utf8.h"

/* ---- helpers of all parts ---- */

const char *inspect_kind(uint32_t kind)
{
    static const char *const names[] = {"?", "model", "tokenizer", "adapter", "kv", "training state"};
    return names[kind < ARRAY_LEN(names) ? kind : 0];
}

const char *inspect_axis(uint32_t kind)
{
    static const char *const names[] = {"none", "q_heads", "kv_heads", "ffn", "vocab", "expert", "shared", "v_heads"};
    return names[kind < ARRAY_LEN(names) ? kind : 0];
}

void inspect_hex(const uint8_t *p, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", p[i]);
}

void print_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0, len = utf8_decode(s + i, n - i, &cp);
        if (len && cp >= 0x20 && (cp < 0x7f || cp >= 0xa0) && cp != 0x2028 && cp != 0x2029 &&
            !(cp >= 0x202a && cp <= 0x202e)) {
            fwrite(s + i, 1, len, stdout);
            i += len;
        } else printf("\\x%02x", (unsigned)(unsigned char)s[i++]);
    }
}

void print_bytes(uint64_t n)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)n;
    size_t u = 0;
    for (; v >= 999.5 && u + 1 < ARRAY_LEN(unit); u++) v /= 1000;
    printf(u && v < 99.95 ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

uint64_t inspect_stored(const inspect *s, const ct_tensor *t)
{
    uint64_t sum = 0;
    for (uint32_t p = 0; t->alias == CT_NO_ALIAS && p < t->n_pieces; p++)
        sum += s->i->pieces[t->first_piece + p].stored_len;
    return sum;
}

uint64_t inspect_logical(const inspect *s, const ct_tensor *t)
{
    uint64_t n = 1, k[MAX_LEAVES] = {t->shape[t->rank - 1]}, bytes = 0;
    uint32_t leaves = 1, layout = dtype_is_quant(t->dtype) ? LAYOUT_TILE8 : LAYOUT_ROWS;
    for (uint32_t d = 0; d + 1 < t->rank; d++) n *= t->shape[d];
    if (t->split_dim != 255 && t->split_dim + 1 == t->rank) {
        const arch_axis *x = &s->i->axes[t->axis];
        for (leaves = 0; leaves < x->n_leaves; leaves++)
            k[leaves] = axis_elem(x, x->leaf[leaves + 1]) - axis_elem(x, x->leaf[leaves]);
    }
    return layout_bytes(t->dtype, layout, n, k, leaves, &bytes) ? bytes : 0;
}

type_sum inspect_sum(const inspect *s, uint32_t dtype)
{
    type_sum r = {0};
    for (uint32_t i = 0; i < s->i->n_tensors; i++) {
        const ct_tensor *t = &s->i->tensors[i];
        uint64_t n = 1;
        if (t->dtype != dtype || t->alias != CT_NO_ALIAS) continue;
        for (uint32_t d = 0; d < t->rank; d++) n *= t->shape[d];
        r.tensors++;
        r.params += n;
        r.logical += inspect_logical(s, t);
        r.stored += inspect_stored(s, t);
        for (uint32_t p = 0; p < t->n_pieces; p++) {
            const ct_piece *q = &s->i->pieces[t->first_piece + p];
            for (uint32_t c = 0; c < q->n_chunks; c++) {
                if (s->i->chunks[q->first_chunk + c].codec == CT_CODEC_RAW) r.raw_chunks++;
                else r.zstd_chunks++;
            }
        }
    }
    return r;
}

/* ---- summary ---- */

static void line_text(const char *label, const char *s, size_t n)
{
    printf("%-14s", label);
    print_text(s, n);
    putchar('\n');
}

static void print_file(const inspect *s)
{
    const ct_info *i = s->i;
    char uuid[33];
    inspect_hex(i->uuid, 16, uuid);
    line_text("file", i->path, strlen(i->path));
    printf("%-14s%s, format 1.0, %u part%s, ", "container", inspect_kind(i->kind), i->n_splits,
           i->n_splits == 1 ? "" : "s");
    print_bytes(i->file_bytes);
    printf(" (%" PRIu64 " bytes)\n%-14s%s\n", i->file_bytes, "uuid", uuid);
    printf("%-14sincompat 0x%" PRIx64 "%s, rocompat 0x%" PRIx64 ", compat 0x%" PRIx64 "\n", "features",
           i->incompat, i->incompat & 1 ? " (tile8)" : "", i->rocompat, i->compat);
    line_text("writer", i->writer, strlen(i->writer));
    time_t t = (time_t)i->created;
    struct tm tm;
    char date[40] = "not recorded";
    if (i->created && gmtime_r(&t, &tm)) strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", &tm);
    printf("%-14s%s\n", "created", date);
}

static void print_arch(const inspect *s)
{
    const arch *a = &s->a;
    if (!s->has_arch) return;
    printf("%-14s", "architecture");
    print_text(a->family, strnlen(a->family, sizeof a->family));
    printf(", %u layers, hidden %u, ffn %u%s, vocabulary %u, context %u%s\n", a->n_layers, a->hidden_size,
           a->ffn_size, a->gated_ffn ? " gated" : "", a->vocab_size, a->max_ctx,
           a->tied_head ? ", tied head" : "");
    printf("%-14s%u query heads, %u kv heads, head size %u", "attention", a->n_heads, a->n_kv_heads,
           a->head_dim);
    if (a->v_head_dim != a->head_dim) printf(" (values %u)", a->v_head_dim);
    for (uint32_t k = 0; k < a->n_attn_kinds; k++) {
        if (a->attn[k].rope_on && a->rope_kind) printf(", rope theta %g", a->attn[k].rope_theta);
        if (a->attn[k].window) printf(", window %u", a->attn[k].window);
    }
    putchar('\n');
}

static void print_tokenizer(const inspect *s)
{
    size_t n, len;
    const char *kind = kvs_str(s->i->kv, "tok.model", &n), *chat = kvs_str(s->i->kv, "chat.template", &len);
    const kv *vocab = kvs_find(s->i->kv, "tok.vocab");
    printf("%-14s", "tokenizer");
    if (kind) print_text(kind, n);
    else printf("none");
    if (vocab && vocab->type == KV_STRS) printf(", %" PRIu64 " tokens", vocab->n);
    if (chat) printf(", chat template of %zu bytes", len);
    printf("\n%-14s%u\n", "key-values", s->i->kv->count);
}

static void print_types(const inspect *s)
{
    uint64_t stored = 0, largest = 0;
    printf("%-14s%" PRIu64 " in %u tensors, %u pieces for tp %u, %u chunks, %u segments\n", "parameters",
           s->i->param_count, s->i->n_tensors, s->i->n_pieces, s->i->tp, s->i->n_chunks, s->i->n_segments);
    printf("\n%-6s %8s %14s %16s %16s %7s %8s %8s\n", "type", "tensors", "parameters", "logical bytes",
           "stored bytes", "ratio", "raw", "zstd");
    for (uint32_t dt = 1; dt < DT_COUNT; dt++) {
        type_sum r = inspect_sum(s, dt);
        stored += r.stored;
        if (r.tensors)
            printf("%-6s %8" PRIu64 " %14" PRIu64 " %16" PRIu64 " %16" PRIu64 " %6.1f%% %8" PRIu64 " %8" PRIu64
                   "\n",
                   dtype_get(dt)->name, r.tensors, r.params, r.logical, r.stored,
                   r.logical ? 100.0 * (double)r.stored / (double)r.logical : 0, r.raw_chunks, r.zstd_chunks);
    }
    for (uint32_t g = 0; g < s->i->n_segments; g++) largest = MAX(largest, s->i->segments[g].len);
    printf("\n%-14s", "besides data");
    print_bytes(s->i->file_bytes - MIN(stored, s->i->file_bytes));
    printf(" (headers, index, key-values, %u blobs, padding)\n%-14s", s->i->n_blobs, "largest segm.");
    print_bytes(largest);
    putchar('\n');
}

static void print_axes(const inspect *s)
{
    for (uint32_t i = 0; i < s->i->n_axes; i++) {
        const arch_axis *x = &s->i->axes[i];
        printf("%-14s%s: %" PRIu64 " in %u units of %u, leaves at", i ? "" : "axes", inspect_axis(x->kind),
               x->dim, x->n_units, x->unit);
        for (uint32_t l = 0; l <= x->n_leaves; l++) printf(" %u", x->leaf[l]);
        putchar('\n');
    }
}

static void print_summary(const inspect *s)
{
    print_file(s);
    print_arch(s);
    print_tokenizer(s);
    print_axes(s);
    print_types(s);
    if (s->i->prov_len) {
        line_text("provenance", s->i->prov, MIN(s->i->prov_len, (size_t)4000));
        if (s->i->prov_len > 4000) printf("%-14s(%zu bytes in all; --json prints them)\n", "", s->i->prov_len);
    }
}

/* ---- verify ---- */

static void report_line(void *user, const char *line)
{
    UNUSED(user);
    print_text(line, strlen(line));
    putchar('\n');
}
static void on_progress(void *user, uint64_t done, uint64_t total) { cli_progress_update(user, done, total); }

int inspect_verify(const inspect *s)
{
    tess_error err;
    ct_verify_result r;
    pool *p = NULL;
    cli_progress bar;
    if (pool_open(&mem_libc, NULL, s->o->threads, &p, &err) < 0) return cli_fail(&err), 2;
    cli_progress_start(&bar, "verifying", false);
    tess_status st =
        ct_verify(s->f, s->o->depth, p, s->o->json ? NULL : report_line, &bar, on_progress, &r, &err);
    cli_progress_end(&bar);
    pool_close(p);
    if (st < 0) return cli_fail(&err), 2;
    if (s->o->json)
        printf("{\"ok\":%s,\"errors\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"nonfinite\":%" PRIu64 "}\n",
               r.errors ? "false" : "true", r.errors, r.bytes, r.nonfinite);
    else {
        if (r.nonfinite) printf("notice: %" PRIu64 " weights are NaN or infinite\n", r.nonfinite);
        if (r.errors) printf("CORRUPT %" PRIu64 " errors\n", r.errors);
        else puts("OK");
    }
    if (r.errors) cli_error("%s: is damaged; copy or convert it again", s->i->path);
    return r.errors ? 1 : 0;
}

/* A file that cannot be opened: is it damaged, or can it not be checked? */
static int verify_open_failed(const inspect_options *o, const tess_error *err)
{
    cli_fail(err);
    if (err->status != TESS_E_FORMAT && err->status != TESS_E_CHECKSUM) return 2;
    puts(o->json ? "{\"ok\":false,\"errors\":1}" : "CORRUPT 1 errors");
    return 1;
}

/* ---- command line ---- */

enum { O_JSON = 1, O_TENSORS, O_CHUNKS, O_BLOBS, O_PLAN, O_VERIFY, O_THREADS, O_MODEL, O_FAMILIES, O_VERSION, O_HELP };
static const cli_option options[] = {
    {"-m --model", O_MODEL, "FILE", "the file (.tess, any part of a set); also as a plain argument"},
    {"--tensors", O_TENSORS, NULL, "every tensor: type, shape, split, pieces, coding, content hash"},
    {"--chunks", O_CHUNKS, "NAME", "the chunks of one tensor: offsets, sizes, hashes"},
    {"--blobs", O_BLOBS, NULL, "the stored files"},
    {"--plan", O_PLAN, "M", "what each of M tensor-parallel ranks would hold, 1 to 64"},
    {"--verify", O_VERIFY, NULL,
     "[quick|full|deep]: quick checks the index, full (the default) every hash,\ndeep also decodes and "
     "compares contents; the last line is OK or CORRUPT n errors"},
    {"-j --threads", O_THREADS, "N", "threads of --verify (all CPUs)"},
    {"--families", O_FAMILIES, NULL, "the model families that convert-hf reads; no file is needed"},
    {"--json", O_JSON, NULL, "print JSON"},
    {"--version", O_VERSION, NULL, "version and what the library was built with"},
    {"-h --help", O_HELP, NULL, "print this help"},
};

static bool depth_of(const char *word, int *depth)
{
    static const char *const words[] = {"quick", "full", "deep"};
    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) return *depth = i, true;
    return false;
}

/* --verify has a value that may be left out, which no other option has: takes it out of argv first. False: bad
 * value. */
static bool take_verify(inspect_options *o, int *argc, char **argv)
{
    int n = 1;
    for (int i = 1; i < *argc; i++) {
        if (strncmp(argv[i], "--verify=", 9) == 0) {
            o->verify = true;
            if (!depth_of(argv[i] + 9, &o->depth))
                return cli_error("--verify: %s is not quick, full or deep", argv[i] + 9), false;
        } else if (strcmp(argv[i], "--verify") == 0) {
            o->verify = true;
            if (i + 1 < *argc && depth_of(argv[i + 1], &o->depth)) i++;
        } else argv[n++] = argv[i];
    }
    *argc = n;
    return true;
}

static int print_families(void)
{
    char list[1024];
    family_list(list, sizeof list);
    printf("model_type of config.json: %s\n", list);
    family_gguf_list(list, sizeof list);
    printf("general.architecture of GGUF: %s\n", list);
    return cli_flush();
}

/* Exit code, or -1 to go on. */
static int parse(inspect_options *o, int argc, char **argv)
{
    cli_parser p;
    const char *value;
    int64_t v;
    int usage;
    *o = (inspect_options){.depth = CT_VERIFY_FULL};
    bool ok = take_verify(o, &argc, argv);
    usage = o->verify ? 3 : CLI_EXIT_USAGE;
    if (!ok) return usage;
    cli_start(&p, "inspect-model", options, ARRAY_LEN(options), argc, argv);
    for (int id; (id = cli_next(&p, &value)) != CLI_END;) switch (id) {
        case O_JSON: o->json = true; break;
        case O_TENSORS: o->tensors = true; break;
        case O_BLOBS: o->blobs = true; break;
        case O_CHUNKS: o->chunks = value; break;
        case O_PLAN:
            if (!cli_int(p.name, value, 1, 64, &v)) return usage;
            o->plan = (uint32_t)v;
            break;
        case O_THREADS:
            if (!cli_int(p.name, value, 1, 1024, &v)) return usage;
            o->threads = (uint32_t)v;
            break;
        case O_MODEL:
        case CLI_POSITIONAL:
            if (o->path)
                return cli_error("only one file can be inspected: %s, %s%s", o->path, value,
                                 o->verify ? " (--verify takes quick, full or deep)" : ""), usage;
            o->path = value;
            break;
        case O_FAMILIES: return print_families();
        case O_VERSION: return cli_version(p.program);
        case O_HELP:
            puts("usage: inspect-model FILE.tess [options]\n");
            cli_help(stdout, options, ARRAY_LEN(options));
            return cli_flush();
        default: return usage;
        }
    if (!o->path) return cli_error("no file is given; inspect-model --help lists the options"), usage;
    return -1;
}

static int print_all(const inspect *s)
{
    int rc = 0;
    if (s->o->json) return inspect_print_json(s);
    if (!s->o->tensors && !s->o->blobs && !s->o->chunks && !s->o->plan) print_summary(s);
    if (s->o->tensors) inspect_list_tensors(s);
    if (s->o->chunks) rc = inspect_list_chunks(s);
    if (s->o->blobs) inspect_list_blobs(s);
    if (!rc && s->o->plan) rc = inspect_print_plan(s);
    return rc;
}

int main(int argc, char **argv)
{
    inspect_options o;
    tess_error err;
    ct_file *f;
    int rc = parse(&o, argc, argv);
    if (rc >= 0) return rc;
    if (ct_open(o.path, CT_NO_MMAP, &mem_libc, &f, &err) < 0)
        return o.verify ? verify_open_failed(&o, &err) : cli_fail(&err);
    inspect s = {.o = &o, .f = f, .i = ct_get(f)};
    s.has_arch = arch_get(&s.a, s.i->kv, NULL) == TESS_OK;
    rc = o.verify ? inspect_verify(&s) : print_all(&s);
    ct_close(f);
    return rc ? rc : cli_flush();
}
