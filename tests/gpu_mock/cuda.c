/* A stand-in for libcuda.so.1: memory of the same GPUs that the stand-in for NVML shows. The first visible
 * GPU only. Memory goes back when its process dies. A context takes 500 MiB. */
#include "machine.h"

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, CONTEXT = 500 << 20, PLACES = 4096 };

static machine *all;
static device *here;
static uint64_t sizes[PLACES];

static process *mine(void) {
    for (int i = 0; i < here->count; i++)
        if (here->processes[i].pid == (uint32_t)getpid()) return here->processes + i;
    if (here->count == PROCESSES) return NULL;
    here->processes[here->count] = (process){getpid(), 0, 0};
    return here->processes + here->count++;
}

static int take(uint64_t size) {
    forget_the_dead(all, here);
    lock(all);
    process *p = mine();
    int fits = p && here->used + here->reserved + size <= here->total;
    if (fits) p->bytes += size, here->used += size;
    unlock(all);
    return fits ? OK : OUT_OF_MEMORY;
}

int cuInit(unsigned flags) {
    const char *path = getenv("GFLOW_MOCK_NVML");
    if (!path || !(all = machine_at(path))) return NO_DEVICE;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int index = visible && *visible ? atoi(visible) : 0;
    here = all->devices + index;
    here->living = 1;
    return here->present ? OK : NO_DEVICE;
}
int cuDeviceGet(int *to, int ordinal) { *to = ordinal; return ordinal ? NO_DEVICE : OK; }
int cuDevicePrimaryCtxRetain(void **to, int ordinal) { *to = here; return take(CONTEXT); }
int cuCtxSetCurrent(void *context) { return OK; }
int cuMemAlloc_v2(unsigned long long *to, size_t size) {
    for (int i = 1; i < PLACES; i++)
        if (!sizes[i]) {
            int problem = take(size);
            if (!problem) sizes[i] = size, *to = i;
            return problem;
        }
    return INVALID;
}
/* A kernel that goes wrong, which is the only kind there is here: the driver reports it and ends the program. */
int cuModuleLoadData(void **to, const void *text) { *to = here; return OK; }
int cuModuleGetFunction(void **to, void *module, const char *name) { *to = module; return OK; }
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s,
                   void *stream, void **words, void **more) { here->xid = 31; return OK; }
int cuCtxSynchronize(void) { return 700; }
int cuMemFree_v2(unsigned long long place) {
    if (place >= PLACES || !sizes[place]) return INVALID;
    lock(all);
    process *p = mine();
    if (p) p->bytes -= sizes[place], here->used -= sizes[place];
    unlock(all);
    sizes[place] = 0;
    return OK;
}
