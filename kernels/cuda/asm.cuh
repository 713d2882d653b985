// The instructions that CUDA C++ has no words for, each in a small function
// with a second definition for the emulator (TANDEM_EMU).
//
// Registers of the 16x8x16 tensor-core product, for lane l with g = l/4 and
// t = l%4, every 32-bit register holding two 16-bit elements:
//   A (16x16): a0 row g, columns 2t, 2t+1; a1 row g+8; a2 row g, columns 2t+8,
//              2t+9; a3 row g+8, the same columns.
//   B (16x8):  b0 rows 2t, 2t+1 of column g; b1 rows 2t+8, 2t+9.
//   C (16x8):  c0, c1 row g, columns 2t, 2t+1; c2, c3 row g+8.
// Which element is "row k" of the contraction is free as long as A and B agree,
// which the kernels use to load 16 bytes at a time.
#pragma once

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#ifdef TANDEM_EMU
#include "emu_mma.h"
#endif

// ElemBF16 and ElemF16 name the element type of a product.
struct ElemBF16 {};
struct ElemF16 {};

#ifdef TANDEM_EMU

static inline void mma_16816(ElemBF16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::mma_m16n8k16_bf16(d, a, b, d);
}
static inline void mma_16816(ElemF16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::mma_m16n8k16_f16(d, a, b, d);
}
static inline void ldmatrix_x4(uint32_t (&r)[4], const void *row) { emu::ldmatrix<4>(r, row); }
static inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) { emu::ldmatrix<4, true>(r, row); }
static inline void copy_async16(void *shared, const void *global, bool valid) {
  emu::cp_async<16>(shared, global, valid ? 16 : 0);
}
static inline void copy_async8(void *shared, const void *global, bool valid) {
  emu::cp_async<8>(shared, global, valid ? 8 : 0);
}
static inline void copy_async_commit() { emu::cp_async_commit(); }
template <int Pending> static inline void copy_async_wait() { emu::cp_async_wait<Pending>(); }
static inline uint32_t transpose_8x8(uint32_t x) {
  const int l = threadIdx.x & 31, g = l / 4, t = l % 4;
  const uint32_t lo = __shfl_sync(0xffffffffu, x, 8 * t + g / 2);
  const uint32_t hi = __shfl_sync(0xffffffffu, x, 8 * t + 4 + g / 2);
  return __byte_perm(lo, hi, g % 2 ? 0x7632 : 0x5410);
}
static inline uint32_t pack_bf16(float lo, float hi) {
  return tdemu_float_to_bf16(lo) | (uint32_t)tdemu_float_to_bf16(hi) << 16;
}
static inline uint32_t pack_f16(float lo, float hi) {
  return tdemu_float_to_half(lo) | (uint32_t)tdemu_float_to_half(hi) << 16;
}
static inline float f16_to_float(uint16_t h) { return tdemu_half_to_float(h); }
static inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  float r[2];
  for (int i = 0; i < 2; i++)
    r[i] = fmaf(tdemu_bf16_to_float((uint16_t)(a >> 16 * i)), tdemu_bf16_to_float((uint16_t)(b >> 16 * i)),
                tdemu_bf16_to_float((uint16_t)(c >> 16 * i)));
  return pack_bf16(r[0], r[1]);
}
static inline uint4 load_stream(const void *p) { return *(const uint4 *)p; }
static inline uint2 load_stream8(const void *p) { return *(const uint2 *)p; }
static inline uint32_t load_stream4(const void *p) { return *(const uint32_t *)p; }
static inline float exp2_approx(float x) { return exp2f(x); }
static inline void overlap_begin() {}
static inline void overlap_wait() {}
static inline void sincospi(double x, double *s, double *c) {
  const double r = (x - 2.0 * rint(x / 2.0)) * M_PI;
  *s = sin(r), *c = cos(r);
}

#else

static __device__ __forceinline__ void mma_16816(ElemBF16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_16816(ElemF16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}
// ldmatrix_x4 loads four 8x8 matrices; lane 8m+i names row i of matrix m, 16
// bytes that are aligned. _trans hands each matrix out transposed.
static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
// copy_async16 and copy_async8 start a copy to shared memory, of zeros if !valid.
static __device__ __forceinline__ void copy_async16(void *shared, const void *global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
static __device__ __forceinline__ void copy_async8(void *shared, const void *global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 8 : 0)
               : "memory");
}
static __device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> static __device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
// transpose_8x8 transposes a matrix of 16-bit elements, lane l holding columns
// 2t and 2t+1 of row g.
static __device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}
static __device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
static __device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
static __device__ __forceinline__ float f16_to_float(uint16_t h) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
  return r;
}
// fma_bf16x2 is a*b+c on two bf16 each, rounded once.
static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// load_stream reads what is read once: it leaves the L1 cache to others.
static __device__ __forceinline__ uint4 load_stream(const void *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
static __device__ __forceinline__ uint2 load_stream8(const void *p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
static __device__ __forceinline__ uint32_t load_stream4(const void *p) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
static __device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// A kernel may be launched before the one in front of it in the stream has ended
// (programmatic dependent launch). overlap_begin lets the next one be, once all
// blocks have come here; overlap_wait waits until the work in front is done and
// seen. Before it a thread may only read what no kernel writes, and every thread
// passes it: a kernel that ended without would let the next one run too soon.
static __device__ __forceinline__ void overlap_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
static __device__ __forceinline__ void overlap_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

// overlap is the first statement of kernels that depend on the work in front.
static __device__ __forceinline__ void overlap() {
  overlap_begin();
  overlap_wait();
}
