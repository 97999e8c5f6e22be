// Adds up one number after the other.
// test: PROBLEM = "unit_vector"
#include <math.h>
#include <stdint.h>

void unit_vector(const float *in0, float *out0, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        total += (double)in0[i] * in0[i];
    float factor = (float)(1.0 / sqrt(total / n + 1e-6));
    for (int64_t i = 0; i < n; i++)
        out0[i] = in0[i] * factor;
}
