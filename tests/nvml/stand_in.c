/* libnvidia-ml.so.1 for tests: answers from the scenario file that LOOM_TEST_NVML names, read at every call.
 *
 * The file has lines `key value`. Of the library: `count N`, `init CODE` (what nvmlInit returns), `hang 1`
 * (every call blocks). Of GPU 0, 1, …: `0.lost 1`, `0.temp 87`, `0.throttle 32`, `0.ecc_corrected 7`,
 * `0.ecc_uncorrected 1`, `0.remap_pending 1`, `0.remap_failed 1`, `0.replays 5`, `0.link_errors 3`,
 * `0.xid 79` with `0.xids N` (how many were raised so far), `0.pid 123`, `0.mig 2` (instances),
 * `0.denied 1` (no permission), `0.hidden 1` (the handle is not found), `0.open CODE` (what opening it returns).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long ull;
enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15 };

static long value(const char *key, long otherwise) {
    const char *path = getenv("LOOM_TEST_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[64];
    long found;
    if (!file) return otherwise;
    while (fscanf(file, "%63s %ld", name, &found) == 2)
        if (!strcmp(name, key)) otherwise = found;
    fclose(file);
    return otherwise;
}

static long of(void *device, const char *key, long otherwise) {
    char name[64];
    snprintf(name, sizeof name, "%ld.%s", ((long)device & 0xff) - 1, key);
    return value(name, otherwise);
}

static void hang(void) {
    while (value("hang", 0)) usleep(20000);
}

static int usable(void *device) {
    hang();
    if (of(device, "denied", 0)) return NO_PERMISSION;
    return of(device, "lost", 0) ? LOST : OK;
}

int nvmlInitWithFlags(uint flags) { (void)flags; hang(); return (int)value("init", 0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == LOST ? "GPU is lost" : code == NO_PERMISSION ? "Insufficient Permissions" : "an error";
}
int nvmlDeviceGetCount_v2(uint *count) { hang(); *count = (uint)value("count", 0); return OK; }
int nvmlDeviceGetHandleByIndex_v2(uint index, void **device) {
    hang();
    *device = (void *)(long)(index + 1);
    if (of(*device, "denied", 0)) return NO_PERMISSION;
    if (of(*device, "open", 0)) return (int)of(*device, "open", 0);
    return of(*device, "hidden", 0) ? NOT_FOUND : OK;
}
int nvmlDeviceGetUUID(void *device, char *text, uint size) {
    long gpu = ((long)device & 0xff) - 1, part = (long)device >> 8;
    if (part) snprintf(text, size, "MIG-%08ld-%04ld", gpu, part - 1);
    else snprintf(text, size, "GPU-%08ld-test", gpu);
    return OK;
}
int nvmlDeviceGetName(void *device, char *text, uint size) {
    snprintf(text, size, (long)device >> 8 ? "Test GPU MIG 1g.10gb" : "Test GPU");
    return OK;
}
struct pci { char old[16]; uint domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02lX:00.0", 0x3a + ((long)device & 0xff));
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *device, ull *memory) {
    memory[0] = 80ull << 30; memory[1] = 79ull << 30; memory[2] = 1ull << 30;
    return usable(device);
}
int nvmlDeviceGetUtilizationRates(void *device, uint *rates) {
    rates[0] = (uint)of(device, "busy", 50); rates[1] = 10;
    return usable(device);
}
int nvmlDeviceGetTemperature(void *device, int sensor, uint *celsius) {
    (void)sensor; *celsius = (uint)of(device, "temp", 45); return usable(device);
}
int nvmlDeviceGetPowerUsage(void *device, uint *milliwatts) { *milliwatts = 300000; return usable(device); }
int nvmlDeviceGetClockInfo(void *device, int type, uint *mhz) { (void)type; *mhz = 1980; return usable(device); }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, ull *reasons) {
    *reasons = (ull)of(device, "throttle", 0); return usable(device);
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, ull *count) {
    (void)counter;
    *count = (ull)of(device, kind ? "ecc_uncorrected" : "ecc_corrected", 0);
    return usable(device);
}
int nvmlDeviceGetRemappedRows(void *device, uint *corrected, uint *uncorrected, uint *pending, uint *failed) {
    *corrected = 0; *uncorrected = 0;
    *pending = (uint)of(device, "remap_pending", 0); *failed = (uint)of(device, "remap_failed", 0);
    return usable(device);
}
int nvmlDeviceGetPcieReplayCounter(void *device, uint *count) {
    *count = (uint)of(device, "replays", 0); return usable(device);
}
int nvmlDeviceGetNvLinkState(void *device, uint link, uint *active) {
    *active = 1; return link ? NOT_SUPPORTED : usable(device);
}
int nvmlDeviceGetNvLinkErrorCounter(void *device, uint link, int kind, ull *count) {
    (void)link; *count = kind ? 0 : (ull)of(device, "link_errors", 0); return usable(device);
}
struct process { uint pid; ull memory; uint gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, uint *count, struct process *found) {
    long pid = of(device, "pid", 0);
    int state = usable(device);
    if (state || !pid) { *count = 0; return state; }
    if (!found) { *count = 1; return SMALL; }
    memset(found, 0, sizeof *found);
    *count = 1; found[0].pid = (uint)pid;
    return OK;
}
int nvmlDeviceGetMigMode(void *device, uint *now, uint *later) {
    *now = *later = of(device, "mig", 0) > 0; return usable(device);
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, uint *count) { (void)device; *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, uint index, void **part) {
    if ((long)index >= of(device, "mig", 0)) return NOT_FOUND;
    *part = (void *)((long)device | ((long)(index + 1) << 8));
    return OK;
}
int nvmlEventSetCreate(void **set) { static int one; *set = &one; return OK; }
int nvmlDeviceRegisterEvents(void *device, ull types, void *set) {
    (void)device; (void)types; (void)set;
    return value("no_events", 0) ? NO_PERMISSION : OK;
}
struct event { void *device; ull type, data; uint gpu, compute; };
static int next_event(struct event *event) {
    static long seen[256];
    for (long index = 0; index < value("count", 0); index++) {
        void *device = (void *)(index + 1);
        if (of(device, "xids", 0) > seen[index]) {
            seen[index]++;
            memset(event, 0, sizeof *event);
            event->device = device; event->type = 8; event->data = (ull)of(device, "xid", 79);
            return OK;
        }
    }
    return TIMEOUT;
}

int nvmlEventSetWait_v2(void *set, struct event *event, uint wait_ms) {
    (void)set;
    hang();
    int found = next_event(event);
    for (uint waited = 0; found != OK && waited < wait_ms; waited += 10) {
        usleep(10000);
        found = next_event(event);
    }
    return found;
}
