/* gflow-shim CHANNEL GROUP PIDS PYTHON…: runs the jobs that arrive on the channel, one at a time.
 *
 * GROUP is the folder in which it may create its own control group, or empty. PIDS is the same for a version 1 group
 * that counts processes. PYTHON… is the command line of shim.py, which takes over where this shim is not enough.
 *
 * gflow-shim restrict GROUP RULES: restricts the devices of a control group, for shim.py. Exits with an error number.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const int IGNORED[] = {SIGINT, SIGHUP, SIGUSR2, SIGPIPE, 0};
/* Idle time after which the child for the next job is forked, so that a job that has just started goes first. */
enum { PREPARE_AFTER_MS = 4 };

/* ------------------------------------------------------------ identity and control groups */

unsigned long long start_time(pid_t pid) {
    char path[64], stat[2048];
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, stat, sizeof stat - 1);
    if (fd >= 0) close(fd);
    if (size <= 0) return 0;
    stat[size] = '\0';
    char *at = strrchr(stat, ')');                        /* the process name may contain any character */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (at) started = strtoull(at, NULL, 10);
    return started;
}

static void read_own_identity(Shim *shim) {
    struct stat namespace;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, shim->boot, sizeof shim->boot - 1);
    if (fd >= 0) close(fd);
    shim->boot[size > 0 ? strcspn(shim->boot, "\n") : 0] = '\0';
    shim->namespace = stat("/proc/self/ns/pid", &namespace) ? 0 : namespace.st_ino;
    shim->started = start_time(getpid());
}

/* Create our own control group: every job is forked into it, and one write kills everything that the job started. */
static void make_group(Shim *shim, const char *base) {
    shim->group = -1;
    if (!*base) return;
    snprintf(shim->group_path, sizeof shim->group_path, "%s/shim-%d-%llu", base, (int)getpid(), shim->started);
    if (mkdir(shim->group_path, 0755) && errno != EEXIST) return;
    shim->group = open(shim->group_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static bool write_to(const char *folder, const char *name, const char *text) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return written;
}

/* Join the group that counts processes: our children are forked into it and need not join. */
static void join_pids(Shim *shim, const char *base) {
    if (!*base) return;
    snprintf(shim->pids_path, sizeof shim->pids_path, "%s/shim-%d-%llu", base, (int)getpid(), shim->started);
    bool made = !mkdir(shim->pids_path, 0755) || errno == EEXIST;
    if (!made || !write_to(shim->pids_path, "cgroup.procs", "0")) shim->pids_path[0] = '\0';
}

/* Limit the number of processes and threads of the job; 0: unlimited. In the version 1 group we count too. */
static void limit_processes(Shim *shim, long most) {
    char text[32] = "max";
    if (most == shim->max_processes) return;
    shim->max_processes = most;
    if (most) snprintf(text, sizeof text, "%ld", most);
    if (shim->group >= 0) write_to(shim->group_path, "pids.max", text);
    if (most) snprintf(text, sizeof text, "%ld", most + 2);
    if (*shim->pids_path) write_to(shim->pids_path, "pids.max", text);
}

/* Limit the memory of the job; 0: unlimited. Without version 2 of the memory controller supervise.c watches it. */
static void limit_memory(Shim *shim, long mib) {
    char text[32] = "max";
    if (mib == shim->memory_mib) return;
    shim->memory_mib = mib;
    if (mib) snprintf(text, sizeof text, "%lld", (long long)mib << 20);
    shim->memory_held = shim->group >= 0 && write_to(shim->group_path, "memory.max", text);
    if (!shim->memory_held) return;
    write_to(shim->group_path, "memory.oom.group", mib ? "1" : "0");
    write_to(shim->group_path, "memory.swap.max", mib ? "0" : "max");
}

/* Whether the kernel has killed a job in our group at the limit since the last call. */
static bool was_out_of_memory(Shim *shim) {
    char text[1024];
    int fd = shim->memory_held ? openat(shim->group, "memory.events", O_RDONLY | O_CLOEXEC) : -1;
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[size > 0 ? size : 0] = '\0';
    char *found = strstr(text, "\noom_kill ");
    long before = shim->oom_kills;
    if (found) shim->oom_kills = strtol(found + 10, NULL, 10);
    return shim->oom_kills > before;
}

/* Whether much memory is still charged to our group: files that a job left in /dev/shm. The next job has its own. */
static bool keeps_memory(const Shim *shim) {
    char text[32] = "";
    int fd = shim->memory_held && shim->memory_mib ? openat(shim->group, "memory.current", O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return false;
    if (read(fd, text, sizeof text - 1) < 0) text[0] = '\0';
    close(fd);
    return strtoll(text, NULL, 10) >> 20 > shim->memory_mib / 16;
}

/* Replace a group that was killed: kernel 6.18 kills every process that is forked into it later. If that fails we
 * continue without a group. */
static void replace_group(Shim *shim) {
    close(shim->group);
    for (int tries = 0; rmdir(shim->group_path) && errno == EBUSY && tries < 40; tries++) usleep(500);
    bool made = !mkdir(shim->group_path, 0755);
    shim->group = made ? open(shim->group_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    shim->killed = false;
    shim->max_processes = shim->memory_mib = -1;
    shim->memory_held = false;
    shim->oom_kills = 0;
    free(shim->device_rules);
    shim->device_rules = NULL;
    if (shim->device_program >= 0) close(shim->device_program);
    shim->device_program = -1;
}

/* Let the job open only its own GPUs. False: see errno. */
static bool limit_devices(Shim *shim, const Message *order) {
    const char *rules = order->field[DEVICES].at;
    if (!strcmp(rules, shim->device_rules ? shim->device_rules : "")) return true;
    if (shim->group < 0) {
        errno = ENOTSUP;
        return false;
    }
    if (!restrict_devices(shim->group, rules, &shim->device_program)) return false;
    free(shim->device_rules);
    shim->device_rules = strdup(rules);
    return true;
}

/* Remove our group. The base folder is locked by all processes that need it (cgroups.py); the last one removes it. */
static void remove_group(const char *path, const char *base) {
    rmdir(path);
    int fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) rmdir(base);
}

/* ------------------------------------------------------------ claim and leases */

/* Claim an attempt: the locked record. -1: see errno; EEXIST: already claimed. */
static int claim(const char *path) {
    struct stat found;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_APPEND, 0600);
    if (fd < 0) return -1;
    if (!flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &found) && found.st_nlink) return fd;
    close(fd);
    errno = EEXIST;
    return -1;
}

