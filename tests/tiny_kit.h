/*
 * tiny_kit.h - for tests: small random checkpoints of the Llama layout, made from a seed instead of being kept as files.
 *
 * The values are those of torch.randn with a generator on the CPU, so that reference ids computed with torch and transformers
 * hold (tests/tools/faults-reference.py): MT19937 seeded with init_by_seed; a tensor of 16 elements or more takes one 24-bit
 * uniform number per element, then Box-Muller over blocks of 16 (u of the first eight gives the radius, the second eight the
 * angle); when the size is no multiple of 16, the last 16 elements are drawn once more. Tensors are drawn in the order of
 * named_parameters; those of norms become 1 + 0.1 x, all others std x. A few values differ from torch's by one unit in the
 * last place (its log and cos are others), far below the gaps between the logits of the cases.
 */
#ifndef TESS_TINY_KIT_H
#define TESS_TINY_KIT_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TINY_TENSORS = 40 };

typedef struct {
    uint32_t vocab, hidden, inter, layers, heads, kv_heads, head_dim; /* 0: 64, 64, 96, 2, 4, 2, hidden / heads */
    double std;                                                       /* 0: 0.25 */
    bool tied, qkv_bias, o_bias, mlp_bias;
    const char *config;     /* members of config.json beside those that follow from the above; NULL: TINY_CONFIG */
    const char *generation; /* generation_config.json; NULL: none */
} tiny;
#define TINY_REST \
    "\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":1,\"hidden_act\":\"silu\",\"rms_norm_" \
    "eps\":1e-5"
#define TINY_CONTEXT ",\"max_position_embeddings\":256"
#define TINY_EOS ",\"eos_token_id\":2"
#define TINY_ROPE(members) ",\"rope_parameters\":{" members "}"
#define TINY_PLAIN_ROPE TINY_ROPE("\"rope_type\":\"default\",\"rope_theta\":10000.0")
#define TINY_CONFIG TINY_REST TINY_CONTEXT TINY_EOS TINY_PLAIN_ROPE

typedef struct {
    uint32_t state[624], at;
} tiny_rng;
typedef struct {
    char name[64];
    uint32_t rows, cols;
    float *v;
} tiny_tensor; /* rows 0: a vector */
typedef struct {
    tiny p;
    uint32_t n;
    tiny_tensor t[TINY_TENSORS];
} tiny_model;

static inline void tiny_seed(tiny_rng *g, uint32_t seed)
{
    g->state[0] = seed;
    for (uint32_t i = 1; i < 624; i++) g->state[i] = 1812433253u * (g->state[i - 1] ^ g->state[i - 1] >> 30) + i;
    g->at = 624;
}

