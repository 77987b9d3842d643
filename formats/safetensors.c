/*
 * safetensors.c - reads safetensors checkpoints: one file, or shards named by model.safetensors.index.json.
 *
 * A file: u64 length of the header, little-endian; the header, a JSON object name -> {dtype, shape,
 * data_offsets: [begin, end]} with an optional "__metadata__" of strings; the data. Enforced: header at most
 * 100,000,000 bytes, begins with "{", no key twice, integers exact, known dtype, shape product = span, spans
 * sorted without overlap cover the data exactly (no gap, no tail). Any alignment is accepted. Nothing larger
 * than the header is allocated, and only after its length was checked.
 *
 * Shards: the index wins. Every tensor it names must be in exactly the file it names; tensors in a shard that
 * the index places elsewhere or does not name are ignored with a notice; files that it does not name are never
 * opened. Values of the index are plain file names. A model.safetensors beside an index that does not name it
 * is refused: one of the two is stale, and which one is the user's to say (transformers takes the single file
 * without a word).
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "source.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
enum { MAX_HEADER = 100000000, MAX_INDEX = 256 << 20, MAX_SHARDS = 10000 };

/* Every dtype of the format with its bits; dtype 0 = known, not read. */
static const struct { const char *name; uint32_t bits, dtype; } dtypes[] = {
    {"F32", 32, DT_F32},           {"F16", 16, DT_F16},       {"BF16", 16, DT_BF16},
    {"F64", 64, SRC_OTHER},        {"I64", 64, SRC_OTHER},    {"U64", 64, SRC_OTHER},
    {"C64", 64, SRC_OTHER},        {"I32", 32, SRC_OTHER},    {"U32", 32, SRC_OTHER},
    {"I16", 16, SRC_OTHER},        {"U16", 16, SRC_OTHER},    {"I8", 8, SRC_OTHER},
    {"U8", 8, SRC_OTHER},          {"BOOL", 8, SRC_OTHER},    {"F8_E4M3", 8, SRC_OTHER},
    {"F8_E5M2", 8, SRC_OTHER},     {"F8_E8M0", 8, SRC_OTHER}, {"F8_E4M3FNUZ", 8, SRC_OTHER},
    {"F8_E5M2FNUZ", 8, SRC_OTHER}, {"F6_E2M3", 6, SRC_OTHER}, {"F6_E3M2", 6, SRC_OTHER},
    {"F4", 4, SRC_OTHER},
};

typedef struct { uint64_t begin, end; const char *name; } span;

static int span_cmp(const void *x, const void *y)
{
    const span *a = x, *b = y;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

static const json_t *member(const json_t *o, const char *key) { return json_object_get(o, key); }

/* Fills t from one header entry; data_len bounds the offsets. */
static tess_status parse_entry(const char *path, const char *name, const json_t *v, uint64_t data_len,
                               src_tensor *t, tess_error *err)
{
    const json_t *dtype = member(v, "dtype"), *shape = member(v, "shape"), *span_v = member(v, "data_offsets");
    if (!json_is_object(v) || json_object_size(v) != 3 || !json_is_string(dtype) || !json_is_array(shape) ||
        json_array_size(span_v) != 2)
        return ERR(err, TESS_E_FORMAT, "%s: tensor \"%.255s\": want exactly dtype, shape and data_offsets",
                   path, name);
    uint32_t k = 0;
    while (k < ARRAY_LEN(dtypes) && strcmp(dtypes[k].name, json_string_value(dtype)) != 0) k++;
    if (k == ARRAY_LEN(dtypes))
        return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%.255s\": unknown dtype \"%.40s\"", path, name,
                   json_string_value(dtype));
    if (json_array_size(shape) > ARRAY_LEN(t->shape))
        return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%.255s\" has %zu dimensions, the limit is %zu", path,
                   name, json_array_size(shape), ARRAY_LEN(t->shape));
    *t = (src_tensor){
        .dtype = dtypes[k].dtype, .type = dtypes[k].name, .rank = (uint32_t)json_array_size(shape)};
    uint64_t bits = dtypes[k].bits, begin, end;
    for (uint32_t i = 0; i < t->rank; i++)
        if (!jsonr_u64(json_array_get(shape, i), &t->shape[i]) || !u64_mul(bits, t->shape[i], &bits))
            return ERR(err, TESS_E_FORMAT,
                       "%s: tensor \"%.255s\": dimension %u is not a whole number or the size overflows", path,
                       name, i);
    if (!jsonr_u64(json_array_get(span_v, 0), &begin) || !jsonr_u64(json_array_get(span_v, 1), &end) ||
        begin > end || end > data_len)
        return ERR(err, TESS_E_FORMAT,
                   "%s: tensor \"%.255s\": data_offsets do not lie in the %llu bytes of data", path, name,
                   (unsigned long long)data_len);
    if (bits % 8 || bits / 8 != end - begin)
        return ERR(err, TESS_E_FORMAT,
                   "%s: tensor \"%.255s\": shape and dtype want %llu bytes, data_offsets span %llu", path, name,
                   (unsigned long long)(bits / 8), (unsigned long long)(end - begin));
    t->off = begin;
    t->nbytes = end - begin;
    return TESS_OK;
}

