// kopt: cflags = -std=c++17
//
// Softmax over the columns of a row-major float32 matrix: out[r][c] = exp(in[r][c] - max_r) / sum_c exp(in[r][c] - max_r).
// One block of threads per row, three passes over it: the maximum, the sum of the exponentials, the output.

#include <cstdint>
#include <cuda_runtime.h>

constexpr int THREADS = 128;

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// Combine one value of every thread of the block; all threads get the result.
template <typename Combine>
__device__ float over_block(float value, Combine combine)
{
    __shared__ float shared[THREADS];
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    const float result = shared[0];
    __syncthreads(); // nobody may overwrite the result before all have read it
    return result;
}

__global__ void softmax_rows(const float *__restrict__ in, float *__restrict__ out, int64_t cols)
{
    const float *x = in + blockIdx.x * cols;
    float *y = out + blockIdx.x * cols;

    float largest = -INFINITY;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS)
        largest = fmaxf(largest, x[c]);
    largest = over_block(largest, Max());

    float sum = 0.0f;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS)
        sum += expf(x[c] - largest);
    sum = over_block(sum, Sum());

    for (int64_t c = threadIdx.x; c < cols; c += THREADS)
        y[c] = expf(x[c] - largest) / sum;
}

extern "C" void softmax(const void *in0, void *out0, int64_t rows, int64_t cols, cudaStream_t stream)
{
    softmax_rows<<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(
        static_cast<const float *>(in0), static_cast<float *>(out0), cols);
}
