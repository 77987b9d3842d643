/* hf_quant.c - see hf_quant.h. */
#include "hf_quant.h"

#include <stdlib.h>
#include <strings.h>

#include "hf_config_priv.h"

#define SAVE_PLAIN "convert the unquantized checkpoint, or load this one with transformers, call dequantize() and save_pretrained()"

static bool is_word(const char *s, const char *word) { return strcasecmp(s, word) == 0; }
static bool begins(const char *s, const char *start) { return strncasecmp(s, start, strlen(start)) == 0; }

static void refuse(cfg *c, const char *key, const char *value)
{
    cfg_fail(c, TESS_E_UNSUPPORTED, "%s: quantization_config: %s \"%.60s\" is not read; " SAVE_PLAIN, c->file, key, value);
}

/* An object or list that holds something: a transform or a sparse layout that the weights went through. */
static void refuse_filled(cfg *c, const char *key)
{
    const json_t *v = cfg_get(c->root, key);
    if (json_object_size(v) || json_array_size(v))
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: quantization_config: %s is not read; " SAVE_PLAIN, c->file, key);
}

static void read_group(cfg *c, packed_scheme *p)
{
    const json_t *v = cfg_get(c->root, "group_size|q_group_size");
    if (json_is_integer(v) && json_integer_value(v) == -1) return; /* one group */
    p->group = cfg_u32(c, "group_size|q_group_size", 0, false);
}

static void read_bits(cfg *c, packed_scheme *p, bool only4)
{
    p->bits = cfg_u32(c, "bits|w_bit", 4, false);
    if (c->st == TESS_OK && p->bits != 4 && (only4 || (p->bits != 2 && p->bits != 8)))
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: quantization_config: bits = %u; supported are %s", c->file, p->bits,
                 only4 ? "4" : "2, 4 and 8");
}

/* "meta": {"quantizer": "gptqmodel:1.7.0"} or a list of such. */
static bool by_gptqmodel(const cfg *c)
{
    const json_t *q = json_object_get(cfg_get(c->root, "meta"), "quantizer");
    if (json_is_array(q)) q = json_array_get(q, 0);
    return json_is_string(q) && begins(json_string_value(q), "gptqmodel");
}

static void read_gptq(cfg *c, packed_scheme *p)
{
    const char *format = cfg_str(c, c->root, "checkpoint_format", "gptq");
    p->method = PACKED_GPTQ;
    read_bits(c, p, false);
    read_group(c, p);
    p->zero_rule = by_gptqmodel(c) ? ZERO_PLUS1_WORD : ZERO_PLUS1;
    if (is_word(format, "gptq_v2")) p->zero_rule = ZERO_PLAIN;
    else if (!is_word(format, "gptq")) refuse(c, "checkpoint_format", format);
    if (cfg_bool(c, "is_marlin_format", false)) refuse(c, "checkpoint_format", "marlin");
    const char *word = cfg_str(c, c->root, "pack_dtype", "int32");
    if (!is_word(word, "int32")) refuse(c, "pack_dtype", word);
}

static void read_awq(cfg *c, packed_scheme *p)
{
    const char *version = cfg_str(c, c->root, "version|format", "gemm"), *backend = cfg_str(c, c->root, "backend", "autoawq");
    p->method = PACKED_AWQ;
    read_bits(c, p, true);
    read_group(c, p);
    if (!is_word(version, "gemm")) refuse(c, "AWQ version", version);
    if (is_word(backend, "llm-awq")) refuse(c, "AWQ backend", backend);
}

static void read_fp8(cfg *c, packed_scheme *p)
{
    const json_t *v = cfg_get(c->root, "weight_block_size");
    uint64_t n[2] = {0};
    p->method = PACKED_FP8;
    if (!v) return;
    if (json_array_size(v) != 2 || !jsonr_u64(json_array_get(v, 0), &n[0]) || !jsonr_u64(json_array_get(v, 1), &n[1]) || n[0] == 0 ||
        n[1] == 0 || n[0] > 1 << 20 || n[1] > 1 << 20)
        cfg_fail(c, TESS_E_FORMAT, "%s: quantization_config: weight_block_size is not a pair of whole numbers", c->file);
    p->block_rows = (uint32_t)n[0];
    p->block_cols = (uint32_t)n[1];
}

static void read_block_structure(cfg *c, const json_t *weights, packed_scheme *p)
{
    const json_t *v = json_object_get(weights, "block_structure");
    uint64_t n[2];
    if (!json_is_array(v)) return;
    if (json_array_size(v) != 2 || !jsonr_u64(json_array_get(v, 0), &n[0]) || !jsonr_u64(json_array_get(v, 1), &n[1]) || n[0] == 0 ||
        n[1] == 0 || n[0] > 1 << 20 || n[1] > 1 << 20)
        cfg_fail(c, TESS_E_FORMAT, "%s: quantization_config: block_structure is not a pair of whole numbers", c->file);
    else {
        p->block_rows = (uint32_t)n[0];
        p->block_cols = (uint32_t)n[1];
    }
}

