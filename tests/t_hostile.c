/*
 * t_hostile.c - models whose files are whole, with right hashes, and yet do not fit together: what the loader must
 * refuse, since the kernels would read beyond a piece. And a host whose memory runs out at any point of using a model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "container_rehash.h"
#include "model_kit.h"
#include "tessera.h"

static char path[64];

/* Opens the model with 1 to 3 ranks; on success a few tokens are generated. The last status, and its error. */
static tess_status try_model(tess_error *err)
{
    tess_status st = TESS_OK;
    for (uint32_t ranks = 1; ranks <= 3 && st >= 0; ranks++) {
        tess_model_params mp;
        tess_model *m;
        tess_ctx *c;
        tess_seq_params q;
        tess_seq s;
        tess_event ev[4];
        size_t n;
        const tess_token ids[] = {1, 2, 3, 100, 7};
        tess_model_params_init(&mp);
        tess_seq_params_init(&q);
        mp.n_ranks = ranks;
        mp.n_threads = 1;
        q.max_new = 2;
        if ((st = tess_model_open(path, &mp, &m, err)) < 0) break;
        assert_int_equal(tess_ctx_open(m, NULL, &c, err), TESS_OK);
        assert_int_equal(tess_seq_open(c, &q, &s, err), TESS_OK);
        assert_int_equal(tess_seq_append(c, s, ids, ARRAY_LEN(ids), err), TESS_OK);
        for (int i = 0; i < 4 && st >= 0; i++) st = tess_step(c, ev, ARRAY_LEN(ev), &n, err);
        tess_ctx_close(c);
        tess_model_close(m);
        if (st == TESS_IDLE) st = TESS_OK;
    }
    return st;
}

static void refused(model_kit *x, const char *word)
{
    tess_error e = {0};
    if (!model_kit_write(x, path, &e)) fail_msg("the container refuses it already: %s", e.text);
    tess_status st = try_model(&e);
    if (st != TESS_E_FORMAT && st != TESS_E_UNSUPPORTED) fail_msg("status %d, want a format error that says \"%s\"", st, word);
    if (!strstr(e.text, word) || !strstr(e.text, path)) fail_msg("\"%s\" does not say \"%s\" and the file", e.text, word);
}

static void the_kit_is_good(void **state)
{
    UNUSED(state);
    const uint32_t dtypes[] = {DT_BF16, DT_F32, DT_F16};
    for (uint32_t tp = 1; tp <= 4; tp++)
        for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
            model_kit x;
            tess_error e = {0};
            model_kit_init(&x);
            x.tp = tp;
            x.dtype = dtypes[d];
            if (!model_kit_write(&x, path, &e) || try_model(&e) < 0) fail_msg("%s", e.text);
        }
}

/* ---- one tensor in place of another of the same shape ---- */

typedef struct {
    model_kit x;
    const char *from, *to;
} swap;

static void add_alias(void *user, ct_writer *w, ct_tensor *t)
{
    swap *s = user;
    uint32_t target;
    UNUSED(w);
    if (strcmp(t->name, s->from) != 0) return;
    const ct_tensor *o = model_kit_find(&s->x, s->to, &target);
    assert_non_null(o);
    t->alias = target;
    t->split_dim = o->split_dim;
    t->axis = o->axis;
}

