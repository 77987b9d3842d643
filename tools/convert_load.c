/*
 * convert_load.c - opens SRC, whatever it is, and builds the key-values that the runtime reads.
 *
 * Key-values: "general.family"; "general.source_hash.FILE" for every original file that is stored (XXH3-128,
 * hex); "arch.*"; "gen.*"; "chat.template"; "tok.*". The original files themselves go in verbatim as blobs; of
 * a GGUF file there are none, its metadata goes into the key-values.
 */
#include "convert.h"

#include <limits.h>

#include "gguf_config.h"
#include "gguf_tokenizer.h"
#include "hash.h"
#include "hf_config.h"
#include "hf_quant.h"
#include "hf_tokenizer.h"
#include "hf_wrapper.h"
#include "projected.h"
#include "source_tess.h"
#include "spm_tokenizer.h"

enum { MAX_FILE = 256 << 20 };

/* ---- blobs ---- */

static const char *const blob_names[] = {"config.json",
                                         "generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "chat_template.jinja",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "tokenizer.model",
                                         "LICENSE",
                                         "LICENSE.txt",
                                         "LICENSE.md",
                                         "LICENCE"};

const convert_blob *convert_find_blob(const convert_source *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_blobs; i++)
        if (strcmp(c->blob[i].name, name) == 0) return &c->blob[i];
    return NULL;
}

static tess_status load_files(convert_source *c, const char *dir, tess_error *err)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < ARRAY_LEN(blob_names); i++) {
        if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, blob_names[i]) >= sizeof path)
            return ERR(err, TESS_E_ARG, "%.200s...: path is too long", dir);
        if (!os_exists(path)) continue;
        convert_blob *b = &c->blob[c->n_blobs];
        TRY(os_read_whole(path, MAX_FILE, &c->m, &b->data, &b->len, err));
        b->name = blob_names[i];
        c->n_blobs++;
    }
    return TESS_OK;
}

static tess_status load_tess_blobs(convert_source *c, const ct_file *f, tess_error *err)
{
    const ct_info *info = ct_get(f);
    for (uint32_t i = 0; i < info->n_blobs; i++) {
        if (c->n_blobs == CONVERT_MAX_BLOBS)
            return ERR(err, TESS_E_UNSUPPORTED, "%s: more than %d original files", info->path,
                       CONVERT_MAX_BLOBS);
        convert_blob *b = &c->blob[c->n_blobs];
        TRY(ct_read_blob(f, i, &c->m, &b->data, &b->len, err));
        b->name = info->blobs[i].name;
        c->n_blobs++;
    }
    return TESS_OK;
}

/* ---- key-values ---- */

static void put_hashes(const convert_source *c, kvs_builder *b)
{
    for (uint32_t i = 0; i < c->n_blobs; i++) {
        char key[300], hex[33];
        uint8_t h[16];
        hash128(c->blob[i].data, c->blob[i].len, h);
        for (int j = 0; j < 16; j++) snprintf(hex + 2 * j, 3, "%02x", h[j]);
        snprintf(key, sizeof key, "general.source_hash.%s", c->blob[i].name);
        kvs_put_str(b, key, hex, 32);
    }
}

static void put_model(const convert_source *c, kvs_builder *b)
{
    kvs_put_str(b, "general.family", c->a.family, strlen(c->a.family));
    arch_put(&c->a, b);
}

/* From tokenizer.json, else from tokenizer.model. */
static tess_status put_tokenizer(const convert_source *c, const char *dir, kvs_builder *b, tess_error *err)
{
    const convert_blob none = {0}, *x;
    const convert_blob *json = convert_find_blob(c, "tokenizer.json"), *spm = convert_find_blob(c, "tokenizer.model");
    const convert_blob *config = (x = convert_find_blob(c, "tokenizer_config.json")) ? x : &none;
    const convert_blob *special = (x = convert_find_blob(c, "special_tokens_map.json")) ? x : &none;
    const convert_blob *added = (x = convert_find_blob(c, "added_tokens.json")) ? x : &none;
    tess_status st = TESS_OK;
    if (json) st = hf_tokenizer_put(&c->m, json->data, json->len, config->data, config->len, b, err);
    else if (spm) {
        const spm_files f = {
            {spm->data, spm->len}, {config->data, config->len}, {special->data, special->len}, {added->data, added->len}};
        st = spm_tokenizer_put(&c->m, &f, b, err);
    } else
        mem_log(&c->m, TESS_LOG_WARN,
                "%s: has neither tokenizer.json nor tokenizer.model; the container will take and give token ids only", dir);
    return st < 0 ? err_prefix(err, st, "%s", dir) : TESS_OK;
}

