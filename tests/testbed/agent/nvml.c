/* A driver library without a GPU: what NVML would say is read from the file that FAKE_NVML names.
 *
 * One line per GPU: uuid name total_mb used_mb busy_percent mig pid,pid,... (or - for none). The line "broken" makes
 * every call fail as with a driver that is not loaded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, SMALL = 7, NOT_LOADED = 9, MOST = 64 };

typedef struct { char uuid[96], name[96], pids[1024]; unsigned long long total_mb, used_mb; unsigned busy, mig; } Gpu;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static int table(Gpu *gpus)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[2048];
    int n = 0;
    if (!file)
        return -1;
    while (n < MOST && fgets(line, sizeof line, file)) {
        Gpu *g = &gpus[n];
        if (!strncmp(line, "broken", 6)) {
            n = -1;
            break;
        }
        n += sscanf(line, "%95s %95s %llu %llu %u %u %1023s", g->uuid, g->name, &g->total_mb, &g->used_mb, &g->busy,
                    &g->mig, g->pids) == 7;
    }
    fclose(file);
    return n;
}

static int gpu_of(void *device, Gpu *found)
{
    Gpu gpus[MOST];
    long number = (long)device - 1;
    int n = table(gpus);
    if (n < 0)
        return NOT_LOADED;
    if (number < 0 || number >= n)
        return INVALID;
    *found = gpus[number];
    return OK;
}

int nvmlInitWithFlags(unsigned flags) { Gpu gpus[MOST]; (void)flags; return table(gpus) < 0 ? NOT_LOADED : OK; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_LOADED ? "Driver Not Loaded" : "Not Supported"; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    Gpu gpus[MOST];
    int n = table(gpus);
    *count = n < 0 ? 0 : n;
    return n < 0 ? NOT_LOADED : OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    Gpu gpu;
    *device = (void *)(long)(index + 1);
    return gpu_of(*device, &gpu);
}

#define ASK(device) Gpu gpu; int code = gpu_of(device, &gpu); if (code) return code

int nvmlDeviceGetName(void *device, char *name, unsigned size) { ASK(device); snprintf(name, size, "%s", gpu.name); return OK; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { ASK(device); snprintf(uuid, size, "%s", gpu.uuid); return OK; }
int nvmlDeviceGetUtilizationRates(void *device, Rates *rates) { ASK(device); rates->gpu = gpu.busy; rates->memory = gpu.busy / 2; return OK; }
int nvmlDeviceGetPcieThroughput(void *device, int way, unsigned *kb) { ASK(device); *kb = way ? 250 : 1000; return OK; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { ASK(device); *mw = 0; return NOT_SUPPORTED; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { ASK(device); *now = *next = gpu.mig; return OK; }

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory)
{
    ASK(device);
    memory->total = gpu.total_mb * 1000000;
    memory->used = gpu.used_mb * 1000000;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found)
{
    unsigned n = 0, room = *count;
    Process those[MOST];
    ASK(device);
    for (char *next, *pid = strtok_r(gpu.pids, ",", &next); pid && n < MOST; pid = strtok_r(NULL, ",", &next))
        if (atoi(pid) > 0)
            those[n++] = (Process){.pid = atoi(pid), .used = 2000000000ULL};
    *count = n;
    if (n > room || (n && !found))
        return SMALL;
    if (n)
        memcpy(found, those, n * sizeof *found);
    return OK;
}