/* Errors of the daemon or the machine: the same start may succeed later (outcome.py). */
static bool is_shortage(int error) {
    return error == EMFILE || error == ENFILE || error == EAGAIN || error == ENOMEM || error == ENOBUFS
        || error == ENOSPC || error == EDQUOT;
}

static void defer(const char *what, int error, End *end) {
    *end = (End){.code = -1, .signal = -1};
    snprintf(end->problem, sizeof end->problem, "Deferred: %s%s", what, strerror(error));
}

/* Whether this is a lock file of the system daemon: owned by root, no access for others. */
static bool is_system_lock(const char *path) {
    struct stat found;
    return !lstat(path, &found) && S_ISREG(found.st_mode) && !found.st_uid && !(found.st_mode & 077);
}

/* Remove a file; a folder, which may not be empty, is renamed instead. */
static bool remove_lease(const char *path) {
    char aside[4400];
    struct timespec now;
    if (!unlink(path) || errno == ENOENT) return true;
    if (errno != EISDIR) return false;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(aside, sizeof aside, "%s.removed-%d-%lld%09ld", path, (int)getpid(), (long long)now.tv_sec, now.tv_nsec);
    return !rename(path, aside) || errno == ENOENT;
}

/* Open the lock file of the system daemon. A file that another user made or may hold is replaced. */
static int open_system_lock(const char *path) {
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    for (;;) {                                            /* again if another process removed or made it meanwhile */
        bool is_lock = is_system_lock(path);
        if (!is_lock && !remove_lease(path)) return -1;
        int fd = open(path, is_lock ? flags : flags | O_CREAT | O_EXCL, 0600);
        if (fd >= 0 || errno != (is_lock ? ENOENT : EEXIST)) return fd;
    }
}

/* Open or create a lock file that every user may open (gpu_leases.py explains the steps). */
static int open_lease(const char *path, bool is_system) {
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    struct stat found;
    if (is_system) return open_system_lock(path);
    if (!geteuid() && !lstat(path, &found) && !S_ISREG(found.st_mode)) unlink(path);
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT) {
        mode_t mask = umask(0);
        fd = open(path, flags | O_CREAT | O_EXCL, 0444);
        if (fd < 0 && errno == EEXIST) fd = open(path, flags);
        umask(mask);
    }
    if (fd < 0 && errno == EACCES) {                      /* held by the system daemon, or not accessible */
        errno = is_system_lock(path) ? EWOULDBLOCK : EACCES;
        return -1;
    }
    if (fd >= 0 && (fstat(fd, &found) || !S_ISREG(found.st_mode))) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

/* Take the leases of all these GPUs. False: see errno; EWOULDBLOCK: one of them is held. */
static bool take_leases(Text paths, bool is_system, Leases *held) {
    held->count = 0;
    held->last = paths.at;
    for (char *path = paths.at; path < paths.at + paths.size; path += strlen(path) + 1) {
        held->last = path;
        int fd = held->count < MAX_LEASES ? open_lease(path, is_system) : -1;
        if (fd < 0) return false;
        held->fd[held->count++] = fd;
        if (flock(fd, LOCK_EX | LOCK_NB)) return false;
    }
    return true;
}

