// kopt: cflags = -O2 -std=c++17
// A C++ kernel with a scratch buffer of its own.
// test: PROBLEM = "softmax_c"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void softmax(const float *in, float *out, int64_t rows, int64_t cols) {
    std::vector<float> exp(cols);
    for (int64_t r = 0; r < rows; r++, in += cols, out += cols) {
        const float top = *std::max_element(in, in + cols);
        double sum = 0;
        for (int64_t c = 0; c < cols; c++) sum += exp[c] = std::exp(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] = static_cast<float>(exp[c] / sum);
    }
}