static void aliases_of_another_split(void **state)
{
    UNUSED(state);
    static const char *const names[][2] = {{"model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.o_proj.weight"},
                                           {"model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"},
                                           {"model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"},
                                           {"model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.up_proj.weight"}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        for (uint32_t tp = 1; tp <= 4; tp++)
            for (uint32_t heads = i == 3 ? 4 : 1; heads <= 4; heads *= 4) { /* one head and one piece: the last pair would fit */
                swap s = {.from = names[i][0], .to = names[i][1]};
                model_kit_init(&s.x);
                s.x.tp = tp;
                s.x.a.n_heads = heads;
                s.x.a.n_kv_heads = 1;
                s.x.a.head_dim = s.x.a.v_head_dim = 32 / heads;
                s.x.a.ffn_size = 32;
                s.x.twist = add_alias;
                s.x.user = &s;
                refused(&s.x, "split");
            }
}

/* ---- split along an axis of another kind, or not at all ---- */

typedef struct {
    const char *name;
    uint32_t dim;
    uint32_t unit;
} other_axis;

static void add_axis(void *user, ct_writer *w, ct_tensor *t)
{
    const other_axis *o = user;
    arch_axis x = {.kind = AXIS_FFN, .unit = o->unit, .dim = t->shape[o->dim == 255 ? 0 : o->dim]};
    if (strcmp(t->name, o->name) != 0) return;
    t->split_dim = o->dim;
    t->axis = 0;
    if (o->dim == 255) return;
    x.n_units = x.n_leaves = (uint32_t)(x.dim / x.unit);
    for (uint32_t i = 0; i <= x.n_leaves; i++) x.leaf[i] = i;
    (void)ct_add_axis(w, &x, &t->axis, NULL);
}

static void splits_of_another_kind(void **state)
{
    UNUSED(state);
    static const other_axis list[] = {{"model.layers.0.self_attn.o_proj.weight", 0, 8},
                                      {"model.layers.0.self_attn.o_proj.weight", 255, 0},
                                      {"model.layers.0.mlp.down_proj.weight", 0, 8},
                                      {"model.layers.0.mlp.down_proj.weight", 255, 0}};
    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        for (uint32_t heads = 1; heads <= 4; heads *= 4) {
            model_kit x;
            model_kit_init(&x);
            x.a.n_heads = heads; /* one head: one leaf, which every piece seems to hold */
            x.a.n_kv_heads = 1;
            x.a.ffn_size = heads * 32;
            x.tp = 4;
            x.twist = add_axis;
            x.user = (void *)(uintptr_t)&list[i];
            if (list[i].dim == 255 && heads == 1) continue; /* one leaf and one piece: that fits */
            refused(&x, "split");
        }
}

static void no_split(void *user, ct_writer *w, ct_tensor *t)
{
    UNUSED(user);
    UNUSED(w);
    t->split_dim = 255;
    t->axis = 0;
}

/* The leaves of o count elements of head_dim; with another v_head_dim its columns are not that many. */
static void values_of_another_width(void **state)
{
    UNUSED(state);
    model_kit x;
    model_kit_init(&x);
    x.a.n_heads = x.a.n_kv_heads = 1;
    x.a.ffn_size = 32;
    x.a.v_head_dim = 4;
    x.twist = no_split;
    refused(&x, "split");
}

static void types_that_are_no_weights(void **state)
{
    UNUSED(state);
    const uint32_t dtypes[] = {DT_I8, DT_I32, DT_U8};
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        model_kit x;
        model_kit_init(&x);
        x.dtype = dtypes[i];
        refused(&x, "type");
    }
}

/* Whatever is wrong with the key-values, the message names the file. */
static void messages_name_the_file(void **state)
{
    UNUSED(state);
    model_kit x;
    tess_error e = {0};
    model_kit_init(&x);
    assert_true(model_kit_write(&x, path, &e));
    char *p;
    size_t n;
    assert_int_equal(os_read_whole(path, 1 << 22, &mem_libc, &p, &n, &e), TESS_OK);
    static const char *const keys[] = {"arch.n_heads", "arch.norm_eps", "tok.vocab", "arch.layer_attn"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        uint8_t *f = malloc(n);
        memcpy(f, p, n);
        uint64_t len, from = rh_section(f, n, 11, &len, NULL);
        kvs k;
        assert_int_equal(kvs_open(&k, &mem_libc, f + from, (size_t)len, &e), TESS_OK);
        const kv *v = kvs_find(&k, keys[i]);
        assert_non_null(v);
        uint8_t *data = f + ((const uint8_t *)v->data - f);
        memset(data + (v->type == KV_STRS ? 4 : 0), v->type == KV_U8S ? 9 : 0, v->type == KV_U8S ? 1 : 8);
        kvs_close(&k);
        rehash(f, n, true);
        FILE *out = fopen(path, "wb");
        assert_true(out && fwrite(f, 1, n, out) == n && fclose(out) == 0);
        free(f);
        if (try_model(&e) >= 0) fail_msg("%s: a changed value is taken", keys[i]);
        if (strncmp(e.text, path, strlen(path)) != 0) fail_msg("\"%s\" does not begin with the file", e.text);
    }
    mem_free(&mem_libc, p);
}

/* ---- memory that runs out ---- */

typedef struct {
    long left;
    size_t live;
} purse;

static void *purse_alloc(void *user, size_t size, size_t align)
{
    purse *p = user;
    if (__atomic_fetch_sub(&p->left, 1, __ATOMIC_RELAXED) <= 0) return NULL;
    void *q = aligned_alloc(align, (size + align - 1) / align * align);
    if (q) __atomic_fetch_add(&p->live, 1, __ATOMIC_RELAXED);
    return q;
}
static void purse_release(void *user, void *ptr, size_t size)
{
    purse *p = user;
    UNUSED(size);
    if (ptr) __atomic_fetch_sub(&p->live, 1, __ATOMIC_RELAXED);
    free(ptr);
}

