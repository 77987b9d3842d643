/*
 * t_hf_config.c - config.json of every family and spelling (faults B01 to B04), generation_config.json, chat
 * templates, and the map from tensors to weights: missing, misshapen, left over, tied, fused and transposed
 * ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hf_config.h"

#define BASE \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_" \
    "value_heads\":2," \
    "\"vocab_size\":64,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5"
#define LLAMA(more) "{\"model_type\":\"llama\"," BASE more "}"

static hf_config good(const char *json)
{
    hf_config c;
    tess_error err;
    if (hf_config_read(json, strlen(json), "config.json", &c, &err) < 0) fail_msg("%s: %s", err.text, json);
    return c;
}
static void bad(const char *json, const char *needle)
{
    hf_config c;
    tess_error err;
    if (hf_config_read(json, strlen(json), "config.json", &c, &err) == TESS_OK) fail_msg("accepted: %s", json);
    if (!strstr(err.text, needle) || !strstr(err.text, "config.json"))
        fail_msg("wanted \"%s\" in: %s", needle, err.text);
}
static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

/* ---- numbers ---- */

static void reads_llama(void **state)
{
    UNUSED(state);
    hf_config c = good(LLAMA(""));
    const arch *a = &c.a;
    assert_string_equal(a->family, "llama");
    assert_true(a->hidden_size == 64 && a->ffn_size == 96 && a->n_layers == 2 && a->n_heads == 4 &&
                a->n_kv_heads == 2 && a->head_dim == 16);
    assert_true(a->rope_dims == 16 && a->max_ctx == 512 && near(a->norm_eps, 1e-5) &&
                near(a->attn_scale, 0.25) && a->biases == 0 && !c.tied);
    assert_true(a->n_attn_kinds == 1 && a->attn[0].rope_on && a->attn[0].rope_theta == 10000 &&
                a->attn[0].window == 0);
    /* B03: head_dim is not hidden / heads; biases */
    c = good(LLAMA(",\"head_dim\":24,\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true"));
    assert_true(c.a.head_dim == 24 && c.a.biases == (BIAS_QKV | BIAS_O | BIAS_FFN_IN | BIAS_FFN_OUT) && c.tied);
    c = good("{\"model_type\":\"qwen2\"," BASE "}");
    assert_true(c.a.biases == BIAS_QKV);
    c = good("{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
             "\"num_attention_heads\":4,\"head_dim\":null,"
             "\"num_key_value_heads\":null,\"vocab_size\":64,\"max_position_embeddings\":512,\"hidden_act\":"
             "\"gelu\"}");
    assert_true(c.a.n_kv_heads == 4 && c.a.act == ACT_GELU && near(c.a.norm_eps, 1e-6));
}

static void refuses_bad_numbers(void **state)
{
    UNUSED(state);
    bad("[]", "want an object");
    bad("{", "line 1");
    bad("{\"model_type\":\"llama\",\"model_type\":\"llama\"}", "duplicate");
    bad("{" BASE "}", "model_type");
    bad("{\"model_type\":\"mamba2\"," BASE "}",
        "\"mamba2\" is not supported; supported are llama, mistral, qwen2, qwen3, mixtral");
    bad("{\"model_type\":7," BASE "}", "model_type");
    bad("{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]," BASE "}",
        "LlamaForSequenceClassification");
    bad("{\"model_type\":\"llama\"}", "num_hidden_layers");
    bad(LLAMA(",\"head_dim\":16.0"), "head_dim");
    bad(LLAMA(",\"head_dim\":-16"), "head_dim");
    bad(LLAMA(",\"head_dim\":\"16\""), "head_dim");
    bad(LLAMA(",\"hidden_act\":\"mish\""), "mish");
    bad(LLAMA(",\"attention_bias\":1"), "attention_bias");
    bad("{\"model_type\":\"mamba\"," BASE "}", "mamba");
    bad(LLAMA(",\"num_local_experts\":8"), "num_local_experts");
    hf_config c;
    tess_error err;
    static const char *const ranges[] = {
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":0,\"num_"
        "attention_heads\":4,\"vocab_size\":64,\"max_position_embeddings\":512}",
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":"
        "4000000000,\"num_attention_heads\":4,\"vocab_size\":64,\"max_position_embeddings\":512}",
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_"
        "attention_heads\":0,\"vocab_size\":64,\"max_position_embeddings\":512}",
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":0,\"num_hidden_layers\":1,\"num_"
        "attention_heads\":4,\"vocab_size\":64,\"max_position_embeddings\":512}",
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_"
        "attention_heads\":4,\"num_key_value_heads\":3,\"vocab_size\":64,\"max_position_embeddings\":512}",
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_"
        "attention_heads\":4,\"num_key_value_heads\":0,\"vocab_size\":64,\"max_position_embeddings\":512}",
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_"
        "attention_heads\":4,\"head_dim\":0,\"vocab_size\":64,\"max_position_embeddings\":512}",
    };
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
        if (hf_config_read(ranges[i], strlen(ranges[i]), "config.json", &c, &err) == TESS_OK)
            fail_msg("accepted: %s", ranges[i]);
}

