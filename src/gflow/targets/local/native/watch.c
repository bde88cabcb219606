/* Seeing one job through: stop requests, grace, leftovers, its log's size, and how it ended.
 *
 * A job that ended by itself leaves nobody behind: what it left is killed at once. A job that is
 * being stopped may have children still saving their work within the grace time.
 *
 * The job's first process is reaped last, when nothing of the job lives any more. Until then its pid, which is also
 * the number of the job's process group and session, cannot become another process's: that is why signals may go
 * to that group by number.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* When to look at logs: rotation.py says the same, and why. Rates in bytes per millisecond. */
enum { LOG_LEAST_MS = 5, LOG_USUAL_LEAST_MS = 10, LOG_LOOK_MS = 2000, LOG_QUIET_MS = 4000, LOG_MOST_RATE = 1 << 20 };
enum { KILL_AGAIN_MS = 50, REAP_AT_ONCE = 500, AHEAD_MS = 100, FAR_DOWN = 200 };
/* All processes together are measured ever more rarely, and never for more than half a percent of the time. */
enum { MEMORY_LOOK_MS = 1000, MEMORY_LOOK_MOST_MS = 30000, MEMORY_LOOK_SHARE = 200, MOST_PROCESSES = 1000 };
static const long long NEVER = INT64_MAX;

typedef struct {
    Shim *shim;
    const Message *order;
    pid_t pid;
    int trouble, record;
    const Leases *leases;
    int pidfd;                                             /* readable when the job's process has ended */
    bool ended, children_left, more_dead, crowded, stopping, killed;
    siginfo_t how;                                         /* it ended */
    long peak_kib;
    long long cpu_us;
    long long kill_at, log_cap, log_at, log_ms, log_size, log_seen, memory_at, memory_ms;
    long long ahead_since, ahead_from;                     /* 0: we are not; the next time that we may be */
} Watch;

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* ------------------------------------------------------------ what is asked */

/* `how`: 0: after the job's own grace time, 1: at once, more: after so many seconds. */
static void stop(Watch *watch, int how) {
    long long own = (long long)(strtod(watch->order->field[GRACE].at, NULL) * 1000);
    long long until = now_ms() + (how > 1 ? how * 1000LL : how ? 0 : own);
    if (!watch->stopping) {
        watch->stopping = true;
        int fd = open(watch->order->field[STOP_FILE].at, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0) close(fd);
        killpg(watch->pid, SIGTERM);
        killpg(watch->pid, SIGCONT);
    }
    if (until < watch->kill_at) watch->kill_at = until;
}

/* A word may come right behind its order, or after the end of the job that it is about. */
static void hear_word(Watch *watch, const Message *word) {
    if (word->count < 4 || strcmp(word->field[KEY].at, watch->order->field[KEY].at) ||
        strcmp(word->field[ATTEMPT].at, watch->order->field[ATTEMPT].at))
        return;
    int argument = atoi(word->field[3].at);
    if (is_kind(word, "stop")) stop(watch, argument);
    if (is_kind(word, "signal")) killpg(watch->pid, argument);
}

static void hear_daemon(Watch *watch) {
    Buffer *inbox = &watch->shim->inbox;
    size_t size;
    while ((size = whole_message(inbox))) {
        Message word;
        Buffer copy = {0};
        append(&copy, inbox->bytes, size);
        bool whole = read_message(copy.bytes, size, &word);
        bool is_order = whole && is_kind(&word, "run");
        if (whole && !is_order) hear_word(watch, &word);
        free(copy.bytes);
        if (is_order) return;                             /* its turn comes after this job */
        drop(inbox, size);
    }
}

/* TERM and USR1 are how a later daemon, which has no channel to us, says stop and kill. */
static void hear_signals(Watch *watch) {
    struct signalfd_siginfo came;
    while (read(watch->shim->signals, &came, sizeof came) == sizeof came)
        if (came.ssi_signo != SIGCHLD) stop(watch, came.ssi_signo == SIGUSR1);
}

/* ------------------------------------------------------------ what is due */

