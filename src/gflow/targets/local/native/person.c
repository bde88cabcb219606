/* In system mode the shim is root and the job is its submitter's. The child gives up root for good before
 * it touches anything of theirs: a path, a log, a program. person.py says the same in Python.
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
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { HELPER_MS = 5000 };

bool has_person(const Message *order) {
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

/* Whether we are this person and nothing else, and cannot become root again. */
static bool is_person(uid_t uid, gid_t gid) {
    uid_t u[3];
    gid_t g[3];
    if (getresuid(&u[0], &u[1], &u[2]) || getresgid(&g[0], &g[1], &g[2])) return false;
    for (int i = 0; i < 3; i++)
        if (u[i] != uid || g[i] != gid) return false;
    return setresuid((uid_t)-1, 0, (uid_t)-1) && setresgid((gid_t)-1, 0, (gid_t)-1);
}

/* Let the kernel's audit say whose processes these are. Where it keeps no such records, or not for us: fine. */
static void set_login(uid_t uid) {
    char text[16];
    int size = snprintf(text, sizeof text, "%u", (unsigned)uid), fd = open("/proc/self/loginuid", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, text, (size_t)size) < 0) errno = 0;
    close(fd);
}

/* Be the order's submitter: groups, then gid, then uid. NULL: done; else what went wrong. */
const char *become_person(const Message *order) {
    static char text[200];
    uid_t uid = (uid_t)strtoul(order->field[UID].at, NULL, 10);
    errno = 0;
    const struct passwd *person = getpwuid(uid);
    if (!person) {
        snprintf(text, sizeof text, "there is no user %s here", order->field[UID].at);
        return text;
    }
    const char *name = order->field[USER].at;             /* looked up afresh: a uid can be given to another account */
    if (*name && strcmp(person->pw_name, name)) {
        snprintf(text, sizeof text, "uid %s belongs to %s now, and not to %s", order->field[UID].at, person->pw_name, name);
        return text;
    }
    gid_t gid = person->pw_gid;
    set_login(uid);
    if (initgroups(person->pw_name, gid) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) {
        snprintf(text, sizeof text, "cannot become user %s: %s", order->field[UID].at, strerror(errno));
        return text;
    }
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);                   /* what we remember is not for them; exec ends it */
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
    if (uid && (!drop_capabilities() || !is_person(uid, gid))) return "root's rights could not be given up";
    return NULL;
}

/* A line in the job's log, written by its owner. We may be root, and the path is theirs. */
void note_in_log(const Message *order, const char *line) {
    pid_t pid = has_person(order) ? fork() : 0;
    if (pid < 0) return;
    if (pid == 0) {
        if (has_person(order) && become_person(order)) _exit(1);
        int log = open_log(order->field[LOG].at);
        if (log >= 0) {                                   /* else it is what is missing, and the reason says it */
            dprintf(log, "%s\n", line);
            close(log);
        }
        if (has_person(order)) _exit(0);
        return;
    }
    for (int ms = 0; !waitpid(pid, NULL, WNOHANG); ms++) { /* their file system, or they, may hold it up */
        if (ms == HELPER_MS) kill(pid, SIGKILL);
        usleep(1000);
    }
}

/* They may read and run the file, and not write to it: it is on a disk of root's, where no quota of theirs holds. Where
 * there are no access lists it becomes theirs. */
static bool let_read(int fd, uid_t uid) {
    struct { uint32_t version; struct { uint16_t who, rights; uint32_t id; } entry[5]; } list = {
        2, {{0x01, 5, UINT32_MAX}, {0x02, 5, uid}, {0x04, 0, UINT32_MAX}, {0x10, 5, UINT32_MAX}, {0x20, 0, UINT32_MAX}}};
    return !fsetxattr(fd, "system.posix_acl_access", &list, sizeof list, 0) || !fchown(fd, uid, (gid_t)-1);
}

/* The script as it was submitted, in a folder of ours, readable by its owner alone. */
bool write_snapshot(const Message *order) {
    const char *path = order->field[SNAPSHOT].at;
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0500);
    if (fd < 0) return false;
    bool whole = send_all(fd, order->field[SCRIPT].at, order->field[SCRIPT].size);
    if (has_person(order) && !let_read(fd, (uid_t)strtoul(order->field[UID].at, NULL, 10))) whole = false;
    close(fd);
    return whole;
}
