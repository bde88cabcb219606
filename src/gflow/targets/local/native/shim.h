/* The native shim: does the work of shim.py for jobs without special demands, in a tenth of the time and
 * memory. It writes the same files and speaks the same protocol. A job that needs more (limits by control
 * group, shared GPUs, a process tree that does not die) is left to shim.py.
 *
 * Single thread, few allocations, no library but libc.
 */
#ifndef GFLOW_SHIM_H
#define GFLOW_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ------------------------------------------------------------ messages (same fields as in protocol.py) */

typedef struct {
    char *at;
    size_t size;
} Text;

enum Field {
    KIND, KEY, ATTEMPT, RECORD, CWD, UMASK, LOG, ERROR_LOG, LOG_CAP, GRACE, STOP_FILE, MEMORY_MIB, CPUS,
    LIMITS, LEASES, SHARING, COMMAND, HAS_SCRIPT, SCRIPT, SCRIPT_PATH, ENVIRON, EXTRA, UID, SNAPSHOT,
    TERMINAL, EXEC_JOB, MAX_PROCESSES, UNKILLABLE_S, USER, DEVICES, DEFAULT_MEMORY,
    MEMORY_ADVICE, CPU_QUOTA, OOM_SCORE, PRIVATE_TMP, WRAPPER, FIELDS
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

size_t message_size(const Buffer *buffer);              /* size of the first message; 0: incomplete */
bool read_message(char *bytes, size_t size, Message *message);
void append(Buffer *buffer, const void *bytes, size_t size);
void drop(Buffer *buffer, size_t size);
bool is_kind(const Message *message, const char *kind);
long number(const Message *message, enum Field field);
bool send_all(int fd, const void *bytes, size_t size);
bool send_words(int fd, int count, const char *const *words);

/* ------------------------------------------------------------ one job */

/* Leases: locks of the job's GPUs. The job inherits them, so that they last as long as the job if its shim is
 * killed. In system mode it does not: no job can kill a shim of root. */
enum { MAX_LEASES = 64 };

typedef struct {
    int fd[MAX_LEASES], count;
    const char *last;                                      /* path of the last one tried */
} Leases;

typedef struct {
    pid_t pid;
    int orders;                                            /* our end of the socket on which it waits */
    int trouble;                                           /* pipe for the reason if it cannot execute the job */
    unsigned long long started;
    bool in_group;                                         /* whether it was forked into the control group */
} Child;

typedef struct {
    int code, signal;                                      /* -1: none */
    char problem[4096];
    long cpu_ms, peak_kib;
} End;

/* Fork a child, directly into `group` unless that is -1. It waits for an order and then executes the job.
 * `oom_score`: that of the last order, which it sets before the next one comes. */
bool fork_child(Child *child, int group, long oom_score);
void become_job(int orders, int trouble, long oom_score);
bool send_order(int fd, const Buffer *order, const Leases *leases);
void fail_start(const Message *order, const char *trouble, bool missing, End *end);
int open_log(const char *path);
void set_time_slice(uint64_t nanoseconds);

/* In system mode an order names the job's owner; otherwise the job runs as ourselves. */
bool has_owner(const Message *order);
const char *become_owner(const Message *order);
void note_in_log(const Message *order, const char *line);
void write_last_line(const Message *order, const char *text);
bool write_snapshot(const Message *order);

const char *enter_private_tmp(const Message *order);

/* ------------------------------------------------------------ devices */

/* Replace the program of a group by one for these rules; none if they are empty. False: see errno. `attached`: its
 * descriptor, -1: none. */
bool restrict_devices(int group, const char *rules, int *attached);
int restrict_group(const char *path, const char *rules);   /* once, by path; 0 or an error number */

#define SHORT_SLICE 100000                                 /* in ns; the kernel's minimum */

/* ------------------------------------------------------------ this process */

extern const int IGNORED[];                                /* signals that we ignore and jobs do not; ends with 0 */

typedef struct {
    int channel, signals;                                  /* channel -1: the daemon has closed it */
    int group;                                             /* descriptor of our control group's folder, or -1 */
    char group_path[4096];
    char pids_path[4096];                                  /* our version 1 group that counts processes; empty: none */
    long max_processes;                                    /* limit set in both groups; -1: not set yet */
    long memory_mib;                                       /* memory limit of our group; -1: not set yet */
    long oom_score;                                        /* of the last order */
    bool memory_held;                                      /* whether the kernel enforces it */
    long oom_kills;                                        /* by the kernel in our group so far */
    bool killed;                                           /* the group was killed and must be replaced */
    char *device_rules;                                    /* those of the group; NULL: none yet */
    int device_program;                                    /* that carries them out; -1: none */
    char boot[64];
    unsigned long long namespace, started;
    Child child;                                           /* waits for the next order; pid 0: none */
    Buffer order;                                          /* the order of the current job, as received */
    Buffer inbox;                                          /* messages received after it */
    char **python;                                         /* the command line that executes shim.py */
} Shim;

/* Wait until no process of the job lives. Does not return if shim.py has to take over. */
void supervise(Shim *shim, const Message *order, pid_t pid, int trouble, int record, const Leases *leases,
            End *end);
void receive(Shim *shim);
unsigned long long start_time(pid_t pid);

#endif
