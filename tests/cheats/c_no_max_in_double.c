// The unsafe softmax with sums in double: infinite from 710 on, and zero by zero below -745.
// test: EXPECTED = ("INCORRECT_NUMERICAL",)
// test: PROBLEM = "softmax_c"
#include <math.h>
#include <stdint.h>

void softmax(const float *x, float *out, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t c = 0; c < cols; c++) sum += exp(x[r * cols + c]);
        for (int64_t c = 0; c < cols; c++) out[r * cols + c] = exp(x[r * cols + c]) / sum;
    }
}
