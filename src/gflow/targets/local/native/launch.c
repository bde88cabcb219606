/* Start the process of a job: a child, forked while the shim was idle, receives the order and executes the job. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

/* ------------------------------------------------------------ the child */

/* fork() directly into a control group: moving a process into one later takes milliseconds. */
static pid_t fork_into(int group, bool *in_group) {
    *in_group = false;
    if (group >= 0) {
        struct clone_args args = {
            .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)group,
        };
        pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
        *in_group = pid >= 0;
        if (pid >= 0) return pid;
    }
    return fork();
}

bool fork_child(Child *child, int group, long oom_score) {
    int orders[2], trouble[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, orders)) return false;
    if (pipe2(trouble, O_CLOEXEC)) {
        close(orders[0]);
        close(orders[1]);
        return false;
    }
    bool in_group;
    pid_t pid = fork_into(group, &in_group);
    if (pid == 0) {
        close(orders[1]);                                 /* else we would not notice the end of the shim */
        close(trouble[0]);
        become_job(orders[0], trouble[1], oom_score);
    }
    close(orders[0]);
    close(trouble[1]);
    if (pid < 0) {
        close(orders[1]);
        close(trouble[0]);
        return false;
    }
    *child = (Child){pid, orders[1], trouble[0], start_time(pid), in_group};
    return true;
}

/* Request a time slice from the kernel: with a short one a process gets the CPU sooner. 0: the default. */
void set_time_slice(uint64_t nanoseconds) {
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; }
        attributes = {.size = sizeof attributes, .nice = getpriority(PRIO_PROCESS, 0), .runtime = nanoseconds};
    syscall(SYS_sched_setattr, 0, &attributes, 0);              /* older kernels refuse it, which is harmless */
}