static inline uint32_t tiny_next(tiny_rng *g)
{
    if (g->at == 624) {
        for (uint32_t i = 0; i < 624; i++) {
            uint32_t y = (g->state[i] & 0x80000000u) | (g->state[(i + 1) % 624] & 0x7fffffffu);
            g->state[i] = g->state[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        g->at = 0;
    }
    uint32_t y = g->state[g->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

static inline float tiny_uniform(tiny_rng *g) { return (float)(tiny_next(g) & 0xffffffu) * 0x1p-24f; }

static inline void tiny_box_muller(float *v)
{
    for (int i = 0; i < 8; i++) {
        float radius = sqrtf(-2.0f * logf(1.0f - v[i])), angle = 6.28318530717958648f * v[i + 8];
        v[i] = radius * cosf(angle);
        v[i + 8] = radius * sinf(angle);
    }
}

/* n normal numbers, n >= 16. */
static inline void tiny_randn(tiny_rng *g, float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] = tiny_uniform(g);
    for (size_t i = 0; i + 16 <= n; i += 16) tiny_box_muller(v + i);
    if (n % 16 == 0) return;
    for (size_t i = n - 16; i < n; i++) v[i] = tiny_uniform(g);
    tiny_box_muller(v + n - 16);
}

/* A tensor of zeros; NULL when there is no room. */
static inline tiny_tensor *tiny_put(tiny_model *m, const char *name, uint32_t rows, uint32_t cols)
{
    if (m->n == TINY_TENSORS) return NULL;
    tiny_tensor *t = &m->t[m->n++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->rows = rows;
    t->cols = cols;
    t->v = calloc((size_t)(rows ? rows : 1) * cols, sizeof *t->v);
    if (!t->v) abort();
    return t;
}

static inline tiny_tensor *tiny_find(tiny_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0) return &m->t[i];
    return NULL;
}

static inline void tiny_drop(tiny_model *m, const char *name)
{
    tiny_tensor *t = tiny_find(m, name);
    if (!t) return;
    free(t->v);
    *t = m->t[--m->n];
}

static inline void tiny_draw(tiny_model *m, tiny_rng *g, const char *name, uint32_t rows, uint32_t cols)
{
    tiny_tensor *t = tiny_put(m, name, rows, cols);
    size_t n = (size_t)(rows ? rows : 1) * cols;
    if (!t) abort();
    tiny_randn(g, t->v, n);
    for (size_t i = 0; i < n; i++) t->v[i] = strstr(name, "norm") ? 1 + 0.1f * t->v[i] : (float)m->p.std * t->v[i];
}

static inline void tiny_linear(tiny_model *m, tiny_rng *g, uint32_t layer, const char *name, uint32_t rows, uint32_t cols,
                               bool bias)
{
    char text[64];
    snprintf(text, sizeof text, "model.layers.%u.%s.weight", layer, name);
    tiny_draw(m, g, text, rows, cols);
    snprintf(text, sizeof text, "model.layers.%u.%s.bias", layer, name);
    if (bias) tiny_draw(m, g, text, 0, rows);
}

static inline void tiny_open(tiny_model *m, const tiny *p, uint32_t seed)
{
    tiny_rng g;
    *m = (tiny_model){.p = *p};
    tiny *q = &m->p;
    if (!q->vocab) q->vocab = 64;
    if (!q->hidden) q->hidden = 64;
    if (!q->inter) q->inter = 96;
    if (!q->layers) q->layers = 2;
    if (!q->heads) q->heads = 4;
    if (!q->kv_heads) q->kv_heads = 2;
    if (!q->head_dim) q->head_dim = q->hidden / q->heads;
    if (!(q->std > 0)) q->std = 0.25;
    tiny_seed(&g, seed);
    tiny_draw(m, &g, "model.embed_tokens.weight", q->vocab, q->hidden);
    for (uint32_t i = 0; i < q->layers; i++) {
        char text[64];
        tiny_linear(m, &g, i, "self_attn.q_proj", q->heads * q->head_dim, q->hidden, q->qkv_bias);
        tiny_linear(m, &g, i, "self_attn.k_proj", q->kv_heads * q->head_dim, q->hidden, q->qkv_bias);
        tiny_linear(m, &g, i, "self_attn.v_proj", q->kv_heads * q->head_dim, q->hidden, q->qkv_bias);
        tiny_linear(m, &g, i, "self_attn.o_proj", q->hidden, q->heads * q->head_dim, q->o_bias);
        tiny_linear(m, &g, i, "mlp.gate_proj", q->inter, q->hidden, q->mlp_bias);
        tiny_linear(m, &g, i, "mlp.up_proj", q->inter, q->hidden, q->mlp_bias);
        tiny_linear(m, &g, i, "mlp.down_proj", q->hidden, q->inter, q->mlp_bias);
        snprintf(text, sizeof text, "model.layers.%u.input_layernorm.weight", i);
        tiny_draw(m, &g, text, 0, q->hidden);
        snprintf(text, sizeof text, "model.layers.%u.post_attention_layernorm.weight", i);
        tiny_draw(m, &g, text, 0, q->hidden);
    }
    tiny_draw(m, &g, "model.norm.weight", 0, q->hidden);
    if (!q->tied) tiny_draw(m, &g, "lm_head.weight", q->vocab, q->hidden);
}

static inline void tiny_close(tiny_model *m)
{
    while (m->n) free(m->t[--m->n].v);
}

static inline bool tiny_write(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    bool ok = f && fputs(text, f) >= 0;
    if (f && fclose(f) != 0) ok = false;
    return ok;
}

static inline bool tiny_save_weights(const tiny_model *m, const char *dir)
{
    static char head[TINY_TENSORS * 160];
    char path[600];
    uint64_t n = 0, at = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        const tiny_tensor *t = &m->t[i];
        uint64_t size = (uint64_t)(t->rows ? t->rows : 1) * t->cols * 4;
        n += (uint64_t)snprintf(head + n, sizeof head - n, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", i ? "," : "{", t->name);
        if (t->rows) n += (uint64_t)snprintf(head + n, sizeof head - n, "%u,", t->rows);
        n += (uint64_t)snprintf(head + n, sizeof head - n, "%u],\"data_offsets\":[%llu,%llu]}", t->cols, (unsigned long long)at,
                                (unsigned long long)(at + size));
        at += size;
    }
    head[n++] = '}';
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(&n, 8, 1, f) == 1 && fwrite(head, 1, n, f) == n;
    for (uint32_t i = 0; ok && i < m->n; i++) {
        size_t count = (size_t)(m->t[i].rows ? m->t[i].rows : 1) * m->t[i].cols;
        ok = fwrite(m->t[i].v, sizeof(float), count, f) == count;
    }
    if (f && fclose(f) != 0) ok = false;
    return ok;
}

/* The checkpoint as a directory; tokenizer: the text of tokenizer.json, NULL: none. */
static inline bool tiny_save(const tiny_model *m, const char *dir, const char *tokenizer)
{
    static char config[2048];
    const tiny *p = &m->p;
    (void)mkdir(dir, 0777);
    snprintf(config, sizeof config,
             "{\"vocab_size\":%u,\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":%u,\"num_attention_heads\":%u,"
             "\"num_key_value_heads\":%u,\"head_dim\":%u,\"tie_word_embeddings\":%s,\"attention_bias\":%s,\"mlp_bias\":%s,%s}",
             p->vocab, p->hidden, p->inter, p->layers, p->heads, p->kv_heads, p->head_dim, p->tied ? "true" : "false",
             p->qkv_bias && p->o_bias ? "true" : "false", p->mlp_bias ? "true" : "false", p->config ? p->config : TINY_CONFIG);
    return tiny_write(dir, "config.json", config) && (!p->generation || tiny_write(dir, "generation_config.json", p->generation)) &&
           (!tokenizer || tiny_write(dir, "tokenizer.json", tokenizer)) && tiny_save_weights(m, dir);
}
#endif
