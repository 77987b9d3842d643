/*
 * base.h - what every file of the library uses: error helpers, checked sizes, small macros.
 *
 * Errors: a function that can fail returns tess_status and takes a last tess_error *err (may be NULL).
 * ERR(err, code, fmt, ...) fills err and yields code. TRY(x) returns the status of x when it is an error;
 * a function that holds resources uses `if ((st = x) < 0) goto fail;`.
 * Sizes: every product or sum of sizes that come from a file or a caller goes through u64_mul, u64_add,
 * u64_align, or size_mul3; they return false on overflow. Never `a * b` on untrusted numbers.
 */
#ifndef TESS_BASE_H
#define TESS_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tessera.h"

#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define NOINLINE __attribute__((noinline))
#define UNUSED(x) ((void)(x))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Fills err (if not NULL) with one printable line and returns code. */
tess_status err_set(tess_error *err, tess_status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same with the current errno kept in os_code and ": " strerror appended. */
tess_status err_set_os(tess_error *err, tess_status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Puts "prefix: " before the text that err holds; returns err's status. */
tess_status err_prefix(tess_error *err, tess_status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
void err_clear(tess_error *err);
#define ERR(err, code, ...) err_set((err), (code), __VA_ARGS__)
#define TRY(x)                               \
    do {                                     \
        tess_status try_status_ = (x);       \
        if (try_status_ < 0) return try_status_; \
    } while (0)

static inline bool u64_add(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool u64_mul(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
/* Rounds v up to a multiple of the power of two align. */
static inline bool u64_align(uint64_t v, uint64_t align, uint64_t *out)
{
    if (__builtin_add_overflow(v, align - 1, out)) return false;
    *out &= ~(align - 1);
    return true;
}
/* a * b * c as a size that an object may have. */
static inline bool size_mul3(uint64_t a, uint64_t b, uint64_t c, size_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r) || __builtin_mul_overflow(r, c, &r) || r > (uint64_t)PTRDIFF_MAX) return false;
    *out = (size_t)r;
    return true;
}
/* [off, off + len) lies inside [0, size). */
static inline bool range_in(uint64_t off, uint64_t len, uint64_t size) { return off <= size && len <= size - off; }
static inline uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

/* Little-endian access to bytes of a file at any alignment (the hosts that we support are little-endian). */
static inline uint16_t rd16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t rd32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t rd64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }

#endif