/* ---- rope (B02, B04) ---- */

static void reads_both_rope_spellings(void **state)
{
    UNUSED(state);
    static const char *const same[] = {
        LLAMA(",\"rope_theta\":500000,\"rope_scaling\":null"),
        LLAMA(",\"rope_theta\":500000.0"),
        LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0}"),
        LLAMA(",\"rope_parameters\":{\"rope_theta\":500000.0},\"rope_theta\":500000"),
        LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_theta\":500000"),
    };
    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        hf_config c = good(same[i]);
        assert_true(c.a.attn[0].rope_theta == 500000 && c.a.attn[0].rope_scale == ROPE_SCALE_NONE);
    }
    bad(LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0},\"rope_theta\":10000"),
        "contradict");
    bad(LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_scaling\":{\"type\":\"linear\","
              "\"factor\":2}"),
        "contradict");
    hf_config neox = good("{\"model_type\":\"gpt_neox\",\"rotary_emb_base\":500000,\"rotary_pct\":0.5," BASE "}");
    assert_true(neox.a.attn[0].rope_theta == 500000 && neox.a.rope_dims == 8);
    neox = good("{\"model_type\":\"gpt_neox\",\"rope_parameters\":{\"rope_theta\":500000,\"partial_rotary_factor\":0.5},"
                "\"rope_theta\":100,\"partial_rotary_factor\":1.0," BASE "}");
    assert_true(neox.a.attn[0].rope_theta == 500000 && neox.a.rope_dims == 8);
    bad(LLAMA(",\"rope_scaling\":{\"type\":\"ntk\"}"), "\"ntk\" is not supported");
    bad(LLAMA(",\"rope_scaling\":{\"type\":\"su\"}"), "short_factor");
    bad(LLAMA(",\"rope_parameters\":{\"rope_type\":\"mrope\"}"), "\"mrope\" is not supported");
    bad(LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"dynamic\",\"factor\":2}"),
        "remove the wrong one");
    bad(LLAMA(",\"rope_scaling\":{\"type\":\"linear\"}"), "factor");
    bad(LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"mrope_section\":[1]}"), "mrope_section");
    bad(LLAMA(",\"rope_scaling\":\"linear\""), "must be objects");
    bad(LLAMA(",\"rope_parameters\":{\"chunked_attention\":{\"rope_type\":\"default\"},\"full_attention\":{"
              "\"rope_type\":\"default\"}}"),
        "chunked_attention");
}

static void reads_rope_scaling(void **state)
{
    UNUSED(state);
    static const char *const llama3[] = {
        LLAMA(",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":10000.0,\"factor\":8.0,\"low_freq_"
              "factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}"),
        LLAMA(",\"rope_theta\":10000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_"
              "factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}"),
        LLAMA(",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":"
              "4,\"original_max_position_embeddings\":64}"),
    };
    for (size_t i = 0; i < ARRAY_LEN(llama3); i++) {
        hf_config c = good(llama3[i]);
        const arch_attn *t = &c.a.attn[0];
        assert_true(t->rope_scale == ROPE_SCALE_LLAMA3 && t->factor == 8 && t->low_freq == 1 &&
                    t->high_freq == 4 && t->orig_ctx == 64);
    }
    hf_config c = good(
        LLAMA(",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8.0,\"original_max_position_embeddings\":64}"));
    assert_true(c.a.attn[0].rope_scale == ROPE_SCALE_YARN &&
                near(c.a.attn[0].attn_factor, 1.2079441541679836) && c.a.attn[0].beta_fast == 32);
    c = good(LLAMA(",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":0.707,\"mscale_all_dim\":0."
                   "707,\"original_max_position_embeddings\":64}"));
    assert_true(near(c.a.attn[0].attn_factor, 1));
    c = good(LLAMA(",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"attention_factor\":1.5,\"beta_fast\":"
                   "16,\"beta_slow\":2}"));
    assert_true(c.a.attn[0].attn_factor == 1.5 && c.a.attn[0].beta_fast == 16 && c.a.attn[0].beta_slow == 2 &&
                c.a.attn[0].orig_ctx == 512);
    assert_true(c.a.max_ctx == 2048); /* what the scaling is made for */
    c = good(LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}"));
    assert_true(c.a.attn[0].rope_scale == ROPE_SCALE_LINEAR && c.a.attn[0].factor == 2.5 && c.a.max_ctx == 1280);
    c = good(LLAMA(",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}"));
    assert_true(c.a.attn[0].rope_scale == ROPE_SCALE_DYNAMIC && c.a.attn[0].orig_ctx == 512 && c.a.max_ctx == 4096);
    bad("{\"model_type\":\"nemotron\",\"partial_rotary_factor\":0.125,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}," BASE "}", "dynamic");
    c = good("{\"model_type\":\"olmo3\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":4},"
             "\"sliding_attention\":{\"rope_theta\":100},\"rope_type\":\"yarn\",\"factor\":2,\"rope_theta\":7},\"sliding_window\":16,"
             "\"layer_types\":[\"full_attention\",\"sliding_attention\"]," BASE "}");
    assert_true(c.a.attn[0].rope_scale == ROPE_SCALE_LINEAR && c.a.attn[0].factor == 4 && c.a.attn[1].rope_theta == 100);
    c = good("{\"model_type\":\"phi3\",\"partial_rotary_factor\":0.5," BASE "}");
    assert_true(c.a.rope_dims == 8);
}