static tess_status check_metadata(const char *path, json_t *meta, tess_error *err)
{
    const char *key;
    json_t *v;
    if (!json_is_object(meta))
        return ERR(err, TESS_E_FORMAT, "%s: __metadata__ is %s, want an object", path, jsonr_type(meta));
    json_object_foreach(meta, key, v)
        if (!json_is_string(v))
            return ERR(err, TESS_E_FORMAT, "%s: __metadata__: \"%.100s\" is %s, want a string", path, key,
                       jsonr_type(v));
    return TESS_OK;
}

/* The spans, in order, must cover [0, data_len) exactly. */
static tess_status check_cover(const char *path, span *x, size_t n, uint64_t data_len, tess_error *err)
{
    uint64_t at = 0;
    if (n) qsort(x, n, sizeof *x, span_cmp);
    for (size_t i = 0; i < n; i++) {
        if (x[i].begin != at)
            return ERR(err, TESS_E_FORMAT, "%s: tensor \"%.255s\" at data offset %llu: %s up to %llu", path,
                       x[i].name, (unsigned long long)x[i].begin,
                       x[i].begin < at ? "overlaps the data" : "leaves a gap in the data",
                       (unsigned long long)at);
        at = x[i].end;
    }
    if (at == data_len) return TESS_OK;
    return ERR(err, TESS_E_FORMAT, "%s: %llu bytes after the last tensor", path,
               (unsigned long long)(data_len - at));
}

/* Header text of file `f` of s: one mem block of *len bytes. */
static tess_status read_header(const source *s, uint32_t f, char **out, size_t *len, tess_error *err)
{
    const os_file *file = &s->files[f];
    const char *path = s->paths[f];
    uint8_t head[8];
    *out = NULL;
    if (file->size < sizeof head)
        return ERR(err, TESS_E_FORMAT, "%s: is %llu bytes, too short for a safetensors file", path,
                   (unsigned long long)file->size);
    TRY(os_pread(file, head, sizeof head, 0, path, err));
    uint64_t n = rd64(head);
    if (n > MAX_HEADER || n > file->size - sizeof head || n < 2)
        return ERR(err, TESS_E_FORMAT,
                   "%s: header length is %llu (file %llu bytes): not a safetensors file, or cut off", path,
                   (unsigned long long)n, (unsigned long long)file->size);
    *out = mem_alloc(s->m, (size_t)n);
    if (!*out)
        return ERR(err, TESS_E_NOMEM, "%s: no memory for a header of %llu bytes", path, (unsigned long long)n);
    *len = (size_t)n;
    tess_status st = os_pread(file, *out, *len, sizeof head, path, err);
    if (st == TESS_OK && (*out)[0] != '{')
        st = ERR(err, TESS_E_FORMAT, "%s: header does not begin with \"{\": not a safetensors file", path);
    if (st == TESS_OK) return TESS_OK;
    mem_free(s->m, *out);
    *out = NULL;
    return st;
}

