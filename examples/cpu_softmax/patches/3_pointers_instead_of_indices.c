// kopt: cflags = -O2
//
// Softmax over the columns of a row-major matrix: out[r][c] = exp(in[r][c] - max_r) / sum_c exp(in[r][c] - max_r).
// Each exponential is computed once, in single precision, and kept in the output until the sum is known.
// Rows are walked with pointers, to save the index arithmetic.

#include <math.h>
#include <stdint.h>

static float row_max(const float *x, const float *end)
{
    float largest = *x;
    while (++x < end) {
        if (*x > largest)
            largest = *x;
    }
    return largest;
}

void softmax(const float *in0, float *out0, int64_t rows, int64_t cols)
{
    const float *x = in0;
    float *y = out0;
    for (const float *last = in0 + rows * cols; x < last;) {
        const float *end = x + cols;
        float *start = y;
        const float largest = row_max(x, end);

        double sum = 0.0;
        while (x < end) {
            const float e = expf(*x++ - largest);
            sum += e;
            *y++ = e;
        }

        const float scale = (float)(1.0 / sum);
        while (start < y)
            *start++ *= scale;
    }
}