/* ---- windows ---- */

static void reads_windows(void **state)
{
    UNUSED(state);
    hf_config c = good("{\"model_type\":\"mistral\",\"sliding_window\":16," BASE "}");
    assert_true(c.a.n_attn_kinds == 1 && c.a.attn[0].window == 16);
    c = good("{\"model_type\":\"mistral\",\"sliding_window\":null," BASE "}");
    assert_true(c.a.attn[0].window == 0);
    c = good("{\"model_type\":\"qwen2\",\"sliding_window\":16,\"use_sliding_window\":false,\"max_window_"
             "layers\":0," BASE "}");
    assert_true(c.a.n_attn_kinds == 1 && c.a.attn[0].window == 0);
    c = good("{\"model_type\":\"qwen2\",\"sliding_window\":16,\"use_sliding_window\":true,\"max_window_"
             "layers\":1," BASE "}");
    assert_true(c.a.n_attn_kinds == 2 && c.a.attn[c.a.layer_attn[0]].window == 0 &&
                c.a.attn[c.a.layer_attn[1]].window == 16);
    c = good("{\"model_type\":\"qwen2\",\"sliding_window\":16,\"use_sliding_window\":true,\"layer_types\":["
             "\"sliding_attention\",\"full_attention\"]," BASE "}");
    assert_true(c.a.attn[c.a.layer_attn[0]].window == 16 && c.a.attn[c.a.layer_attn[1]].window == 0);
    bad("{\"model_type\":\"qwen2\",\"sliding_window\":16,\"use_sliding_window\":true,\"layer_types\":["
        "\"sliding_attention\"]," BASE "}",
        "layer_types");
    bad("{\"model_type\":\"qwen2\",\"sliding_window\":16,\"use_sliding_window\":true,\"layer_types\":["
        "\"sliding_attention\",\"linear_attention\"]," BASE "}",
        "linear_attention");
    c = good("{\"model_type\":\"smollm3\",\"no_rope_layers\":[1,0]," BASE "}");
    assert_true(c.a.attn[c.a.layer_attn[0]].rope_on && !c.a.attn[c.a.layer_attn[1]].rope_on &&
                c.a.attn[0].rope_theta == 2000000 && c.tied);
    bad(LLAMA(",\"no_rope_layers\":[1,0]"), "no_rope_layers");
    c = good("{\"model_type\":\"gemma2\",\"sliding_window\":16,\"query_pre_attn_scalar\":24,\"attn_logit_"
             "softcapping\":50.0,\"hidden_activation\":\"gelu_pytorch_tanh\"," BASE "}");
    assert_true(c.a.attn[c.a.layer_attn[0]].window == 16 && c.a.attn[c.a.layer_attn[1]].window == 0 &&
                near(c.a.attn_scale, 1 / sqrt(24)) && c.a.attn_softcap == 50 && near(c.a.embed_scale, 8) &&
                c.tied && c.a.norm_kind == NORM_RMS_PLUS1);
    c = good("{\"model_type\":\"gemma3_text\",\"sliding_window\":16,\"sliding_window_pattern\":2,\"rope_"
             "scaling\":{\"rope_type\":\"linear\",\"factor\":8}," BASE "}");
    const arch_attn *s = &c.a.attn[c.a.layer_attn[0]], *f = &c.a.attn[c.a.layer_attn[1]];
    assert_true(s->window == 16 && s->rope_theta == 10000 && s->factor == 1 && f->window == 0 &&
                f->rope_theta == 1000000 && f->factor == 8);
}

