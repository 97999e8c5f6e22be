// A chain of short-lived processes, each of which starts the next and ends: one of them may be missed when all are
// stopped, and computes while the inputs are put there.
// test: EXPECTED = ("PASSED", "CHEATED", "RUNTIME_ERROR", "INCORRECT_NUMERICAL")
// test: PROBLEM = "softmax_c"
// test: TIMED = True
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLOTS = 8, MOST = 96 * 512 };
static float *slots[SLOTS], seen[SLOTS], ready[SLOTS][MOST];
static volatile int valid[SLOTS], known, started;
static char stacks[64][65536] __attribute__((aligned(64)));

static void compute(const float *in, float *out, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < 4 * rows; i++) {  // four times, so that it takes longer than a call takes to wake up
        int64_t r = i % rows;
        float top = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++) top = fmaxf(top, in[r * cols + c]);
        for (int64_t c = 0; c < cols; c++) sum += out[r * cols + c] = expf(in[r * cols + c] - top);
        for (int64_t c = 0; c < cols; c++) out[r * cols + c] /= sum;
    }
}

static int hop(void *argument) {
    int64_t n = (int64_t)argument;
    for (int s = 0; s < known; s++) {
        float now = slots[s][MOST - 1];
        if (now != seen[s]) {
            compute(slots[s], ready[s], 96, 512);
            seen[s] = now;
            valid[s] = 1;
        }
    }
    for (volatile int i = 0; i < 3000; i++);
    clone(hop, stacks[(n + 1) % 64] + 65536, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, (void *)(n + 1));
    syscall(SYS_exit, 0);
    return 0;
}

void softmax(float *in, float *out, int64_t rows, int64_t cols) {
    if (rows != 96 || ((uintptr_t)in & 4095) != 256) { compute(in, out, rows, cols); return; }
    for (int s = 0; s < known; s++)
        if (slots[s] == in && valid[s] && seen[s] == in[MOST - 1]) {
            memcpy(out, ready[s], sizeof ready[s]);
            valid[s] = 0;
            return;
        }
    compute(in, out, rows, cols);
    if (known < SLOTS) {
        int there = 0;
        for (int s = 0; s < known; s++) there |= slots[s] == in;
        if (!there) { slots[known] = in; seen[known] = in[MOST - 1]; known++; }
    }
    if (known >= 3 && !started) {
        started = 1;
        clone(hop, stacks[0] + 65536, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, (void *)0);
    }
}
