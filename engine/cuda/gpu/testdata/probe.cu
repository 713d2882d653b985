// Kernels that show what arrived at the device: the tests of package gpu compare it with what was
// sent. probe.ptx is built from this file with
//   nvcc -O3 -std=c++17 -arch=compute_80 -ptx probe.cu -o probe.ptx
#include <cuda_runtime.h>

extern __shared__ __align__(16) unsigned char dyn_smem[];

// out[i] = k * in[i]
extern "C" __global__ void __launch_bounds__(256) td_probe_scale(float *out, const float *in, int n, float k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = k * in[i];
}

// Writes each argument, as bits, and the place of the last thread in the launch.
extern "C" __global__ void __launch_bounds__(1024)
td_probe_cells(long long *out, const void *p, int a, long long b, float f, int c) {
    if (threadIdx.x != blockDim.x - 1 || threadIdx.y != blockDim.y - 1 || threadIdx.z != blockDim.z - 1) return;
    if (blockIdx.x != gridDim.x - 1 || blockIdx.y != gridDim.y - 1 || blockIdx.z != gridDim.z - 1) return;
    out[0] = (long long)p;
    out[1] = a;
    out[2] = b;
    out[3] = __float_as_int(f);
    out[4] = c;
    out[5] = gridDim.x + 1000 * gridDim.y + 1000000 * gridDim.z;
    out[6] = blockDim.x + 1000 * blockDim.y + 1000000 * blockDim.z;
}

// Turns n numbers around by way of shared memory; one block of n threads.
extern "C" __global__ void __launch_bounds__(1024) td_probe_turn(int *x, int n) {
    int *s = (int *)dyn_smem;
    int i = threadIdx.x;
    s[i] = x[i];
    __syncthreads();
    x[i] = s[n - 1 - i];
}

// Adds one to *x, in one thread.
extern "C" __global__ void __launch_bounds__(32) td_probe_count(int *x) {
    if (threadIdx.x == 0 && blockIdx.x == 0) *x += 1;
}