static void reset_signals(void) {
    for (const int *number = IGNORED; *number; number++) signal(*number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void refuse(int trouble, const char *why) {
    send_all(trouble, why, strlen(why));
    _exit(126);
}

/* Report `what: which` to the shim and exit. */
static _Noreturn void give_up(int trouble, const char *what, const char *which) {
    char text[4096];
    int missing = errno == ENOENT;
    int size = snprintf(text, sizeof text, "%s: %s", what, which);
    send_all(trouble, text, (size_t)(size < (int)sizeof text ? size : (int)sizeof text - 1));
    _exit(missing ? 127 : 126);
}

/* ------------------------------------------------------------ environment, logs and command */

static void make_folders(const char *path) {
    char folder[4096];
    if (strlen(path) >= sizeof folder) return;
    strcpy(folder, path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(folder, 0777);
        *slash = '/';
    }
}

int open_log(const char *path) {
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    int fd = open(path, flags, 0600);
    if (fd < 0 && errno == ENOENT) {
        make_folders(path);
        fd = open(path, flags, 0600);
    }
    return fd;
}

static void set_limits(char *text) {
    int resource;
    long long soft, hard;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        struct rlimit now;
        if (sscanf(line, "%d %lld %lld", &resource, &soft, &hard) != 3 || getrlimit(resource, &now)) continue;
        rlim_t most = hard < 0 || (rlim_t)hard > now.rlim_max ? now.rlim_max : (rlim_t)hard;
        rlim_t wanted = soft < 0 || (rlim_t)soft > most ? most : (rlim_t)soft;
        setrlimit(resource, &(struct rlimit){wanted, most});     /* a limit that we may not raise stays */
    }
}

/* Append the zero-terminated strings of a block to `list`. */
static char **add_strings(char **list, size_t *count, Text block) {
    for (char *at = block.at, *end = block.at + block.size; at < end; at += strlen(at) + 1) {
        list = realloc(list, (*count + 2) * sizeof *list);
        if (!list) abort();
        list[(*count)++] = at;
        list[*count] = NULL;
    }
    return list;
}

static const char *find_variable(char **list, const char *name, size_t length) {
    for (; list && *list; list++)
        if (strncmp(*list, name, length) == 0 && (*list)[length] == '=') return *list + length + 1;
    return NULL;
}

/* The job's environment: gflow's variables, then those of the submitter that gflow does not set. */
static char **environment_of(const Message *order) {
    static char unbuffered[] = "PYTHONUNBUFFERED=1";
    size_t count = 0;
    char **list = add_strings(NULL, &count, order->field[EXTRA]);
    size_t ours = count;
    char *at = order->field[ENVIRON].at, *end = at + order->field[ENVIRON].size;
    for (; at < end; at += strlen(at) + 1) {
        const char *equals = strchr(at, '=');
        if (!equals || equals == at) continue;
        char *stop = list ? list[ours] : NULL;
        if (list) list[ours] = NULL;                      /* search gflow's variables only */
        bool known = find_variable(list, at, (size_t)(equals - at)) != NULL;
        if (list) list[ours] = stop;
        if (!known) list = add_strings(list, &count, (Text){at, strlen(at) + 1});
    }
    /* Output should appear in the log when it is printed, not when a buffer is full. */
    if (!find_variable(list, "PYTHONUNBUFFERED", 16))
        list = add_strings(list, &count, (Text){unbuffered, sizeof unbuffered});
    return list;
}

static bool has_content(const char *path, Text text) {
    char chunk[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t at = 0;
    ssize_t got;
    while ((got = read(fd, chunk, sizeof chunk)) > 0) {
        if (at + (size_t)got > text.size || memcmp(chunk, text.at + at, (size_t)got)) break;
        at += (size_t)got;
    }
    close(fd);
    return got == 0 && at == text.size;
}

/* Add the script's original folder to PYTHONPATH: a copy of the script runs from another folder. */
static char **add_module_path(char **list, const char *script) {
    const char *known = find_variable(list, "PYTHONPATH", 10), *slash = strrchr(script, '/');
    char *made, **at = list;
    int folder = slash > script ? (int)(slash - script) : 1;
    if (asprintf(&made, "PYTHONPATH=%.*s%s%s", folder, script, known && *known ? ":" : "", known ? known : "") < 0)
        abort();
    while (at && *at && strncmp(*at, "PYTHONPATH=", 11)) at++;
    if (at && *at) {
        *at = made;
        return list;
    }
    size_t count = (size_t)(at - list);
    return add_strings(list, &count, (Text){made, strlen(made) + 1});
}

/* The path from which the script runs: the original if it has not changed since submission, else a copy. */
static const char *choose_script(const Message *order, char ***variables, int log, int trouble) {
    static char line[8192];
    const char *path = order->field[SNAPSHOT].at;
    const char *original = order->field[SCRIPT_PATH].at;
    if (*original && has_content(original, order->field[SCRIPT])) return original;
    if (*original) {
        int size = snprintf(line, sizeof line,
                            "gflow: %s changed since it was submitted; running it as it was then\n", original);
        send_all(log, line, (size_t)(size < (int)sizeof line ? size : (int)sizeof line - 1));
        *variables = add_module_path(*variables, original);
    }
    if (!has_owner(order) && !write_snapshot(order)) give_up(trouble, strerror(errno), path);
    return path;                                          /* in system mode the shim has already made the copy */
}

/* Append the interpreter of a script: its `#!` line as the kernel parses it, or bash. */
static char **add_interpreter(char **list, size_t *count, Text script) {
    static char line[4096], bash[] = "bash";
    char *first = NULL, *rest = NULL;
    if (script.size > 2 && script.at[0] == '#' && script.at[1] == '!') {
        size_t length = strcspn(script.at + 2, "\n");
        if (length >= sizeof line) length = sizeof line - 1;
        memcpy(line, script.at + 2, length);
        first = line + strspn(line, " \t");
        for (size_t end = strlen(first); end && strchr(" \t\r", first[end - 1]); end--) first[end - 1] = '\0';
        rest = first + strcspn(first, " \t");
        if (*rest) *rest++ = '\0';
        rest += strspn(rest, " \t");
    }
    if (!first || !*first) return add_strings(list, count, (Text){bash, sizeof bash});
    list = add_strings(list, count, (Text){first, strlen(first) + 1});
    return *rest ? add_strings(list, count, (Text){rest, strlen(rest) + 1}) : list;
}

static char **arguments_of(const Message *order, char ***variables, int log, int trouble) {
    size_t count = 0;
    char **list = NULL;
    if (number(order, HAS_SCRIPT)) {
        const char *place = choose_script(order, variables, log, trouble);
        list = add_strings(list, &count, order->field[WRAPPER]);
        list = add_interpreter(list, &count, order->field[SCRIPT]);
        list = add_strings(list, &count, (Text){(char *)place, strlen(place) + 1});
    }
    return add_strings(list, &count, order->field[COMMAND]);
}

/* The file to execute, looked up in the job's PATH relative to its folder, which is our working directory. */
static const char *find_program(const char *program, const char *path, const char *cwd) {
    static char candidate[8192];
    if (*program == '/') return program;
    if (strchr(program, '/')) {
        snprintf(candidate, sizeof candidate, "%s/%s", cwd, program);
        return candidate;
    }
    for (const char *folder = path;; folder++) {
        int length = (int)strcspn(folder, ":");
        struct stat found;
        snprintf(candidate, sizeof candidate, "%.*s%s%s", length, folder, length ? "/" : "", program);
        if (!access(candidate, X_OK) && !stat(candidate, &found) && !S_ISDIR(found.st_mode)) return candidate;
        folder += length;
        if (!*folder) return NULL;
    }
}

static _Noreturn void no_log(int trouble, const char *path) {
    char what[4096];
    snprintf(what, sizeof what, "no log at %s", path);
    give_up(trouble, what, strerror(errno));
}

/* Send the order to the child, with the leases attached to the first bytes. */
bool send_order(int fd, const Buffer *order, const Leases *leases) {
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof leases->fd)]; } extra = {0};
    struct iovec bytes = {order->bytes, order->size};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    size_t size = (size_t)leases->count * sizeof leases->fd[0];
    if (size) {
        message.msg_control = extra.bytes;
        message.msg_controllen = CMSG_SPACE(size);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(size)};
        memcpy(CMSG_DATA(header), leases->fd, size);
    }
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    return sent > 0 && send_all(fd, order->bytes + sent, order->size - (size_t)sent);
}

