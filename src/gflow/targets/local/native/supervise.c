/* Supervise one job: stop requests, grace time, orphans, the size of its log, and its exit status.
 *
 * When a job ends by itself, its remaining processes are killed at once. When a job is being stopped, its
 * children may use the grace time to save their work.
 *
 * The job's first process is reaped last, when no process of the job lives any more. Until then its pid, which is
 * also the id of the job's process group and session, cannot be reused: so signals may be sent to that group by id.
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

/* Intervals between looks at the logs; log_rotation.py explains them. Rates in bytes per millisecond. */
enum { LOG_LEAST_MS = 5, LOG_USUAL_LEAST_MS = 10, LOG_LOOK_MS = 2000, LOG_QUIET_MS = 4000, LOG_MOST_RATE = 1 << 20 };
enum { RETRY_KILL_MS = 50, REAP_AT_ONCE = 500, REALTIME_MS = 100, MAX_DEPTH = 200 };
/* The sum over all processes is measured at growing intervals, for at most 0.5 % of the time. */
enum { MEMORY_LOOK_MS = 1000, MEMORY_LOOK_MOST_MS = 30000, MEMORY_LOOK_SHARE = 200, MOST_PROCESSES = 1000 };
static const long long NEVER = INT64_MAX;

typedef struct {
    Shim *shim;
    const Message *order;
    pid_t pid;
    int trouble, record;
    const Leases *leases;
    int pidfd;                                             /* readable when the job's process has ended */
    bool ended, children_left, more_dead, has_swarm, stopping, killed;
    siginfo_t how;                                         /* exit status of the job's process */
    long peak_kib, watched_kib;                            /* memory, and a limit that we watch, 0: none */
    long long cpu_us;
    long long kill_at, log_cap, log_at, log_ms, log_size, log_seen, memory_at, memory_ms, watch_at;
    long long realtime_since, realtime_from;  /* start of the episode, 0: none; earliest next */
} Watch;

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* ------------------------------------------------------------ requests */

/* Signal the job's process group. A process that has not made its group yet gets the signal alone: TERM is blocked in it
 * until it executes the job. */
static void send_group(const Watch *watch, int number) {
    if (killpg(watch->pid, number) && errno == ESRCH) kill(watch->pid, number);
}

/* Stop the job. `how`: 0: after the job's own grace time; 1: at once; more: the grace time in seconds. */
static void stop(Watch *watch, int how) {
    long long own = (long long)(strtod(watch->order->field[GRACE].at, NULL) * 1000);
    long long until = now_ms() + (how > 1 ? how * 1000LL : how ? 0 : own);
    if (!watch->stopping) {
        watch->stopping = true;
        int fd = open(watch->order->field[STOP_FILE].at, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0) close(fd);
        send_group(watch, SIGTERM);
        send_group(watch, SIGCONT);
    }
    if (until < watch->kill_at) watch->kill_at = until;
}

/* Whether a process is a shell, by its program. process_tree.py has the same list. */
static bool is_shell(pid_t pid) {
    static const char *const shells[] = {"bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "ksh93", "fish", "tcsh", "csh", "busybox"};
    char path[64], program[4096];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t size = readlink(path, program, sizeof program - 1);
    if (size <= 0) return false;
    program[size] = '\0';
    char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    name[strcspn(name, " ")] = '\0';                      /* "bash (deleted)" */
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (!strcmp(name, shells[i])) return true;
    return false;
}

/* Whether a process lives and belongs to this process group. */
static bool is_member(int pid, pid_t group) {
    char path[64], line[512], state = 'X';
    int parent, found = -1;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    char *end = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return end && sscanf(end + 1, " %c %d %d", &state, &parent, &found) == 3 && found == group && !strchr("ZX", state);
}

/* Signal the job's process group without its first process, which is not reaped: the group's id is not reused. Whether
 * any process got it. */
static bool send_programs(const Watch *watch, int number) {
    bool is_sent = false;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        int pid = atoi(entry->d_name);
        if (pid <= 0 || pid == watch->pid || !is_member(pid, watch->pid)) continue;
        int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (pidfd < 0) continue;
        if (is_member(pid, watch->pid) && !syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0)) is_sent = true;
        close(pidfd);
    }
    if (processes) closedir(processes);
    return is_sent;
}

