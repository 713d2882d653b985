// Thread indices, block barriers, warp operations and asynchronous copies: the
// part of the device header that talks to the fiber runtime.
//
// Every synchronising call carries its source place by default arguments. The
// place, not the return address, identifies a barrier: the optimiser may
// duplicate a call, and the place makes the reports readable.
#pragma once
#include <cstring>
#include "emu_vec.h"

namespace tdemu {

// Block is what device code may read of its block.
struct Block {
  uint3 bid;
  dim3 bdim, gdim;
};

// Thread is what device code may read of itself.
struct Thread {
  uint3 tid;
  unsigned linear;  // x fastest; lane = linear % 32
  const Block* blk;
};

// WarpFn completes a warp operation for all lanes of mask at once; rec[l] is
// the record that lane l deposited (null outside the mask).
using WarpFn = void (*)(void* const rec[32], unsigned mask);

enum class Vote { sync, count, all, any };

int barrier(Vote v, int pred, const char* file, int line);
void warp_op(unsigned mask, WarpFn fn, void* rec, const char* file, int line);
void yield(const char* file, int line);
// fail ends the block with an error; without a file the place is that where the
// thread entered the runtime last.
[[noreturn]] void fail(const char* what, const char* file, int line);

void async_copy(void* shared, const void* global, unsigned bytes, unsigned zero_from);
void async_commit();
void async_wait(unsigned pending_groups);

}  // namespace tdemu

extern thread_local tdemu::Thread* tdemu_self;

#define threadIdx (tdemu_self->tid)
#define blockIdx (tdemu_self->blk->bid)
#define blockDim (tdemu_self->blk->bdim)
#define gridDim (tdemu_self->blk->gdim)
static constexpr int warpSize = 32;

#define TDEMU_AT const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()

inline void __syncthreads(TDEMU_AT) { tdemu::barrier(tdemu::Vote::sync, 0, file_, line_); }
inline int __syncthreads_count(int p, TDEMU_AT) { return tdemu::barrier(tdemu::Vote::count, p, file_, line_); }
inline int __syncthreads_and(int p, TDEMU_AT) { return tdemu::barrier(tdemu::Vote::all, p, file_, line_); }
inline int __syncthreads_or(int p, TDEMU_AT) { return tdemu::barrier(tdemu::Vote::any, p, file_, line_); }
inline void __nanosleep(unsigned, TDEMU_AT) { tdemu::yield(file_, line_); }
inline void __trap(TDEMU_AT) { tdemu::fail("__trap", file_, line_); }

namespace tdemu {

struct Shuffle {
  uint64_t value, result;
  int src;
};

inline void shuffle_all(void* const rec[32], unsigned mask) {
  for (int l = 0; l < 32; l++) {
    if (!(mask >> l & 1)) continue;
    auto* s = static_cast<Shuffle*>(rec[l]);
    auto* from = static_cast<Shuffle*>(rec[s->src]);
    if (!from) fail("a shuffle reads a lane outside its mask", nullptr, 0);
    s->result = from->value;
  }
}

template <class T>
inline T shuffle(unsigned mask, T v, int src, const char* file, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  Shuffle s{0, 0, src};
  std::memcpy(&s.value, &v, sizeof v);
  warp_op(mask, shuffle_all, &s, file, line);
  std::memcpy(&v, &s.result, sizeof v);
  return v;
}

inline int lane() { return static_cast<int>(tdemu_self->linear & 31); }

struct Reduce {
  uint64_t value, result;
};

// fold makes a WarpFn of a two-argument operation over all lanes of the mask.
template <class Op>
void fold(void* const rec[32], unsigned mask) {
  bool first = true;
  uint64_t acc = 0;
  for (int l = 0; l < 32; l++) {
    if (!rec[l]) continue;
    uint64_t v = static_cast<Reduce*>(rec[l])->value;
    acc = first ? v : Op::apply(acc, v);
    first = false;
  }
  for (int l = 0; l < 32; l++)
    if (rec[l]) static_cast<Reduce*>(rec[l])->result = acc;
  (void)mask;
}

template <class Op>
inline uint64_t warp_fold(unsigned mask, uint64_t v, const char* file, int line) {
  Reduce r{v, 0};
  warp_op(mask, fold<Op>, &r, file, line);
  return r.result;
}

#define TDEMU_FOLD(N, T, E) \
  struct N { static uint64_t apply(uint64_t p, uint64_t q) { T a = (T)p, b = (T)q; return (uint64_t)(T)(E); } }
TDEMU_FOLD(AddU, unsigned, a + b);
TDEMU_FOLD(MinU, unsigned, a < b ? a : b);
TDEMU_FOLD(MaxU, unsigned, a > b ? a : b);
TDEMU_FOLD(MinI, int, a < b ? a : b);
TDEMU_FOLD(MaxI, int, a > b ? a : b);
TDEMU_FOLD(And, unsigned, a & b);
TDEMU_FOLD(Or, unsigned, a | b);
TDEMU_FOLD(Xor, unsigned, a ^ b);
#undef TDEMU_FOLD

inline void match_all_lanes(void* const rec[32], unsigned mask) {
  for (int l = 0; l < 32; l++) {
    if (!(mask >> l & 1)) continue;
    auto* r = static_cast<Reduce*>(rec[l]);
    r->result = 0;
    for (int k = 0; k < 32; k++)
      if (rec[k] && static_cast<Reduce*>(rec[k])->value == r->value) r->result |= 1u << k;
  }
}

template <class T>
inline uint64_t bits(T v) {
  uint64_t b = 0;
  std::memcpy(&b, &v, sizeof v);
  return b;
}
}  // namespace tdemu