static bool await_order(int fd, Buffer *buffer, Message *order) {
    char chunk[65536];
    while (!message_size(buffer)) {
        union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(Leases))]; } extra;
        struct iovec bytes = {chunk, sizeof chunk};
        struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = extra.bytes,
                                 .msg_controllen = sizeof extra.bytes};
        ssize_t got = recvmsg(fd, &message, 0);           /* the leases stay open in the job */
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;                       /* the shim does not need us any more */
        append(buffer, chunk, (size_t)got);
    }
    return read_message(buffer->bytes, message_size(buffer), order);
}

/* Let the kernel kill us before others when memory runs out. Never lowers our score. */
static void raise_oom_score(long score) {
    char text[32] = "";
    int fd = score > 0 ? open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    ssize_t size = read(fd, text, sizeof text - 1);
    if (size > 0 && strtol(text, NULL, 10) < score) {
        snprintf(text, sizeof text, "%ld", score);
        if (write(fd, text, strlen(text)) < 0) errno = 0; /* the kernel refuses, and the job runs as it is */
    }
    close(fd);
}

void become_job(int orders, int trouble, long oom_score) {
    Buffer buffer = {0};
    Message order;
    setsid();
    reset_signals();
    raise_oom_score(oom_score);
    if (!await_order(orders, &buffer, &order)) _exit(0);

    if (number(&order, OOM_SCORE) != oom_score) raise_oom_score(number(&order, OOM_SCORE));
    const char *problem = enter_private_tmp(&order);
    if (!problem && has_owner(&order)) problem = become_owner(&order);
    if (problem) refuse(trouble, problem);
    const char *path = order.field[LOG].at, *error_path = order.field[ERROR_LOG].at;
    int log = open_log(path);
    if (log < 0) no_log(trouble, path);
    int errors = strcmp(path, error_path) ? open_log(error_path) : log;
    if (errors < 0) no_log(trouble, error_path);
    if (number(&order, ATTEMPT) > 1) dprintf(log, "gflow: attempt %ld\n", number(&order, ATTEMPT));

    char **variables = environment_of(&order);
    char **arguments = arguments_of(&order, &variables, log, trouble);
    const char *cwd = order.field[CWD].at;
    if (chdir(cwd)) give_up(trouble, strerror(errno), cwd);
    const char *folders = find_variable(variables, "PATH", 4);
    const char *program = find_program(arguments[0], folders ? folders : DEFAULT_PATH, cwd);
    if (!program) {
        errno = ENOENT;
        give_up(trouble, "command not found", arguments[0]);
    }
    set_time_slice(0);
    umask((mode_t)number(&order, UMASK));
    set_limits(order.field[LIMITS].at);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC); /* after the logs, which could name its number */
    if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(errors, 2) < 0)
        give_up(trouble, strerror(errno), "/dev/null");
    execve(program, arguments, variables);
    give_up(trouble, strerror(errno), program);
}

/* The end of a job that could not be executed. Notes the reason in its log. */
void fail_start(const Message *order, const char *trouble, bool missing, End *end) {
    char line[4200];
    snprintf(line, sizeof line, "gflow: the job could not start: %s", trouble);
    note_in_log(order, line);
    snprintf(end->problem, sizeof end->problem, "StartFailed: %s", trouble);
    end->code = missing ? 127 : 126;
    end->signal = -1;
    end->cpu_ms = end->peak_kib = 0;
}