/* ---- generation and template ---- */

static void put_generation(const char *gen, const char *config, kvs *k, void **bytes)
{
    kvs_builder *b;
    tess_error err;
    size_t len;
    assert_int_equal(kvs_builder_open(&mem_libc, &b, &err), TESS_OK);
    if (hf_generation_put(gen, gen ? strlen(gen) : 0, "generation_config.json", config, strlen(config),
                          "config.json", b, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(kvs_build(b, bytes, &len, &err), TESS_OK);
    assert_int_equal(kvs_open(k, &mem_libc, *bytes, len, &err), TESS_OK);
    kvs_builder_close(b);
}

static void reads_generation(void **state)
{
    kvs k;
    void *bytes;
    uint64_t n;
    UNUSED(state);
    put_generation("{\"eos_token_id\":[25,17],\"temperature\":0.6,\"top_p\":1,\"top_k\":20,\"min_p\":0.05,"
                   "\"repetition_penalty\":1.1,\"do_sample\":true,\"bos_token_id\":1}",
                   "{\"eos_token_id\":2,\"pad_token_id\":3}", &k, &bytes);
    const int32_t *eos = kvs_array(&k, "gen.eos", KV_I32S, &n);
    assert_true(n == 2 && eos[0] == 25 && eos[1] == 17);
    assert_true(kvs_i64(&k, "gen.bos", -1) == 1 && kvs_i64(&k, "gen.pad", -1) == 3 &&
                kvs_f64(&k, "gen.temperature", 0) == 0.6 && kvs_f64(&k, "gen.top_p", 0) == 1 &&
                kvs_i64(&k, "gen.top_k", -1) == 20 && kvs_f64(&k, "gen.min_p", 0) == 0.05 &&
                kvs_f64(&k, "gen.repetition_penalty", 0) == 1.1 && kvs_bool(&k, "gen.do_sample", false));
    kvs_close(&k);
    mem_free(&mem_libc, bytes);
    put_generation(NULL, "{\"eos_token_id\":[17,2],\"bos_token_id\":null}", &k, &bytes);
    eos = kvs_array(&k, "gen.eos", KV_I32S, &n);
    assert_true(n == 2 && eos[0] == 17 && !kvs_find(&k, "gen.bos") && !kvs_find(&k, "gen.top_k"));
    kvs_close(&k);
    mem_free(&mem_libc, bytes);
    static const char *const wrong[] = {"{\"eos_token_id\":\"</s>\"}", "{\"eos_token_id\":[1,null]}",
                                        "{\"eos_token_id\":-1}",       "{\"top_k\":0.5}",
                                        "{\"temperature\":\"hot\"}",   "[]",
                                        "{\"top_p\":5}",             "{\"repetition_penalty\":0}",
                                        "{\"temperature\":-1}"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        kvs_builder *b;
        tess_error err;
        assert_int_equal(kvs_builder_open(&mem_libc, &b, &err), TESS_OK);
        assert_true(hf_generation_put(wrong[i], strlen(wrong[i]), "generation_config.json", "{}", 2,
                                      "config.json", b, &err) < 0);
        assert_non_null(strstr(err.text, "generation_config.json"));
        kvs_builder_close(b);
    }
}

static void finds_template(void **state)
{
    static const struct { const char *jinja, *config, *want; } cases[] = {
        {"{{ a }}", "{\"chat_template\":\"b\"}", "{{ a }}"},
        {NULL, "{\"chat_template\":\"b\\n\"}", "b\n"},
        {NULL,
         "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"r\"},{\"name\":\"default\",\"template\":\"d\"}]"
         "}",
         "d"},
        {NULL, "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"r\"}]}", NULL},
        {NULL, "{\"chat_template\":null}", NULL},
        {NULL,
         "{\"model_max_length\":1000000000000000019884624838656,\"chat_template\":\"9999999999999999999999\"}",
         "9999999999999999999999"},
        {NULL, "{}", NULL},
        {NULL, NULL, NULL},
    };
    UNUSED(state);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        kvs_builder *b;
        tess_error err;
        void *bytes;
        size_t len;
        kvs k;
        const char *j = cases[i].jinja, *c = cases[i].config;
        assert_int_equal(kvs_builder_open(&mem_libc, &b, &err), TESS_OK);
        assert_int_equal(
            hf_chat_template_put(j, j ? strlen(j) : 0, c, c ? strlen(c) : 0, "tokenizer_config.json", b, &err),
            TESS_OK);
        assert_int_equal(kvs_build(b, &bytes, &len, &err), TESS_OK);
        assert_int_equal(kvs_open(&k, &mem_libc, bytes, len, &err), TESS_OK);
        const char *got = kvs_str(&k, "chat.template", &len);
        if (!cases[i].want) assert_null(got);
        else assert_true(got && len == strlen(cases[i].want) && memcmp(got, cases[i].want, len) == 0);
        kvs_close(&k);
        kvs_builder_close(b);
        mem_free(&mem_libc, bytes);
    }
}

/* ---- plans (B01, B03) over a source in memory ---- */

/* A source without files whose value at (row, column) of tensor i is i * 10000 + row * 100 + column. */
static tess_status fake_read(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0,
                             uint64_t n_k, bool raw, void *dst, tess_error *err)
{
    uint64_t rows, cols;
    float *out = dst;
    UNUSED(err);
    source_dims(&s->tensors[i], &rows, &cols);
    assert_true(range_in(row0, n_rows, rows) && range_in(k0, n_k, cols));
    assert_true(!raw || s->tensors[i].dtype == DT_F32);
    for (uint64_t r = 0; r < n_rows; r++)
        for (uint64_t k = 0; k < n_k; k++) out[r * n_k + k] = (float)(i * 10000 + (row0 + r) * 100 + k0 + k);
    return TESS_OK;
}

static source *fake(void)
{
    static char name[] = "fake.safetensors";
    static char *paths[] = {name};
    source *s;
    assert_int_equal(source_new(&mem_libc, "fake", &s, NULL), TESS_OK);
    s->read = fake_read;
    s->paths = paths;
    return s;
}
static void fake_close(source *s)
{
    s->paths = NULL;
    source_close(s);
}
static void add(source *s, const char *name, uint64_t rows, uint64_t cols)
{
    src_tensor t = {.dtype = DT_F32,
                    .rank = cols ? 2 : 1,
                    .shape = {rows, cols},
                    .type = "F32",
                    .nbytes = rows * MAX(cols, 1) * 4};
    assert_int_equal(source_add_tensor(s, &t, name, strlen(name), NULL), TESS_OK);
}
static void add_llama(source *s, const char *skip)
{
    static const struct { const char *name; uint64_t rows, cols; } t[] = {
        {"model.embed_tokens.weight", 64, 64},
        {"lm_head.weight", 64, 64},
        {"model.norm.weight", 64, 0},
        {"model.layers.0.input_layernorm.weight", 64, 0},
        {"model.layers.0.post_attention_layernorm.weight", 64, 0},
        {"model.layers.0.self_attn.q_proj.weight", 64, 64},
        {"model.layers.0.self_attn.k_proj.weight", 32, 64},
        {"model.layers.0.self_attn.v_proj.weight", 32, 64},
        {"model.layers.0.self_attn.o_proj.weight", 64, 64},
        {"model.layers.0.mlp.gate_proj.weight", 96, 64},
        {"model.layers.0.mlp.up_proj.weight", 96, 64},
        {"model.layers.0.mlp.down_proj.weight", 64, 96},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        if (!skip || strcmp(skip, t[i].name) != 0) add(s, t[i].name, t[i].rows, t[i].cols);
}
#define ONE_LAYER \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_" \
    "value_heads\":2," \
    "\"vocab_size\":64,\"max_position_embeddings\":512"

static tess_status plan(source *s, const char *json, weight_plan *p, arch *a, tess_error *err)
{
    hf_config c = good(json);
    *a = c.a;
    assert_int_equal(source_sort(s, err), TESS_OK);
    return family_plan(c.fam->names, c.fam->prefix, s, a, c.tied, &mem_libc, p, err);
}
static void plan_bad(source *s, const char *json, const char *needle)
{
    weight_plan p;
    arch a;
    tess_error err;
    if (plan(s, json, &p, &a, &err) == TESS_OK) fail_msg("accepted, wanted \"%s\"", needle);
    if (!strstr(err.text, needle) || !strstr(err.text, "fake.safetensors"))
        fail_msg("wanted \"%s\" in: %s", needle, err.text);
    fake_close(s);
}
static void plan_good(source *s, const char *json, weight_plan *p, arch *a)
{
    tess_error err;
    if (plan(s, json, p, a, &err) < 0) fail_msg("%s", err.text);
}
static const weight *find(const weight_plan *p, const char *name)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->w[i].name, name) == 0) return &p->w[i];
    fail_msg("no weight %s", name);
    return NULL;
}

