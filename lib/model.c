/* model.c - opening and closing of models. See model.h; the weights are load.c. */
#include "model.h"
#include "peers.h"
#include "tok_keys.h"

#include <stdio.h>
#include <stdlib.h>

/* The axes that the file recorded must be the ones that the arch gives: leaves decide the bits of every result. */
static tess_status check_axes(const ct_info *info, const arch *a, tess_error *err)
{
    for (uint32_t i = 0; i < info->n_axes; i++) {
        const arch_axis *f = &info->axes[i];
        arch_axis x;
        bool same = arch_axis_of(a, f->kind, &x) && x.unit == f->unit && x.dim == f->dim && x.n_leaves == f->n_leaves &&
                    memcmp(x.leaf, f->leaf, (x.n_leaves + 1) * sizeof x.leaf[0]) == 0;
        if (!same) return ERR(err, TESS_E_FORMAT, "%s: split axis %u does not fit the architecture", info->path, i);
    }
    for (uint32_t i = 0; i < info->n_tensors; i++) {
        const ct_tensor *t = &info->tensors[i];
        const role_info *r = role_get(t->role);
        if (t->split_dim != 1 || t->alias != CT_NO_ALIAS) continue;
        if (!r || info->axes[t->axis].kind != r->k_axis)
            return ERR(err, TESS_E_FORMAT, "%s: tensor %s is split along the wrong axis", info->path, t->name);
    }
    return TESS_OK;
}

static tess_status copy_text(tess_model *m, const char *key, char **out, size_t *len, tess_error *err)
{
    size_t n;
    const char *s = kvs_str(ct_get(m->file)->kv, key, &n);
    if (!s) return TESS_OK;
    *out = arena_strndup(&m->store, s, n);
    if (len) *len = n;
    return *out ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for %s", key);
}