/* Adds the tensors of file f: all of them, or with a weight map those that it places in `shard`. */
static tess_status add_tensors(source *s, uint32_t f, json_t *header, size_t header_len, const json_t *map,
                               const char *shard, tess_error *err)
{
    const char *path = s->paths[f], *name, *stray = NULL;
    uint64_t data_off = 8 + header_len, data_len = s->files[f].size - data_off;
    size_t n = 0, n_stray = 0;
    json_t *v;
    span *spans = mem_calloc(s->m, json_object_size(header) + 1, sizeof *spans);
    tess_status st = spans ? TESS_OK : ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    if (st < 0) return st;
    json_object_foreach(header, name, v) {
        src_tensor t;
        if (strcmp(name, "__metadata__") == 0) {
            if ((st = check_metadata(path, v, err)) < 0) break;
            continue;
        }
        if (!source_name_ok(name, strlen(name))) {
            st = ERR(err, TESS_E_FORMAT, "%s: bad tensor name \"%.100s\"", path, name);
            break;
        }
        if ((st = parse_entry(path, name, v, data_len, &t, err)) < 0) break;
        spans[n++] = (span){t.off, t.off + t.nbytes, name};
        const char *home = map ? json_string_value(member(map, name)) : NULL;
        if (map && (!home || strcmp(home, shard) != 0)) {
            stray = name;
            n_stray++;
            continue;
        }
        t.off += data_off;
        t.file = f;
        if ((st = source_add_tensor(s, &t, name, strlen(name), err)) < 0) break;
    }
    if (st == TESS_OK) st = check_cover(path, spans, n, data_len, err);
    if (st == TESS_OK && stray)
        mem_log(s->m, TESS_LOG_WARN,
                "%s: %zu tensors ignored because the index places them elsewhere or nowhere, such as \"%s\"",
                path, n_stray, stray);
    mem_free(s->m, spans);
    return st;
}

static tess_status add_file(source *s, const char *path, const json_t *map, const char *shard, tess_error *err)
{
    uint32_t f;
    char *text;
    size_t len = 0;
    json_t *header;
    TRY(source_add_file(s, path, &f, err));
    TRY(read_header(s, f, &text, &len, err));
    tess_status st = jsonr_parse_object(text, len, 0, path, &header, err);
    mem_free(s->m, text);
    if (st < 0) return st;
    st = add_tensors(s, f, header, len, map, shard, err);
    json_decref(header);
    return st;
}

/* ---- shards ---- */

static bool plain_basename(const char *s)
{
    size_t n = strlen(s);
    return n > 12 && source_name_ok(s, n) && !strchr(s, '/') && !strchr(s, '\\') &&
           strcmp(s + n - 12, ".safetensors") == 0;
}

static tess_status check_index(const char *path, const json_t *map, tess_error *err)
{
    const char *name;
    json_t *v;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return ERR(err, TESS_E_FORMAT, "%s: weight_map is %s, want an object of tensor names", path,
                   jsonr_type(map));
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
        if (!json_is_string(v) || !plain_basename(json_string_value(v)))
            return ERR(err, TESS_E_FORMAT,
                       "%s: weight_map: \"%.200s\" is placed in \"%.100s\", want a plain file name ending in "
                       ".safetensors",
                       path, name, json_is_string(v) ? json_string_value(v) : jsonr_type(v));
    return TESS_OK;
}

