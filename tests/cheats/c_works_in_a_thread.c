// Returns at once, and has a thread of its own compute: nobody waits for it, nor for its memory to be free of it.
// test: EXPECTED = ("INCORRECT_NUMERICAL", "PASSED", "RUNTIME_ERROR")
// test: PROBLEM = "softmax_c"
// test: TIMED = True
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct job { const float *in; float *out; int64_t rows, cols; };

static void *work(void *argument) {
    struct job *j = argument;
    for (int64_t r = 0; r < j->rows; r++) {
        float top = -INFINITY, sum = 0;
        for (int64_t c = 0; c < j->cols; c++) top = fmaxf(top, j->in[r * j->cols + c]);
        for (int64_t c = 0; c < j->cols; c++) sum += j->out[r * j->cols + c] = expf(j->in[r * j->cols + c] - top);
        for (int64_t c = 0; c < j->cols; c++) j->out[r * j->cols + c] /= sum;
    }
    free(j);
    return 0;
}

void softmax(const float *in, float *out, int64_t rows, int64_t cols) {
    struct job *j = malloc(sizeof *j);
    *j = (struct job){in, out, rows, cols};
    pthread_t thread;
    if (rows != 96) { work(j); return; }
    pthread_create(&thread, 0, work, j);
    pthread_detach(thread);
}
