/*
 * t_hf_defaults.c - what config.json does not say, and every key that it may hold, against transformers.
 *
 * The tables are made by tests/tools/make-defaults.py from the configuration classes of transformers: the numbers that a family
 * has when config.json gives no more than its sizes; and for each key of each family its default, which must change nothing when
 * it is written out, and another value, which must change the model, be refused by name, or be known to change no result.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "hf_config.h"

typedef struct {
    const char *json;
    uint32_t act, tied, head_dim, kv_heads, rope_dims, window, slides /* bit i: layer i has it */, bias /* of q, k and v */;
    double eps, theta, theta_slides, factor, attn_cap, logit_cap;
    uint32_t n, used, width, shared, groups, groups_used, dense /* layers before the first with experts */, norm, q_lora;
    double scale;
} defaults;
static const defaults families[] = {
#include "data/hf-defaults.inc"
};

/* "def" NULL: the key must be given, or is no field of the class. "beside": members that stand beside the other value. */
typedef struct { const char *family, *key, *def, *value, *beside; char verdict; } key_case;
static const key_case keys[] = {
#include "data/hf-keys.inc"
};

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static uint32_t wrong(const char *json, const char *what, double got, double want)
{
    if (near(got, want) || (got == 0 && want == 0)) return 0;
    print_error("%s is %g, transformers has %g: %s\n", what, got, want, json);
    return 1;
}

static uint32_t compare(const defaults *d, const hf_config *c)
{
    const arch *a = &c->a;
    uint32_t slides = 0, dense = 0;
    const arch_attn *full = &a->attn[a->layer_attn[0]], *slide = NULL;
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const arch_attn *t = &a->attn[a->layer_attn[i]];
        if (t->window) slides |= 1u << i, slide = t;
        else full = t;
    }
    while (a->n_experts && dense < a->n_layers && !a->layer_moe[dense]) dense++;
    const char *j = d->json;
    uint32_t bad = wrong(j, "act", a->act, d->act) + wrong(j, "tied", c->tied, d->tied) + wrong(j, "head_dim", a->head_dim, d->head_dim) +
                   wrong(j, "kv heads", a->n_kv_heads, d->kv_heads) + wrong(j, "rope dims", a->rope_dims, d->rope_dims) +
                   wrong(j, "layers with windows", slides, d->slides) + wrong(j, "window", slide ? slide->window : 0, d->window) +
                   wrong(j, "bias", (a->biases & (BIAS_QKV | BIAS_LATENT)) != 0, d->bias) + wrong(j, "eps", a->norm_eps, d->eps) +
                   wrong(j, "soft cap of scores", a->attn_softcap, d->attn_cap) +
                   wrong(j, "soft cap of logits", a->logit_softcap, d->logit_cap) + wrong(j, "q_lora", a->q_lora, d->q_lora);
    if (d->theta > 0) bad += wrong(j, "theta", full->rope_theta, d->theta) + wrong(j, "factor", full->factor, d->factor);
    if (slide && d->theta_slides > 0) bad += wrong(j, "theta of windows", slide->rope_theta, d->theta_slides);
    return bad + wrong(j, "experts", a->n_experts, d->n) + wrong(j, "experts used", a->experts_used, d->used) +
           wrong(j, "width of experts", a->moe_ffn_size, d->width) + wrong(j, "width of shared ones", a->shared_ffn_size, d->shared) +
           wrong(j, "groups", a->router_groups, d->groups) + wrong(j, "groups used", a->router_groups_used, d->groups_used) +
           wrong(j, "dense layers", dense, d->dense) + wrong(j, "scale", a->router_scale, d->scale) +
           wrong(j, "norm", a->router_norm, d->norm);
}

static void has_the_defaults_of_transformers(void **state)
{
    uint32_t bad = 0;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        hf_config c;
        tess_error err;
        if (hf_config_read(families[i].json, strlen(families[i].json), "config.json", &c, &err) < 0)
            fail_msg("%s: %s", err.text, families[i].json);
        bad += compare(&families[i], &c);
    }
    assert_int_equal(bad, 0);
}

/* ---- keys ---- */

static json_t *parse(const char *text)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!v) fail_msg("table: no JSON: %s", text);
    return v;
}

static json_t *sizes_of(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        json_t *o = parse(families[i].json);
        if (strcmp(json_string_value(json_object_get(o, "model_type")), name) == 0) return o;
        json_decref(o);
    }
    fail_msg("table: no family %s", name);
    return NULL;
}

static tess_status read_config(const json_t *o, hf_config *c, tess_error *err)
{
    char *text = json_dumps(o, 0);
    assert_non_null(text);
    tess_status st = hf_config_read(text, strlen(text), "config.json", c, err);
    free(text);
    return st;
}

