/* Privileges: in system mode the shim is root and the job runs as its owner. The child gives up root for good
 * before it touches any path, log or program of the owner. privileges.py does the same in Python.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { HELPER_MS = 5000 };

bool has_owner(const Message *order) {
    return order->field[UID].size > 0;
}

static bool drop_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0}, left[2];
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, none) || syscall(SYS_capget, &header, left)) return false;
    for (int i = 0; i < 2; i++)
        if (left[i].effective || left[i].permitted || left[i].inheritable) return false;
    return true;
}

/* Whether all our ids are those of this user and we cannot become root again. */
static bool is_only_user(uid_t uid, gid_t gid) {
    uid_t u[3];
    gid_t g[3];
    if (getresuid(&u[0], &u[1], &u[2]) || getresgid(&g[0], &g[1], &g[2])) return false;
    for (int i = 0; i < 3; i++)
        if (u[i] != uid || g[i] != gid) return false;
    return setresuid((uid_t)-1, 0, (uid_t)-1) && setresgid((gid_t)-1, 0, (gid_t)-1);
}

/* Set the login uid for the kernel's audit. Fails, without harm, on a kernel without auditing. */
static void set_login(uid_t uid) {
    char text[16];
    int size = snprintf(text, sizeof text, "%u", (unsigned)uid), fd = open("/proc/self/loginuid", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, text, (size_t)size) < 0) errno = 0;
    close(fd);
}

/* Become the job's owner: groups, then gid, then uid. NULL: done; else the error. */
const char *become_owner(const Message *order) {
    static char text[200];
    uid_t uid = (uid_t)strtoul(order->field[UID].at, NULL, 10);
    errno = 0;
    const struct passwd *account = getpwuid(uid);
    if (!account) {
        snprintf(text, sizeof text, "there is no user %s here", order->field[UID].at);
        return text;
    }
    const char *name = order->field[USER].at;             /* checked now: a uid can be given to another account */
    if (*name && strcmp(account->pw_name, name)) {
        snprintf(text, sizeof text, "uid %s belongs to %s now, and not to %s", order->field[UID].at, account->pw_name, name);
        return text;
    }
    gid_t gid = account->pw_gid;
    set_login(uid);
    if (initgroups(account->pw_name, gid) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) {
        snprintf(text, sizeof text, "cannot become user %s: %s", order->field[UID].at, strerror(errno));
        return text;
    }
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);                   /* our memory holds root's data; exec resets this */
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
    if (uid && (!drop_capabilities() || !is_only_user(uid, gid))) return "root's rights could not be given up";
    return NULL;
}

/* Call `act` as the owner of the job: we may be root, and the owner controls the path of the log. */
static void run_as_owner(const Message *order, void (*act)(const Message *order, const char *text), const char *text) {
    pid_t pid = has_owner(order) ? fork() : 0;
    if (pid < 0) return;
    if (pid == 0) {
        if (has_owner(order) && become_owner(order)) _exit(1);
        act(order, text);
        if (has_owner(order)) _exit(0);
        return;
    }
    for (int ms = 0; !waitpid(pid, NULL, WNOHANG); ms++) { /* the owner or their file system may block it */
        if (ms == HELPER_MS) kill(pid, SIGKILL);
        usleep(1000);
    }
}

static void append_note(const Message *order, const char *line) {
    int log = open_log(order->field[LOG].at);
    if (log < 0) return;                                  /* the log is the problem, and the reason names it */
    dprintf(log, "%s\n", line);
    close(log);
}

/* Write a line to the job's log. */
void note_in_log(const Message *order, const char *line) {
    run_as_owner(order, append_note, line);
}

static void append_last_line(const Message *order, const char *text) {
    const char *slash = strrchr(order->field[RECORD].at, '/'), *name = slash ? slash + 1 : order->field[RECORD].at;
    const char *dot = strrchr(name, '.');
    struct stat found;
    /* The job is gone: its log is not made again. To open a pipe would let other jobs that wait for its reader go on. */
    if (stat(order->field[LOG].at, &found) || !S_ISREG(found.st_mode)) return;
    int log = open(order->field[LOG].at, O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (log >= 0 && !fstat(log, &found) && S_ISREG(found.st_mode)) {
        char last = '\n';
        if (found.st_size && pread(log, &last, 1, found.st_size - 1) != 1) last = '\n';
        int length = dot ? (int)(dot - name) : (int)strlen(name);
        dprintf(log, "%sgflow: job %.*s %s\n", last == '\n' ? "" : "\n", length, name, text);
    }
    if (log >= 0) close(log);
}

/* Write how the job ended to its log, if that is still a regular file. */
void write_last_line(const Message *order, const char *text) {
    run_as_owner(order, append_last_line, text);
}

/* Let the owner read and execute a file, but not write it: the owner's quota does not apply on root's disk. Without
 * access control lists the file is chowned to the owner. */
static bool grant_read(int fd, uid_t uid) {
    struct { uint32_t version; struct { uint16_t who, rights; uint32_t id; } entry[5]; } list = {
        2, {{0x01, 5, UINT32_MAX}, {0x02, 5, uid}, {0x04, 0, UINT32_MAX}, {0x10, 5, UINT32_MAX}, {0x20, 0, UINT32_MAX}}};
    return !fsetxattr(fd, "system.posix_acl_access", &list, sizeof list, 0) || !fchown(fd, uid, (gid_t)-1);
}

/* Write the script as it was submitted to the snapshot path, readable by its owner only. */
bool write_snapshot(const Message *order) {
    const char *path = order->field[SNAPSHOT].at;
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0500);
    if (fd < 0) return false;
    bool is_complete = send_all(fd, order->field[SCRIPT].at, order->field[SCRIPT].size);
    if (has_owner(order) && !grant_read(fd, (uid_t)strtoul(order->field[UID].at, NULL, 10))) is_complete = false;
    close(fd);
    return is_complete;
}