inline void tdemu_nop_all(void* const*, unsigned) {}
inline void __syncwarp(unsigned mask = 0xffffffffu, TDEMU_AT) {
  int none;
  tdemu::warp_op(mask, tdemu_nop_all, &none, file_, line_);
}

template <class T>
inline T __shfl_sync(unsigned mask, T v, int src, int width = 32, TDEMU_AT) {
  int l = tdemu::lane();
  return tdemu::shuffle(mask, v, (l & ~(width - 1)) | (src & (width - 1)), file_, line_);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32, TDEMU_AT) {
  int l = tdemu::lane(), s = l - static_cast<int>(d);
  return tdemu::shuffle(mask, v, s < (l & ~(width - 1)) ? l : s, file_, line_);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32, TDEMU_AT) {
  int l = tdemu::lane(), s = l + static_cast<int>(d);
  return tdemu::shuffle(mask, v, s > (l | (width - 1)) ? l : s, file_, line_);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32, TDEMU_AT) {
  int l = tdemu::lane(), s = l ^ x;
  return tdemu::shuffle(mask, v, s > (l | (width - 1)) ? l : s, file_, line_);
}

inline unsigned __ballot_sync(unsigned mask, int p, TDEMU_AT) {
  return (unsigned)tdemu::warp_fold<tdemu::Or>(mask, p ? 1u << tdemu::lane() : 0, file_, line_);
}
inline int __any_sync(unsigned mask, int p, TDEMU_AT) {
  return (int)tdemu::warp_fold<tdemu::Or>(mask, p != 0, file_, line_);
}
inline int __all_sync(unsigned mask, int p, TDEMU_AT) {
  return (int)tdemu::warp_fold<tdemu::And>(mask, p != 0, file_, line_);
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T v, TDEMU_AT) {
  tdemu::Reduce r{tdemu::bits(v), 0};
  tdemu::warp_op(mask, tdemu::match_all_lanes, &r, file_, line_);
  return (unsigned)r.result;
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T v, int* pred, TDEMU_AT) {
  unsigned m = __match_any_sync(mask, v, file_, line_);
  *pred = m == mask;
  return *pred ? mask : 0;
}
#define TDEMU_REDUCE(NAME, T, OP)                                                              \
  inline T __reduce_##NAME##_sync(unsigned mask, T v, TDEMU_AT) {                              \
    return (T)tdemu::warp_fold<tdemu::OP>(mask, (uint64_t)(unsigned)v, file_, line_);          \
  }
TDEMU_REDUCE(add, unsigned, AddU)
TDEMU_REDUCE(add, int, AddU)
TDEMU_REDUCE(min, unsigned, MinU)
TDEMU_REDUCE(min, int, MinI)
TDEMU_REDUCE(max, unsigned, MaxU)
TDEMU_REDUCE(max, int, MaxI)
TDEMU_REDUCE(and, unsigned, And)
TDEMU_REDUCE(or, unsigned, Or)
TDEMU_REDUCE(xor, unsigned, Xor)
#undef TDEMU_REDUCE

// A lane never runs together with another here, and hardware promises no more
// than that the caller is in the answer.
inline unsigned __activemask() { return 1u << tdemu::lane(); }
