/*
 * fuzz_safetensors.c - the safetensors reader on any bytes: opens them as a file and reads a box of every
 * tensor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const source *s)
{
    float v[64];
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        uint64_t rows, cols;
        source_dims(&s->tensors[i], &rows, &cols);
        for (int raw = 0; raw < 2; raw++)
            (void)s->read(s, i, rows / 2, MIN(rows - rows / 2, (uint64_t)2), cols / 3,
                          MIN(cols - cols / 3, (uint64_t)17), raw, v, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[] = "/tmp/fuzz_safetensors.XXXXXX";
    int fd = mkstemp(path);
    source *s;
    if (fd < 0) return 0;
    if (write(fd, data, size) == (ssize_t)size && safetensors_open(path, &mem_libc, &s, NULL) == TESS_OK) {
        read_all(s);
        source_close(s);
    }
    close(fd);
    unlink(path);
    return 0;
}
