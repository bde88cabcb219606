/* A job's own /tmp and /dev/shm: a mount namespace that the child enters while it is still root. private_tmp.py does
 * the same in Python.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* Mount the folder of this job on /tmp and an empty file system on /dev/shm, for us alone. NULL: done; else the error. */
const char *enter_private_tmp(const Message *order) {
    static char text[200], size[64];
    const char *folder = order->field[PRIVATE_TMP].at;
    struct statvfs shared;
    if (!*folder) return NULL;
    snprintf(size, sizeof size, "mode=1777");
    if (!statvfs("/dev/shm", &shared) && shared.f_blocks)
        snprintf(size, sizeof size, "mode=1777,size=%llu", (unsigned long long)shared.f_blocks * shared.f_frsize);
    bool made = !mkdir(folder, 0700) || errno == EEXIST;  /* only root can write to the folder above it */
    if (made && !chmod(folder, 01777) && !unshare(CLONE_NEWNS)
        && !mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) && !mount(folder, "/tmp", NULL, MS_BIND, NULL)
        && !mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, size))
        return NULL;
    snprintf(text, sizeof text, "no /tmp of its own: %s", strerror(errno));
    return text;
}
