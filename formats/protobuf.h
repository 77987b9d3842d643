/*
 * protobuf.h - the fields of a protocol buffer message, one after another.
 *
 * Wire format: a field is a varint key (number << 3 | wire type) and a value: 0 a varint of at most 64 bits, 1 eight bytes, 2 a
 * varint length and that many bytes, 5 four bytes; all little-endian. Types 3 and 4 (groups) are refused, as are numbers 0 and
 * above 2^29 - 1 and varints of more than ten bytes. Nothing is allocated; values are views into the message.
 */
#ifndef TESS_PROTOBUF_H
#define TESS_PROTOBUF_H
#include "base.h"

enum { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };
typedef struct {
    const uint8_t *at, *end;
} pb_message;
typedef struct {
    uint32_t number, wire;
    uint64_t value;      /* of numbers */
    const uint8_t *data; /* of PB_BYTES, len bytes */
    size_t len;
} pb_field;

static inline bool pb_varint(pb_message *m, uint64_t *v)
{
    *v = 0;
    for (uint32_t shift = 0; shift < 70 && m->at < m->end; shift += 7) {
        uint8_t byte = *m->at++;
        if (shift == 63 && byte > 1) return false;
        *v |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

/* 1: a field; 0: the end; -1: no message of the wire format. */
static inline int pb_next(pb_message *m, pb_field *f)
{
    uint64_t key;
    if (m->at == m->end) return 0;
    if (!pb_varint(m, &key) || key >> 32 || key >> 3 == 0) return -1;
    *f = (pb_field){.number = (uint32_t)(key >> 3), .wire = key & 7};
    size_t left = (size_t)(m->end - m->at), bytes = f->wire == PB_FIXED64 ? 8 : f->wire == PB_FIXED32 ? 4 : 0;
    if (f->wire == PB_VARINT) return pb_varint(m, &f->value) ? 1 : -1;
    if (f->wire == PB_BYTES) {
        if (!pb_varint(m, &f->value) || f->value > (size_t)(m->end - m->at)) return -1;
        f->data = m->at;
        f->len = (size_t)f->value;
        m->at += f->len;
        return 1;
    }
    if (bytes == 0 || left < bytes) return -1;
    f->value = bytes == 8 ? rd64(m->at) : rd32(m->at);
    m->at += bytes;
    return 1;
}
#endif
