// Atomics. Blocks of one grid run on several OS threads, so these are real.
#pragma once
#include "emu_math.h"

template <class T, class F>
inline T tdemu_rmw(T* p, F f) {
  T old, neu;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do {
    neu = f(old);
  } while (!__atomic_compare_exchange(p, &old, &neu, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return old;
}

#define TDEMU_ATOMIC(NAME, T, E)                                                     \
  inline T NAME(T* p, T v) { return tdemu_rmw(p, [=](T a) -> T { return (E); }); }   \
  inline T NAME##_block(T* p, T v) { return NAME(p, v); }                            \
  inline T NAME##_system(T* p, T v) { return NAME(p, v); }
#define TDEMU_ATOMIC_INT(T)                      \
  TDEMU_ATOMIC(atomicAdd, T, a + v)              \
  TDEMU_ATOMIC(atomicSub, T, a - v)              \
  TDEMU_ATOMIC(atomicMin, T, a < v ? a : v)      \
  TDEMU_ATOMIC(atomicMax, T, a > v ? a : v)      \
  TDEMU_ATOMIC(atomicExch, T, ((void)a, v))      \
  TDEMU_ATOMIC(atomicAnd, T, a & v)              \
  TDEMU_ATOMIC(atomicOr, T, a | v)               \
  TDEMU_ATOMIC(atomicXor, T, a ^ v)              \
  inline T atomicCAS(T* p, T want, T v) {        \
    __atomic_compare_exchange(p, &want, &v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return want;                                 \
  }
TDEMU_ATOMIC_INT(int)
TDEMU_ATOMIC_INT(unsigned)
TDEMU_ATOMIC_INT(long long)
TDEMU_ATOMIC_INT(unsigned long long)
TDEMU_ATOMIC(atomicInc, unsigned, a >= v ? 0 : a + 1)
TDEMU_ATOMIC(atomicDec, unsigned, a == 0 || a > v ? v : a - 1)
TDEMU_ATOMIC(atomicAdd, float, a + v)
TDEMU_ATOMIC(atomicExch, float, ((void)a, v))
TDEMU_ATOMIC(atomicAdd, double, a + v)
#undef TDEMU_ATOMIC_INT
inline unsigned short atomicCAS(unsigned short* p, unsigned short want, unsigned short v) {
  __atomic_compare_exchange(p, &want, &v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return want;
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
