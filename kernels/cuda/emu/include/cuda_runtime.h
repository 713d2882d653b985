// The device header of the emulator: included in place of NVIDIA's when g++
// compiles a kernel source for the CPU. TANDEM_EMU tells a source that it is
// being emulated; inline PTX then needs a second definition (see emu_mma.h).
// __noinline__ must not be defined: the C++ library uses it as an attribute.
#pragma once
#define TANDEM_EMU 1
#define __CUDA_ARCH__ 900

#ifdef TDEMU_SCAN
#define __global__ __tdemu_global__
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

#include "emu_vec.h"
#include "emu_math.h"
#include "emu_atomic.h"
#include "emu_thread.h"

#include <chrono>
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

#undef assert
#define assert(x) ((x) ? (void)0 : tdemu::fail("assertion " #x, __FILE__, __LINE__))
