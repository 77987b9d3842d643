/*
 * fuzz_model.c - opening and running models from hostile files whose hashes are right.
 *
 * An input is one byte of choices and then edits of 12 bytes (u8 kind, u8 a, u16 b, u64 value) to a good tiny model made
 * at the start. Kind below 128 with kind % 16 = 0 to 15: bytes of the header, a section, the section table, the weights or
 * the trailer, as in fuzz_container. Kind from 128 on: a key-value, number a of them, its word or text at b. Then every
 * hash is made right, the model is opened, and everything that a program may do with it is done.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../container_rehash.h"
#include "../model_kit.h"
#include "tessera.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EDIT = 12, N_BASE = 6 };
static struct {
    uint8_t *p;
    size_t n;
} base[N_BASE];
static int fd = -1;
static char path[] = "/tmp/fuzz_model.XXXXXX";

/* Good models: raw and coded, plain and with every option of a block, latent attention, quantized. */
static bool make_bases(void)
{
    for (uint32_t i = 0; i < N_BASE; i++) {
        model_kit x;
        tess_error err;
        char *p;
        model_kit_init(&x);
        x.tp = i % 2 ? 3 : 1;
        x.store = i % 2 ? CT_STORE_ZSTD : CT_STORE_RAW;
        if (i == 1) x.a.tied_head = 1, x.a.learned_pos = 1, x.a.norm_kind = NORM_LAYER, x.a.biases = 31, x.a.gated_ffn = 0;
        if (i == 2)
            x.a.block_kind = BLOCK_SANDWICH, x.a.qk_norm = QK_NORM_HEAD, x.a.attn_softcap = 30, x.a.norm_kind = NORM_RMS_PLUS1;
        if (i == 3) x.dtype = DT_F32, x.a.n_attn_kinds = 2, x.a.layer_attn[1] = 1, x.a.attn[1].window = 3, x.a.router_norm = 1;
        if (i == 3) x.a.n_experts = 4, x.a.experts_used = 2, x.a.moe_ffn_size = 32, x.a.layer_moe[1] = 1, x.a.shared_ffn_size = 32;
        if (i == 3) x.a.attn[0].rope_scale = ROPE_SCALE_YARN, x.a.attn[0].orig_ctx = 16, x.a.attn[0].factor = 4;
        if (i == 4) x.a.kv_lora = 24, x.a.q_lora = 16, x.a.n_kv_heads = 1, x.a.v_head_dim = 4, x.a.rope_dims = 4, x.a.biases = 0;
        if (i == 5) x.dtype = DT_Q8, x.tp = 2;
        if (!model_kit_write(&x, path, &err) || os_read_whole(path, 1 << 22, &mem_libc, &p, &base[i].n, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            return false;
        }
        base[i].p = (uint8_t *)p;
    }
    return true;
}

static void edit_kv(uint8_t *p, size_t n, const uint8_t *e)
{
    uint64_t len, from = rh_section(p, n, 11, &len, NULL);
    kvs k;
    if (!from || from % 8 || kvs_open(&k, &mem_libc, p + from, (size_t)len, NULL) < 0) return;
    if (k.count) {
        const kv *v = &k.items[e[1] % k.count];
        size_t at = (size_t)((const uint8_t *)v->data - p), b = rd16(e + 2);
        if (v->type <= KV_BOOL) memcpy(p + at, e + 4, 8);
        else if (v->type == KV_STRS) memcpy(p + at + b % (v->n + 1) * 4, e + 4, 4);
        else if (v->n && (v->type == KV_STR || v->type == KV_U8S)) p[at + b % v->n] = e[4];
        else if (v->n) memcpy(p + at + b % v->n * 4, e + 4, 4);
    }
    kvs_close(&k);
}

static void edit(uint8_t *p, size_t n, const uint8_t *e)
{
    uint64_t from = 0, len = 4096, width = 1 + e[1] % 8;
    uint32_t kind = e[0] % 16;
    if (e[0] >= 128) {
        edit_kv(p, n, e);
        return;
    }
    if (kind == 13) from = n - 64, len = 64;
    else if (kind == 14) len = 512 + 48 * 11;
    else if (kind == 15) from = 4096, len = n - 4096 - 64;
    else if (kind) from = rh_section(p, n, kind, &len, NULL);
    if (len <= width || !range_in(from, len, n)) return;
    memcpy(p + from + rd16(e + 2) % (len - width), e + 4, width);
}

static void use_text(const tess_model *m)
{
    static const char text[] = "abc ab <a>\xff\xf0\x9f x1234\n", chat[] = "{\"messages\":[{\"role\":\"a\",\"content\":\"b<a>\"}]}";
    tess_token ids[256], all[] = {0, 1, 255, 256, 258, 260, 271, 272, -1, INT32_MAX};
    char out[4096];
    size_t n = 0, n_out;
    const char *piece;
    int32_t stopped;
    tess_stream *s;
    if (tess_tokenize(m, text, sizeof text - 1, TESS_TOK_ADD_SPECIAL, ids, ARRAY_LEN(ids), &n, NULL) == TESS_OK)
        (void)tess_detokenize(m, ids, n, TESS_DETOK_SPECIAL, out, sizeof out, &n_out, NULL);
    (void)tess_detokenize(m, all, ARRAY_LEN(all), 0, out, sizeof out, &n_out, NULL);
    (void)tess_chat_tokenize(m, chat, sizeof chat - 1, ids, ARRAY_LEN(ids), &n, NULL);
    for (size_t i = 0; i < ARRAY_LEN(all); i++) (void)tess_token_text(m, all[i], &n_out);
    if (tess_stream_open(m, NULL, &s, NULL) < 0) return;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) (void)tess_stream_push(s, all[i], &piece, &n_out, &stopped, NULL);
    (void)tess_stream_flush(s, &piece, &n_out, NULL);
    tess_stream_close(s);
}

