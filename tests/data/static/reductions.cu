// Block sum in shared memory, a 16-byte copy without launch bounds, and a kernel held to 32 registers, which spills.
template <typename T>
__global__ void __launch_bounds__(256) block_sum(const T* __restrict__ x, T* __restrict__ out) {
    __shared__ T partial[256];
    partial[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    for (int stride = 128; stride > 0; stride /= 2) {
        __syncthreads();
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
template __global__ void block_sum<float>(const float*, float*);

namespace wide {
__global__ void copy(const float4* __restrict__ x, float4* __restrict__ out) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
}
}  // namespace wide

__global__ void __launch_bounds__(1024, 2) crowded(const float* __restrict__ x, float* __restrict__ out) {
    float values[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) values[i] = x[i * 4096 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 64; ++i)
#pragma unroll
        for (int j = 0; j < 64; ++j) values[i] = fmaf(values[j], values[(i + j) % 64], values[i]);
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i * 4096 + threadIdx.x] = values[i];
}