#define ONE "{\"model_type\":\"llama\"," ONE_LAYER "}"
#define ONE_TIED "{\"model_type\":\"llama\",\"tie_word_embeddings\":true," ONE_LAYER "}"

static void ties_heads(void **state)
{
    weight_plan p;
    arch a;
    source *s = fake();
    UNUSED(state);
    add_llama(s, "lm_head.weight"); /* B01: tied, one matrix */
    plan_good(s, ONE_TIED, &p, &a);
    assert_true(a.tied_head && find(&p, "lm_head.weight")->alias == 0 && p.w[0].role == ROLE_EMBED);
    /* values of the last tensor are above 65520: no f16, but bf16 */
    const weight *norm = find(&p, "model.norm.weight");
    uint16_t half[64];
    tess_error err;
    assert_int_equal(family_read(s, norm, DT_F16, 0, 1, 0, 64, half, &err), TESS_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "too large for f16"));
    assert_int_equal(family_read(s, norm, DT_BF16, 0, 1, 0, 64, half, &err), TESS_OK);
    assert_int_equal(half[63], f32_to_bf16((float)(norm->map.src * 10000 + 63)));
    family_plan_close(&p);
    fake_close(s);
    s = fake();
    add_llama(s, "lm_head.weight"); /* (b) not tied, no head */
    plan_bad(s, ONE, "\"lm_head.weight\" is missing");
    s = fake();
    add_llama(s, "model.embed_tokens.weight"); /* (d) tied, only the head */
    plan_good(s, ONE_TIED, &p, &a);
    assert_true(a.tied_head && strcmp(s->tensors[p.w[0].map.src].name, "lm_head.weight") == 0 &&
                find(&p, "lm_head.weight")->alias == 0);
    family_plan_close(&p);
    fake_close(s);
    s = fake();
    add_llama(s, "model.embed_tokens.weight"); /* not tied, only the head */
    plan_bad(s, ONE, "\"model.embed_tokens.weight\" is missing");
    s = fake();
    add_llama(s, "model.layers.0.self_attn.v_proj.weight"); /* (e) */
    plan_bad(s, ONE, "\"model.layers.0.self_attn.v_proj.weight\" is missing");
}

