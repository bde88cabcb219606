/* A stand-in for libnvidia-ml.so.1 whose GPUs live in a shared file.
 *
 * A test maps the same file (gpu_mock/__init__.py has the same layout) and changes GPUs,
 * processes, health, errors and hangs while a daemon looks at them. Like the real library, the
 * order of GPUs is fixed by nvmlInit: one that goes away afterwards is lost, not renumbered.
 */
#include "machine.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7,
    NOT_LOADED = 9, TIMEOUT = 10, LOST = 15, UNKNOWN = 999
};

static machine *all;
static int order[DEVICES], seen = -1;

static int enter(void) {
    __atomic_add_fetch(&all->calls, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&all->hang, __ATOMIC_RELAXED)) usleep(5000);
    return seen < 0 ? UNINITIALIZED : all->init_error == NOT_LOADED ? UNKNOWN : OK;
}

static int check(device *d) {
    int problem = enter();
    if (problem) return problem;
    if (d < all->devices || d >= all->devices + DEVICES) return INVALID;
    if (!d->present || (d->parent >= 0 && !all->devices[d->parent].present)) return LOST;
    return d->error;
}

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("GFLOW_MOCK_NVML");
    if (!path) return NOT_LOADED;
    if (!all && !(all = machine_at(path))) return NOT_LOADED;
    __atomic_add_fetch(&all->inits, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&all->hang, __ATOMIC_RELAXED)) usleep(5000);
    if (all->init_error) return all->init_error;
    seen = 0;
    for (int i = 0; i < DEVICES; i++)
        if (all->devices[i].present && all->devices[i].parent < 0) order[seen++] = i;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { seen = -1; return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case LOST: return "GPU is lost";
    case NOT_LOADED: return "Driver Not Loaded";
    case NOT_SUPPORTED: return "Not Supported";
    default: return "Unknown Error";
    }
}

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) + 1 > size) return SMALL;
    strcpy(to, from);
    return OK;
}
int nvmlSystemGetDriverVersion(char *to, unsigned size) { int e = enter(); return e ? e : text(to, size, "580.00"); }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return enter(); }

int nvmlDeviceGetCount_v2(unsigned *n) { int e = enter(); *n = seen < 0 ? 0 : seen; return e; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device **d) {
    int e = enter();
    if (e) return e;
    if ((int)i >= seen) return INVALID;
    *d = all->devices + order[i];
    return all->devices[order[i]].present ? OK : LOST;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device **d) {
    int e = enter();
    if (e) return e;
    for (int i = 0; i < DEVICES; i++) {
        *d = all->devices + i;
        if ((*d)->present && !strcmp((*d)->uuid, uuid)) return OK;
    }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(device *d, char *to, unsigned size) { int e = check(d); return e ? e : text(to, size, d->uuid); }
int nvmlDeviceGetName(device *d, char *to, unsigned size) { int e = check(d); return e ? e : text(to, size, d->name); }

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci, sub;
    char id[32];
} pci_info;
int nvmlDeviceGetPciInfo_v3(device *d, pci_info *p) {
    int e = check(d);
    if (e) return e;
    memset(p, 0, sizeof *p);
    strncpy(p->id, d->bus, 31);
    return OK;
}
int nvmlDeviceGetNumaNodeId(device *d, int *node) { int e = check(d); *node = d->node; return e; }

typedef struct { unsigned long long total, free, used; } memory_v1;
int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *m) {
    int e = check(d);
    m->total = d->total, m->used = d->used + d->reserved, m->free = d->total - m->used;
    return e;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *m) {
    int e = check(d);
    m->total = d->total, m->reserved = d->reserved, m->used = d->used;
    m->free = d->total - d->used - d->reserved;
    return e;
}

typedef struct { unsigned gpu, memory; } rates;
int nvmlDeviceGetUtilizationRates(device *d, rates *r) {
    int e = check(d);
    if (!e && d->parent >= 0) return NOT_SUPPORTED;
    r->gpu = d->busy, r->memory = d->busy_memory;
    return e;
}
#define NUMBER(name, field) int name(device *d, unsigned *to) { int e = check(d); *to = d->field; return e; }
NUMBER(nvmlDeviceGetPowerUsage, milliwatts)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, limit_milliwatts)
int nvmlDeviceGetPowerManagementDefaultLimit(device *d, unsigned *to) { *to = 400000; return check(d); }
int nvmlDeviceGetMaxClockInfo(device *d, int type, unsigned *to) { *to = 1410; return check(d); }
int nvmlDeviceGetPcieThroughput(device *d, int counter, unsigned *to) {
    int e = check(d);
    *to = counter == 1 ? d->received_kb : 0;
    return e;
}
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, most_width)
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *to) { int e = check(d); *to = d->celsius; return e; }
int nvmlDeviceGetTemperatureThreshold(device *d, int which, unsigned *to) { int e = check(d); *to = which ? 89 : 92; return e; }
int nvmlDeviceGetClockInfo(device *d, int type, unsigned *to) {
    int e = check(d);
    *to = type == 2 ? d->memory_clock : d->clock;
    return e;
}
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *to) { int e = check(d); *to = d->slowed; return e; }
int nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, unsigned long long *to) {
    int e = check(d);
    *to = type == 1 ? d->ecc : 0;
    return e;
}
int nvmlDeviceGetRemappedRows(device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    int e = check(d);
    *corrected = *uncorrected = *pending = 0;
    *failed = d->limping;
    return e;
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process_info;
static int list(device *d, unsigned kind, unsigned *count, process_info *to) {
    int e = check(d);
    if (e) return e;
    forget_the_dead(all, d);
    unsigned found = 0, room = to ? *count : 0;
    for (int i = 0; i < d->count; i++)
        if (d->processes[i].kind == kind) {
            if (found < room) to[found] = (process_info){d->processes[i].pid, d->processes[i].bytes, ~0u, ~0u};
            found++;
        }
    *count = found;
    return found > room ? SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, process_info *to) { return list(d, 0, n, to); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *n, process_info *to) { return list(d, 1, n, to); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *d, unsigned *n, process_info *to) { return list(d, 2, n, to); }

int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *later) { int e = check(d); *now = *later = d->mig; return e; }
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *n) { *n = 7; return check(d); }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **to) {
    int e = check(d);
    if (e) return e;
    for (int i = 0; i < DEVICES; i++)
        if (all->devices[i].present && all->devices[i].parent == d - all->devices && index-- == 0) {
            *to = all->devices + i;
            return OK;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetP2PStatus(device *a, device *b, int what, int *to) {
    int e = check(a);
    *to = what == 2 && (a->links >> (b - all->devices) & 1) ? 0 : 6;
    return e;
}

int nvmlEventSetCreate(void **set) { *set = all; return enter(); }
int nvmlEventSetFree(void *set) { return OK; }
int nvmlDeviceRegisterEvents(device *d, unsigned long long types, void *set) { return check(d); }
typedef struct { device *d; unsigned long long type, data; unsigned gi, ci; } event;
int nvmlEventSetWait_v2(void *set, event *to, unsigned timeout) {
    int e = enter();
    if (e) return e;
    for (int i = 0; i < DEVICES; i++) {
        uint32_t xid = __atomic_exchange_n(&all->devices[i].xid, 0, __ATOMIC_RELAXED);
        if (xid) {
            *to = (event){all->devices + i, 8, xid, ~0u, ~0u};
            return OK;
        }
    }
    return TIMEOUT;
}
