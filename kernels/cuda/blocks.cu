// Whole blocks of the KV cache: between the cache and contiguous memory (the
// device's or pinned memory of the host), and within the cache.
#include "defs.cuh"

#define PIECE (256 * 4 * 16) // bytes of a block of threads

static __device__ __forceinline__ void copy_piece(uint8_t *to, const uint8_t *from, int64_t bytes) {
  const int64_t first = (int64_t)blockIdx.y * PIECE + threadIdx.x * 16;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int64_t at = first + i * 256 * 16;
    if (at < bytes) *(uint4 *)(to + at) = *(const uint4 *)(from + at);
  }
}

// td_blocks_gather copies blocks ids [n] of a cache to staging [n, parts,
// part_bytes]; td_blocks_scatter copies them back. Part p of block b is at byte
// b*block_stride + p*part_stride of cache. All strides are multiples of 16.
// Grid (n*parts, ceil(part_bytes/16384)), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_blocks_gather(void *staging, const void *cache, const int32_t *ids, int32_t parts, int64_t part_stride,
                     int64_t block_stride, int64_t part_bytes) {
  overlap();
  const int64_t i = blockIdx.x / parts, part = blockIdx.x % parts;
  copy_piece((uint8_t *)staging + (int64_t)blockIdx.x * part_bytes,
             (const uint8_t *)cache + ids[i] * block_stride + part * part_stride, part_bytes);
}
extern "C" __global__ void __launch_bounds__(256)
    td_blocks_scatter(void *cache, const void *staging, const int32_t *ids, int32_t parts, int64_t part_stride,
                      int64_t block_stride, int64_t part_bytes) {
  overlap();
  const int64_t i = blockIdx.x / parts, part = blockIdx.x % parts;
  copy_piece((uint8_t *)cache + ids[i] * block_stride + part * part_stride,
             (const uint8_t *)staging + (int64_t)blockIdx.x * part_bytes, part_bytes);
}

// td_blocks_copy copies within the cache: pairs [n] of (from, to), which must not
// overlap. Geometry and strides as above.
extern "C" __global__ void __launch_bounds__(256)
    td_blocks_copy(void *cache, const int32_t *pairs, int32_t parts, int64_t part_stride, int64_t block_stride,
                   int64_t part_bytes) {
  overlap();
  const int64_t i = blockIdx.x / parts, part = blockIdx.x % parts;
  uint8_t *base = (uint8_t *)cache + part * part_stride;
  copy_piece(base + pairs[2 * i + 1] * block_stride, base + pairs[2 * i] * block_stride, part_bytes);
}
