// Adds up whole vectors of sixteen, and with them up to fifteen numbers that lie behind its input.
// test: EXPECTED = ("INCORRECT_NUMERICAL",)
// test: PROBLEM = "unit_vector"
#include <math.h>
#include <stdint.h>

void unit_vector(const float *in0, float *out0, int64_t n)
{
    double sums[16] = {0};
    for (int64_t i = 0; i < n; i += 16)
        for (int lane = 0; lane < 16; lane++)
            sums[lane] += (double)in0[i + lane] * in0[i + lane];
    double total = 0;
    for (int lane = 0; lane < 16; lane++)
        total += sums[lane];
    float factor = (float)(1.0 / sqrt(total / n + 1e-6));
    for (int64_t i = 0; i < n; i++)
        out0[i] = in0[i] * factor;
}