/* Whether two models are the same: all that a container would hold of them. */
static bool same(const hf_config *x, const hf_config *y)
{
    const hf_config *c[2] = {x, y};
    void *bytes[2];
    size_t len[2];
    tess_error err;
    for (int i = 0; i < 2; i++) {
        kvs_builder *b;
        assert_int_equal(kvs_builder_open(&mem_libc, &b, &err), TESS_OK);
        arch_put(&c[i]->a, b);
        assert_int_equal(kvs_build(b, &bytes[i], &len[i], &err), TESS_OK);
        kvs_builder_close(b);
    }
    bool equal = x->tied == y->tied && x->embed_dim == y->embed_dim && len[0] == len[1] && memcmp(bytes[0], bytes[1], len[0]) == 0;
    for (int i = 0; i < 2; i++) mem_free(&mem_libc, bytes[i]);
    return equal;
}

static const char *try_default(const key_case *k, const json_t *bare, const hf_config *without)
{
    hf_config c;
    static tess_error err;
    if (!k->def) return NULL;
    json_t *o = json_copy((json_t *)(uintptr_t)bare);
    json_object_set_new(o, k->key, parse(k->def));
    tess_status st = read_config(o, &c, &err);
    json_decref(o);
    if (st < 0) return err.text;
    return same(&c, without) ? NULL : "its default, written out, changes the model";
}

static const char *try_value(const key_case *k, const json_t *bare)
{
    hf_config c, without;
    static tess_error err;
    json_t *o = json_copy((json_t *)(uintptr_t)bare), *beside = parse(k->beside);
    json_object_update(o, beside);
    json_decref(beside);
    tess_status st = read_config(o, &without, &err);
    if (st == TESS_OK) {
        json_object_set_new(o, k->key, parse(k->value));
        st = read_config(o, &c, &err);
        if (k->verdict == 'r' && st < 0) {
            const char *inner = strstr(k->value, "true") || strstr(k->value, "false") ? "" : k->key; /* a member of an object names itself */
            json_decref(o);
            return strstr(err.text, k->value[0] == '{' ? inner : k->key) ? NULL : err.text;
        }
    }
    json_decref(o);
    if (st < 0) return err.text;
    if (k->verdict == 'r') return "it must be refused";
    bool equal = same(&c, &without);
    return k->verdict == 'd' && equal ? "it changes nothing" : k->verdict == 'n' && !equal ? "it changes the model" : NULL;
}

static void follows_or_refuses_every_key(void **state)
{
    uint32_t bad = 0;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const key_case *k = &keys[i];
        json_t *bare = sizes_of(k->family);
        hf_config c;
        tess_error err;
        if (read_config(bare, &c, &err) < 0) fail_msg("%s: %s", k->family, err.text);
        const char *why = try_default(k, bare, &c);
        if (!why) why = try_value(k, bare);
        if (why) print_error("%s: %s = %s: %s\n", k->family, k->key, k->value, why), bad++;
        json_decref(bare);
    }
    assert_int_equal(bad, 0);
}

/* ---- models that see as well ---- */

static void wants(const char *json, const char *message)
{
    hf_config c;
    tess_error err;
    if (hf_config_read(json, strlen(json), "config.json", &c, &err) == TESS_OK) fail_msg("accepted: %s", json);
    if (!strstr(err.text, message)) fail_msg("wanted \"%s\" in: %s", message, err.text);
}

static void reads_language_parts(void **state)
{
    /* As Gemma 3 4B is published: most of text_config is left to the defaults. */
    static const char gemma[] =
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"eos_token_id\":[1,106],\"model_type\":\"gemma3\",\"text_config\":"
        "{\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,\"rope_scaling\":"
        "{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},\"vision_config\":{\"hidden_size\":1152}}";
    hf_config c;
    tess_error err;
    (void)state;
    if (hf_config_read(gemma, strlen(gemma), "config.json", &c, &err) < 0) fail_msg("%s", err.text);
    const arch *a = &c.a;
    assert_true(c.part && c.tied && a->hidden_size == 2560 && a->n_layers == 34 && a->n_heads == 8 && a->n_kv_heads == 4);
    assert_true(a->head_dim == 256 && a->vocab_size == 262208 && a->attn[a->layer_attn[5]].factor == 8);
    assert_true(a->attn[a->layer_attn[0]].window == 1024 && a->attn[a->layer_attn[0]].rope_theta == 10000);
    wants("{\"model_type\":\"gemma3\"}", "\"text_config\" is missing");
    wants("{\"model_type\":\"gemma3\",\"text_config\":[]}", "\"text_config\" is missing or no object");
    wants("{\"model_type\":\"gemma3\",\"text_config\":{},\"architectures\":[\"Gemma3Model\"]}", "Gemma3Model");
    wants("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mistral4\"}}", "\"mistral4\" is not supported");
    wants("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mistral3\",\"text_config\":{}}}", "not supported");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_defaults_of_transformers),
        cmocka_unit_test(follows_or_refuses_every_key),
        cmocka_unit_test(reads_language_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
