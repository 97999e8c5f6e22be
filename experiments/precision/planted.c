// kopt: cflags = -O2
//
// A copy that takes STEPS multiplications per element, each of which waits for the one before: kernels of a known
// relative cost, whatever else the processor could do meanwhile.

#include <stdint.h>

#define STEPS 40

static volatile uint64_t end;

void chain(const float *in0, float *out0, int64_t count)
{
    uint64_t state = (uint64_t)count;
    for (int64_t i = 0; i < count; i++) {
        for (int step = 0; step < STEPS; step++)
            state = state * 6364136223846793005u + 1;
        out0[i] = in0[i];
    }
    end = state;
}
