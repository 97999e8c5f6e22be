// kopt: cflags = -O3 -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros -fopenmp
//
// Softmax over the columns of a row-major matrix: out[r][c] = exp(in[r][c] - max_r) / sum_c exp(in[r][c] - max_r).
// exp is a polynomial without branches or calls, so that the compiler turns all three loops into vector code; the rows are
// shared out among the cores.

#include <stdint.h>

// exp(t) for t <= 0: 2^n * exp(f), n the nearest integer to t / ln 2 and |f| <= ln 2 / 2; below 2^-126 it is 0.
static inline float exp_nonpositive(float t)
{
    const float n = __builtin_rintf(t * 1.44269504f);
    const float f = (t - n * 0.693359375f) + n * 2.12194440e-4f; // ln 2 in two parts: the first product is exact
    float p = 1.0f / 720.0f;
    p = p * f + 1.0f / 120.0f;
    p = p * f + 1.0f / 24.0f;
    p = p * f + 1.0f / 6.0f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    const float kept = n < -126.0f ? -126.0f : n;
    union { int32_t bits; float value; } power = {.bits = ((int32_t)kept + 127) << 23};
    return n < -126.0f ? 0.0f : p * power.value;
}

void softmax(const float *in0, float *out0, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict x = in0 + r * cols;
        float *restrict y = out0 + r * cols;

        float largest = x[0];
        for (int64_t c = 1; c < cols; c++)
            largest = x[c] > largest ? x[c] : largest;

        float sum = 0.0f;
        for (int64_t c = 0; c < cols; c++) {
            y[c] = exp_nonpositive(x[c] - largest);
            sum += y[c];
        }

        const float scale = 1.0f / sum;
        for (int64_t c = 0; c < cols; c++)
            y[c] *= scale;
    }
}
