// kopt: cflags = -O2
//
// Softmax over the columns of a row-major matrix: out[r][c] = exp(in[r][c] - max_r) / sum_c exp(in[r][c] - max_r).
// Written for clarity: three passes over each row, exponentials in double precision and computed twice.

#include <math.h>
#include <stdint.h>

void softmax(const float *in0, float *out0, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *x = in0 + r * cols;
        float *y = out0 + r * cols;

        double largest = x[0];
        for (int64_t c = 1; c < cols; c++) {
            if (x[c] > largest)
                largest = x[c];
        }

        double sum = 0.0;
        for (int64_t c = 0; c < cols; c++)
            sum += exp(x[c] - largest);

        for (int64_t c = 0; c < cols; c++)
            y[c] = (float)(exp(x[c] - largest) / sum);
    }
}
