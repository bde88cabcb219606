/* A disk that fails on demand: preload this, and the files of one database fail or lose power.

   Every write, sync, truncation, removal and renaming of FOLDER/gflow.db* is counted (the shared
   memory in gflow.db-shm is not durable and is left alone). At operation number `at`,
   one of these happens:

     nospace  it fails with ENOSPC          short  half of a write is done, the rest fails with ENOSPC
     error    it fails with EIO             torn   half of a write is done, and the process dies
     cut      the power goes: what was not synced is gone
     some     the power goes: of what was not synced, some operations survive and some do not
     sectors  the power goes: of every unsynced write, some sectors survive and some do not

   The model of the disk is the strict one. A file's content is durable when the file was synced, its name
   when the folder was; of names, `some` and `sectors` keep the changes up to some moment. A sync that
   fails loses the data for good: a later sync that works does not bring it back. So no real sync is
   needed, and none is done.

   In a daemon, FAULTY_SWITCH names a file: while it holds a number, that is the errno of every such
   operation, and with a further word of every read too. Syncs are real then. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE, SYNC, TRUNCATE, UNLINK, RENAME, KINDS };
enum { DATABASE, LOG, JOURNAL, OTHER, FOLDER, PLACES };
enum { PASS, FAIL, HALF };
#define SECTOR 512
#define NAMES 64
#define MOMENTS 256
#define POWER_CUT 99

struct change { struct change *next; int kind; off_t offset; size_t size; unsigned char bytes[]; };
struct inode { unsigned char *durable; off_t size; struct change *first, **last; };
struct name { char path[PATH_MAX]; struct inode *now; };

static char database[PATH_MAX], folder[PATH_MAX], mode[16];
static const char *switch_file;
static struct name names[NAMES];
static int known;
/* What the names meant when the folder was synced last, and after each change since. */
static struct inode *folder_at[MOMENTS][NAMES];
static int moments;
static long operations, at, times, cut_at;
static unsigned seed;
static unsigned local_counts[PLACES * KINDS];
static volatile unsigned *counts = local_counts;

/* ---------------------------------------------------------------- the model of the disk */

static void apply(struct inode *inode, off_t offset, const unsigned char *bytes, size_t size) {
    off_t end = offset + (off_t)size;
    if (end > inode->size) {
        inode->durable = realloc(inode->durable, end);
        memset(inode->durable + inode->size, 0, end - inode->size);
        inode->size = end;
    }
    memcpy(inode->durable + offset, bytes, size);
}

static void resize(struct inode *inode, off_t size) {
    if (size > inode->size) {
        inode->durable = realloc(inode->durable, size);
        memset(inode->durable + inode->size, 0, size - inode->size);
    }
    inode->size = size;
}

static struct inode *new_inode(void) {
    struct inode *inode = calloc(1, sizeof *inode);
    inode->last = &inode->first;
    return inode;
}

static void remember(struct inode *inode, int kind, off_t offset, const void *bytes, size_t size) {
    struct change *change = malloc(sizeof *change + (kind == WRITE ? size : 0));
    *change = (struct change){.kind = kind, .offset = offset, .size = size};
    if (kind == WRITE) memcpy(change->bytes, bytes, size);
    *inode->last = change;
    inode->last = &change->next;
}

/* Empty the list of unsynced changes: onto the disk, or into nothing. */
static void settle(struct inode *inode, int keep) {
    for (struct change *change = inode->first, *next; change; change = next) {
        next = change->next;
        if (keep && change->kind == WRITE) apply(inode, change->offset, change->bytes, change->size);
        if (keep && change->kind == TRUNCATE) resize(inode, change->offset);
        free(change);
    }
    inode->first = NULL;
    inode->last = &inode->first;
}

/* Sometimes most survives, sometimes little. */
static int coin(void) { return rand_r(&seed) % 8 < 1 + at % 7; }

static void keep_some(struct inode *inode) {
    int sectors = !strcmp(mode, "sectors");
    for (struct change *change = inode->first; change; change = change->next) {
        if (change->kind == TRUNCATE) {
            if (coin()) resize(inode, change->offset);
        } else if (!sectors) {
            if (coin()) apply(inode, change->offset, change->bytes, change->size);
        } else {
            for (size_t done = 0, size; done < change->size; done += size) {
                size = SECTOR - (change->offset + done) % SECTOR;
                if (size > change->size - done) size = change->size - done;
                if (coin()) apply(inode, change->offset + done, change->bytes + done, size);
            }
        }
    }
}

