/* gflow-shim CHANNEL GROUP PIDS PYTHON…: runs the jobs that come down the channel, one at a time.
 *
 * GROUP is the folder in which it may make a control group of its own, or empty; PIDS another one, where processes
 * are counted by groups of version 1; PYTHON… is the command line of shim.py, for what is not plain.
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
/* The next job's child is forked when we have been idle this long: the job that starts now goes first. */
enum { PREPARE_AFTER_MS = 4 };

/* ------------------------------------------------------------ who we are */

unsigned long long start_time(pid_t pid) {
    char path[64], stat[2048];
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, stat, sizeof stat - 1);
    if (fd >= 0) close(fd);
    if (size <= 0) return 0;
    stat[size] = '\0';
    char *at = strrchr(stat, ')');                        /* a name may hold anything */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (at) started = strtoull(at, NULL, 10);
    return started;
}

static void know_ourselves(Shim *shim) {
    struct stat namespace;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, shim->boot, sizeof shim->boot - 1);
    if (fd >= 0) close(fd);
    shim->boot[size > 0 ? strcspn(shim->boot, "\n") : 0] = '\0';
    shim->namespace = stat("/proc/self/ns/pid", &namespace) ? 0 : namespace.st_ino;
    shim->started = start_time(getpid());
}

/* A control group of our own: every job is born in it, and one word kills all that a job started. */
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

/* We are in this group ourselves, so that no job has to join it: its children are born there. */
static void join_pids(Shim *shim, const char *base) {
    if (!*base) return;
    snprintf(shim->pids_path, sizeof shim->pids_path, "%s/shim-%d-%llu", base, (int)getpid(), shim->started);
    bool made = !mkdir(shim->pids_path, 0755) || errno == EEXIST;
    if (!made || !write_to(shim->pids_path, "cgroup.procs", "0")) shim->pids_path[0] = '\0';
}

/* How many processes and threads the job may have; 0: any number. In version 1's group we count too. */
static void limit_processes(Shim *shim, long most) {
    char text[32] = "max";
    if (most == shim->max_processes) return;
    shim->max_processes = most;
    if (most) snprintf(text, sizeof text, "%ld", most);
    if (shim->group >= 0) write_to(shim->group_path, "pids.max", text);
    if (most) snprintf(text, sizeof text, "%ld", most + 2);
    if (*shim->pids_path) write_to(shim->pids_path, "pids.max", text);
}

/* A group that was killed once is made anew: kernel 6.18 kills whatever is born into it later. Where that
 * cannot be done we go on without one. */
static void renew_group(Shim *shim) {
    close(shim->group);
    for (int tries = 0; rmdir(shim->group_path) && errno == EBUSY && tries < 40; tries++) usleep(500);
    bool made = !mkdir(shim->group_path, 0755);
    shim->group = made ? open(shim->group_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    shim->killed = false;
    shim->max_processes = -1;
}

/* The folder above is held by those who still need it (bases.py); the last one out drops it. */
static void remove_group(const char *path, const char *base) {
    rmdir(path);
    int fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) rmdir(base);
}

/* ------------------------------------------------------------ claim and leases */

/* Take this attempt. -1: errno says why not, EEXIST that somebody has taken it before. */
static int claim(const char *path) {
    struct stat found;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_APPEND, 0600);
    if (fd < 0) return -1;
    if (!flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &found) && found.st_nlink) return fd;
    close(fd);
    errno = EEXIST;
    return -1;
}

/* Errors of the daemon's own, or the machine's: the same start may work in a moment (ends.py). */
static bool is_shortage(int error) {
    return error == EMFILE || error == ENFILE || error == EAGAIN || error == ENOMEM || error == ENOBUFS
        || error == ENOSPC || error == EDQUOT;
}

static void defer(const char *what, int error, End *end) {
    *end = (End){.code = -1, .signal = -1};
    snprintf(end->problem, sizeof end->problem, "Deferred: %s%s", what, strerror(error));
}