static void release_leases(const Leases *held) {
    for (int i = 0; i < held->count; i++) close(held->fd[i]);
}

/* ------------------------------------------------------------ one job */

/* Record our identity, that of the job's process and its user, for a later daemon. */
static void write_identities(const Shim *shim, const Message *order, int record) {
    char text[512];
    int size = snprintf(text, sizeof text, "shim %s %llu %d %llu\njob %s %llu %d %llu\n%s%s%s",
                        shim->boot, shim->namespace, (int)getpid(), shim->started,
                        shim->boot, shim->namespace, (int)shim->child.pid, shim->child.started,
                        has_owner(order) ? "uid " : "", order->field[UID].at, has_owner(order) ? "\n" : "");
    send_all(record, text, (size_t)size);
}

static void send_to_daemon(Shim *shim, int count, const char *const *words) {
    if (shim->channel >= 0 && !send_words(shim->channel, count, words))
        shim->channel = -1;                               /* the daemon has died; the next one reads the record */
}

/* Why a daemon stopped the run: the last `why` line of the record; empty: none did. */
static void read_why(int record, char *text, size_t room) {
    static char content[1 << 16];
    ssize_t size = pread(record, content, sizeof content - 1, 0);
    *text = '\0';
    content[size > 0 ? size : 0] = '\0';
    for (char *line = content, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (!strncmp(line, "why ", 4)) snprintf(text, room, "%s", line + 4);
    }
}

/* Write how the job ended to its log, unless it exited by itself: then its output is left as it is. */
static void note_end(const Message *order, int record, const End *end) {
    char text[4096];
    static const char out[] = "OutOfMemory: ";
    read_why(record, text, sizeof text);
    if (!*text && !strncmp(end->problem, out, sizeof out - 1))
        snprintf(text, sizeof text, "ran out of memory: %.4000s", end->problem + sizeof out - 1);
    if (!*text && end->signal > 0)
        snprintf(text, sizeof text, "was killed by signal %d (%s)", end->signal, strsignal(end->signal));
    if (*text) write_last_line(order, text);
}

static void report_end(Shim *shim, const Message *order, int record, End *end) {
    char code[16] = "-", signal[16] = "-", cpu[24], peak[24];
    if (end->code >= 0) snprintf(code, sizeof code, "%d", end->code);
    if (end->signal >= 0) snprintf(signal, sizeof signal, "%d", end->signal);
    snprintf(cpu, sizeof cpu, "%ld", end->cpu_ms);
    snprintf(peak, sizeof peak, "%ld", end->peak_kib);
    for (char *at = end->problem; (at = strchr(at, '\n'));) *at = ' ';
    /* The message first: the daemon waits for it. The record serves the next daemon if this one is gone. */
    const char *words[] = {"end", order->field[KEY].at, order->field[ATTEMPT].at, code, signal, cpu, peak, end->problem};
    send_to_daemon(shim, 8, words);
    char line[5000];
    int size = snprintf(line, sizeof line, "end %s %s %s %s %s\n", code, signal, cpu, peak, end->problem);
    if (record < 0) return;                               /* the attempt was never claimed */
    send_all(record, line, (size_t)size);
    close(record);
}

/* Send the order to the waiting child; if that was killed meanwhile, to a new one. A job of the system daemon cannot
 * kill us and could pass a lease on, so it inherits none. */
static bool wake_child(Shim *shim, const Message *order, int record, const Leases *leases) {
    Leases none = {.count = 0};
    for (int tries = 0; tries < 3; tries++) {
        if (!shim->child.pid && !fork_child(&shim->child, shim->group, shim->oom_score)) return false;
        if (shim->device_program >= 0 && !shim->child.in_group) {   /* its devices are not restricted */
            close(shim->child.orders);
            close(shim->child.trouble);
            shim->child.pid = 0;
            errno = EAGAIN;
            continue;
        }
        write_identities(shim, order, record);
        bool sent = send_order(shim->child.orders, &shim->order, has_owner(order) ? &none : leases);
        close(shim->child.orders);
        if (sent) return true;
        close(shim->child.trouble);
        shim->child.pid = 0;
    }
    return false;
}

static void run_job(Shim *shim, const Message *order, int record, const Leases *leases, End *end) {
    bool is_ready = !has_owner(order) || !number(order, HAS_SCRIPT) || write_snapshot(order);
    if (!is_ready || !wake_child(shim, order, record, leases)) {
        if (is_shortage(errno)) defer("", errno, end);
        else fail_start(order, strerror(errno), false, end);
        return;
    }
    Child job = shim->child;
    shim->child.pid = 0;
    supervise(shim, order, job.pid, job.trouble, record, leases, end);
    if (end->signal != SIGKILL || !was_out_of_memory(shim)) return;
    long used = end->peak_kib >> 10, limit = shim->memory_mib;
    snprintf(end->problem, sizeof end->problem, "OutOfMemory: used %ld MiB of %ld MiB, the most of a job without --memory",
             used < limit ? limit : used, limit);
}