static void note_usage(Watch *watch, const struct rusage *used) {
    watch->cpu_us += (used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000000LL +
                     used->ru_utime.tv_usec + used->ru_stime.tv_usec;
    if (used->ru_maxrss > watch->peak_kib) watch->peak_kib = used->ru_maxrss;
}

/* Reap children of ours: this one (-1: any) if it is dead. Returns whether there was one. */
static bool collect(Watch *watch, pid_t pid) {
    struct rusage used;
    if (wait4(pid, NULL, WNOHANG, &used) <= 0) return false;
    note_usage(watch, &used);
    return true;
}

/* Run before the job does, where we are root: one that forks and leaves all the time would make dead processes faster
 * than we get to collect them, until the machine has no pids left. Returns whether we do. realtime.py says for how long. */
static bool get_ahead(Watch *watch) {
    watch->crowded = true;
    if (now_ms() >= watch->ahead_from && !watch->ahead_since &&
        !sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &(struct sched_param){1}))
        watch->ahead_since = now_ms();
    return watch->ahead_since && now_ms() - watch->ahead_since < AHEAD_MS;
}

/* Run as everybody else again, for as long as we did not. */
static void fall_back(Watch *watch) {
    if (!watch->ahead_since) return;
    watch->ahead_from = 2 * now_ms() - watch->ahead_since;
    watch->ahead_since = 0;
    ask_for_slices(SHORT_SLICE);
}

/* Collect what lost its parent and ended, until the job's own process is the next one. Not more than some at a time:
 * a job that forks all the time makes them as fast. */
static void reap_orphans(Watch *watch) {
    watch->more_dead = false;
    for (int count = 1; !watch->more_dead; count++) {
        siginfo_t found = {0};
        if (waitid(P_ALL, 0, &found, WEXITED | WNOHANG | WNOWAIT) || !found.si_pid) break;
        if (found.si_pid == watch->pid) {
            watch->ended = true;
            watch->how = found;
            break;
        }
        collect(watch, found.si_pid);
        watch->more_dead = count % REAP_AT_ONCE == 0 && !get_ahead(watch);
    }
    fall_back(watch);
}

/* Collect the dead behind the job's own process, which the kernel names first. */
static void reap_others(Watch *watch) {
    char path[64];
    int pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *children = fopen(path, "re");
    while (children && fscanf(children, "%d", &pid) == 1)
        if (pid != watch->pid) collect(watch, pid);
    if (children) fclose(children);
}

/* Whether any child of ours lives, or is a zombie that only its tracer may reap. Without WEXITED the kernel passes over
 * zombies that we could reap: if there are only those, it says that there is nobody to wait for. */
static bool has_living_children(void) {
    siginfo_t found;
    return !waitid(P_ALL, 0, &found, WSTOPPED | WNOHANG | WNOWAIT) || errno != ECHILD;
}

static void reap(Watch *watch) {
    if (!watch->ended) reap_orphans(watch);
    if (!watch->ended) return;
    watch->children_left = has_living_children();
    if (watch->children_left && watch->stopping) reap_others(watch);
}

static void keep_open(int fd) {
    if (fd >= 0) fcntl(fd, F_SETFD, 0);
}

/* Become shim.py, which can do more: same pid, same children, same locks, same job. */
static void hand_over(Watch *watch) {
    const Buffer *rest = &watch->shim->inbox, *first = &watch->shim->order;
    char text[8][32], leases[MOST_LEASES * 12] = "";
    char *words[64];
    int count = 0, order = memfd_create("order", 0);
    if (order < 0 || !send_all(order, first->bytes, first->size) || !send_all(order, rest->bytes, rest->size)) return;
    long long left = watch->kill_at == NEVER ? -1 : watch->kill_at > now_ms() ? watch->kill_at - now_ms() : 0;
    long long numbers[] = {order, watch->shim->channel, watch->record, watch->trouble, watch->pid,
                           left, watch->cpu_us / 1000, watch->peak_kib};
    while (watch->shim->python[count] && count < 40) {
        words[count] = watch->shim->python[count];
        count++;
    }
    for (int i = 0; i < 8; i++) {
        snprintf(text[i], sizeof text[i], "%lld", numbers[i]);
        words[count++] = text[i];
    }
    for (int i = 0; i < watch->leases->count; i++) {
        sprintf(leases + strlen(leases), "%d ", watch->leases->fd[i]);
        keep_open(watch->leases->fd[i]);
    }
    words[count++] = leases;
    words[count] = NULL;
    for (int i = 0; i < 4; i++) keep_open((int)numbers[i]);
    execv(words[0], words);
}

