/*
 * mem.h - memory through the host's callbacks.
 *
 * A `mem` is a validated copy of tess_host. Every block is 64-byte aligned and remembers its size in the 64
 * bytes before it, so that release needs no size. All functions may be called from any thread if the host's
 * callbacks may. Failure is NULL; the caller reports TESS_E_NOMEM with what it wanted.
 *
 * An arena hands out pieces of large blocks and frees them all at once; arena memory is zeroed. One thread.
 */
#ifndef TESS_MEM_H
#define TESS_MEM_H
#include "base.h"

typedef struct {
    void *user;
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*release)(void *user, void *ptr, size_t size);
    void (*log)(void *user, int32_t level, const char *text);
} mem;

extern const mem mem_libc; /* malloc, no log */
tess_status mem_from_host(mem *out, const tess_host *host, tess_error *err); /* host NULL = mem_libc */
void *mem_alloc(const mem *m, size_t size);               /* size 0 gives a valid block */
void *mem_zalloc(const mem *m, size_t size);
void *mem_calloc(const mem *m, uint64_t n, size_t size);  /* zeroed, product checked */
void *mem_realloc(const mem *m, void *p, size_t size);    /* on NULL p still holds */
void mem_free(const mem *m, void *p);                     /* NULL is fine */
char *mem_strndup(const mem *m, const char *s, size_t n); /* zero-terminated copy */
/* Grows the array *p of n used elements of `size` bytes so that `want` fit; *cap is its room. False: no memory. */
bool mem_grow(const mem *m, void *p_to_pointer, size_t *cap, size_t want, size_t size);
void mem_log(const mem *m, int32_t level, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Growing byte string. */
typedef struct { const mem *m; char *data; size_t len, cap; bool failed; } buf;
void buf_init(buf *b, const mem *m);
bool buf_put(buf *b, const void *data, size_t n); /* after a failure all puts fail, and `failed` stays set */
bool buf_puts(buf *b, const char *s);
bool buf_putc(buf *b, char c);
bool buf_printf(buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_free(buf *b);

typedef struct arena_block arena_block;
typedef struct { const mem *m; arena_block *head; size_t used; } arena;
void arena_init(arena *a, const mem *m);
void *arena_alloc(arena *a, uint64_t n, size_t size); /* n * size zeroed bytes, 16-byte aligned; NULL = no memory */
char *arena_strndup(arena *a, const char *s, size_t n);
void arena_free(arena *a);
#endif
