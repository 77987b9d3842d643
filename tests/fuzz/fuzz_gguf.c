/*
 * fuzz_gguf.c - the GGUF reader on hostile files: opens a file, reads its configuration, its tokenizer, and of every
 * tensor a box and some blocks in q8 and q4.
 *
 * An input that starts with "GGUF" is a file. Any other input is a list of edits of 12 bytes (u8 width, u8 how, u16
 * position, u64 value) to a good small file: how even sets bytes, odd inserts them, so that lengths and what follows
 * them come apart.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../tok_kit.h"
#include "gguf_blocks.h"
#include "gguf_config.h"
#include "gguf_tokenizer.h"
#include "quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_STR = 8, T_ARR = 9, EDIT = 12 };

static void p32(buf *b, uint32_t v) { buf_put(b, &v, 4); }
static void p64(buf *b, uint64_t v) { buf_put(b, &v, 8); }
static void pstr(buf *b, const char *s)
{
    p64(b, strlen(s));
    buf_puts(b, s);
}
static void key(buf *b, const char *name, uint32_t type)
{
    pstr(b, name);
    p32(b, type);
}
static void tensor(buf *b, const char *name, uint32_t type, uint64_t d0, uint64_t d1, uint64_t *off, uint64_t bytes)
{
    pstr(b, name);
    p32(b, d1 ? 2 : 1);
    p64(b, d0);
    if (d1) p64(b, d1);
    p32(b, type);
    p64(b, *off);
    *off += (bytes + 31) / 32 * 32;
}

/* A llama of one layer with a tensor of each type, and a byte-level tokenizer. */
static buf make_base(void)
{
    static const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"llama.block_count", 1},           {"llama.embedding_length", 32},     {"llama.feed_forward_length", 32},
                   {"llama.context_length", 64},       {"llama.attention.head_count", 2},  {"llama.attention.head_count_kv", 1},
                   {"llama.rope.dimension_count", 16}, {"tokenizer.ggml.bos_token_id", 1}, {"tokenizer.ggml.eos_token_id", 2},
                   {"general.alignment", 32}};
    static const struct {
        const char *name;
        uint32_t type, elems, bytes;
    } blocks[] = {{"q2_k", 10, 256, 84},  {"q3_k", 11, 256, 110},   {"q4_k", 12, 256, 144},
                  {"q5_k", 13, 256, 176}, {"q5_0", 6, 32, 22},      {"q5_1", 7, 32, 24},
                  {"iq4_nl", 20, 32, 18}, {"iq4_xs", 23, 256, 136}, {"mxfp4", 39, 32, 17}};
    static const char *const tokens[] = {"a", "b", "ab", "<s>", "Ġ", "!"};
    buf b;
    buf_init(&b, &mem_libc);
    buf_puts(&b, "GGUF");
    p32(&b, 3);
    p64(&b, 6 + ARRAY_LEN(blocks));
    p64(&b, ARRAY_LEN(numbers) + 7);
    key(&b, "general.architecture", T_STR), pstr(&b, "llama");
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) key(&b, numbers[i].key, T_U32), p32(&b, numbers[i].v);
    key(&b, "llama.attention.layer_norm_rms_epsilon", T_F32), p32(&b, 0x3727c5ac);
    key(&b, "tokenizer.ggml.model", T_STR), pstr(&b, "gpt2");
    key(&b, "tokenizer.ggml.pre", T_STR), pstr(&b, "default");
    key(&b, "tokenizer.ggml.tokens", T_ARR), p32(&b, T_STR), p64(&b, ARRAY_LEN(tokens));
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) pstr(&b, tokens[i]);
    key(&b, "tokenizer.ggml.token_type", T_ARR), p32(&b, T_I32), p64(&b, ARRAY_LEN(tokens));
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) p32(&b, i == 3 ? 3 : 1);
    key(&b, "tokenizer.ggml.merges", T_ARR), p32(&b, T_STR), p64(&b, 1), pstr(&b, "a b");
    uint64_t off = 0;
    tensor(&b, "token_embd.weight", 0, 32, 6, &off, 768);
    tensor(&b, "output_norm.weight", 0, 32, 0, &off, 128);
    tensor(&b, "blk.0.attn_q.weight", 8, 32, 32, &off, 1088);
    tensor(&b, "blk.0.attn_k.weight", 2, 32, 16, &off, 288);
    tensor(&b, "blk.0.ffn_up.weight", 3, 32, 32, &off, 640);
    tensor(&b, "blk.0.ffn_down.weight", 14, 256, 2, &off, 420);
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++)
        tensor(&b, blocks[i].name, blocks[i].type, blocks[i].elems, 1, &off, blocks[i].bytes);
    while (b.len % 32) buf_putc(&b, 0);
    for (uint64_t i = 0; i < off; i++) buf_putc(&b, (char)(i * 7));
    return b;
}