static void refuses_strange_tensors(void **state)
{
    weight_plan p;
    arch a;
    source *s = fake();
    UNUSED(state);
    add_llama(s, NULL);
    add(s, "model.layers.0.self_attn.q_proj.bias", 64,
        0); /* B03: a bias that the configuration does not know */
    plan_bad(s, ONE, "\"model.layers.0.self_attn.q_proj.bias\"");
    s = fake();
    add_llama(s, NULL);
    add(s, "model.layers.0.self_attn.rotary_emb.inv_freq", 8, 0);
    plan_good(s, ONE, &p, &a);
    assert_int_equal(p.n, 12);
    family_plan_close(&p);
    fake_close(s);
    s = fake();
    add_llama(s, "model.layers.0.self_attn.k_proj.weight");
    add(s, "model.layers.0.self_attn.k_proj.weight", 64, 64);
    plan_bad(s, ONE, "has shape 64 x 64, the configuration demands 32 x 64");
    s = fake();
    add_llama(s, "model.norm.weight");
    add(s, "model.norm.weight", 64, 1);
    plan_bad(s, ONE, "has shape 64 x 1");
    s = fake();
    add_llama(s, NULL);
    s->tensors[3].dtype = SRC_OTHER;
    s->tensors[3].type = "F8_E4M3";
    plan_bad(s, ONE, "F8_E4M3");
}

