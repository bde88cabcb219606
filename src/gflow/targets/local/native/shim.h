/* The plain shim: what shim.py does for the many jobs that ask for nothing special, in a tenth of the
 * time and memory. It leaves the same files behind and speaks the same words; whatever needs more
 * (limits by control group, shared GPUs, a family that will not die) is left to shim.py.
 *
 * Single thread, no allocation but one growing buffer, no library but the C one.
 */
#ifndef GFLOW_SHIM_H
#define GFLOW_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ------------------------------------------------------------ messages (orders.py says the same) */

typedef struct {
    char *at;
    size_t size;
} Text;

enum Field {
    KIND, KEY, ATTEMPT, RECORD, CWD, UMASK, LOG, ERROR_LOG, LOG_CAP, GRACE, STOP_FILE, MEMORY_MIB, CPUS,
    LIMITS, LEASES, SHARING, COMMAND, HAS_SCRIPT, SCRIPT, SCRIPT_PATH, ENVIRON, EXTRA, UID, SNAPSHOT,
    TERMINAL, BESIDE, MAX_PROCESSES, UNKILLABLE_S, USER, FIELDS
};

/* One message: its fields are zero-terminated in place, so each is a C string too. */
typedef struct {
    Text field[FIELDS];
    int count;
} Message;

typedef struct {
    char *bytes;
    size_t size, room;
} Buffer;

size_t whole_message(const Buffer *buffer);              /* size of the first message, 0: not all there */
bool read_message(char *bytes, size_t size, Message *message);
void append(Buffer *buffer, const void *bytes, size_t size);
void drop(Buffer *buffer, size_t size);
bool is_kind(const Message *message, const char *kind);
long number(const Message *message, enum Field field);
bool send_all(int fd, const void *bytes, size_t size);
bool send_words(int fd, int count, const char *const *words);

/* ------------------------------------------------------------ one job */

/* Locks of the job's GPUs. It inherits them: if its shim is killed, they last as long as the job does. Not
 * where the shim is root's: no job can kill that one. */
enum { MOST_LEASES = 64 };

typedef struct {
    int fd[MOST_LEASES], count;
    const char *last;                                      /* the one that was tried last */
} Leases;

typedef struct {
    pid_t pid;
    int orders;                                            /* our end of the socket it waits on */
    int trouble;                                           /* it says here why it could not become the job */
    unsigned long long started;
} Child;

typedef struct {
    int code, signal;                                      /* -1: none */
    char problem[4096];
    long cpu_ms, peak_kib;
} End;

/* A fork of ourselves, born in `group` if that is not -1, which waits for an order and becomes the job. */
bool prepare(Child *child, int group);
void become_job(int orders, int trouble);
bool send_order(int fd, const Buffer *order, const Leases *leases);
void could_not_start(const Message *order, const char *trouble, bool missing, End *end);
int open_log(const char *path);
void ask_for_slices(uint64_t nanoseconds);

/* In system mode an order names whose it is; else the job is ours. */
bool has_person(const Message *order);
const char *become_person(const Message *order);
void note_in_log(const Message *order, const char *line);
bool write_snapshot(const Message *order);

#define SHORT_SLICE 100000                                 /* the shortest that the kernel gives */

/* ------------------------------------------------------------ this process */

extern const int IGNORED[];                                /* signals that we ignore and jobs do not; 0 ends it */

typedef struct {
    int channel, signals;                                  /* channel -1: the daemon has gone */
    int group;                                             /* descriptor of our control group's folder, or -1 */
    char group_path[4096];
    char pids_path[4096];                                  /* our group that counts processes, where that is version 1's */
    long max_processes;                                    /* as both groups have it; -1: not set yet */
    bool killed;                                           /* the group was, and must be replaced */
    char boot[64];
    unsigned long long namespace, started;
    Child child;                                           /* waits for the next order; pid 0: none */
    Buffer order;                                          /* the job at hand, as it came */
    Buffer inbox;                                          /* what came after it */
    char **python;                                         /* the command line that becomes shim.py */
} Shim;

/* Wait until the job and all it started are gone. Does not return if shim.py had to take over. */
void attend(Shim *shim, const Message *order, pid_t pid, int trouble, int record, const Leases *leases,
            End *end);
void receive(Shim *shim);
unsigned long long start_time(pid_t pid);

#endif