static int name_cmp(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of the map, ascending: one mem block of pointers into the map. */
static tess_status shard_names(const source *s, const json_t *map, const char *path, const char ***out,
                               size_t *n, tess_error *err)
{
    const char *name;
    json_t *v;
    size_t k = 0;
    const char **list = mem_calloc(s->m, json_object_size(map), sizeof *list);
    *out = list;
    if (!list) return ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    json_object_foreach((json_t *)(uintptr_t)map, name, v) list[k++] = json_string_value(v);
    qsort(list, k, sizeof *list, name_cmp);
    *n = 0;
    for (size_t i = 0; i < k; i++)
        if (*n == 0 || strcmp(list[*n - 1], list[i]) != 0) list[(*n)++] = list[i];
    if (*n <= MAX_SHARDS) return TESS_OK;
    return ERR(err, TESS_E_FORMAT, "%s: names %zu files, the limit is %d", path, *n, MAX_SHARDS);
}

/* Every tensor of the index was found, and its total_size agrees (a notice when not: published ones are often
 * wrong). */
static tess_status check_found(source *s, const char *dir, const char *path, const json_t *index,
                               const json_t *map, tess_error *err)
{
    const char *name;
    json_t *v;
    double want;
    uint64_t total = 0;
    TRY(source_sort(s, err));
    json_object_foreach((json_t *)(uintptr_t)map, name, v)
        if (source_find(s, name) < 0)
            return ERR(err, TESS_E_FORMAT, "%s: places tensor \"%.200s\" in %s/%.100s, which does not hold it",
                       path, name, dir, json_string_value(v));
    for (uint32_t i = 0; i < s->n_tensors; i++) total += s->tensors[i].nbytes;
    if (jsonr_f64(member(member(index, "metadata"), "total_size"), &want) && want != (double)total)
        mem_log(s->m, TESS_LOG_WARN, "%s: total_size is %.0f, the tensors have %llu bytes", path, want,
                (unsigned long long)total);
    return TESS_OK;
}

static tess_status open_shards(source *s, const char *dir, const char *path, tess_error *err)
{
    char *text, file[PATH_MAX];
    const char **names = NULL;
    size_t len, n = 0;
    json_t *index;
    TRY(os_read_whole(path, MAX_INDEX, s->m, &text, &len, err));
    tess_status st = jsonr_parse_object(text, len, 0, path, &index, err);
    mem_free(s->m, text);
    if (st < 0) return st;
    const json_t *map = member(index, "weight_map");
    if ((st = check_index(path, map, err)) < 0 || (st = shard_names(s, map, path, &names, &n, err)) < 0)
        goto done;
    bool names_single = false;
    for (size_t i = 0; i < n; i++) names_single |= strcmp(names[i], SINGLE_NAME) == 0;
    snprintf(file, sizeof file, "%s/" SINGLE_NAME, dir);
    if (!names_single && os_exists(file)) {
        st = ERR(err, TESS_E_FORMAT,
                 "%s: holds both " SINGLE_NAME " and " INDEX_NAME
                 " naming other files; remove or move away the stale one",
                 dir);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        if ((size_t)snprintf(file, sizeof file, "%s/%s", dir, names[i]) >= sizeof file) {
            st = ERR(err, TESS_E_ARG, "%s: path is too long", dir);
            goto done;
        }
        if ((st = add_file(s, file, map, names[i], err)) < 0) goto done;
    }
    st = check_found(s, dir, path, index, map, err);
done:
    mem_free(s->m, names);
    json_decref(index);
    return st;
}

/* ---- opening ---- */

/* Why a directory without the two known names cannot be read. */
static tess_status no_weights(const char *dir, tess_error *err)
{
    static const char *const pickles[] = {"pytorch_model.bin",   "pytorch_model.bin.index.json",
                                          "consolidated.00.pth", "model.pt",
                                          "model.pth",           "model.ckpt"};
    char file[PATH_MAX];
    for (size_t i = 0; i < ARRAY_LEN(pickles); i++) {
        snprintf(file, sizeof file, "%s/%s", dir, pickles[i]);
        if (os_exists(file))
            return ERR(err, TESS_E_UNSUPPORTED,
                       "%s: pickle weights can run code and are not read; convert them with: python3 -c "
                       "\"import sys, transformers as t; "
                       "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], "
                       "dtype='auto').save_pretrained(sys.argv[2])\" IN OUT",
                       file);
    }
    return ERR(err, TESS_E_IO, "%s: holds neither " SINGLE_NAME " nor " INDEX_NAME, dir);
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static tess_status open_path(source *s, const char *path, tess_error *err)
{
    char file[PATH_MAX];
    if (strlen(path) + sizeof "/" INDEX_NAME > sizeof file)
        return ERR(err, TESS_E_ARG, "%.200s...: path is too long", path);
    if (ends_with(path, ".bin") || ends_with(path, ".pt") || ends_with(path, ".pth") ||
        ends_with(path, ".ckpt"))
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: pickle files can run code and are not read; save the model as safetensors", path);
    if (!os_is_dir(path)) return add_file(s, path, NULL, NULL, err);
    snprintf(file, sizeof file, "%s/" INDEX_NAME, path);
    if (os_exists(file)) return open_shards(s, path, file, err);
    snprintf(file, sizeof file, "%s/" SINGLE_NAME, path);
    return os_exists(file) ? add_file(s, file, NULL, NULL, err) : no_weights(path, err);
}

tess_status safetensors_open(const char *path_or_dir, const mem *m, source **out, tess_error *err)
{
    TRY(source_new(m, "safetensors", out, err));
    tess_status st = open_path(*out, path_or_dir, err);
    if (st == TESS_OK) st = source_sort(*out, err);
    if (st == TESS_OK) return TESS_OK;
    source_close(*out);
    *out = NULL;
    return st;
}
