/*
 * fuzz_spm.c - libFuzzer: tokenizer.model and the files around it. The first byte chooses: the bytes are a model; or edits of 8 bytes
 * (u16 position, u8 width, u8 how, u32 value) to a good small one; or such edits up to a zero byte, and behind it
 * tokenizer_config.json or added_tokens.json. What is accepted must open.
 */
#include "../tok_kit.h"
#include "spm_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EDIT = 8 };

static void piece(buf *b, const char *text, uint8_t type, uint8_t score)
{
    size_t n = strlen(text);
    const uint8_t tail[] = {2 << 3 | 5, 0, 0, score, 0xc0, 3 << 3, type};
    buf_putc(b, 1 << 3 | 2);
    buf_putc(b, (char)(n + 2 + sizeof tail));
    buf_putc(b, 1 << 3 | 2);
    buf_putc(b, (char)n);
    buf_put(b, text, n);
    buf_put(b, tail, sizeof tail);
}

/* Unigram or BPE of pieces of every type. */
static buf make_base(bool bpe)
{
    const uint8_t trainer[] = {2 << 3 | 2, 5, 3 << 3, bpe ? 2 : 1, 0x98, 0x02, 1}; /* field 35: 35 << 3 = 0x118 */
    static const struct {
        const char *text;
        uint8_t type;
    } pieces[] = {{"<unk>", 2}, {"<s>", 3}, {"</s>", 3}, {"<0x61>", 6}, {"▁", 1},  {"a", 1},
                  {"b", 1},     {"▁a", 1},  {"ab", 1},   {"(x)", 4},    {"▁▁", 4}, {"c", 5}};
    buf b;
    buf_init(&b, &mem_libc);
    for (uint32_t i = 0; i < ARRAY_LEN(pieces); i++) piece(&b, pieces[i].text, pieces[i].type, (uint8_t)(0x40 + i * 7));
    buf_put(&b, trainer, sizeof trainer);
    return b;
}

static void use(const spm_files *f)
{
    static const char text[] = "ab <s>a (x) \xe2\x96\x81 <y>c\xc3\xa9";
    kvs_builder *b;
    void *data = NULL;
    size_t n;
    kvs k;
    tok *t;
    tok_ids ids = {0};
    if (kvs_builder_open(&mem_libc, &b, NULL) < 0) return;
    if (spm_tokenizer_put(&mem_libc, f, b, NULL) == TESS_OK && kvs_build(b, &data, &n, NULL) == TESS_OK &&
        kvs_open(&k, &mem_libc, data, n, NULL) == TESS_OK) {
        if (tok_open(&k, &mem_libc, &t, NULL) < 0) __builtin_trap();
        (void)tok_encode(t, text, sizeof text - 1, TESS_TOK_ADD_SPECIAL, NULL, 0, &ids, NULL);
        tok_ids_free(t, &ids);
        tok_close(t);
        kvs_close(&k);
    }
    mem_free(&mem_libc, data);
    kvs_builder_close(b);
}

static buf edited(const buf *base, const uint8_t *data, size_t size)
{
    buf b;
    buf_init(&b, &mem_libc);
    buf_put(&b, base->data, base->len);
    for (size_t i = 0; i + EDIT <= size; i += EDIT) {
        size_t width = 1 + data[i + 2] % 4, at = rd16(data + i) % (b.len - 4);
        if (data[i + 3] & 1) { /* room for the inserted bytes */
            buf_put(&b, data + i + 4, width);
            memmove(b.data + at + width, b.data + at, b.len - width - at);
        }
        memcpy(b.data + at, data + i + 4, width);
    }
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static buf base[2];
    if (!base[0].data)
        for (int i = 0; i < 2; i++) base[i] = make_base(i);
    if (size == 0) return 0;
    uint8_t how = *data++;
    const uint8_t *zero = memchr(data, 0, --size);
    const spm_file rest = {how & 1 && zero ? (const char *)zero + 1 : NULL, how & 1 && zero ? size - (size_t)(zero + 1 - data) : 0};
    spm_files f = {0};
    buf b = {0};
    if (how & 1) b = edited(&base[how >> 1 & 1], data, zero ? (size_t)(zero - data) : size);
    else if (how & 2) b = edited(&base[how >> 2 & 1], data, size);
    f.model = b.data ? (spm_file){b.data, b.len} : (spm_file){(const char *)data, size};
    if (how & 8) f.config = rest;
    else f.added = rest;
    use(&f);
    if (b.data) buf_free(&b);
    return 0;
}