/* Values through every kind of row map. */
static void maps_fused_rows(void **state)
{
    weight_plan p;
    arch a;
    float v[128];
    UNUSED(state);
    source *s = fake();
    static const char phi3[] = "{\"model_type\":\"phi3\"," ONE_LAYER "}";
    add(s, "model.embed_tokens.weight", 64, 64), add(s, "lm_head.weight", 64, 64),
        add(s, "model.norm.weight", 64, 0);
    add(s, "model.layers.0.input_layernorm.weight", 64, 0),
        add(s, "model.layers.0.post_attention_layernorm.weight", 64, 0);
    add(s, "model.layers.0.self_attn.qkv_proj.weight", 128, 64),
        add(s, "model.layers.0.self_attn.o_proj.weight", 64, 64);
    add(s, "model.layers.0.mlp.gate_up_proj.weight", 192, 64),
        add(s, "model.layers.0.mlp.down_proj.weight", 64, 96);
    plan_good(s, phi3, &p, &a);
    static const struct { const char *name; uint64_t row; float want; } phi[] = {
        {"model.layers.0.self_attn.q_proj.weight", 63, 63},  {"model.layers.0.self_attn.k_proj.weight", 0, 64},
        {"model.layers.0.self_attn.v_proj.weight", 31, 127}, {"model.layers.0.mlp.gate_proj.weight", 95, 95},
        {"model.layers.0.mlp.up_proj.weight", 1, 97},
    };
    for (size_t i = 0; i < ARRAY_LEN(phi); i++) {
        const weight *w = find(&p, phi[i].name);
        assert_int_equal(family_read(s, w, DT_F32, phi[i].row, 1, 3, 1, v, NULL), TESS_OK);
        assert_true(v[0] == (float)w->map.src * 10000 + phi[i].want * 100 + 3);
    }
    family_plan_close(&p);
    fake_close(s);

    s = fake(); /* gpt_neox: q, k, v of each head together, in matrix and bias */
    static const char neox[] =
        "{\"model_type\":\"gpt_neox\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":4,\"vocab_size\":64,\"max_position_embeddings\":512}";
    static const char *const norms[] = {"gpt_neox.final_layer_norm", "gpt_neox.layers.0.input_layernorm",
                                        "gpt_neox.layers.0.post_attention_layernorm"};
    add(s, "gpt_neox.embed_in.weight", 64, 64), add(s, "embed_out.weight", 64, 64);
    for (int i = 0; i < 3; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s.weight", norms[i]);
        add(s, name, 64, 0);
        snprintf(name, sizeof name, "%s.bias", norms[i]);
        add(s, name, 64, 0);
    }
    add(s, "gpt_neox.layers.0.attention.query_key_value.weight", 192, 64),
        add(s, "gpt_neox.layers.0.attention.query_key_value.bias", 192, 0);
    add(s, "gpt_neox.layers.0.attention.dense.weight", 64, 64),
        add(s, "gpt_neox.layers.0.attention.dense.bias", 64, 0);
    add(s, "gpt_neox.layers.0.mlp.dense_h_to_4h.weight", 96, 64),
        add(s, "gpt_neox.layers.0.mlp.dense_h_to_4h.bias", 96, 0);
    add(s, "gpt_neox.layers.0.mlp.dense_4h_to_h.weight", 64, 96),
        add(s, "gpt_neox.layers.0.mlp.dense_4h_to_h.bias", 64, 0);
    plan_good(s, neox, &p, &a);
    assert_true(a.rope_dims == 4 && a.block_kind == BLOCK_PARALLEL2);
    const weight *k = find(&p, "model.layers.0.self_attn.k_proj.weight"),
                 *kb = find(&p, "model.layers.0.self_attn.k_proj.bias");
    assert_int_equal(family_read(s, k, DT_F32, 15, 3, 7, 1, v, NULL),
                     TESS_OK); /* row 15: head 0, last; row 16: head 1, first */
    assert_true(v[0] == (float)k->map.src * 10000 + (16 + 15) * 100 + 7 &&
                v[1] == (float)k->map.src * 10000 + (48 + 16) * 100 + 7);
    assert_int_equal(family_read(s, kb, DT_F32, 15, 2, 0, 1, v, NULL), TESS_OK);
    assert_true(v[0] == (float)kb->map.src * 10000 + 31 && v[1] == (float)kb->map.src * 10000 + 64);
    family_plan_close(&p);
    fake_close(s);
}