/* Everything once: model, text, chat, stream, context, sequences, steps, fork. The first error. */
static tess_status do_everything(const tess_host *host, tess_error *err)
{
    static const char chat[] = "{\"messages\":[{\"role\":\"a\",\"content\":\"b<a>\"}]}";
    tess_model_params mp;
    tess_seq_params q;
    tess_ctx_params cp;
    tess_model *m = NULL;
    tess_ctx *c = NULL;
    tess_stream *stream = NULL;
    tess_seq s, t;
    tess_event ev[8];
    tess_token ids[64];
    const char *text;
    size_t n, len;
    int32_t stopped;
    tess_model_params_init(&mp);
    mp.n_threads = 2;
    mp.n_ranks = 2;
    mp.host = host;
    tess_seq_params_init(&q);
    q.max_new = 3;
    tess_ctx_params_init(&cp);
    cp.max_seqs = 2;
    tess_status st = tess_model_open(path, &mp, &m, err);
    if (st >= 0) st = tess_tokenize(m, "ab <a> \xff!", 9, TESS_TOK_ADD_SPECIAL, ids, ARRAY_LEN(ids), &n, err);
    if (st >= 0) st = tess_chat_tokenize(m, chat, sizeof chat - 1, ids, ARRAY_LEN(ids), &n, err);
    if (st >= 0) st = tess_stream_open(m, NULL, &stream, err);
    for (size_t i = 0; st >= 0 && i < n; i++) st = tess_stream_push(stream, ids[i], &text, &len, &stopped, err);
    if (st >= 0) st = tess_ctx_open(m, &cp, &c, err);
    if (st >= 0) st = tess_seq_open(c, &q, &s, err);
    if (st >= 0) st = tess_seq_append(c, s, ids, n, err);
    if (st >= 0) st = tess_step(c, ev, ARRAY_LEN(ev), &len, err);
    if (st >= 0) st = tess_seq_fork(c, s, 2, &t, err);
    if (st >= 0) st = tess_seq_append(c, t, ids, 2, err);
    for (int i = 0; st == TESS_OK && i < 6; i++) st = tess_step(c, ev, ARRAY_LEN(ev), &len, err);
    tess_stream_close(stream);
    tess_model_close(m);
    tess_ctx_close(c);
    return st < 0 ? st : TESS_OK;
}

static void every_allocation_may_fail(void **state)
{
    UNUSED(state);
    for (uint32_t store = CT_STORE_RAW; store <= CT_STORE_ZSTD; store++) {
        model_kit x;
        tess_error e = {0};
        model_kit_init(&x);
        x.store = store;
        assert_true(model_kit_write(&x, path, &e));
        long allowed = 0;
        for (tess_status st = TESS_E_NOMEM; st < 0; allowed += allowed < 100 ? 1 : 1 + allowed / 40) {
            purse p = {.left = allowed};
            tess_host host;
            tess_host_init(&host);
            host.user = &p;
            host.alloc = purse_alloc;
            host.release = purse_release;
            st = do_everything(&host, &e);
            if (st < 0 && st != TESS_E_NOMEM) fail_msg("%ld allocations: status %d: %s", allowed, st, e.text);
            if (p.live) fail_msg("%ld allocations: %zu blocks are not given back", allowed, p.live);
            assert_true(allowed < 100000);
        }
        assert_true(allowed > 100);
    }
}

/* What is there and not understood is not the same as nothing. */
static void an_unknown_tokenizer(void **state)
{
    UNUSED(state);
    model_kit x;
    model_kit_init(&x);
    x.tok_model = "xyz";
    refused(&x, "tok.model: \"xyz\"");
}

static int setup(void **state)
{
    UNUSED(state);
    snprintf(path, sizeof path, "/tmp/t_hostile.%ld.tess", (long)getpid());
    return 0;
}
static int teardown(void **state)
{
    UNUSED(state);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kit_is_good),           cmocka_unit_test(aliases_of_another_split),
        cmocka_unit_test(splits_of_another_kind),    cmocka_unit_test(values_of_another_width),
        cmocka_unit_test(types_that_are_no_weights), cmocka_unit_test(messages_name_the_file),
        cmocka_unit_test(every_allocation_may_fail), cmocka_unit_test(an_unknown_tokenizer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
