// Keeps its function to itself.
// test: EXPECTED = ("COMPILE_ERROR",)
// test: PROBLEM = "softmax_c"
#include <stdint.h>

static void softmax(const float *in, float *out, int64_t rows, int64_t cols) {}
