/*
 * fuzz_safetensors.c - the safetensors reader on hostile files: opens a file and reads a box of every tensor.
 *
 * First byte even: the rest is the file. Odd: the rest up to a zero byte is the header, whose length is put in front; what
 * follows the zero byte is the data, so that the fuzzer works on JSON and not on eight bytes of length. The other bits of the
 * first byte choose a quantization, whose matrices are then looked for and read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const source *s)
{
    float v[64];
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        uint64_t rows, cols;
        source_dims(&s->tensors[i], &rows, &cols);
        for (int raw = 0; raw < 2; raw++)
            (void)s->read(s, i, rows / 2, MIN(rows - rows / 2, (uint64_t)2), cols / 3, MIN(cols - cols / 3, (uint64_t)17), raw, v,
                          NULL);
        uint8_t blocks[64];
        if (s->tensors[i].dtype == SRC_COMPUTED)
            for (uint32_t dt = DT_Q8; dt <= DT_Q4; dt++)
                (void)s->blocks(s, i, rows / 2, cols / 3, MIN(cols - cols / 3, (uint64_t)17), dt, blocks, NULL);
    }
}

static bool put(int fd, const void *p, size_t n, size_t at) { return n == 0 || pwrite(fd, p, n, (off_t)at) == (ssize_t)n; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    source *s;
    if (size < 1) return 0;
    if (fd < 0 && (fd = memfd_create("fuzz_safetensors", MFD_CLOEXEC)) < 0) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool fit = data[0] & 1;
    const uint8_t *body = data + 1, *zero = memchr(body, 0, size - 1);
    size_t n = size - 1;
    uint64_t header = fit && zero ? (uint64_t)(zero - body) : n;
    bool ok = ftruncate(fd, 0) == 0;
    if (fit) {
        size_t tail = zero ? n - (size_t)header - 1 : 0;
        ok = ok && put(fd, &header, 8, 0) && put(fd, body, (size_t)header, 8) &&
             put(fd, zero ? zero + 1 : body, tail, 8 + (size_t)header);
    } else ok = ok && put(fd, body, n, 0);
    if (ok && safetensors_open(path, &mem_libc, &s, NULL) == TESS_OK) {
        const packed_scheme scheme = {.method = (data[0] >> 1) % 6, .bits = 4, .group = 32, .block_rows = 32, .block_cols = 32,
                                      .zero_rule = data[0] >> 4 & 1};
        bool over = scheme.method == PACKED_NONE || packed_open(&s, &scheme, NULL) == TESS_OK;
        if (over) read_all(s);
        source_close(s);
    }
    return 0;
}
