/*
 * peak.c - for the test scripts: runs a command and holds its peak resident memory to a limit.
 *
 *   peak MOST_KIB COMMAND ARGS...      says "peak N KiB"; exit status 1 when N > MOST_KIB, 2 when the command failed
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct rusage use;
    int status;
    if (argc < 3) return 2;
    pid_t child = fork();
    if (child == 0) {
        execv(argv[2], argv + 2);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &use) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "%s failed\n", argv[2]);
        return 2;
    }
    fprintf(stderr, "peak %ld KiB\n", use.ru_maxrss);
    return use.ru_maxrss > atol(argv[1]);
}
