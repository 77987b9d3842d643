/* inspect_list.c - lists as text: one line per tensor, chunk, stored file. */
#include <inttypes.h>

#include "inspect.h"

static void print_shape(const ct_tensor *t)
{
    char text[100] = "";
    size_t n = 0;
    for (uint32_t d = 0; d < t->rank; d++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%" PRIu64, d ? "x" : "", t->shape[d]);
    printf(" %-16s", text);
}

static const char *coding(const inspect *s, const ct_tensor *t)
{
    if (t->alias != CT_NO_ALIAS) return "alias";
    const ct_piece *p = &s->i->pieces[t->first_piece];
    if (p->raw_contig) return t->layout == LAYOUT_TILE8 ? "raw tile8" : "raw";
    return t->layout == LAYOUT_TILE8 ? "zstd tile8" : "zstd";
}

static void print_pieces(const inspect *s, const ct_tensor *t)
{
    bool columns = t->split_dim + 1 == t->rank;
    for (uint32_t p = 0; p < t->n_pieces; p++) {
        const ct_piece *q = &s->i->pieces[t->first_piece + p];
        uint64_t lo = columns ? q->k0 : q->row0, n = columns ? q->n_k : q->n_rows;
        printf("    piece %u: %s %" PRIu64 " to %" PRIu64 ", part %u offset %" PRIu64 ", %" PRIu64
               " bytes in %u chunks\n",
               p, columns ? "columns" : "rows", lo, lo + n, q->split_file + 1, q->off, q->stored_len,
               q->n_chunks);
    }
}

void inspect_list_tensors(const inspect *s)
{
    printf("%-5s %-16s %-12s %14s %7s %-10s %-32s name\n", "type", "shape", "split", "stored bytes", "ratio",
           "coding", "content hash");
    for (uint32_t i = 0; i < s->i->n_tensors; i++) {
        const ct_tensor *t = &s->i->tensors[i];
        uint64_t stored = inspect_stored(s, t), logical = inspect_logical(s, t);
        char hash[33], split[24] = "-";
        inspect_hex(t->content_hash, 16, hash);
        if (t->split_dim != 255)
            snprintf(split, sizeof split, "%u %s", t->split_dim, inspect_axis(s->i->axes[t->axis].kind));
        printf("%-5s", dtype_get(t->dtype)->name);
        print_shape(t);
        printf(" %-12s %14" PRIu64 " %6.1f%% %-10s %s ", split, stored,
               logical ? 100.0 * (double)stored / (double)logical : 0, coding(s, t), hash);
        print_text(t->name, strlen(t->name));
        if (t->alias != CT_NO_ALIAS) {
            printf(" -> ");
            print_text(s->i->tensors[t->alias].name, strlen(s->i->tensors[t->alias].name));
        }
        putchar('\n');
        if (t->split_dim != 255 && t->alias == CT_NO_ALIAS) print_pieces(s, t);
    }
}

int inspect_list_chunks(const inspect *s)
{
    static const char *const filters[] = {"-", "planes", "bf16"};
    int64_t i = ct_find(s->f, s->o->chunks);
    if (i < 0)
        return cli_error("%s: has no tensor %s; --tensors lists them", s->i->path, s->o->chunks),
               CLI_EXIT_USAGE;
    const ct_tensor *t = &s->i->tensors[i];
    printf("%5s %6s %4s %14s %10s %10s %-5s %-7s %s\n", "piece", "chunk", "part", "offset", "stored", "decoded",
           "codec", "filter", "hash");
    for (uint32_t p = 0; p < t->n_pieces; p++) {
        const ct_piece *q = &s->i->pieces[t->first_piece + p];
        for (uint32_t c = 0; c < q->n_chunks; c++) {
            const ct_chunk *k = &s->i->chunks[q->first_chunk + c];
            printf("%5u %6u %4u %14" PRIu64 " %10u %10u %-5s %-7s %016" PRIx64 "\n", p, c, q->split_file + 1,
                   k->off, k->csize, k->usize, k->codec == CT_CODEC_RAW ? "raw" : "zstd", filters[k->filter],
                   k->hash);
        }
    }
    return 0;
}

void inspect_list_blobs(const inspect *s)
{
    printf("%12s %12s %-32s name\n", "bytes", "stored", "hash of stored bytes");
    for (uint32_t i = 0; i < s->i->n_blobs; i++) {
        const ct_blob *b = &s->i->blobs[i];
        char hash[33];
        inspect_hex(b->hash, 16, hash);
        printf("%12" PRIu64 " %12" PRIu64 " %s ", b->usize, b->csize, hash);
        print_text(b->name, strlen(b->name));
        putchar('\n');
    }
}
