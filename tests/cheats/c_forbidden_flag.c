// kopt: cflags = -O2 -fplugin=/tmp/evil.so
// Asks for a compiler plugin.
// test: EXPECTED = ("COMPILE_ERROR",)
// test: PROBLEM = "softmax_c"
#include <stdint.h>

void softmax(const float *in, float *out, int64_t rows, int64_t cols) {}