/* Signal the job; negative: only its first process. A batch shell does not get the signal, see process_tree.py. */
static void send_job(const Watch *watch, int number) {
    bool to_all = number == SIGKILL || number == SIGSTOP || number == SIGCONT;
    if (number < 0)
        kill(watch->pid, -number);
    else if (to_all || !is_shell(watch->pid) || !send_programs(watch, number))
        send_group(watch, number);
}

/* Carry out a request. It may arrive right after the order of its job, or after the end of its job. */
static void handle_request(Watch *watch, const Message *request) {
    if (request->count < 4 || strcmp(request->field[KEY].at, watch->order->field[KEY].at) ||
        strcmp(request->field[ATTEMPT].at, watch->order->field[ATTEMPT].at))
        return;
    int argument = atoi(request->field[3].at);
    if (is_kind(request, "stop")) stop(watch, argument);
    if (is_kind(request, "signal")) send_job(watch, argument);
}

static void handle_requests(Watch *watch) {
    Buffer *inbox = &watch->shim->inbox;
    size_t size;
    while ((size = message_size(inbox))) {
        Message request;
        Buffer copy = {0};
        append(&copy, inbox->bytes, size);
        bool is_complete = read_message(copy.bytes, size, &request);
        bool is_order = is_complete && is_kind(&request, "run");
        if (is_complete && !is_order) handle_request(watch, &request);
        free(copy.bytes);
        if (is_order) return;                             /* the next job: run it after this one */
        drop(inbox, size);
    }
}

/* A later daemon, which has no channel to us, sends TERM to stop and USR1 to kill. */
static void handle_signals(Watch *watch) {
    struct signalfd_siginfo came;
    while (read(watch->shim->signals, &came, sizeof came) == sizeof came)
        if (came.ssi_signo != SIGCHLD) stop(watch, came.ssi_signo == SIGUSR1);
}

/* ------------------------------------------------------------ due actions */

static void note_usage(Watch *watch, const struct rusage *used) {
    watch->cpu_us += (used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000000LL +
                     used->ru_utime.tv_usec + used->ru_stime.tv_usec;
    if (used->ru_maxrss > watch->peak_kib) watch->peak_kib = used->ru_maxrss;
}

/* Reap a child (-1: any) if it is dead; whether one was reaped. */
static bool collect(Watch *watch, pid_t pid) {
    struct rusage used;
    if (wait4(pid, NULL, WNOHANG, &used) <= 0) return false;
    note_usage(watch, &used);
    return true;
}

/* Switch to real-time priority, if we are root: a job that forks and exits all the time makes zombies faster than an
 * ordinary process can reap them, until the machine has no pids left. Whether we are real-time. See realtime.py. */
static bool begin_realtime(Watch *watch) {
    watch->has_swarm = true;
    if (now_ms() >= watch->realtime_from && !watch->realtime_since &&
        !sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &(struct sched_param){1}))
        watch->realtime_since = now_ms();
    return watch->realtime_since && now_ms() - watch->realtime_since < REALTIME_MS;
}

/* Return to ordinary priority, for at least as long as the episode lasted. */
static void end_realtime(Watch *watch) {
    if (!watch->realtime_since) return;
    watch->realtime_from = 2 * now_ms() - watch->realtime_since;
    watch->realtime_since = 0;
    set_time_slice(SHORT_SLICE);
}

/* Reap dead orphans until the job's own process is the next one. Bounded: a job that forks all the time makes zombies as
 * fast as we reap them. */
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
        watch->more_dead = count % REAP_AT_ONCE == 0 && !begin_realtime(watch);
    }
    end_realtime(watch);
}

/* Reap all dead children except the job's own process, which waitid() would always return first. */
static void reap_others(Watch *watch) {
    char path[64];
    int pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *children = fopen(path, "re");
    while (children && fscanf(children, "%d", &pid) == 1)
        if (pid != watch->pid) collect(watch, pid);
    if (children) fclose(children);
}

/* Whether any child of ours lives, or is a zombie that only its tracer can reap. Without WEXITED the kernel ignores
 * zombies that we could reap: if there are only those, it reports ECHILD. */
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

