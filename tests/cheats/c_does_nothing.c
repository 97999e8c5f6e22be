// Writes nothing: the outputs hold what was in the memory before.
// test: EXPECTED = ("INCORRECT_NUMERICAL",)
// test: PROBLEM = "softmax_c"
#include <stdint.h>

void softmax(const float *in, float *out, int64_t rows, int64_t cols) {}
