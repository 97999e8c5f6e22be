// kopt: cflags = -O2
//
// A copy that takes STEPS dependent multiplications per element: kernels of a known relative cost.

#include <stdint.h>

#define STEPS 40

void chain(const float *in0, float *out0, int64_t count)
{
    volatile float one = 1.0f;
    float factor = one;
    for (int64_t i = 0; i < count; i++) {
        float value = in0[i];
        for (int step = 0; step < STEPS; step++)
            value *= factor;
        out0[i] = value;
    }
}