static void use_weights(tess_model *m, uint8_t choice)
{
    tess_ctx_params p;
    tess_seq_params q;
    tess_ctx *c;
    tess_seq s;
    tess_event ev[4];
    size_t n;
    const tess_token ids[] = {1, 2, 3, 100, 7};
    tess_ctx_params_init(&p);
    tess_seq_params_init(&q);
    p.kv_dtype = choice & 1 ? TESS_KV_F32 : TESS_KV_F16;
    p.max_seqs = 1;
    q.max_new = 3;
    if (tess_ctx_open(m, &p, &c, NULL) < 0) return;
    if (tess_seq_open(c, &q, &s, NULL) == TESS_OK && tess_seq_append(c, s, ids, ARRAY_LEN(ids), NULL) == TESS_OK)
        for (int i = 0; i < 4 && tess_step(c, ev, ARRAY_LEN(ev), &n, NULL) == TESS_OK; i++) {}
    tess_ctx_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (fd < 0 && ((fd = mkstemp(path)) < 0 || !make_bases() || close(fd) != 0 || (fd = open(path, O_RDWR)) < 0)) abort();
    if (size < 1) return 0;
    size_t b = data[0] % N_BASE, n = base[b].n;
    uint8_t *p = malloc(n);
    if (!p) return 0;
    memcpy(p, base[b].p, n);
    for (size_t i = 1; i + EDIT <= size; i += EDIT) edit(p, n, data + i);
    rehash(p, n, true);
    tess_model_params mp;
    tess_model *m;
    tess_model_params_init(&mp);
    mp.n_threads = 1;
    mp.n_ranks = 1 + data[0] / 4 % 4;
    mp.flags = data[0] & 64 ? TESS_MODEL_NO_MMAP : 0;
    tess_error err;
    if (pwrite(fd, p, n, 0) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0 && tess_model_open(path, &mp, &m, &err) == TESS_OK) {
        use_text(m);
        use_weights(m, data[0] >> 7);
        tess_model_close(m);
        if (getenv("FUZZ_SAY")) fprintf(stderr, "opened\n");
    } else if (getenv("FUZZ_SAY")) fprintf(stderr, "%s\n", err.text);
    free(p);
    return 0;
}
