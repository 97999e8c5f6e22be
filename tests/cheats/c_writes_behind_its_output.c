// Writes whole vectors of sixteen, and one more behind the end of the output.
// test: EXPECTED = ("INCORRECT_NUMERICAL",)
// test: PROBLEM = "softmax_c"
#include <math.h>
#include <stdint.h>

void softmax(const float *in, float *out, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        float top = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++) top = fmaxf(top, in[r * cols + c]);
        for (int64_t c = 0; c < cols; c++) sum += out[r * cols + c] = expf(in[r * cols + c] - top);
        for (int64_t c = 0; c < cols; c++) out[r * cols + c] /= sum;
    }
    for (int64_t i = rows * cols; i < rows * cols + 16; i++) out[i] = 0;
}
