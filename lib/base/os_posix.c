/* os_posix.c - os.h for Linux. The only file that includes sys/mman.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "os.h"

/* Where a page fault can fail for reasons other than the file: NFS, SMB, CIFS, FUSE, 9p, Lustre, Ceph. */
static bool fs_is_network(int fd)
{
    static const uint32_t magic[] = {0x6969, 0x517b, 0xff534d42, 0xfe534d42, 0x65735546, 0x01021997, 0x0bd00bd0, 0x00c36400};
    struct statfs s;
    if (fstatfs(fd, &s) != 0) return false;
    for (size_t i = 0; i < ARRAY_LEN(magic); i++)
        if ((uint32_t)s.f_type == magic[i]) return true;
    return false;
}

static int64_t mtime_of(const struct stat *st) { return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec; }

tess_status os_open_read(os_file *f, const char *path, tess_error *err)
{
    *f = (os_file){.fd = -1};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang before it is refused */
    if (fd < 0) return err_set_os(err, TESS_E_IO, "%s: cannot open", path);
    struct stat st;
    if (fstat(fd, &st) != 0) {
        close(fd);
        return err_set_os(err, TESS_E_IO, "%s: cannot stat", path);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return ERR(err, TESS_E_IO, "%s: is %s, not a regular file", path, S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    }
    *f = (os_file){fd, (uint64_t)st.st_size, mtime_of(&st), st.st_ino, st.st_dev, fs_is_network(fd)};
    return TESS_OK;
}

void os_close(os_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

tess_status os_pread(const os_file *f, void *dst, size_t n, uint64_t off, const char *path, tess_error *err)
{
    char *p = dst;
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, p + done, n - done, (off_t)(off + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set_os(err, TESS_E_IO, "%s: read error at offset %llu", path, (unsigned long long)(off + done));
        if (got == 0)
            return ERR(err, TESS_E_IO, "%s: ends at offset %llu, %zu more bytes expected", path, (unsigned long long)(off + done),
                       n - done);
        done += (size_t)got;
    }
    return TESS_OK;
}

bool os_file_changed(const os_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) != 0 || (uint64_t)st.st_size != f->size || mtime_of(&st) != f->mtime_ns;
}

tess_status os_map(const os_file *f, uint64_t off, size_t len, const void **out, const char *path, tess_error *err)
{
    *out = NULL;
    if (len == 0 || off % 4096 || !range_in(off, len, f->size))
        return ERR(err, TESS_E_ARG, "%s: cannot map %zu bytes at %llu", path, len, (unsigned long long)off);
    void *p = mmap(NULL, len, PROT_READ, MAP_PRIVATE, f->fd, (off_t)off);
    if (p == MAP_FAILED) return err_set_os(err, TESS_E_IO, "%s: cannot map %zu bytes at offset %llu", path, len, (unsigned long long)off);
    *out = p;
    return TESS_OK;
}

/* munmap and madvise take a plain pointer although they do not write. */
static void *drop_const(const void *p)
{
    void *q;
    memcpy(&q, &p, sizeof q);
    return q;
}
void os_unmap(const void *p, size_t len)
{
    if (p) munmap(drop_const(p), len);
}
void os_map_willneed(const void *p, size_t len) { madvise(drop_const(p), len, MADV_WILLNEED); }

/* ---- output ---- */

tess_status os_out_open(os_out *o, const mem *m, const char *path, tess_error *err)
{
    *o = (os_out){.fd = -1, .m = m};
    const char *slash = strrchr(path, '/');
    size_t dir = slash ? (size_t)(slash - path) + 1 : 0, room = strlen(path) + 48;
    if (path[dir] == 0) return ERR(err, TESS_E_ARG, "%s: is not the name of a file", path);
    struct stat st_now;
    if (stat(path, &st_now) == 0 && !S_ISREG(st_now.st_mode)) /* the rename would replace /dev/null, or fail after all the work */
        return ERR(err, TESS_E_IO, "%s: is %s, not a regular file; nothing was written", path,
                   S_ISDIR(st_now.st_mode) ? "a directory" : "a device or pipe");
    o->path = mem_strndup(m, path, strlen(path));
    o->tmp = mem_alloc(m, room);
    if (!o->path || !o->tmp) {
        os_out_abort(o);
        return ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    }
    for (int tries = 0; tries < 16 && o->fd < 0; tries++) {
        uint32_t r;
        os_random(&r, sizeof r);
        snprintf(o->tmp, room, "%.*s.%s.tmp.%ld.%08x", (int)dir, path, path + dir, (long)getpid(), r);
        o->fd = open(o->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (o->fd < 0 && errno != EEXIST) break;
    }
    if (o->fd < 0) {
        tess_status st = err_set_os(err, TESS_E_IO, "%s: cannot create a temporary file beside it", path);
        mem_free(m, o->tmp);
        o->tmp = NULL; /* nothing to unlink */
        os_out_abort(o);
        return st;
    }
    return TESS_OK;
}

tess_status os_out_reserve(os_out *o, uint64_t size, tess_error *err)
{
    int rc = size ? posix_fallocate(o->fd, 0, (off_t)size) : 0;
    if (rc != ENOSPC && rc != EFBIG && rc != EDQUOT) return TESS_OK;
    errno = rc;
    return err_set_os(err, TESS_E_IO, "%s: %llu bytes needed", o->path, (unsigned long long)size);
}

tess_status os_out_pwrite(os_out *o, const void *p, size_t n, uint64_t off, tess_error *err)
{
    const char *s = p;
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(o->fd, s + done, n - done, (off_t)(off + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return err_set_os(err, TESS_E_IO, "%s: write error at offset %llu", o->path, (unsigned long long)(off + done));
        done += (size_t)put;
    }
    return TESS_OK;
}

tess_status os_out_truncate(os_out *o, uint64_t size, tess_error *err)
{
    if (ftruncate(o->fd, (off_t)size) == 0) return TESS_OK;
    return err_set_os(err, TESS_E_IO, "%s: cannot set the size to %llu", o->path, (unsigned long long)size);
}

tess_status os_out_sync(os_out *o, tess_error *err)
{
    if (fsync(o->fd) == 0) return TESS_OK;
    return err_set_os(err, TESS_E_IO, "%s: fsync failed", o->path);
}

/* The umask can only be read by setting it, which other threads would see; /proc tells it without that. */
static mode_t umask_read(void)
{
    char line[128];
    unsigned v = 022;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Umask: %o", &v) == 1) break;
    if (f) fclose(f);
    return (mode_t)(v & 0777);
}

static void sync_dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char dir[4096];
    int n = slash ? (int)(slash - path) + 1 : 1;
    if ((size_t)n >= sizeof dir) return;
    snprintf(dir, sizeof dir, "%.*s", n, slash ? path : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

tess_status os_out_commit(os_out *o, bool force, tess_error *err)
{
    TRY(os_out_sync(o, err));
    if (fchmod(o->fd, 0666 & ~umask_read()) != 0) return err_set_os(err, TESS_E_IO, "%s: cannot set its mode", o->path);
    int rc;
    if (force) rc = rename(o->tmp, o->path);
    else {
        rc = renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->path, RENAME_NOREPLACE);
        if (rc != 0 && (errno == EINVAL || errno == ENOSYS)) {
            rc = link(o->tmp, o->path);
            if (rc == 0) unlink(o->tmp);
        }
    }
    if (rc != 0 && errno == EEXIST) return ERR(err, TESS_E_IO, "%s: exists already; use --force to replace it", o->path);
    if (rc != 0) return err_set_os(err, TESS_E_IO, "%s: cannot rename the temporary file to it", o->path);
    o->committed = true;
    sync_dir_of(o->path);
    return TESS_OK;
}

void os_out_abort(os_out *o)
{
    if (o->fd >= 0) close(o->fd);
    if (o->tmp && !o->committed) unlink(o->tmp);
    if (o->m) {
        mem_free(o->m, o->tmp);
        mem_free(o->m, o->path);
    }
    *o = (os_out){.fd = -1};
}

/* ---- the rest ---- */

bool os_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}
bool os_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

tess_status os_read_whole(const char *path, uint64_t max, const mem *m, char **out, size_t *len, tess_error *err)
{
    *out = NULL;
    *len = 0;
    os_file f;
    TRY(os_open_read(&f, path, err));
    tess_status st = TESS_OK;
    char *p = NULL;
    if (f.size > max)
        st = ERR(err, TESS_E_FORMAT, "%s: is %llu bytes, the limit is %llu", path, (unsigned long long)f.size,
                 (unsigned long long)max);
    else if (!(p = mem_alloc(m, (size_t)f.size + 1)))
        st = ERR(err, TESS_E_NOMEM, "%s: no memory for %llu bytes", path, (unsigned long long)f.size);
    else st = os_pread(&f, p, (size_t)f.size, 0, path, err);
    if (st < 0) mem_free(m, p);
    else {
        p[f.size] = 0;
        *out = p;
        *len = (size_t)f.size;
    }
    os_close(&f);
    return st;
}

uint64_t os_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
uint64_t os_unix_time(void) { return (uint64_t)time(NULL); }

uint64_t os_mem_available(void)
{
    char line[128];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
    if (f) fclose(f);
    return kb * 1024;
}

void os_random(void *p, size_t n)
{
    if (getrandom(p, n, 0) == (ssize_t)n) return;
    uint64_t x = os_now_ns() ^ (uint64_t)(uintptr_t)p; /* very old kernels: unpredictable enough for names */
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ((uint8_t *)p)[i] = (uint8_t)(x >> 56);
    }
}

void *os_page_alloc(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
void os_page_free(void *p, size_t n)
{
    if (p) munmap(p, n);
}
void os_page_drop(const void *p, size_t n)
{
    const long size = sysconf(_SC_PAGESIZE);
    const uintptr_t page = size > 0 ? (uintptr_t)size : 4096, at = (uintptr_t)p;
    const uintptr_t skip = (page - at % page) % page, len = n > skip ? (n - skip) / page * page : 0;
    if (len) (void)madvise((uint8_t *)drop_const(p) + skip, len, MADV_DONTNEED);
}

struct os_lock {
    pthread_mutex_t mutex;
    pthread_cond_t next;
    uint64_t asked, served; /* whoever asked as number `served` has the lock, or nobody does when they are equal */
};
os_lock *os_lock_open(const mem *m)
{
    os_lock *l = mem_zalloc(m, sizeof *l);
    if (!l) return NULL;
    if (pthread_mutex_init(&l->mutex, NULL) == 0) {
        if (pthread_cond_init(&l->next, NULL) == 0) return l;
        (void)pthread_mutex_destroy(&l->mutex);
    }
    mem_free(m, l);
    return NULL;
}
void os_lock_close(const mem *m, os_lock *l)
{
    if (l) (void)pthread_cond_destroy(&l->next), (void)pthread_mutex_destroy(&l->mutex);
    mem_free(m, l);
}
void os_lock_take(os_lock *l)
{
    if (!l) return;
    (void)pthread_mutex_lock(&l->mutex);
    for (const uint64_t mine = l->asked++; l->served != mine;) (void)pthread_cond_wait(&l->next, &l->mutex);
    (void)pthread_mutex_unlock(&l->mutex);
}
void os_lock_drop(os_lock *l)
{
    if (!l) return;
    (void)pthread_mutex_lock(&l->mutex);
    l->served++;
    (void)pthread_cond_broadcast(&l->next);
    (void)pthread_mutex_unlock(&l->mutex);
}
