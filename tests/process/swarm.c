/* A swarm of processes that is hard to end, and bounded: it never makes more than TOTAL.
 *
 *     swarm FILE KIND TOTAL ALIVE
 *
 * All members count themselves in FILE, hold a shared lock on it, and have its name in their arguments,
 * which stay when the environment is wiped.
 *
 * wide    forks until ALIVE of them live, each in a session of its own; then the process that forks leaves itself
 * chain   ALIVE chains: a member forks and leaves, again and again, once the file's flag is up
 * rush    the same without a pause
 * daemon  what the book says: twice forked, new session, no files, no environment, no folder
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

struct counters {
    int created; /* read by the test: the first word of the file */
    int go;      /* written by the test: the second */
    int alive;
    int settled; /* the third and fourth: how many live, how many just wait now */
};

static struct counters *shared;
static int total, limit, pauses;

static int reserve(void) {
    if (__atomic_fetch_add(&shared->created, 1, __ATOMIC_SEQ_CST) < total) return 1;
    __atomic_fetch_sub(&shared->created, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void settle(void) {
    __atomic_fetch_add(&shared->settled, 1, __ATOMIC_SEQ_CST);
    for (;;) pause();
}

static void leave(void) {
    __atomic_fetch_sub(&shared->alive, 1, __ATOMIC_SEQ_CST);
    _exit(0);
}

static void wide(void) {
    while (reserve()) {
        int crowded = __atomic_add_fetch(&shared->alive, 1, __ATOMIC_SEQ_CST) > limit;
        pid_t child = fork();
        if (child < 0) { __atomic_fetch_sub(&shared->alive, 1, __ATOMIC_SEQ_CST); usleep(10000); }
        if (child == 0) setsid();
        if (child > 0 && crowded) leave();
    }
    settle();
}

static void chain(void) {
    __atomic_fetch_add(&shared->settled, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST)) usleep(1000);
    while (reserve()) {
        pid_t child = fork();
        if (child > 0) _exit(0);
        if (child == 0) setsid();
        if (child < 0 || pauses) usleep(200);
    }
    settle();
}

static void become_daemon(char **argv) {
    if (strcmp(argv[0], "swarm-daemon") == 0) settle();
    for (int i = 0; i < limit; i++) {
        if (fork()) continue;
        setsid();
        if (fork()) _exit(0);
        argv[0] = "swarm-daemon";
        char *none[] = {NULL};
        for (int fd = 0; fd < 1024; fd++) close(fd);
        if (chdir("/") == 0) execve("/proc/self/exe", argv, none);
        _exit(1);
    }
    for (;;) pause();
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int fd = open(argv[1], O_RDWR);
    if (fd < 0 || flock(fd, LOCK_SH)) return 3;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return 4;
    total = atoi(argv[3]);
    limit = atoi(argv[4]);
    pauses = strcmp(argv[2], "rush") != 0;
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (strcmp(argv[2], "wide") == 0 && fork() == 0) wide();
    if (strcmp(argv[2], "daemon") == 0) become_daemon(argv);
    for (int i = 0; i < limit; i++)
        if (fork() == 0) { setsid(); chain(); }
    for (;;) pause();
}