/* Execute shim.py in this process, which can do more: same pid, children, locks and job. Returns on failure only. */
static void hand_over(Watch *watch) {
    const Buffer *rest = &watch->shim->inbox, *first = &watch->shim->order;
    char text[8][32], leases[MAX_LEASES * 12] = "";
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

/* KILL all remaining processes. Those outside our control group are found by shim.py in the process tree. */
static void kill_all(Watch *watch) {
    if (watch->shim->group >= 0 && !watch->killed) {
        int fd = openat(watch->shim->group, "cgroup.kill", O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "1", 1) == 1) watch->killed = watch->shim->killed = true;
        if (fd >= 0) close(fd);
        if (watch->killed) {
            watch->kill_at = now_ms() + RETRY_KILL_MS;
            return;
        }
    }
    if (watch->has_swarm) begin_realtime(watch);                 /* shim.py ends the episode when it has killed */
    hand_over(watch);
    end_realtime(watch);
    killpg(watch->pid, SIGKILL);                          /* shim.py could not be executed: kill the group only */
    watch->kill_at = now_ms() + RETRY_KILL_MS;
}

/* Proportional set size of a process: shared pages are divided among their users. */
static long resident_kib(long pid) {
    char path[64], line[128];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", pid);
    FILE *file = fopen(path, "re");
    while (file && !kib && fgets(line, sizeof line, file)) sscanf(line, "Pss: %ld", &kib);
    if (file) fclose(file);
    return kib;
}