/* KILL all that is left. Whoever is not in our control group is found by a walk of the process tree. */
static void kill_all(Watch *watch) {
    if (watch->shim->group >= 0 && !watch->killed) {
        int fd = openat(watch->shim->group, "cgroup.kill", O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "1", 1) == 1) watch->killed = watch->shim->killed = true;
        if (fd >= 0) close(fd);
        if (watch->killed) {
            watch->kill_at = now_ms() + KILL_AGAIN_MS;
            return;
        }
    }
    if (watch->crowded) get_ahead(watch);                 /* shim.py falls back when it has killed */
    hand_over(watch);
    fall_back(watch);
    killpg(watch->pid, SIGKILL);                          /* no Python to hand over to: what we can do */
    watch->kill_at = now_ms() + KILL_AGAIN_MS;
}

/* Memory of a process, pages that it shares counted in parts. */
static long resident_kib(long pid) {
    char path[64], line[128];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", pid);
    FILE *file = fopen(path, "re");
    while (file && !kib && fgets(line, sizeof line, file)) sscanf(line, "Pss: %ld", &kib);
    if (file) fclose(file);
    return kib;
}

/* Visit everything below a process, `most` at the most: how many there are, and their memory if it is asked for. Who
 * hides deeper than anybody means is left out. */
static int count_family(long pid, long *kib, int depth, int most) {
    char path[320];
    int count = 0;
    if (depth > FAR_DOWN) return 0;
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *threads = opendir(path);
    for (struct dirent *thread; threads && (thread = readdir(threads));) {
        long child;
        snprintf(path, sizeof path, "/proc/%ld/task/%s/children", pid, thread->d_name);
        FILE *children = thread->d_name[0] == '.' ? NULL : fopen(path, "re");
        while (children && count < most && fscanf(children, "%ld", &child) == 1) {
            count += 1 + count_family(child, kib, depth + 1, most - count - 1);
            if (kib) *kib += resident_kib(child);
        }
        if (children) fclose(children);
    }
    if (threads) closedir(threads);
    return count;
}

/* All processes of the job together. One alone is measured better by the kernel, at its end. */
static void look_at_memory(Watch *watch) {
    long long begin = now_ms();
    long sum = 0;
    if (count_family(getpid(), NULL, 0, 2) > 1) count_family(getpid(), &sum, 0, MOST_PROCESSES);
    if (sum > watch->peak_kib) watch->peak_kib = sum;
    watch->memory_ms = watch->memory_ms * 2 < MEMORY_LOOK_MOST_MS ? watch->memory_ms * 2 : MEMORY_LOOK_MOST_MS;
    long long took = (now_ms() - begin) * MEMORY_LOOK_SHARE;
    watch->memory_at = now_ms() + (took > watch->memory_ms ? took : watch->memory_ms);
}

static long long size_of(const Watch *watch, enum Field log) {
    struct stat found;
    return stat(watch->order->field[log].at, &found) ? 0 : found.st_size;
}

static long long within(long long least, long long wanted, long long most) {
    return wanted > most ? most : wanted < least ? least : wanted;
}

/* How long the log may grow unseen: at the highest rate that a job is likely to come up with, for a quarter of the cap. */
static long long usual_pause(long long cap) {
    return within(LOG_USUAL_LEAST_MS, cap / 4 / LOG_MOST_RATE, LOG_LOOK_MS);
}

/* Cutting a log that is over its cap while the job writes on is shim.py's art. */
static void look_at_logs(Watch *watch) {
    long long out = size_of(watch, LOG), error = size_of(watch, ERROR_LOG), now = now_ms(), total = out;
    if (strcmp(watch->order->field[LOG].at, watch->order->field[ERROR_LOG].at)) total += error;
    long long grown = total >= watch->log_size ? total - watch->log_size : total;
    if (grown)
        watch->log_ms = within(LOG_LEAST_MS, (long long)((double)watch->log_cap / 4 * (double)(now - watch->log_seen) / (double)grown),
                               usual_pause(watch->log_cap));
    else
        watch->log_ms = within(0, watch->log_ms * 2, LOG_QUIET_MS);
    watch->log_size = total;
    watch->log_seen = now;
    watch->log_at = now + watch->log_ms;
    if (out > watch->log_cap || error > watch->log_cap) hand_over(watch);
}

