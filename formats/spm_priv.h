/* spm_priv.h - between spm_tokenizer.c (the model) and spm_added.c (the files around it). */
#ifndef TESS_SPM_PRIV_H
#define TESS_SPM_PRIV_H
#include <jansson.h>

#include "spm_model.h"
#include "spm_tokenizer.h"
#include "tok_index.h"

typedef struct {
    const spm_files *files;
    tess_error *err;
    spm_model model;
    tok_spec spec;
    tok_index index;
    json_t *config, *special; /* NULL = no such file */
    bool prefix, first_only;  /* of texts; only of the first one */
    bool add_bos, add_eos;
    uint32_t next; /* the first id that no token has */
} spm_state;

static inline int64_t spm_find(const spm_state *x, const char *text, size_t len)
{
    return tok_index_find(&x->index, &x->spec, text, len);
}
/* An added token; one with this id already gets these flags. text outlives the spec or is in its arena. */
tess_status spm_add(spm_state *x, uint32_t id, const char *text, size_t len, uint8_t flags);
tess_status spm_open_config(spm_state *x); /* config, special, and the options of them */
void spm_close_config(spm_state *x);
tess_status spm_read_added(spm_state *x);
/* "tok.bos_token" and so on, and the ids around a text. */
tess_status spm_put_named(spm_state *x, kvs_builder *b);
#endif
