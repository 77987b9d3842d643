/*
 * os.h - files, maps, clock: operating system calls (os_posix.c). Threads are pool.h, CPUs cpus.h.
 *
 * A file is opened once and used by descriptor only; names are never opened again. Reads check for short data.
 */
#ifndef TESS_OS_H
#define TESS_OS_H
#include "mem.h"

typedef struct { int fd; uint64_t size; int64_t mtime_ns; uint64_t ino, dev; bool network_fs; } os_file;
/* Opens for reading; must be a regular file (symlinks are followed). err names path. */
tess_status os_open_read(os_file *f, const char *path, tess_error *err);
void os_close(os_file *f); /* also a zeroed or closed one with fd < 0 */
tess_status os_pread(const os_file *f, void *dst, size_t n, uint64_t off, const char *path, tess_error *err);
/* size or mtime or inode changed since os_open_read */
bool os_file_changed(const os_file *f);
/* Read-only private map of [off, off + len); off is a multiple of 4096, len > 0. */
tess_status os_map(const os_file *f, uint64_t off, size_t len, const void **out, const char *path, tess_error *err);
void os_unmap(const void *p, size_t len);
void os_map_willneed(const void *p, size_t len);

/* Crash-safe output: temporary file in the same directory, renamed at commit. */
typedef struct { int fd; char *tmp; char *path; bool committed; const mem *m; } os_out; /* closed: fd = -1 */
tess_status os_out_open(os_out *o, const mem *m, const char *path, tess_error *err);
tess_status os_out_reserve(os_out *o, uint64_t size, tess_error *err); /* ENOSPC early; unsupported is no error */
tess_status os_out_pwrite(os_out *o, const void *p, size_t n, uint64_t off, tess_error *err);
tess_status os_out_truncate(os_out *o, uint64_t size, tess_error *err);
tess_status os_out_sync(os_out *o, tess_error *err);
/* fsync, chmod to 0666 & ~umask, rename (refused when the target exists and !force), fsync of the directory. */
tess_status os_out_commit(os_out *o, bool force, tess_error *err);
void os_out_abort(os_out *o); /* closes and unlinks the temporary; also after commit, then a no-op */

bool os_is_dir(const char *path);
bool os_exists(const char *path);
/* A whole regular file of at most max bytes, plus a zero byte; one mem block. */
tess_status os_read_whole(const char *path, uint64_t max, const mem *m, char **out, size_t *len, tess_error *err);
uint64_t os_now_ns(void);       /* monotonic */
uint64_t os_unix_time(void);    /* seconds */
uint64_t os_mem_available(void); /* bytes; 0 = unknown */
void os_random(void *p, size_t n);
void *os_page_alloc(size_t n);  /* zeroed pages, not yet resident; NULL = none */
void os_page_free(void *p, size_t n);
/* Whole pages between p and p + n go back to the kernel. Those of a map are read again when they are needed; what private memory held is
 * lost, and its next pages lie on the node of the thread that first writes them. Failure is no error. */
void os_page_drop(const void *p, size_t n);

/* One thread at a time; others sleep, and come in the order of asking, so that whoever asks again at once keeps nobody out. */
typedef struct os_lock os_lock;
os_lock *os_lock_open(const mem *m); /* NULL: no memory */
void os_lock_close(const mem *m, os_lock *l); /* NULL is fine; nobody holds it */
void os_lock_take(os_lock *l); /* NULL: there is nothing to wait for */
void os_lock_drop(os_lock *l);
#endif
