/* hf_wrapper.c - see hf_wrapper.h. */
#include "hf_wrapper.h"

#include <stdlib.h>

typedef struct { const char *model_type, *class_name, *text_class, *defaults; } wrapper;
/* defaults: of text_config; tie_word_embeddings is that of the whole. */
static const wrapper wrappers[] = {
    {"gemma3", "Gemma3ForConditionalGeneration", "Gemma3ForCausalLM",
     "{\"model_type\":\"gemma3_text\",\"vocab_size\":262208,\"hidden_size\":2304,\"intermediate_size\":9216,\"num_hidden_layers\":26,"
     "\"num_attention_heads\":8,\"max_position_embeddings\":131072,\"tie_word_embeddings\":true}"},
    {"mistral3", "Mistral3ForConditionalGeneration", "MistralForCausalLM",
     "{\"model_type\":\"mistral\",\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
     "\"num_attention_heads\":32,\"max_position_embeddings\":131072}"},
};

const char *hf_wrapper_name(size_t i) { return i < ARRAY_LEN(wrappers) ? wrappers[i].model_type : NULL; }

static const wrapper *find_wrapper(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (size_t i = 0; type && i < ARRAY_LEN(wrappers); i++)
        if (strcmp(type, wrappers[i].model_type) == 0) return &wrappers[i];
    return NULL;
}

/* Completes text_config of root; NULL: it has none, or there is no memory. */
static json_t *complete(const wrapper *w, const json_t *root)
{
    json_t *text = json_object_get(root, "text_config"), *defaults = json_loads(w->defaults, 0, NULL);
    json_t *tied = json_object_get(root, "tie_word_embeddings");
    bool ok = json_is_object(text) && defaults && (!tied || json_object_set(text, "tie_word_embeddings", tied) == 0) &&
              json_object_update_missing(text, defaults) == 0;
    json_decref(defaults);
    return ok ? text : NULL;
}

const json_t *hf_wrapper_text(cfg *root)
{
    const wrapper *w = find_wrapper(root->root);
    if (!w) return root->root;
    const char *class_name = json_string_value(json_array_get(json_object_get(root->root, "architectures"), 0));
    if (class_name && strcmp(class_name, w->class_name) != 0)
        cfg_fail(root, TESS_E_UNSUPPORTED, "%s: architecture \"%.80s\" is not supported; of this family it must be %s", root->file,
                 class_name, w->class_name);
    const json_t *text = complete(w, root->root);
    if (!text) cfg_fail(root, TESS_E_FORMAT, "%s: key \"text_config\" is missing or no object", root->file);
    return text ? text : root->root;
}

static bool starts(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

tess_status hf_wrapper_strip(source *s, tess_error *err)
{
    static const char *const others[] = {"vision_tower.", "multi_modal_projector."};
    static const char model[] = "model.", part[] = "language_model.";
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        src_tensor t = s->tensors[i];
        bool inner = starts(t.name, model), other = false;
        char *name = t.name + (inner ? strlen(model) : 0);
        for (size_t k = 0; k < ARRAY_LEN(others); k++) other = other || starts(name, others[k]);
        if (other) continue;
        if (starts(name, part)) t.name = name + (inner ? strlen("language_") : strlen(part)); /* "model." stood before or behind */
        s->tensors[n++] = t;
    }
    s->n_tensors = n;
    return source_sort(s, err);
}

tess_status hf_wrapper_unwrap(const mem *m, const char *json, size_t len, const char *file, char **out, size_t *out_len, tess_error *err)
{
    json_t *root;
    *out = NULL;
    TRY(jsonr_parse_object(json, len, 0, file, &root, err));
    const wrapper *w = find_wrapper(root);
    json_t *text = w ? complete(w, root) : NULL;
    if (text) json_object_set_new(text, "architectures", json_pack("[s]", w->text_class));
    char *plain = text ? json_dumps(text, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text) return TESS_OK;
    *out_len = plain ? strlen(plain) : 0;
    *out = plain ? mem_strndup(m, plain, *out_len) : NULL;
    free(plain);
    return *out ? TESS_OK : ERR(err, TESS_E_NOMEM, "%s: no memory", file);
}
