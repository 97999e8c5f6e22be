/* A driver's library with one device whose answers are known, for tests of the binding. */
#include <stdint.h>
#include <string.h>

typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } Sample;
typedef struct { unsigned long long time; union { double number; unsigned integer; } value; } OwnSample;

static int device = 42;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

#ifndef INIT
#define INIT SUCCESS
#endif
int nvmlInit_v2(void) { return INIT; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = &device;
    return strcmp(uuid, NAME) == 0 ? SUCCESS : NOT_FOUND;
}

static int known(void *handle) { return handle == &device; }

int nvmlDeviceGetClockInfo(void *handle, int which, unsigned *mhz) {
    *mhz = which == 1 ? 1980 : 3201;
    return known(handle) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetTemperature(void *handle, int which, unsigned *celsius) {
    *celsius = 61 + which;
    return known(handle) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatt) {
    *milliwatt = 512500;
    return known(handle) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *mask) {
    *mask = 0x1 | 0x40 | 0x400;
    return known(handle) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilisation *rates) {
    rates->gpu = 37;
    return known(handle) ? SUCCESS : NOT_FOUND;
}

#ifdef PROCESSES
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    if (*count < 2) return TOO_SMALL;
    *count = 2;
    found[0] = (Process){11, 1ULL << 30, 0, 0};
    found[1] = (Process){12, ~0ULL, 0, 0};
    return known(handle) ? SUCCESS : NOT_FOUND;
}

/* An older question, which newer drivers still answer. */
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *count, Process *found) {
    *count = 1;
    found[0] = (Process){13, 1ULL << 20, 0, 0};
    return known(handle) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetProcessUtilization(void *handle, Sample *samples, unsigned *count, unsigned long long since) {
    if (since >= 3000) return NOT_FOUND;
    if (samples == 0) { *count = 3; return TOO_SMALL; }
    *count = 3;
    samples[0] = (Sample){11, 1000, 20, 0, 0, 0};
    samples[1] = (Sample){11, 2000, 90, 0, 0, 0};
    samples[2] = (Sample){12, 3000, 4000000000u, 0, 0, 0}; /* garbage, as drivers are known to give */
    return known(handle) ? SUCCESS : NOT_FOUND;
}
#else
int nvmlDeviceGetProcessUtilization(void *handle, Sample *samples, unsigned *count, unsigned long long since) {
    (void)handle, (void)samples, (void)count, (void)since;
    return NOT_SUPPORTED;
}
#endif

#ifdef SAMPLES
int nvmlDeviceGetSamples(void *handle, int which, unsigned long long since, unsigned *kind, unsigned *count,
                         OwnSample *samples) {
    const OwnSample own[] = {{1000000, {.integer = 10}}, {2000000, {.integer = 100}}, {3500000, {.integer = 50}}};
    if (!known(handle) || which != 1 || since > 3500000) return NOT_FOUND;
    *kind = 1;
    *count = 3;
    if (samples) memcpy(samples, own, sizeof own);
    return SUCCESS;
}
#endif

#ifdef SLICE
int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is_slice) {
    *is_slice = 1;
    return known(handle) ? SUCCESS : NOT_FOUND;
}
#endif

int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) {
    *now = MIG;
    *pending = 0;
    return known(handle) ? SUCCESS : NOT_FOUND;
}

#ifdef MINOR
int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) {
    *minor = MINOR;
    return known(handle) ? SUCCESS : NOT_FOUND;
}
#endif