/* Resident size of a process: cheap, and shared pages count for each of their users. */
static long mapped_kib(long pid) {
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%ld/statm", pid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*s %ld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

/* Count the processes below a process, up to `most`, and add up their memory unless `measure` is NULL. Deeper levels
 * than MAX_DEPTH are left out. */
static int count_process_tree(long pid, long (*measure)(long pid), long *kib, int depth, int most) {
    char path[320];
    int count = 0;
    if (depth > MAX_DEPTH) return 0;
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *threads = opendir(path);
    for (struct dirent *thread; threads && (thread = readdir(threads));) {
        long child;
        snprintf(path, sizeof path, "/proc/%ld/task/%s/children", pid, thread->d_name);
        FILE *children = thread->d_name[0] == '.' ? NULL : fopen(path, "re");
        while (children && count < most && fscanf(children, "%ld", &child) == 1) {
            count += 1 + count_process_tree(child, measure, kib, depth + 1, most - count - 1);
            if (measure) *kib += measure(child);
        }
        if (children) fclose(children);
    }
    if (threads) closedir(threads);
    return count;
}

/* When to measure again: after `pause` ms, and after MEMORY_LOOK_SHARE times what measuring took since `begin`. */
static long long next_look(long long begin, long long pause) {
    long long now = now_ms(), took = (now - begin) * MEMORY_LOOK_SHARE;
    return now + (took > pause ? took : pause);
}

/* Measure all processes of the job. The peak of a single process comes from the kernel when it is reaped. */
static void check_memory(Watch *watch) {
    long long begin = now_ms();
    long sum = 0;
    if (count_process_tree(getpid(), NULL, NULL, 0, 2) > 1)
        count_process_tree(getpid(), resident_kib, &sum, 0, MOST_PROCESSES);
    if (sum > watch->peak_kib) watch->peak_kib = sum;
    watch->memory_ms = watch->memory_ms * 2 < MEMORY_LOOK_MOST_MS ? watch->memory_ms * 2 : MEMORY_LOOK_MOST_MS;
    watch->memory_at = next_look(begin, watch->memory_ms);
}

/* Note in the log that the job uses more than a job without --memory should. memory_watch.py has the same line. */
static void advise(Watch *watch) {
    char line[200];
    long kib = 0;
    count_process_tree(getpid(), resident_kib, &kib, 0, MOST_PROCESSES);
    if (kib <= watch->watched_kib) return;
    snprintf(line, sizeof line,
             "gflow: the job uses %ld MiB of memory, more than the %ld MiB of a job without --memory", kib >> 10,
             watch->watched_kib >> 10);
    note_in_log(watch->order, line);
    watch->watch_at = NEVER;
}

/* Watch the memory limit where the kernel does not enforce it. shim.py measures exactly, and ends the job. */
static void watch_memory(Watch *watch) {
    long long begin = now_ms();
    long sum = 0;
    count_process_tree(getpid(), mapped_kib, &sum, 0, MOST_PROCESSES);
    watch->watch_at = next_look(begin, MEMORY_LOOK_MS);
    if (sum <= watch->watched_kib) return;
    if (number(watch->order, MEMORY_ADVICE)) advise(watch);
    else hand_over(watch);
}

static long long size_of(const Watch *watch, enum Field log) {
    struct stat found;
    return stat(watch->order->field[log].at, &found) ? 0 : found.st_size;
}

static long long within(long long least, long long wanted, long long most) {
    return wanted > most ? most : wanted < least ? least : wanted;
}

/* Interval between looks at a growing log: at the highest plausible rate it grows by a quarter of the cap. */
static long long usual_pause(long long cap) {
    return within(LOG_USUAL_LEAST_MS, cap / 4 / LOG_MOST_RATE, LOG_LOOK_MS);
}

/* Check the sizes of the logs. Only shim.py can rotate a log while the job writes to it. */
static void check_logs(Watch *watch) {
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

static void do_due_actions(Watch *watch) {
    long long now = now_ms();
    bool ended_by_itself = watch->ended && !watch->stopping && !watch->killed;
    if (watch->children_left && (ended_by_itself || now >= watch->kill_at)) kill_all(watch);
    if (now >= watch->memory_at) check_memory(watch);
    if (now >= watch->watch_at) watch_memory(watch);
    if (now >= watch->log_at) check_logs(watch);
}

static int time_left(const Watch *watch) {
    long long due = watch->kill_at < watch->log_at ? watch->kill_at : watch->log_at;
    if (watch->memory_at < due) due = watch->memory_at;
    if (watch->watch_at < due) due = watch->watch_at;
    if (watch->more_dead) return 0;
    if (due == NEVER) return -1;
    long long left = due - now_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

/* The job's process is dead and a tracer keeps us from reaping it: shim.py handles that. */
static void handle_traced_death(Watch *watch) {
    hand_over(watch);
    close(watch->pidfd);                                  /* shim.py could not be executed; it would stay readable */
    watch->pidfd = -1;
}

/* ------------------------------------------------------------ the end */

void receive(Shim *shim) {
    char chunk[65536];
    ssize_t got = read(shim->channel, chunk, sizeof chunk);
    if (got > 0)
        append(&shim->inbox, chunk, (size_t)got);
    else if (got == 0 || (errno != EINTR && errno != EAGAIN))
        shim->channel = -1;                               /* not closed: the daemon detects our exit by it */
}

static void finish(Watch *watch, End *end) {
    char trouble[4000];
    while (collect(watch, -1)) continue;                  /* its pids may be reused from now on */
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
        fail_start(watch->order, trouble, end->code == 127, end);
    }
}

void supervise(Shim *shim, const Message *order, pid_t pid, int trouble, int record, const Leases *leases,
            End *end) {
    Watch watch = {.shim = shim, .order = order, .pid = pid, .trouble = trouble, .record = record,
                   .leases = leases, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0),
                   .children_left = true, .kill_at = NEVER,
                   .log_at = NEVER, .log_cap = strtoll(order->field[LOG_CAP].at, NULL, 10), .log_seen = now_ms(),
                   .memory_at = now_ms() + MEMORY_LOOK_MS, .watch_at = NEVER,
                   .memory_ms = MEMORY_LOOK_MS};
    if (watch.log_cap) {
        watch.log_ms = usual_pause(watch.log_cap);
        watch.log_at = watch.log_seen + watch.log_ms;
    }
    if (number(order, MEMORY_ADVICE) || !shim->memory_held) watch.watched_kib = number(order, DEFAULT_MEMORY) << 10;
    if (watch.watched_kib) watch.watch_at = now_ms() + MEMORY_LOOK_MS;
    handle_requests(&watch);
    while (!watch.ended || watch.children_left) {
        struct pollfd fds[] = {{shim->signals, POLLIN, 0}, {shim->channel, POLLIN, 0},
                               {watch.ended ? -1 : watch.pidfd, POLLIN, 0}};
        int ready = poll(fds, 3, time_left(&watch));      /* poll() ignores a descriptor of -1 */
        if (ready > 0 && fds[1].revents) {
            receive(shim);
            handle_requests(&watch);
        }
        if (ready > 0 && fds[0].revents) handle_signals(&watch);
        reap(&watch);
        if (ready > 0 && fds[2].revents && !watch.ended && !watch.more_dead) handle_traced_death(&watch);
        do_due_actions(&watch);
    }
    finish(&watch, end);
    if (watch.stopping) unlink(order->field[STOP_FILE].at);
}