static void check_format(cfg *c, const json_t *o)
{
    static const char *const known[] = {"dense",           "int-quantized",  "float-quantized",
                                        "naive-quantized", "pack-quantized", "mixed-precision"};
    const char *format = cfg_str(c, o, "format", "dense");
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (is_word(format, known[i])) return;
    refuse(c, "format", format);
}

/* Bits, symmetry and groups are told by the tensors. */
static void read_compressed(cfg *c, packed_scheme *p)
{
    const json_t *groups = cfg_get(c->root, "config_groups"), *sparse = cfg_get(c->root, "sparsity_config");
    const char *key;
    json_t *v;
    p->method = PACKED_COMPRESSED;
    check_format(c, c->root);
    json_object_foreach((json_t *)(uintptr_t)groups, key, v) {
        check_format(c, v);
        read_block_structure(c, json_object_get(v, "weights"), p);
    }
    refuse_filled(c, "transform_config");
    const char *layout = cfg_str(c, sparse, "format", "dense");
    if (!is_word(layout, "dense")) refuse(c, "sparsity_config.format", layout);
    const char *status = cfg_str(c, c->root, "quantization_status", "compressed");
    if (!is_word(status, "compressed")) refuse(c, "quantization_status", status);
}

static void read_auto_round(cfg *c, packed_scheme *p)
{
    const char *how = cfg_str(c, c->root, "packing_format", "auto_round:auto_gptq");
    if (is_word(how, "auto_round:auto_gptq") || is_word(how, "auto_round:gptq")) read_gptq(c, p);
    else if (is_word(how, "auto_round:auto_awq") || is_word(how, "auto_round:awq")) read_awq(c, p);
    else refuse(c, "packing_format", how);
}

static void read_modelopt(cfg *c, packed_scheme *p)
{
    const char *algo = cfg_str(c, c->root, "quant_algo", "");
    if (is_word(algo, "FP8")) read_fp8(c, p);
    else refuse(c, "quant_algo", algo);
}

static void read_scheme(cfg *c, packed_scheme *p)
{
    static const struct { const char *name; void (*read)(cfg *, packed_scheme *); } methods[] = {
        {"gptq", read_gptq}, {"awq", read_awq}, {"fp8", read_fp8}, {"fbgemm_fp8", read_fp8}, {"compressed-tensors", read_compressed},
        {"auto-round", read_auto_round}, {"modelopt", read_modelopt},
    };
    const char *method = cfg_str(c, c->root, "quant_method", NULL);
    if (!method && (cfg_get(c->root, "load_in_4bit") || cfg_get(c->root, "load_in_8bit"))) method = "bitsandbytes";
    if (c->st < 0) return;
    if (!method) {
        cfg_fail(c, TESS_E_FORMAT, "%s: quantization_config: quant_method is missing", c->file);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (is_word(method, methods[i].name)) {
            methods[i].read(c, p);
            return;
        }
    if (is_word(method, "mxfp4")) p->method = PACKED_MXFP4;
    else
        cfg_fail(c, TESS_E_UNSUPPORTED,
                 "%s: quantization_config: quant_method \"%.40s\" is not read; supported are gptq, awq, fp8, fbgemm_fp8, modelopt (FP8), "
                 "compressed-tensors, mxfp4 and auto-round; " SAVE_PLAIN,
                 c->file, method);
}

tess_status hf_quant_read(const char *json, size_t len, const char *file, packed_scheme *out, tess_error *err)
{
    json_t *root;
    *out = (packed_scheme){0};
    TRY(jsonr_parse_object(json, len, 0, file, &root, err));
    cfg top = {root, file, TESS_OK, err};
    if (json_object_size(cfg_get(root, "sparsity_config")))
        cfg_fail(&top, TESS_E_UNSUPPORTED, "%s: sparsity_config is not read; " SAVE_PLAIN, file);
    const json_t *q = cfg_get(root, "quantization_config|compression_config");
    cfg c = {q, file, top.st, err};
    if (q && !json_is_object(q)) cfg_fail(&c, TESS_E_FORMAT, "%s: quantization_config is %s, want an object", file, jsonr_type(q));
    if (q && c.st == TESS_OK) read_scheme(&c, out);
    json_decref(root);
    return c.st;
}

tess_status hf_quant_strip(const mem *m, const char *json, size_t len, const char *file, char **out, size_t *out_len, tess_error *err)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    json_t *root;
    bool any = false;
    *out = NULL;
    TRY(jsonr_parse_object(json, len, 0, file, &root, err));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) any |= json_object_del(root, keys[i]) == 0;
    char *text = any ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!any) return TESS_OK;
    *out_len = text ? strlen(text) : 0;
    *out = text ? mem_strndup(m, text, *out_len) : NULL;
    free(text);
    return *out ? TESS_OK : ERR(err, TESS_E_NOMEM, "%s: no memory", file);
}