static int32_t id_of(const tess_model *m, const char *text_key, const char *id_key)
{
    size_t n;
    const kvs *k = ct_get(m->file)->kv;
    const char *s = kvs_str(k, text_key, &n);
    int64_t id = s && m->tokenizer ? tok_find(m->tokenizer, s, n) : -1;
    if (id < 0) id = kvs_i64(k, id_key, -1);
    return id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

static tess_status open_text(tess_model *m, tess_error *err)
{
    const kvs *k = ct_get(m->file)->kv;
    tess_status st = kvs_find(k, TOK_K_MODEL) ? tok_open(k, &m->m, &m->tokenizer, err) : TESS_OK; /* a file may have none */
    if (st < 0) return err_prefix(err, st, "%s", ct_get(m->file)->path);
    TRY(copy_text(m, "chat.template", &m->chat_template, &m->chat_template_len, err));
    TRY(copy_text(m, "tok.bos_token", &m->bos_text, NULL, err));
    TRY(copy_text(m, "tok.eos_token", &m->eos_text, NULL, err));
    m->bos = id_of(m, "tok.bos_token", "gen.bos");
    m->pad = id_of(m, "tok.pad_token", "gen.pad");
    m->unk = id_of(m, "tok.unk_token", "gen.unk");
    uint64_t n;
    const void *eos = kvs_array(k, "gen.eos", KV_I32S, &n);
    int32_t one = id_of(m, "tok.eos_token", "gen.eos_id");
    if (!eos && one >= 0) eos = &one, n = 1;
    if (!eos || n == 0) return TESS_OK;
    m->eos = arena_alloc(&m->store, n, sizeof *m->eos);
    if (!m->eos || n > UINT32_MAX) return ERR(err, TESS_E_NOMEM, "no memory for %llu end ids", (unsigned long long)n);
    memcpy(m->eos, eos, n * sizeof *m->eos);
    m->n_eos = (uint32_t)n;
    return TESS_OK;
}

/* "3,1": one positive number for each rank. */
static tess_status parse_split(const char *text, uint32_t n_ranks, double *shares, tess_error *err)
{
    const char *p = text;
    for (uint32_t i = 0; i < n_ranks; i++) {
        char *end;
        shares[i] = strtod(p, &end);
        bool last = i + 1 == n_ranks;
        if (end == p || !(shares[i] > 0) || !(shares[i] < 1e6) || *end != (last ? 0 : ','))
            return ERR(err, TESS_E_ARG, "split \"%s\" must be positive numbers with commas between, one for each rank (%u)", text,
                       n_ranks);
        p = end + 1;
    }
    return TESS_OK;
}

static tess_status open_turn(tess_model *m, tess_error *err)
{
    bool several = false;
    for (uint32_t r = 1; r < m->devices.n; r++) several = several || m->devices.id[r] != m->devices.id[0];
    if (several && !(m->turn = os_lock_open(&m->m))) return ERR(err, TESS_E_NOMEM, "no memory for a model");
    return TESS_OK;
}

static tess_status open_weights(tess_model *m, const tess_model_params *p, tess_error *err)
{
    const ct_info *info = ct_get(m->file);
    double shares[MAX_RANKS];
    uint32_t n_ranks;
    TRY(devices_parse(p->devices, p->n_ranks, &m->devices, &n_ranks, err));
    if (p->compute < TESS_COMPUTE_AUTO || p->compute > TESS_COMPUTE_F32) return ERR(err, TESS_E_ARG, "compute %d is unknown", p->compute);
    if (p->stream < TESS_STREAM_AUTO || p->stream > TESS_STREAM_OFF) return ERR(err, TESS_E_ARG, "stream %d is unknown", p->stream);
    if (p->stream == TESS_STREAM_ON && m->devices.n == 0)
        return ERR(err, TESS_E_ARG, "ranks on the CPU read weights where they are: there is nothing to stream");
    tess_status st = arch_get(&m->a, info->kv, err);
    if (st < 0) return err_prefix(err, st, "%s", info->path);
    TRY(check_axes(info, &m->a, err));
    if (p->split) TRY(parse_split(p->split, n_ranks, shares, err));
    TRY(shard_make(&m->a, n_ranks, p->split ? shares : NULL, &m->shards, err));
    if (m->devices.n) TRY(peers_find(&m->m, &m->devices, err));
    TRY(open_turn(m, err));
    m->n_threads = p->n_threads ? p->n_threads : cpus_count(&m->cpus);
    if (m->n_threads > 1024) return ERR(err, TESS_E_ARG, "%u threads asked for; the limit is 1024", m->n_threads);
    m->compute = p->compute;
    m->stream = p->stream;
    m->ops = op_table_get(NULL);
    m->cuda = op_cuda_get();
    pool *threads;
    bool several = nodes_used(m); /* then the team is that of the contexts */
    TRY(pool_open(&m->m, &m->cpus, MIN(several ? MAX(m->n_threads, n_ranks) : m->n_threads, cpus_count(&m->cpus)), &threads, err));
    if (several) pool_place(threads, &m->cpus, n_ranks);
    st = model_load(m, threads, p, err);
    pool_close(threads);
    m->has_weights = st >= 0;
    return st;
}

tess_status model_open(const char *path, const tess_model_params *p, const cpus *on, tess_model **out, tess_error *err)
{
    mem host;
    *out = NULL;
    TRY(mem_from_host(&host, p->host, err));
    tess_model *m = mem_zalloc(&host, sizeof *m);
    if (!m) return ERR(err, TESS_E_NOMEM, "no memory for a model");
    m->m = host;
    m->refs = 1;
    if (on) m->cpus = *on;
    else cpus_now(&m->cpus);
    arena_init(&m->store, &m->m);
    uint32_t flags = (p->flags & TESS_MODEL_NO_MMAP ? CT_NO_MMAP : 0) | (p->flags & TESS_MODEL_NO_VERIFY ? CT_NO_VERIFY : 0);
    tess_status st = ct_open(path, flags, &m->m, &m->file, err);
    if (st >= 0) st = open_text(m, err);
    if (st >= 0 && !(p->flags & TESS_MODEL_TOKENIZER_ONLY) && ct_get(m->file)->kind == CT_KIND_MODEL) st = open_weights(m, p, err);
    if (st < 0) model_release(m);
    else *out = m;
    return st;
}

void model_retain(tess_model *m) { __atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED); }

void model_release(tess_model *m)
{
    if (!m || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) != 0) return;
    tok_close(m->tokenizer);
    place_close(m);
    os_lock_close(&m->m, m->turn);
    nodes_close(m->nodes);
    if (m->owned)
        for (uint32_t i = 0; i < ct_get(m->file)->n_pieces; i++) mem_free(&m->m, m->owned[i]);
    ct_close(m->file);
    arena_free(&m->store);
    mem host = m->m;
    mem_free(&host, m);
}
