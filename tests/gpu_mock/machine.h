/* The machine that the stand-ins for NVIDIA's libraries share through a file; gpu_mock/__init__.py has
 * the same layout. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEVICES = 32, PROCESSES = 160, TEXT = 96 };

typedef struct { uint32_t pid; uint32_t kind; uint64_t bytes; } process; /* kind: 0 compute, 1 graphics, 2 MPS */

typedef struct {
    char uuid[TEXT], name[TEXT], bus[32];
    uint64_t total, used, reserved;
    int32_t present, error, parent; /* parent: the GPU this is a MIG slice of, or -1 */
    int32_t mig, busy, busy_memory, milliwatts, celsius, clock, memory_clock;
    uint64_t slowed, ecc;
    int32_t width, most_width, node, limping; /* limping: row remapping failed */
    int32_t limit_milliwatts, received_kb; /* power limit; bytes that arrive over PCIe in a second */
    uint32_t xid;
    int32_t count;
    uint32_t links; /* one bit per GPU that NVLink reaches */
    int32_t living; /* whether processes leave with their death: those of the stand-in for CUDA do */
    process processes[PROCESSES];
} device;

typedef struct {
    int32_t hang, init_error;
    int32_t lock, unused;
    int64_t calls, inits;
    device devices[DEVICES];
} machine;


static machine *machine_at(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    machine *map = mmap(0, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return map == MAP_FAILED ? NULL : map;
}

/* The lock names its holder: one that was killed holding it must not stop the rest. */
static void lock(machine *m) {
    int free = 0;
    while (!__atomic_compare_exchange_n(&m->lock, &free, getpid(), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        if (free && kill(free, 0)) __atomic_compare_exchange_n(&m->lock, &free, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        free = 0;
        usleep(50);
    }
}
static void unlock(machine *m) { __atomic_store_n(&m->lock, 0, __ATOMIC_RELEASE); }

/* A process that is dead, or a zombie, has given its memory back. */
static int is_dead(int pid) {
    char path[64], text[512];
    if (kill(pid, 0)) return 1;
    strcpy(path, "/proc/");
    int at = 6, digits = 1000000000;
    while (digits > 1 && pid / digits == 0) digits /= 10;
    for (; digits; digits /= 10) path[at++] = '0' + pid / digits % 10;
    strcpy(path + at, "/stat");
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 1;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) return 1;
    text[size] = 0;
    char *end = strrchr(text, ')');
    return !end || end[2] == 'Z' || end[2] == 'X';
}

static void forget_the_dead(machine *m, device *d) {
    if (!d->living) return;
    lock(m);
    int kept = 0;
    for (int i = 0; i < d->count; i++) {
        if (is_dead(d->processes[i].pid)) d->used -= d->processes[i].bytes;
        else d->processes[kept++] = d->processes[i];
    }
    d->count = kept;
    unlock(m);
}