/* Whether this is a lock file of the machine's daemon: root's, and closed to everybody else. */
static bool is_ruled(const char *path) {
    struct stat found;
    return !lstat(path, &found) && S_ISREG(found.st_mode) && !found.st_uid && !(found.st_mode & 077);
}

/* Take away what somebody put there; a folder, which may be full, is moved aside. */
static bool remove_lease(const char *path) {
    char aside[4400];
    struct timespec now;
    if (!unlink(path) || errno == ENOENT) return true;
    if (errno != EISDIR) return false;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(aside, sizeof aside, "%s.removed-%d-%lld%09ld", path, (int)getpid(), (long long)now.tv_sec, now.tv_nsec);
    return !rename(path, aside) || errno == ENOENT;
}

/* The lock file of the machine's daemon. What others made or may hold is replaced by a fresh one. */
static int open_ruled(const char *path) {
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    for (;;) {
        int fd = -1;
        if (is_ruled(path)) fd = open(path, flags);
        else if (remove_lease(path)) fd = open(path, flags | O_CREAT | O_EXCL, 0600);
        if (fd >= 0 || (errno != ENOENT && errno != EEXIST)) return fd;
    }
}

/* A lock file that anybody may open, whoever made it (leases.py says why in these steps). */
static int open_lease(const char *path, bool rules) {
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    struct stat found;
    if (rules) return open_ruled(path);
    if (!geteuid() && !lstat(path, &found) && !S_ISREG(found.st_mode)) unlink(path);
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT) {
        mode_t mask = umask(0);
        fd = open(path, flags | O_CREAT | O_EXCL, 0444);
        if (fd < 0 && errno == EEXIST) fd = open(path, flags);
        umask(mask);
    }
    if (fd < 0 && errno == EACCES) {                      /* the machine's daemon has it; else it cannot be had */
        errno = is_ruled(path) ? EWOULDBLOCK : EACCES;
        return -1;
    }
    if (fd >= 0 && (fstat(fd, &found) || !S_ISREG(found.st_mode))) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

