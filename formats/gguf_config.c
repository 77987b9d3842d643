/*
 * gguf_config.c - see gguf_config.h.
 *
 * Keys are "<general.architecture>.<name>". Biases, the tied head and the vocabulary are not among them: they
 * are seen from the tensors. Rope scaling of the llama3 kind is stored by llama.cpp as one divisor per
 * frequency, tensor "rope_freqs.weight"; the parameters of published models are tried and the tensor is
 * accepted when one of them gives its numbers.
 */
#include "gguf_config.h"

#include <math.h>
#include <stdio.h>

typedef struct { const source *s; const char *arch; char key[160]; tess_status st; tess_error *err; } reader;

static const char *key_of(reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

/* A whole number; required ones that are missing, arrays (per layer) or negative fail. */
static uint32_t number(reader *r, const char *name, uint64_t def, bool required)
{
    const gguf_kv *v = gguf_find(r->s, key_of(r, name));
    uint64_t n = v ? gguf_u64(r->s, r->key, UINT64_MAX) : def;
    if (r->st == TESS_OK && ((!v && required) || n > UINT32_MAX))
        r->st = ERR(r->err, TESS_E_FORMAT, "%s: key \"%s\" is %s", r->s->paths[0], r->key,
                    v ? "not one whole number" : "missing");
    return n > UINT32_MAX ? 0 : (uint32_t)n;
}
static double real(reader *r, const char *name, double def) { return gguf_f64(r->s, key_of(r, name), def); }

static void read_scaling(reader *r, arch *a)
{
    arch_attn *t = &a->attn[0];
    size_t len;
    const char *type = gguf_str(r->s, key_of(r, "rope.scaling.type"), &len);
    t->rope_theta = real(r, "rope.freq_base", 10000);
    double scale = real(r, "rope.scaling.factor", 1);
    if (!type || (len == 4 && memcmp(type, "none", 4) == 0)) return;
    t->factor = scale;
    t->orig_ctx = number(r, "rope.scaling.original_context_length", a->max_ctx, false);
    if (len == 6 && memcmp(type, "linear", 6) == 0)
        t->rope_scale = scale != 1 ? ROPE_SCALE_LINEAR : ROPE_SCALE_NONE;
    else if (len == 4 && memcmp(type, "yarn", 4) == 0) {
        t->rope_scale = ROPE_SCALE_YARN;
        t->attn_factor = (scale > 1 ? 0.1 * log(scale) + 1 : 1) * real(r, "rope.scaling.attn_factor", 1);
        t->beta_fast = real(r, "rope.scaling.yarn_beta_fast", 32);
        t->beta_slow = real(r, "rope.scaling.yarn_beta_slow", 1);
    } else if (r->st == TESS_OK)
        r->st = ERR(r->err, TESS_E_UNSUPPORTED,
                    "%s: rope scaling \"%.*s\" is not supported; supported are none, linear, yarn",
                    r->s->paths[0], (int)MIN(len, (size_t)40), type);
}

/* Divisor of frequency i of n under llama3 scaling. */
static double llama3_divisor(const arch_attn *t, uint32_t i, uint32_t n)
{
    double wavelen = 2 * 3.14159265358979323846 * pow(t->rope_theta, (double)i / n);
    double low = t->orig_ctx / t->low_freq, high = t->orig_ctx / t->high_freq;
    if (wavelen < high) return 1;
    if (wavelen > low) return t->factor;
    double smooth = (t->orig_ctx / wavelen - t->low_freq) / (t->high_freq - t->low_freq);
    return 1 / ((1 - smooth) / t->factor + smooth);
}

/* Recognizes rope_freqs.weight; none: nothing. */
static tess_status read_rope_freqs(reader *r, arch *a)
{
    static const double factors[] = {8, 32, 16, 4, 2, 64};
    float got[256];
    uint32_t n = a->rope_dims / 2;
    int64_t i = source_find(r->s, "rope_freqs.weight");
    if (i < 0) return TESS_OK;
    const src_tensor *t = &r->s->tensors[i];
    if (t->rank != 1 || t->shape[0] != n || n > ARRAY_LEN(got))
        return ERR(r->err, TESS_E_UNSUPPORTED,
                   "%s: tensor \"rope_freqs.weight\" has not one number per rotary pair", r->s->paths[0]);
    TRY(r->s->read(r->s, (uint32_t)i, 0, 1, 0, n, false, got, r->err));
    for (size_t f = 0; f < ARRAY_LEN(factors); f++) {
        arch_attn x = a->attn[0];
        x.rope_scale = ROPE_SCALE_LLAMA3;
        x.factor = factors[f];
        x.low_freq = 1;
        x.high_freq = 4;
        x.orig_ctx = 8192;
        uint32_t same = 0;
        while (same < n && fabs((double)got[same] - llama3_divisor(&x, same, n)) <= 1e-4 * (double)got[same])
            same++;
        if (same < n) continue;
        a->attn[0] = x;
        return TESS_OK;
    }
    return ERR(r->err, TESS_E_UNSUPPORTED,
               "%s: tensor \"rope_freqs.weight\" holds frequencies of no scaling that is known here",
               r->s->paths[0]);
}

static uint32_t biases_seen(const source *s)
{
    static const struct { const char *name; uint32_t bit; } seen[] = {
        {"blk.0.attn_q.bias", BIAS_QKV},
        {"blk.0.attn_output.bias", BIAS_O},
        {"blk.0.ffn_up.bias", BIAS_FFN_IN},
        {"blk.0.ffn_down.bias", BIAS_FFN_OUT},
    };
    uint32_t bits = 0;
    for (size_t i = 0; i < ARRAY_LEN(seen); i++)
        if (source_find(s, seen[i].name) >= 0) bits |= seen[i].bit;
    return bits;
}

static void read_sizes(reader *r, const family *f, arch *a)
{
    int64_t embed = source_find(r->s, "token_embd.weight");
    snprintf(a->family, sizeof a->family, "%s", f->model_type);
    a->n_layers = number(r, "block_count", 0, true);
    a->hidden_size = number(r, "embedding_length", 0, true);
    a->n_heads = number(r, "attention.head_count", 0, true);
    a->n_kv_heads = number(r, "attention.head_count_kv", a->n_heads, false);
    a->max_ctx = number(r, "context_length", 0, true);
    a->ffn_size = number(r, "feed_forward_length", 0, true);
    a->head_dim = number(r, "attention.key_length", a->n_heads ? a->hidden_size / a->n_heads : 0, false);
    a->v_head_dim = number(r, "attention.value_length", a->head_dim, false);
    a->rope_dims = number(r, "rope.dimension_count", a->head_dim, false);
    a->norm_eps = real(r, "attention.layer_norm_rms_epsilon", f->eps);
    uint64_t rows = embed >= 0 ? r->s->tensors[embed].shape[0] : 0;
    a->vocab_size = rows <= UINT32_MAX ? (uint32_t)rows : 0;
    a->norm_kind = f->norm_kind;
    a->block_kind = f->block_kind;
    a->qk_norm = f->qk_norm;
    a->gated_ffn = f->gated_ffn;
    a->act = f->act;
    a->rope_kind = f->rope_kind;
    a->biases = biases_seen(r->s) | f->biases;
    a->attn_scale = a->head_dim ? 1 / sqrt((double)a->head_dim) : 0;
    a->attn[0].window = f->windows == WINDOW_NONE ? 0 : number(r, "attention.sliding_window", 0, false);
    if (r->st == TESS_OK && number(r, "expert_count", 0, false) != 0)
        r->st = ERR(r->err, TESS_E_UNSUPPORTED, "%s: key \"%s\": models with experts are not supported",
                    r->s->paths[0], r->key);
}

tess_status gguf_config_read(const source *s, gguf_config *out, tess_error *err)
{
    size_t len;
    char list[200];
    memset(out, 0, sizeof *out);
    const char *name = gguf_str(s, "general.architecture", &len);
    if (!name) return ERR(err, TESS_E_FORMAT, "%s: key \"general.architecture\" is missing", s->paths[0]);
    out->fam = family_by_gguf(name, len);
    family_gguf_list(list, sizeof list);
    if (!out->fam)
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: architecture \"%.*s\" is not supported; supported in GGUF files are %s", s->paths[0],
                   (int)MIN(len, (size_t)60), name, list);
    reader r = {.s = s, .arch = out->fam->arch, .err = err};
    arch_default(&out->a);
    read_sizes(&r, family_by_model_type(out->fam->model_type), &out->a);
    read_scaling(&r, &out->a);
    TRY(r.st);
    out->tied = source_find(s, "output.weight") < 0;
    out->a.tied_head = out->tied;
    tess_status st = arch_check(&out->a, err);
    if (st < 0) return err_prefix(err, st, "%s", s->paths[0]);
    return read_rope_freqs(&r, &out->a);
}

void gguf_generation_put(const source *s, kvs_builder *b)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const single[][2] = {{"tokenizer.ggml.bos_token_id", "gen.bos"},
                                            {"tokenizer.ggml.padding_token_id", "gen.pad"}};
    int32_t ids[ARRAY_LEN(ends)];
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        uint64_t id = gguf_u64(s, ends[i], UINT64_MAX);
        bool known = id > INT32_MAX;
        for (uint32_t j = 0; j < n && !known; j++) known = ids[j] == (int32_t)id;
        if (!known) ids[n++] = (int32_t)id;
    }
    if (n) kvs_put_array(b, "gen.eos", KV_I32S, ids, n);
    for (size_t i = 0; i < ARRAY_LEN(single); i++) {
        uint64_t id = gguf_u64(s, single[i][0], UINT64_MAX);
        if (id <= INT32_MAX) kvs_put_i64(b, single[i][1], (int64_t)id);
    }
}