static void folder_changed(void) {
    if (moments == MOMENTS) abort();
    for (int i = 0; i < NAMES; i++) folder_at[moments][i] = names[i].now;
    moments++;
}

static void folder_synced(void) {
    moments = 0;
    folder_changed();
}

static int place_of(const char *path) {
    size_t size = strlen(path);
    if (!strcmp(path, database)) return DATABASE;
    if (size > 4 && !strcmp(path + size - 4, "-wal")) return LOG;
    if (size > 8 && !strcmp(path + size - 8, "-journal")) return JOURNAL;
    return OTHER;
}

static int is_ours(const char *path) {
    size_t size = strlen(path);
    return !strncmp(path, database, strlen(database)) && !(size > 4 && !strcmp(path + size - 4, "-shm")) &&
           !strstr(path, " (deleted)");
}

static struct name *name_of(const char *path) {
    for (int i = 0; i < known; i++)
        if (!strcmp(names[i].path, path)) return &names[i];
    if (known == NAMES) abort();
    strcpy(names[known].path, path);
    return &names[known++];
}

/* What a name means now; a name that is new means a file that is new. */
static struct inode *inode_of(struct name *name) {
    if (!name->now) {
        name->now = new_inode();
        if (!switch_file) folder_changed();
    }
    return name->now;
}

static void look(void) {
    char path[PATH_MAX + 256];
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (is_ours(path)) inode_of(name_of(path));
    }
    if (listing) closedir(listing);
}

static void put_on_disk(struct name *name, struct inode *inode) {
    syscall(SYS_unlinkat, AT_FDCWD, name->path, 0);
    if (!inode) return;
    if (*mode == 's') keep_some(inode);
    int fd = syscall(SYS_openat, AT_FDCWD, name->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (off_t done = 0; fd >= 0 && done < inode->size;)
        done += syscall(SYS_pwrite64, fd, inode->durable + done, inode->size - done, done);
}

static void cut_power(void) {
    char memory[PATH_MAX + 8];
    look();
    int moment = *mode == 's' ? rand_r(&seed) % moments : 0;
    for (int i = 0; i < known; i++) put_on_disk(&names[i], folder_at[moment][i]);
    snprintf(memory, sizeof memory, "%s-shm", database);
    syscall(SYS_unlinkat, AT_FDCWD, memory, 0);
    _exit(POWER_CUT);
}

/* ---------------------------------------------------------------- what happens to an operation */

static int switched(int reading) {
    char text[32] = "";
    int fd = syscall(SYS_openat, AT_FDCWD, switch_file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return PASS;
    ssize_t size = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (size <= 0 || atoi(text) <= 0 || (reading && !strchr(text, ' '))) return PASS;
    errno = atoi(text);
    return FAIL;
}

static int verdict(int place, int kind) {
    counts[place * KINDS + kind]++;
    if (switch_file) return switched(0);
    long number = ++operations;
    if (number == cut_at) cut_power();
    if (number < at || number >= at + times) return PASS;
    int writes = kind == WRITE || kind == SYNC;
    if (!strcmp(mode, "torn")) {
        if (kind == WRITE) return HALF;
        _exit(POWER_CUT);
    }
    if (!strcmp(mode, "short") && kind == WRITE && number == at) return HALF;
    if (!strcmp(mode, "nospace") || !strcmp(mode, "short")) {
        errno = ENOSPC;
        return writes ? FAIL : PASS;
    }
    if (!strcmp(mode, "error")) {
        errno = EIO;
        return FAIL;
    }
    if (*mode) cut_power();
    return PASS;
}

static struct name *name_of_fd(int fd, int *is_folder) {
    char link[64], path[PATH_MAX];
    if (!*database) return NULL;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return NULL;
    path[size] = 0;
    if (is_folder) *is_folder = !strcmp(path, folder);
    return is_ours(path) ? name_of(path) : NULL;
}

static ssize_t put(int fd, const void *bytes, size_t size, off_t offset, int positioned) {
    struct name *name = name_of_fd(fd, NULL);
    off_t start = positioned ? offset : lseek(fd, 0, SEEK_CUR);
    int what = name ? verdict(place_of(name->path), WRITE) : PASS;
    if (what == FAIL) return -1;
    if (what == HALF) size = (size + 1) / 2;
    ssize_t done = positioned ? syscall(SYS_pwrite64, fd, bytes, size, offset) : syscall(SYS_write, fd, bytes, size);
    if (what == HALF && !strcmp(mode, "torn")) _exit(POWER_CUT);
    if (name && !switch_file && done > 0) remember(inode_of(name), WRITE, start, bytes, done);
    return done;
}

static int sync_it(int fd, int data_only) {
    int is_folder = 0;
    struct name *name = name_of_fd(fd, &is_folder);
    if (!name && !is_folder) return syscall(data_only ? SYS_fdatasync : SYS_fsync, fd);
    int what = verdict(name ? place_of(name->path) : FOLDER, SYNC);
    if (switch_file) return what == FAIL ? -1 : syscall(data_only ? SYS_fdatasync : SYS_fsync, fd);
    if (name) {
        settle(inode_of(name), what != FAIL);
    } else if (what != FAIL) {
        look();
        folder_synced();
    }
    return what == FAIL ? -1 : 0;
}

static int cut_off(int fd, off_t size) {
    struct name *name = name_of_fd(fd, NULL);
    if (name && verdict(place_of(name->path), TRUNCATE) == FAIL) return -1;
    int done = syscall(SYS_ftruncate, fd, size);
    if (name && !switch_file && !done) remember(inode_of(name), TRUNCATE, size, NULL, 0);
    return done;
}

/* ---------------------------------------------------------------- the calls */

ssize_t write(int fd, const void *bytes, size_t size) { return put(fd, bytes, size, 0, 0); }
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) { return put(fd, bytes, size, offset, 1); }
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) { return put(fd, bytes, size, offset, 1); }