/* Run one attempt, from the claim of its record to the written end. */
static void run(Shim *shim, const Message *order) {
    Leases held;
    char trouble[4200];
    End end = {-1, -1, "Leased", 0, 0};
    int record = claim(order->field[RECORD].at);
    if (record < 0 && errno != EEXIST) {                  /* a problem of the machine, not of the job */
        defer("no run record can be made: ", errno, &end);
        report_end(shim, order, record, &end);
        return;
    }
    if (record < 0) {
        const char *words[] = {"taken", order->field[KEY].at, order->field[ATTEMPT].at};
        send_to_daemon(shim, 3, words);
        return;
    }
    shim->oom_score = number(order, OOM_SCORE);
    limit_processes(shim, number(order, MAX_PROCESSES));
    limit_memory(shim, number(order, MEMORY_ADVICE) ? 0 : number(order, DEFAULT_MEMORY));
    if (!limit_devices(shim, order)) {
        held.count = 0;
        defer("its devices cannot be restricted: ", errno, &end);
    } else if (take_leases(order->field[LEASES], has_owner(order), &held))
        run_job(shim, order, record, &held, &end);
    else if (errno != EWOULDBLOCK && is_shortage(errno))
        defer("", errno, &end);
    else if (errno != EWOULDBLOCK) {
        snprintf(trouble, sizeof trouble, "its GPU cannot be leased: %s: %s", strerror(errno), held.last);
        fail_start(order, trouble, false, &end);
    }
    release_leases(&held);
    note_end(order, record, &end);
    report_end(shim, order, record, &end);
    if (shim->killed || keeps_memory(shim)) replace_group(shim);
    if (number(order, HAS_SCRIPT)) unlink(order->field[SNAPSHOT].at);
}

/* ------------------------------------------------------------ orders */

static void wait_for_message(Shim *shim) {
    while (shim->channel >= 0 && !message_size(&shim->inbox)) {
        struct pollfd fds[] = {{shim->channel, POLLIN, 0}, {shim->signals, POLLIN, 0}};
        int ready = poll(fds, 2, shim->child.pid ? -1 : PREPARE_AFTER_MS);
        if (!ready && !fork_child(&shim->child, shim->group, shim->oom_score)) usleep(100000);
        if (ready <= 0) continue;
        if (fds[1].revents) {                             /* the waiting child was killed */
            struct signalfd_siginfo came;
            while (read(shim->signals, &came, sizeof came) == sizeof came) continue;
            while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        }
        if (fds[0].revents) receive(shim);
    }
}

static void serve(Shim *shim) {
    for (;;) {
        wait_for_message(shim);
        size_t size = message_size(&shim->inbox);
        if (!size) return;
        Buffer copy = {0}; /* read_message() changes it, and the child needs the original */
        Message order;
        append(&copy, shim->inbox.bytes, size);
        shim->order.size = 0;
        append(&shim->order, shim->inbox.bytes, size);
        drop(&shim->inbox, size);
        /* Any other message is a request about a job that has ended. */
        if (read_message(copy.bytes, size, &order) && is_kind(&order, "run") && order.count == FIELDS)
            run(shim, &order);
        free(copy.bytes);
    }
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "restrict")) return restrict_group(argv[2], argv[3]);
    if (argc < 5) return 2;
    Shim shim = {.channel = atoi(argv[1]), .max_processes = -1, .memory_mib = -1, .device_program = -1, .python = argv + 4};
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGUSR1);
    sigprocmask(SIG_SETMASK, &ours, NULL);
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    for (const int *number = IGNORED; *number; number++) signal(*number, SIG_IGN);
    shim.signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    fcntl(shim.channel, F_SETFD, FD_CLOEXEC);
    if (shim.signals < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) return 1;
    umask(077);
    set_time_slice(SHORT_SLICE);
    read_own_identity(&shim);
    if (!geteuid()) getpwuid(0);                          /* opens the user database, for the children */
    make_group(&shim, argv[2]);
    join_pids(&shim, argv[3]);
    serve(&shim);
    if (shim.child.pid) {
        close(shim.child.orders);
        waitpid(shim.child.pid, NULL, 0);
    }
    if (shim.group >= 0) remove_group(shim.group_path, argv[2]);
    if (*shim.pids_path && write_to(argv[3], "../cgroup.procs", "0")) remove_group(shim.pids_path, argv[3]);
    return 0;
}