/* Everything that comes from the original files; dir names them in messages. */
static tess_status put_files(const convert_source *c, const char *dir, kvs_builder *b, tess_error *err)
{
    const convert_blob none = {0}, *x;
    char gen_path[PATH_MAX], config_path[PATH_MAX], tok_path[PATH_MAX];
    const convert_blob *gen = (x = convert_find_blob(c, "generation_config.json")) ? x : &none;
    const convert_blob *config = (x = convert_find_blob(c, "config.json")) ? x : &none;
    const convert_blob *tok_config = (x = convert_find_blob(c, "tokenizer_config.json")) ? x : &none;
    const convert_blob *jinja = (x = convert_find_blob(c, "chat_template.jinja")) ? x : &none;
    snprintf(gen_path, sizeof gen_path, "%s/generation_config.json", dir);
    snprintf(config_path, sizeof config_path, "%s/config.json", dir);
    snprintf(tok_path, sizeof tok_path, "%s/tokenizer_config.json", dir);
    put_hashes(c, b);
    TRY(hf_generation_put(gen->data, gen->len, gen_path, config->data, config->len, config_path, b, err));
    TRY(hf_chat_template_put(jinja->data, jinja->len, tok_config->data, tok_config->len, tok_path, b, err));
    return put_tokenizer(c, dir, b, err);
}

static void copy_kv(const kv *v, kvs_builder *b, const mem *m, tess_status *st)
{
    char key[256];
    memcpy(key, v->key, v->key_len); /* at most 255 bytes: a rule of kvs */
    key[v->key_len] = 0;
    uint64_t word =
        v->type == KV_U64 || v->type == KV_I64 || v->type == KV_F64 || v->type == KV_BOOL ? rd64(v->data) : 0;
    double d;
    switch (v->type) {
    case KV_U64: kvs_put_u64(b, key, word); break;
    case KV_I64: kvs_put_i64(b, key, (int64_t)word); break;
    case KV_F64: memcpy(&d, &word, 8), kvs_put_f64(b, key, d); break;
    case KV_BOOL: kvs_put_bool(b, key, word != 0); break;
    case KV_STR: kvs_put_str(b, key, v->data, (size_t)v->n); break;
    case KV_STRS: {
        const char **s = mem_calloc(m, v->n, sizeof *s);
        size_t *len = mem_calloc(m, v->n, sizeof *len);
        if (s && len) {
            for (uint64_t i = 0; i < v->n; i++) s[i] = kv_strs_at(v, i, &len[i]);
            kvs_put_strs(b, key, s, len, v->n);
        } else *st = TESS_E_NOMEM;
        mem_free(m, s);
        mem_free(m, len);
        break;
    }
    default: kvs_put_array(b, key, (int)v->type, v->data, v->n); break;
    }
}

static tess_status copy_kvs(const kvs *k, kvs_builder *b, const mem *m, tess_error *err)
{
    tess_status st = TESS_OK;
    for (uint32_t i = 0; i < k->count; i++) copy_kv(&k->items[i], b, m, &st);
    return st < 0 ? ERR(err, st, "no memory for the key-values") : TESS_OK;
}

/* ---- kinds of SRC ---- */

static tess_status read_config(convert_source *c, const char *dir, hf_config *config, tess_error *err)
{
    char path[PATH_MAX];
    const convert_blob *b = convert_find_blob(c, "config.json");
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (!b) return ERR(err, TESS_E_IO, "%s: is missing", path);
    TRY(hf_config_read(b->data, b->len, path, config, err));
    c->a = config->a;
    c->fam = config->fam;
    return TESS_OK;
}