/* Piece by piece: a short answer is allowed, so the first piece alone is an answer. */
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) {
    return count ? put(fd, pieces->iov_base, pieces->iov_len, offset, 1) : 0;
}
ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) {
    return pwritev(fd, pieces, count, offset);
}

static ssize_t get(int fd, void *bytes, size_t size, off_t offset) {
    if (switch_file && name_of_fd(fd, NULL) && switched(1) == FAIL) return -1;
    return syscall(SYS_pread64, fd, bytes, size, offset);
}
ssize_t pread(int fd, void *bytes, size_t size, off_t offset) { return get(fd, bytes, size, offset); }
ssize_t pread64(int fd, void *bytes, size_t size, off64_t offset) { return get(fd, bytes, size, offset); }

int fsync(int fd) { return sync_it(fd, 0); }
int fdatasync(int fd) { return sync_it(fd, 1); }
int ftruncate(int fd, off_t size) { return cut_off(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut_off(fd, size); }

int unlink(const char *path) {
    struct name *name = *database && is_ours(path) ? name_of(path) : NULL;
    if (name && access(path, F_OK)) name = NULL;
    if (name && verdict(place_of(path), UNLINK) == FAIL) return -1;
    int done = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (name && !done && !switch_file) {
        name->now = NULL;
        folder_changed();
    }
    return done;
}

int rename(const char *from, const char *to) {
    struct name *old = *database && is_ours(from) ? name_of(from) : NULL;
    struct name *new = old ? name_of(to) : NULL;
    if (old && verdict(place_of(to), RENAME) == FAIL) return -1;
    int done = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (old && !done && !switch_file) {
        new->now = inode_of(old);
        old->now = NULL;
        folder_changed();
    }
    return done;
}

/* ---------------------------------------------------------------- arming */

/* From here on, the files of `path` are watched, and what they hold now is durable. */
void faulty_arm(const char *path, const char *what, long first, long how_often, long cut, unsigned dice) {
    snprintf(mode, sizeof mode, "%s", what);
    at = first, times = how_often, cut_at = cut, seed = dice, operations = 0, known = 0;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    snprintf(database, sizeof database, "%s", path);
    folder_synced();
    look();
    for (int i = 0; i < known; i++) {
        struct name *name = &names[i];
        struct stat status;
        int fd = syscall(SYS_openat, AT_FDCWD, name->path, O_RDONLY);
        if (fd < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode)) abort();
        resize(name->now, status.st_size);
        for (off_t done = 0; done < status.st_size;)
            done += syscall(SYS_pread64, fd, name->now->durable + done, status.st_size - done, done);
        syscall(SYS_close, fd);
    }
    folder_synced();
}

/* Count into a file, which outlives this process however it ends. */
void faulty_count(const char *path) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || syscall(SYS_ftruncate, fd, sizeof local_counts)) abort();
    counts = mmap(NULL, sizeof local_counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counts == MAP_FAILED) abort();
    syscall(SYS_close, fd);
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAULTY_DATABASE"), *switched_by = getenv("FAULTY_SWITCH");
    if (!path || !switched_by) return;
    switch_file = strdup(switched_by);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    snprintf(database, sizeof database, "%s", path);
    if (getenv("FAULTY_COUNTS")) faulty_count(getenv("FAULTY_COUNTS"));
}
