/*
 * shape.h - a container with the shape of a model of 8 billion parameters and a tenth of its bytes.
 *
 * Its first layer is written, every other one is an alias of it, and so is the output matrix of the embedding. A loader places each
 * of them in memory of the device by itself, so that the device holds and reads what a real model would have; the file is read
 * once, which a real one would take longer for. Values are random codes with scales that keep sums finite.
 */
#ifndef TESS_GPU_SHAPE_H
#define TESS_GPU_SHAPE_H
#include "arch.h"
#include "mem.h"

typedef struct {
    arch a;
    double layer_bytes, head_bytes; /* in memory of the device */
    double layer_macs, head_macs;   /* of a token */
} gpu_shape;

/* 4096 wide, 32 layers, ffn 14336, 32 heads, 8 kv heads, vocabulary 128256, q8: 8.0 GB on the device; or what an emulator can run. */
void gpu_shape_init(gpu_shape *s, bool dry);
tess_status gpu_shape_write(gpu_shape *s, const char *path, tess_error *err);
#endif