/* The locks of all these GPUs. False: errno says why not, EWOULDBLOCK that somebody else has one. */
static bool take_leases(Text paths, bool rules, Leases *held) {
    held->count = 0;
    held->last = paths.at;
    for (char *path = paths.at; path < paths.at + paths.size; path += strlen(path) + 1) {
        held->last = path;
        int fd = held->count < MOST_LEASES ? open_lease(path, rules) : -1;
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

/* Who we are and who is about to be the job: whoever finds the record knows whom to look for. */
static void write_identities(const Shim *shim, int record) {
    char text[512];
    int size = snprintf(text, sizeof text, "shim %s %llu %d %llu\njob %s %llu %d %llu\n",
                        shim->boot, shim->namespace, (int)getpid(), shim->started,
                        shim->boot, shim->namespace, (int)shim->child.pid, shim->child.started);
    send_all(record, text, (size_t)size);
}

static void tell(Shim *shim, int count, const char *const *words) {
    if (shim->channel >= 0 && !send_words(shim->channel, count, words))
        shim->channel = -1;                               /* the daemon died just now; the record tells the next */
}

static void tell_end(Shim *shim, const Message *order, int record, End *end) {
    char code[16] = "-", signal[16] = "-", cpu[24], peak[24];
    if (end->code >= 0) snprintf(code, sizeof code, "%d", end->code);
    if (end->signal >= 0) snprintf(signal, sizeof signal, "%d", end->signal);
    snprintf(cpu, sizeof cpu, "%ld", end->cpu_ms);
    snprintf(peak, sizeof peak, "%ld", end->peak_kib);
    for (char *at = end->problem; (at = strchr(at, '\n'));) *at = ' ';
    /* The message first: it is what the daemon waits for. The record is for the case that nobody does. */
    const char *words[] = {"end", order->field[KEY].at, order->field[ATTEMPT].at, code, signal, cpu, peak, end->problem};
    tell(shim, 8, words);
    char line[5000];
    int size = snprintf(line, sizeof line, "end %s %s %s %s %s\n", code, signal, cpu, peak, end->problem);
    if (record < 0) return;                               /* it was never begun */
    send_all(record, line, (size_t)size);
    close(record);
}

/* Hand the order to the waiting child. Somebody may have killed it meanwhile: then to another. A job of the
 * machine's daemon cannot kill us, and would pass a lease on: it gets none. */
static bool wake_child(Shim *shim, int record, const Leases *leases, bool is_persons) {
    Leases none = {.count = 0};
    for (int tries = 0; tries < 3; tries++) {
        if (!shim->child.pid && !prepare(&shim->child, shim->group)) return false;
        write_identities(shim, record);
        bool sent = send_order(shim->child.orders, &shim->order, is_persons ? &none : leases);
        close(shim->child.orders);
        if (sent) return true;
        close(shim->child.trouble);
        shim->child.pid = 0;
    }
    return false;
}

static void see_through(Shim *shim, const Message *order, int record, const Leases *leases, End *end) {
    bool is_ready = !has_person(order) || !number(order, HAS_SCRIPT) || write_snapshot(order);
    if (!is_ready || !wake_child(shim, record, leases, has_person(order))) {
        if (is_shortage(errno)) defer("", errno, end);
        else could_not_start(order, strerror(errno), false, end);
        return;
    }
    Child job = shim->child;
    shim->child.pid = 0;
    attend(shim, order, job.pid, job.trouble, record, leases, end);
}

/* One attempt, from the claim to the written end. */
static void run(Shim *shim, const Message *order) {
    Leases held;
    char trouble[4200];
    End end = {-1, -1, "Leased", 0, 0};
    int record = claim(order->field[RECORD].at);
    if (record < 0 && errno != EEXIST) {                  /* whatever it is, it is not about the job */
        defer("no run record can be made: ", errno, &end);
        tell_end(shim, order, record, &end);
        return;
    }
    if (record < 0) {
        const char *words[] = {"taken", order->field[KEY].at, order->field[ATTEMPT].at};
        tell(shim, 3, words);
        return;
    }
    limit_processes(shim, number(order, MAX_PROCESSES));
    if (take_leases(order->field[LEASES], has_person(order), &held))
        see_through(shim, order, record, &held, &end);
    else if (errno != EWOULDBLOCK && is_shortage(errno))
        defer("", errno, &end);
    else if (errno != EWOULDBLOCK) {
        snprintf(trouble, sizeof trouble, "its GPU cannot be leased: %s: %s", strerror(errno), held.last);
        could_not_start(order, trouble, false, &end);
    }
    release_leases(&held);
    tell_end(shim, order, record, &end);
    if (shim->killed) renew_group(shim);
    if (number(order, HAS_SCRIPT)) unlink(order->field[SNAPSHOT].at);
}

/* ------------------------------------------------------------ orders */

static void wait_for_message(Shim *shim) {
    while (shim->channel >= 0 && !whole_message(&shim->inbox)) {
        struct pollfd fds[] = {{shim->channel, POLLIN, 0}, {shim->signals, POLLIN, 0}};
        int ready = poll(fds, 2, shim->child.pid ? -1 : PREPARE_AFTER_MS);
        if (!ready && !prepare(&shim->child, shim->group)) usleep(100000);
        if (ready <= 0) continue;
        if (fds[1].revents) {                             /* a waiting child was killed */
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
        size_t size = whole_message(&shim->inbox);
        if (!size) return;
        Buffer copy = {0};                                /* reading cuts it up, and the child needs it whole */
        Message order;
        append(&copy, shim->inbox.bytes, size);
        shim->order.size = 0;
        append(&shim->order, shim->inbox.bytes, size);
        drop(&shim->inbox, size);
        /* Anything but an order is a word about a job that is over. */
        if (read_message(copy.bytes, size, &order) && is_kind(&order, "run") && order.count == FIELDS)
            run(shim, &order);
        free(copy.bytes);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    Shim shim = {.channel = atoi(argv[1]), .max_processes = -1, .python = argv + 4};
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
    ask_for_slices(SHORT_SLICE);
    know_ourselves(&shim);
    if (!geteuid()) getpwuid(0);                          /* children find the list of people half open */
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
