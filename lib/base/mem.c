/* mem.c - blocks with a size in front, growing buffers, arenas. See mem.h. */
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { MEM_ALIGN = 64, ARENA_BLOCK = 1 << 16 };

static void *libc_alloc(void *user, size_t size, size_t align)
{
    UNUSED(user);
    return aligned_alloc(align, size);
}
static void libc_release(void *user, void *ptr, size_t size)
{
    UNUSED(user);
    UNUSED(size);
    free(ptr);
}
const mem mem_libc = {NULL, libc_alloc, libc_release, NULL};

tess_status mem_from_host(mem *out, const tess_host *host, tess_error *err)
{
    *out = mem_libc;
    if (!host) return TESS_OK;
    if (host->struct_size < sizeof *host)
        return ERR(err, TESS_E_ARG, "host.struct_size is %u, want at least %zu", host->struct_size, sizeof *host);
    if (!host->alloc != !host->release) return ERR(err, TESS_E_ARG, "host.alloc and host.release must both be set, or neither");
    out->user = host->user;
    out->log = host->log;
    if (host->alloc) {
        out->alloc = host->alloc;
        out->release = host->release;
    }
    return TESS_OK;
}

void *mem_alloc(const mem *m, size_t size)
{
    size_t total;
    if (__builtin_add_overflow(size, 2 * MEM_ALIGN - 1, &total) || total > (size_t)PTRDIFF_MAX) return NULL;
    total &= ~(size_t)(MEM_ALIGN - 1);
    char *p = m->alloc(m->user, total, MEM_ALIGN);
    if (!p) return NULL;
    memcpy(p, &total, sizeof total);
    return p + MEM_ALIGN;
}

void *mem_zalloc(const mem *m, size_t size)
{
    void *p = mem_alloc(m, size);
    if (p) memset(p, 0, size);
    return p;
}

void *mem_calloc(const mem *m, uint64_t n, size_t size)
{
    size_t total;
    return size_mul3(n, size, 1, &total) ? mem_zalloc(m, total) : NULL;
}

void mem_free(const mem *m, void *p)
{
    if (!p) return;
    char *block = (char *)p - MEM_ALIGN;
    size_t total;
    memcpy(&total, block, sizeof total);
    m->release(m->user, block, total);
}

void *mem_realloc(const mem *m, void *p, size_t size)
{
    void *q = mem_alloc(m, size);
    if (!q || !p) return q;
    size_t old;
    memcpy(&old, (char *)p - MEM_ALIGN, sizeof old);
    memcpy(q, p, MIN(size, old - MEM_ALIGN));
    mem_free(m, p);
    return q;
}

char *mem_strndup(const mem *m, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? mem_alloc(m, n + 1) : NULL;
    if (!p) return NULL;
    if (n) memcpy(p, s, n);
    p[n] = 0;
    return p;
}

bool mem_grow(const mem *m, void *p_to_pointer, size_t *cap, size_t want, size_t size)
{
    if (want <= *cap) return true;
    size_t n = *cap < 16 ? 16 : *cap, bytes;
    while (n < want)
        if (__builtin_add_overflow(n, n / 2, &n)) return false;
    if (!size_mul3(n, size, 1, &bytes)) return false;
    void *old;
    memcpy(&old, p_to_pointer, sizeof old); /* the caller's pointer may have any object type */
    void *p = mem_realloc(m, old, bytes);
    if (!p) return false;
    memcpy(p_to_pointer, &p, sizeof p);
    *cap = n;
    return true;
}

void mem_log(const mem *m, int32_t level, const char *fmt, ...)
{
    if (!m->log) return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m->log(m->user, level, text);
}

void buf_init(buf *b, const mem *m) { *b = (buf){.m = m}; }

bool buf_put(buf *b, const void *data, size_t n)
{
    size_t want;
    if (b->failed || __builtin_add_overflow(b->len, n, &want) || !mem_grow(b->m, &b->data, &b->cap, want, 1)) {
        b->failed = true;
        return false;
    }
    if (n) memcpy(b->data + b->len, data, n);
    b->len = want;
    return true;
}
bool buf_puts(buf *b, const char *s) { return buf_put(b, s, strlen(s)); }
bool buf_putc(buf *b, char c) { return buf_put(b, &c, 1); }

bool buf_printf(buf *b, const char *fmt, ...)
{
    char small[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) return b->failed = true, false;
    if ((size_t)n < sizeof small) return buf_put(b, small, (size_t)n);
    if (b->failed || !mem_grow(b->m, &b->data, &b->cap, b->len + (size_t)n + 1, 1)) return b->failed = true, false;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return true;
}

void buf_free(buf *b)
{
    mem_free(b->m, b->data);
    *b = (buf){.m = b->m};
}

struct arena_block {
    arena_block *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void arena_init(arena *a, const mem *m) { *a = (arena){.m = m}; }

void *arena_alloc(arena *a, uint64_t n, size_t size)
{
    size_t want;
    if (!size_mul3(n, size, 1, &want) || want > (size_t)PTRDIFF_MAX - 2 * ARENA_BLOCK) return NULL;
    want = (want + 15) & ~(size_t)15;
    if (!a->head || a->head->size - a->head->used < want) {
        size_t room = MAX(want, (size_t)ARENA_BLOCK);
        arena_block *b = mem_alloc(a->m, sizeof *b + room);
        if (!b) return NULL;
        *b = (arena_block){.next = a->head, .size = room};
        a->head = b;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += want;
    a->used += want;
    memset(p, 0, want);
    return p;
}

char *arena_strndup(arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? arena_alloc(a, n + 1, 1) : NULL;
    if (p && n) memcpy(p, s, n);
    return p;
}

void arena_free(arena *a)
{
    while (a->head) {
        arena_block *next = a->head->next;
        mem_free(a->m, a->head);
        a->head = next;
    }
    a->used = 0;
}
