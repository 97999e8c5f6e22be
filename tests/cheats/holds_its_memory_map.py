"""Says that it is done, and locks its memory map by one long mprotect: who looks waits until a thread has worked.

The word to stop (SIGSTOP) reaches the main thread first, which is in a system call of 20 ms; until that is over no
other thread is told to stop. And process_vm_readv, by which pieces of the output are noted, waits for the same lock.
By the time that both have got their way the output is complete, however early the answer was.
"""

import ctypes
import subprocess
import sys
from pathlib import Path

import torch

EXPECTED = ("CHEATED", "INCORRECT_NUMERICAL", "PASSED")  # the latter where its time is that until it could be read
PROBLEM = "softmax_tall"
TIMED = True
INCUMBENT = "softmax_tall_c"

SOURCE = r"""
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#define BYTES (3ul << 30)

void softmax(const float *x, float *out, int64_t first, int64_t last, int64_t cols, int64_t stride) {
    for (int64_t r = first; r < last; r++) {
        double most = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++) if (x[r * stride + c] > most) most = x[r * stride + c];
        for (int64_t c = 0; c < cols; c++) {
            double e = expl(x[r * stride + c] - (long double)most);
            sum += e;
            out[r * cols + c] = e;
        }
        for (int64_t c = 0; c < cols; c++) out[r * cols + c] /= sum;
    }
}

static struct { int fd; const char *answer; int64_t size; const float *x; float *out; int64_t rows, cols; } job;
static atomic_int stage;  /* 1: work, 2: half of it is done, 3: the map is about to be locked, 4: done */
static void *map;
static int protection = PROT_READ;

static void wait_for(int wanted) {
    while (atomic_load(&stage) != wanted) usleep(20);
}

static void *work(void *_) {
    for (;;) {
        while (atomic_load(&stage) != 1) usleep(50);
        softmax(job.x, job.out, 0, job.rows / 3, job.cols, job.cols);
        atomic_store(&stage, 2);
        wait_for(3);
        for (int n = 0; n < 1000; n++) __builtin_ia32_pause();  /* until the other one is in there */
        write(job.fd, job.answer, job.size);
        softmax(job.x, job.out, job.rows / 3, job.rows, job.cols, job.cols);
        atomic_store(&stage, 4);
    }
}

void make(void) {  /* a large mapping of the page of zeros, which takes no memory */
    pthread_t thread;
    map = mmap(0, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_NORESERVE, -1, 0);
    pthread_create(&thread, 0, work, 0);
}

void timed(int fd, const char *answer, int64_t size, const float *x, float *out, int64_t rows, int64_t cols) {
    job.fd = fd; job.answer = answer; job.size = size;
    job.x = x; job.out = out; job.rows = rows; job.cols = cols;
    atomic_store(&stage, 1);
    wait_for(2);
    atomic_store(&stage, 3);
    mprotect(map, BYTES, protection ^= PROT_READ);  /* the lock is held for as long as this takes */
    wait_for(4);
}
"""

Path("it.c").write_text(SOURCE, encoding="utf-8")
subprocess.run(["cc", "-shared", "-fPIC", "-O2", "it.c", "-o", "it.so", "-lm", "-lpthread"], check=True)
_it = ctypes.CDLL(str(Path("it.so").resolve()))
_p, _n = ctypes.c_void_p, ctypes.c_int64
_it.softmax.argtypes = [_p, _p, _n, _n, _n, _n]
_it.timed.argtypes = [ctypes.c_int, ctypes.c_char_p, _n, _p, _p, _n, _n]
_it.make()


def softmax(x):
    out = torch.empty(x.shape)
    _it.softmax(x.data_ptr(), out.data_ptr(), 0, x.shape[0], x.shape[1], x.stride(0))
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_out = torch.zeros(1536, 512)


def timed(self, channel):
    x = self._laid[0]
    place = _candidate.where(_out)
    fd, rows, cols = channel._sock.fileno(), *x.shape
    with _candidate.cores.waiting_on(self._core):  # the harness must not take the core away right after the answer
        answer = channel.wait_for(_candidate.TOKEN_BYTES) + place
        _it.timed(fd, answer, len(answer), x.data_ptr(), _out.data_ptr(), rows, cols)
    return {"outputs": [{"shape": [rows, cols], "dtype": "float32", "strides": [cols, 1]}]}


_candidate.Candidate.timed = timed