/* Of a quantized checkpoint: lays a source of the values over that of the files. */
static tess_status unpack(convert_source *c, const char *dir, tess_error *err)
{
    char path[PATH_MAX];
    packed_scheme scheme;
    const convert_blob *b = convert_find_blob(c, "config.json");
    snprintf(path, sizeof path, "%s/config.json", dir);
    TRY(hf_quant_read(b->data, b->len, path, &scheme, err));
    if (scheme.method == PACKED_NONE) return TESS_OK;
    for (const name_rule *r = c->fam->names; r->name; r++) /* which way round their parts lie is not told */
        if ((r->flags & NAME_T) && r->fuse != FUSE_EXPERTS && r->fuse != FUSE_EXPERTS_GATE_UP)
            return ERR(err, TESS_E_UNSUPPORTED, "%s: quantization_config: quantized checkpoints of family \"%s\" are not read", path,
                       c->fam->model_type);
    return packed_open(&c->s, &scheme, err);
}

static tess_status load_hf(convert_source *c, const char *dir, const char *weights, kvs_builder *b,
                           tess_error *err)
{
    hf_config config;
    TRY(load_files(c, dir, err));
    if (!convert_find_blob(c, "config.json") &&
        (convert_find_blob(c, "tokenizer.json") || convert_find_blob(c, "tokenizer.model"))) {
        source *s;
        if (safetensors_open(weights, &c->m, &s, err) == TESS_OK)
            source_close(s); /* weights without a configuration: say so */
        else if (!err || err->status == TESS_E_IO) {
            c->kind = CT_KIND_TOKENIZER;
            return put_files(c, dir, b, err);
        } else return err->status;
    }
    TRY(safetensors_open(weights, &c->m, &c->s, err));
    TRY(read_config(c, dir, &config, err));
    if (config.part) TRY(hf_wrapper_strip(c->s, err));
    TRY(unpack(c, dir, err));
    if (config.embed_dim) {
        TRY(projected_open(&c->s, c->a.vocab_size, c->a.hidden_size, config.embed_dim, config.tied, err));
        config.tied = false;
        c->a.tied_head = 0;
    }
    TRY(family_plan(c->fam->names, c->fam->prefix, c->s, &c->a, config.tied, &c->m, &c->plan, err));
    put_model(c, b);
    return put_files(c, dir, b, err);
}

static tess_status load_gguf(convert_source *c, const char *path, kvs_builder *b, tess_error *err)
{
    gguf_config g;
    TRY(gguf_open(path, &c->m, &c->s, err));
    TRY(gguf_config_read(c->s, &g, err));
    c->a = g.a;
    c->fam = family_by_model_type(g.fam->model_type);
    TRY(family_plan(g.fam->names, "", c->s, &c->a, g.tied, &c->m, &c->plan, err));
    put_model(c, b);
    gguf_generation_put(c->s, b);
    return gguf_tokenizer_put(&c->m, c->s, b, err);
}

static tess_status refresh_kv(convert_source *c, const char *path, kvs_builder *b, tess_error *err)
{
    hf_config config;
    if (c->n_blobs == 0)
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: holds no original files to refresh from; convert its source again", path);
    if (c->kind == CT_KIND_MODEL) {
        uint32_t head = c->a.tied_head;
        TRY(read_config(c, path, &config, err));
        c->a.tied_head = head; /* what the weights say */
        put_model(c, b);
    }
    return put_files(c, path, b, err);
}

static tess_status load_tess(convert_source *c, const char *path, bool refresh, kvs_builder *b, tess_error *err)
{
    TRY(tess_source_open(path, &c->m, &c->s, err));
    const ct_file *f = tess_source_file(c->s);
    const ct_info *info = ct_get(f);
    c->kind = info->kind;
    if (c->kind != CT_KIND_MODEL && c->kind != CT_KIND_TOKENIZER)
        return ERR(err, TESS_E_UNSUPPORTED, "%s: is a container of kind %u, not a model or tokenizer", path,
                   c->kind);
    TRY(load_tess_blobs(c, f, err));
    if (c->kind == CT_KIND_MODEL) {
        TRY(arch_get(&c->a, info->kv, err));
        c->fam = family_by_model_type(c->a.family);
        TRY(tess_source_plan(c->s, &c->m, &c->plan, err));
    }
    return refresh ? refresh_kv(c, path, b, err) : copy_kvs(info->kv, b, &c->m, err);
}

