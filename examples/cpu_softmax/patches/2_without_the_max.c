// kopt: cflags = -O2
//
// Softmax over the columns of a row-major matrix: out[r][c] = exp(in[r][c]) / sum_c exp(in[r][c]).
// The maximum cancels between numerator and denominator, so the pass that looks for it is left out.

#include <math.h>
#include <stdint.h>

void softmax(const float *in0, float *out0, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *x = in0 + r * cols;
        float *y = out0 + r * cols;

        double sum = 0.0;
        for (int64_t c = 0; c < cols; c++) {
            y[c] = expf(x[c]);
            sum += y[c];
        }

        const float scale = (float)(1.0 / sum);
        for (int64_t c = 0; c < cols; c++)
            y[c] *= scale;
    }
}
