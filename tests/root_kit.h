/* root_kit.h - a folder with made-up files of the kernel, for tests of what is read below a root (cpus.h). */
#ifndef TESS_ROOT_KIT_H
#define TESS_ROOT_KIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static inline int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/t_root.XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}
static inline int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* A file below the root, with the folders that it needs. */
static inline void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        (void)mkdir(path, 0777);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}
#endif
