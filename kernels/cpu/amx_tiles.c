// The tile kernel with the processor's instructions. They are written out, because
// intrinsics of compilers in use declare that ldtilecfg reads 8 bytes, and do not
// say that tiles are loaded from memory.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#include <immintrin.h>

#include "amx.h"
#include "matmul_avx512.h"

#define TILES_CONFIG(c) __asm__ volatile("ldtilecfg %0" ::"m"(*(c)))
#define TILES_DONE() __asm__ volatile("tilerelease")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, base, stride) \
	__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(base), "r"((long)(stride)) : "memory")
#define TILE_STORE(t, base, stride) \
	__asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(base), "r"((long)(stride)) : "memory")
#define TILE_DOT_SS(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define TILE_DOT_US(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#define TM_AMX_TABLE tm_amx_tiles
#include "amx_impl.h"
#endif