enum { KIND_HF_DIR, KIND_HF_FILE, KIND_GGUF, KIND_TESS };

static tess_status kind_of(const char *path, int *kind, tess_error *err)
{
    os_file f;
    uint8_t head[8] = {0};
    size_t n = strlen(path);
    *kind = KIND_HF_DIR;
    if (os_is_dir(path)) return TESS_OK;
    TRY(os_open_read(&f, path, err));
    tess_status st = os_pread(&f, head, (size_t)MIN(f.size, sizeof head), 0, path, err);
    os_close(&f);
    if (st < 0) return st;
    *kind = KIND_HF_FILE;
    if (memcmp(head, "GGUF", 4) == 0) *kind = KIND_GGUF;
    else if (memcmp(head, "\x89TESS", 5) == 0) *kind = KIND_TESS;
    else if ((n < 12 || strcmp(path + n - 12, ".safetensors") != 0) &&
             (n < 11 || strcmp(path + n - 11, ".index.json") != 0))
        return ERR(err, TESS_E_FORMAT, "%s: is neither a directory nor a .safetensors, .gguf or .tess file",
                   path);
    return TESS_OK;
}

/* A directory, without slashes at its end, so that messages read well. */
static tess_status load_hf_dir(convert_source *c, const char *path, kvs_builder *b, tess_error *err)
{
    char dir[PATH_MAX];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= sizeof dir) return ERR(err, TESS_E_ARG, "%.200s...: path is too long", path);
    snprintf(dir, sizeof dir, "%.*s", (int)n, path);
    return load_hf(c, dir, dir, b, err);
}

/* A file of a checkpoint: its directory, and the file itself unless it is an index. */
static tess_status load_hf_file(convert_source *c, const char *path, kvs_builder *b, tess_error *err)
{
    char dir[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) >= sizeof dir)
        return ERR(err, TESS_E_ARG, "%.200s...: path is too long", path);
    if (slash == path) memcpy(dir, "/", 2);
    else if (slash) snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    size_t n = strlen(path);
    return load_hf(c, dir, n > 5 && strcmp(path + n - 5, ".json") == 0 ? dir : path, b, err);
}

tess_status convert_load(const convert_options *o, const mem *m, convert_source *c, tess_error *err)
{
    kvs_builder *b;
    int kind;
    *c = (convert_source){.m = *m, .kind = CT_KIND_MODEL, .plan = {.m = m}};
    TRY(kind_of(o->src, &kind, err));
    if (kind != KIND_TESS && (o->refresh || o->export_dir))
        return ERR(err, TESS_E_FORMAT, "%s: is not a .tess file, as %s wants", o->src,
                   o->refresh ? "--refresh" : "--export");
    TRY(kvs_builder_open(&c->m, &b, err));
    tess_status st = kind == KIND_GGUF   ? load_gguf(c, o->src, b, err)
                     : kind == KIND_TESS ? load_tess(c, o->src, o->refresh, b, err)
                     : kind == KIND_HF_DIR ? load_hf_dir(c, o->src, b, err) : load_hf_file(c, o->src, b, err);
    if (st == TESS_OK) st = convert_load_lora(o, c, err);
    if (st == TESS_OK) st = kvs_build(b, &c->kv, &c->kv_len, err);
    kvs_builder_close(b);
    return st;
}

void convert_unload(convert_source *c)
{
    if (!c->m.alloc) return;
    for (uint32_t i = 0; i < c->n_lora; i++) lora_close(c->lora[i]);
    if (c->plan.m) family_plan_close(&c->plan);
    for (uint32_t i = 0; i < c->n_blobs; i++) mem_free(&c->m, c->blob[i].data);
    mem_free(&c->m, c->kv);
    source_close(c->s);
    *c = (convert_source){0};
}