static void do_what_is_due(Watch *watch) {
    long long now = now_ms();
    bool ended_by_itself = watch->ended && !watch->stopping && !watch->killed;
    if (watch->children_left && (ended_by_itself || now >= watch->kill_at)) kill_all(watch);
    if (now >= watch->memory_at) look_at_memory(watch);
    if (now >= watch->log_at) look_at_logs(watch);
}

static int time_left(const Watch *watch) {
    long long due = watch->kill_at < watch->log_at ? watch->kill_at : watch->log_at;
    if (watch->memory_at < due) due = watch->memory_at;
    if (watch->more_dead) return 0;
    if (due == NEVER) return -1;
    long long left = due - now_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

/* The job's process is dead, and a process that traces it keeps that from us: shim.py knows what to do. */
static void leave_to_tracer(Watch *watch) {
    hand_over(watch);
    close(watch->pidfd);                                  /* no Python to hand over to: it stays readable */
    watch->pidfd = -1;
}

/* ------------------------------------------------------------ the end */

void receive(Shim *shim) {
    char chunk[65536];
    ssize_t got = read(shim->channel, chunk, sizeof chunk);
    if (got > 0)
        append(&shim->inbox, chunk, (size_t)got);
    else if (got == 0 || (errno != EINTR && errno != EAGAIN))
        shim->channel = -1;                               /* not closed: the daemon sees by it when we are gone */
}

static void conclude(Watch *watch, End *end) {
    char trouble[4000];
    while (collect(watch, -1)) continue;                  /* its numbers may be others' from now on */
    if (watch->pidfd >= 0) close(watch->pidfd);
    ssize_t size = read(watch->trouble, trouble, sizeof trouble - 1);
    close(watch->trouble);
    *end = (End){-1, -1, "", (long)(watch->cpu_us / 1000), watch->peak_kib};
    if (watch->how.si_code == CLD_EXITED)
        end->code = watch->how.si_status;
    else
        end->signal = watch->how.si_status;
    if (size > 0) {
        trouble[size] = '\0';
        could_not_start(watch->order, trouble, end->code == 127, end);
    }
}

void attend(Shim *shim, const Message *order, pid_t pid, int trouble, int record, const Leases *leases,
            End *end) {
    Watch watch = {.shim = shim, .order = order, .pid = pid, .trouble = trouble, .record = record,
                   .leases = leases, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0),
                   .children_left = true, .kill_at = NEVER,
                   .log_at = NEVER, .log_cap = strtoll(order->field[LOG_CAP].at, NULL, 10), .log_seen = now_ms(),
                   .memory_at = now_ms() + MEMORY_LOOK_MS,
                   .memory_ms = MEMORY_LOOK_MS};
    if (watch.log_cap) {
        watch.log_ms = usual_pause(watch.log_cap);
        watch.log_at = watch.log_seen + watch.log_ms;
    }
    hear_daemon(&watch);
    while (!watch.ended || watch.children_left) {
        struct pollfd fds[] = {{shim->signals, POLLIN, 0}, {shim->channel, POLLIN, 0},
                               {watch.ended ? -1 : watch.pidfd, POLLIN, 0}};
        int ready = poll(fds, 3, time_left(&watch));      /* a descriptor of -1 is left out */
        if (ready > 0 && fds[1].revents) {
            receive(shim);
            hear_daemon(&watch);
        }
        if (ready > 0 && fds[0].revents) hear_signals(&watch);
        reap(&watch);
        if (ready > 0 && fds[2].revents && !watch.ended && !watch.more_dead) leave_to_tracer(&watch);
        do_what_is_due(&watch);
    }
    conclude(&watch, end);
    if (watch.stopping) unlink(order->field[STOP_FILE].at);
}