static void maps_transposed(void **state)
{
    weight_plan p;
    arch a;
    static float v[80 * 20];
    UNUSED(state);
    source *s = fake(); /* gpt2, as the hub stores it: without the prefix, with mask buffers, tied */
    static const char gpt2[] =
        "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":1,\"n_head\":4,\"n_positions\":32,\"vocab_size\":"
        "64,\"n_inner\":null,\"activation_function\":\"gelu_new\"}";
    add(s, "wte.weight", 64, 64), add(s, "wpe.weight", 32, 64), add(s, "ln_f.weight", 64, 0),
        add(s, "ln_f.bias", 64, 0);
    add(s, "h.0.ln_1.weight", 64, 0), add(s, "h.0.ln_1.bias", 64, 0), add(s, "h.0.ln_2.weight", 64, 0),
        add(s, "h.0.ln_2.bias", 64, 0);
    add(s, "h.0.attn.c_attn.weight", 64, 192), add(s, "h.0.attn.c_attn.bias", 192, 0),
        add(s, "h.0.attn.c_proj.weight", 64, 64), add(s, "h.0.attn.c_proj.bias", 64, 0);
    add(s, "h.0.mlp.c_fc.weight", 64, 256), add(s, "h.0.mlp.c_fc.bias", 256, 0),
        add(s, "h.0.mlp.c_proj.weight", 256, 64), add(s, "h.0.mlp.c_proj.bias", 64, 0);
    add(s, "h.0.attn.bias", 32, 32);
    plan_good(s, gpt2, &p, &a);
    assert_true(a.learned_pos && a.tied_head && a.ffn_size == 256 && a.act == ACT_GELU_TANH);
    const weight *k = find(&p, "model.layers.0.self_attn.k_proj.weight"),
                 *down = find(&p, "model.layers.0.mlp.down_proj.weight");
    assert_int_equal(family_read(s, k, DT_F32, 5, 2, 9, 3, v, NULL), TESS_OK);
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 3; c++)
            assert_true(v[r * 3 + c] == (float)(k->map.src * 10000) + (float)((9 + c) * 100 + 64 + 5 + r));
    assert_int_equal(family_read(s, down, DT_F32, 1, 20, 100, 80, v, NULL), TESS_OK); /* more than one tile */
    for (int r = 0; r < 20; r++)
        for (int c = 0; c < 80; c++)
            assert_true(v[r * 80 + c] == (float)(down->map.src * 10000) + (float)((100 + c) * 100 + 1 + r));
    family_plan_close(&p);
    fake_close(s);
}

/* ---- the tiny checkpoints, when they are there ---- */

static const char *shared_dir(void)
{
    static const char *const tries[] = {"../shared", "../../shared"};
    const char *env = getenv("TESS_SHARED");
    if (env && access(env, R_OK) == 0) return env;
    for (size_t i = 0; i < ARRAY_LEN(tries); i++)
        if (access(tries[i], R_OK) == 0) return tries[i];
    return NULL;
}

static void plans_tiny_models(void **state)
{
    static const char *const models[] = {
        "llama-3of9heads", "llama-bias-f16", "llama-gqa", "llama-yarn", "llama3-rope", "mistral-window",
        "qwen2",           "qwen3",          "phi3",      "gemma2",     "gemma3",      "olmo2",
        "starcoder2",      "gptneox",        "gpt2",      "falcon-mqa", "mixtral-moe", "qwen3-moe"};
    const char *shared = shared_dir();
    UNUSED(state);
    if (!shared) {
        puts("skip: no shared/models");
        skip();
    }
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        char path[PATH_MAX], *text;
        size_t len;
        hf_config c;
        weight_plan p;
        source *s;
        tess_error err;
        float v;
        snprintf(path, sizeof path, "%s/models/%s/config.json", shared, models[i]);
        if (os_read_whole(path, 1 << 20, &mem_libc, &text, &len, &err) < 0 ||
            hf_config_read(text, len, path, &c, &err) < 0)
            fail_msg("%s", err.text);
        mem_free(&mem_libc, text);
        snprintf(path, sizeof path, "%s/models/%s", shared, models[i]);
        if (safetensors_open(path, &mem_libc, &s, &err) < 0) fail_msg("%s", err.text);
        if (family_plan(c.fam->names, c.fam->prefix, s, &c.a, c.tied, &mem_libc, &p, &err) < 0)
            fail_msg("%s", err.text);
        for (uint32_t w = 0; w < p.n; w++)
            if (family_read(s, &p.w[w], DT_F32, p.w[w].rows - 1, 1, p.w[w].cols ? p.w[w].cols - 1 : 0, 1, &v,
                            &err) < 0)
                fail_msg("%s", err.text);
        family_plan_close(&p);
        source_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_llama),
        cmocka_unit_test(refuses_bad_numbers),
        cmocka_unit_test(reads_both_rope_spellings),
        cmocka_unit_test(reads_rope_scaling),
        cmocka_unit_test(reads_windows),
        cmocka_unit_test(reads_generation),
        cmocka_unit_test(finds_template),
        cmocka_unit_test(ties_heads),
        cmocka_unit_test(refuses_strange_tensors),
        cmocka_unit_test(maps_fused_rows),
        cmocka_unit_test(maps_transposed),
        cmocka_unit_test(plans_tiny_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
