// Ends the process with 0 as soon as the library is loaded.
// test: EXPECTED = ("RUNTIME_ERROR",)
// test: PROBLEM = "softmax_c"
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void leave(void) { _exit(0); }

void softmax(const float *in, float *out, int64_t rows, int64_t cols) {}