static void read_all(const source *s)
{
    float v[64];
    uint8_t block[2 * Q8_BLOCK];
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        uint64_t rows, cols;
        source_dims(&s->tensors[i], &rows, &cols);
        for (int raw = 0; raw < 2; raw++)
            (void)s->read(s, i, rows / 2, MIN(rows - rows / 2, (uint64_t)2), cols / 3, MIN(cols - cols / 3, (uint64_t)17), raw, v,
                          NULL);
        for (uint32_t dt = DT_Q8; gguf_block_like(s->tensors[i].dtype) && dt <= DT_Q4; dt++)
            (void)s->blocks(s, i, rows / 2, 0, MIN(cols, (uint64_t)40), dt, block, NULL);
    }
}

static void use_tokenizer(const source *s)
{
    kvs_builder *b;
    void *data = NULL;
    size_t n;
    kvs k;
    tok *t;
    tok_ids ids = {0};
    if (kvs_builder_open(&mem_libc, &b, NULL) < 0) return;
    gguf_generation_put(s, b);
    if (gguf_tokenizer_put(&mem_libc, s, b, NULL) == TESS_OK && kvs_build(b, &data, &n, NULL) == TESS_OK &&
        kvs_open(&k, &mem_libc, data, n, NULL) == TESS_OK) {
        if (tok_open(&k, &mem_libc, &t, NULL) == TESS_OK) {
            (void)tok_encode(t, "ab <s> a!b", 10, TESS_TOK_ADD_SPECIAL, NULL, 0, &ids, NULL);
            tok_ids_free(t, &ids);
            tok_close(t);
        }
        kvs_close(&k);
    }
    mem_free(&mem_libc, data);
    kvs_builder_close(b);
}

static void use(const char *path)
{
    source *s;
    gguf_config c;
    weight_plan p;
    if (gguf_open(path, &mem_libc, &s, NULL) < 0) return;
    if (gguf_config_read(s, &c, NULL) == TESS_OK && family_plan(c.fam->names, "", s, &c.a, c.tied, &mem_libc, &p, NULL) == TESS_OK)
        family_plan_close(&p);
    use_tokenizer(s);
    read_all(s);
    source_close(s);
}

static buf edited(const buf *base, const uint8_t *data, size_t size)
{
    buf b;
    buf_init(&b, &mem_libc);
    buf_put(&b, base->data, base->len);
    for (size_t i = 0; i + EDIT <= size; i += EDIT) {
        size_t width = 1 + data[i] % 8, at = rd16(data + i + 2) % (b.len - 8);
        if (data[i + 1] & 1) { /* room for the inserted bytes */
            buf_put(&b, data + i + 4, width);
            memmove(b.data + at + width, b.data + at, b.len - width - at);
        }
        memcpy(b.data + at, data + i + 4, width);
    }
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static buf base;
    static int fd = -1;
    static char path[32];
    if (fd < 0) { /* in memory: a disk would take most of the time */
        base = make_base();
        fd = memfd_create("fuzz_gguf", MFD_CLOEXEC);
        if (fd < 0 || base.failed) abort();
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    bool whole = size >= 4 && memcmp(data, "GGUF", 4) == 0;
    buf b = whole ? (buf){0} : edited(&base, data, size);
    const void *p = whole ? (const void *)data : b.data;
    size_t n = whole ? size : b.len;
    if (ftruncate(fd, (off_t)n) == 0 && pwrite(fd, p, n, 0) == (ssize_t)n) use(path);
    if (!whole) buf_free(&b);
    return 0;
}
