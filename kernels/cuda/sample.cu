// From logits to tokens without leaving the device: bans, biases, penalties,
// then temperature, top-k, min-p, top-p and a counter-based draw in float64.
//
// Every filter keeps a prefix of one order: logit descending, then id ascending.
// A key is a logit and an id such that ascending keys are that order, so a kept
// set is its last key. Cuts are found by passes that sum below seven pivots in
// registers (no atomics, so equal bits every time), until few enough keys are
// left to sort.
#include "defs.cuh"

typedef unsigned long long u64;

// SampleRow is what a row's request asks for; the host's type has this layout.
struct SampleRow {
  double temperature; // below 1e-5: greedy
  double top_p, min_p;
  double repetition, frequency, presence;
  u64 seed, index; // index of the output token
  uint32_t stream;
  int32_t top_k;    // 0: off
  int32_t logprobs; // -1: none, else how many alternatives, at most 20
  int32_t counts;   // slot of the counts, -1: no penalties
  int32_t bias_first, bias_count, ban_first, ban_count;
};

#define MAX_TOP 20

// td_count notes ids [n] in counts [slots, vocab] i32 of slot [n]: bit 0 with
// add 0 (seen in the prompt), else 2 more (in the output). A slot is zeroed
// before its use. Grid ceil(n/256), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_count(int32_t *counts, const int32_t *slot, const int32_t *ids, int32_t n, int32_t vocab, int32_t add) {
  overlap();
  const int i = (int)(blockIdx.x * 256 + threadIdx.x);
  if (i >= n || slot[i] < 0 || ids[i] < 0 || ids[i] >= vocab) return;
  int32_t *at = counts + (int64_t)slot[i] * vocab + ids[i];
  if (add) atomicAdd(at, 2);
  else atomicOr(at, 1);
}

// td_shape_logits changes logits [rows, vocab] f32 in place as rows [rows] ask:
// bans, biases, penalties. Lists hold ids and, for biases, f64 values.
// Grid (rows), block 512.
extern "C" __global__ void __launch_bounds__(512)
    td_shape_logits(float *logits, const void *rows, const int32_t *counts, const int32_t *bias_ids,
                    const double *bias_values, const int32_t *ban_ids, int32_t vocab) {
  overlap();
  const SampleRow &r = ((const SampleRow *)rows)[blockIdx.x];
  float *row = logits + (int64_t)blockIdx.x * vocab;
  for (int i = threadIdx.x; i < r.ban_count; i += 512) {
    const int32_t id = ban_ids[r.ban_first + i];
    if (id >= 0 && id < vocab && row[id] == row[id]) row[id] = __int_as_float((int)0xff800000u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < r.bias_count; i += 512) {
    const int32_t id = bias_ids[r.bias_first + i];
    if (id >= 0 && id < vocab) row[id] = (float)((double)row[id] + bias_values[r.bias_first + i]);
  }
  __syncthreads();
  if (r.counts < 0) return;
  const int32_t *seen = counts + (int64_t)r.counts * vocab;
  for (int i = threadIdx.x; i < vocab; i += 512) {
    const int32_t c = seen[i];
    if (!c) continue;
    double l = row[i];
    l = l > 0 ? l / r.repetition : l * r.repetition;
    if (c >> 1) l = (double)(float)l - (__dmul_rn(r.frequency, (double)(c >> 1)) + r.presence);
    row[i] = (float)l;
  }
}

#define SAMPLE_THREADS 512
#define SAMPLE_WARPS (SAMPLE_THREADS / 32)
#define SAMPLE_SORT 2048

static __device__ __forceinline__ u64 key_of(float logit, int id) {
  uint32_t b = __float_as_uint(logit + 0.0f); // -0 becomes +0
  if (!(b >> 31)) b = ~b & 0x7fffffffu;
  return (u64)b << 32 | (uint32_t)id;
}
static __device__ __forceinline__ float logit_of(u64 key) {
  uint32_t b = (uint32_t)(key >> 32);
  if (!(b >> 31)) b = ~b & 0x7fffffffu;
  return __uint_as_float(b);
}
static __device__ __forceinline__ int id_of(u64 key) { return (int)(uint32_t)key; }

struct SampleShared {
  u64 keys[SAMPLE_SORT];
  double sums[SAMPLE_SORT];
  double part[8][32];
  u64 best[32];
  double total[32];
  int count;
  u64 cut;
};

static __device__ __forceinline__ u64 block_min(u64 x, u64 *scratch) {
#pragma unroll
  for (int i = 16; i; i >>= 1) {
    const u64 y = __shfl_xor_sync(FULL_WARP, x, i);
    x = y < x ? y : x;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 0; w < SAMPLE_WARPS; w++) x = scratch[w] < x ? scratch[w] : x;
  return x;
}

// scan calls fn(id, logit) for all ids, coalesced, with four loads of 16 bytes in
// flight; where fn is long (an exp), with the next one, which saves code.
template <bool Long, class Fn> static __device__ __forceinline__ void scan(const float *row, int vocab, Fn fn) {
  if (vocab % 4) {
#pragma unroll 1
    for (int i = threadIdx.x; i < vocab; i += SAMPLE_THREADS) fn(i, row[i]);
    return;
  }
  const float4 *from = (const float4 *)row;
  const int n = vocab / 4;
  if constexpr (Long) {
    float4 next = (int)threadIdx.x < n ? from[threadIdx.x] : make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
      const float4 v = next;
      if (i + SAMPLE_THREADS < n) next = from[i + SAMPLE_THREADS];
      fn(4 * i, v.x), fn(4 * i + 1, v.y), fn(4 * i + 2, v.z), fn(4 * i + 3, v.w);
    }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
      const float4 v = from[i];
      fn(4 * i, v.x), fn(4 * i + 1, v.y), fn(4 * i + 2, v.z), fn(4 * i + 3, v.w);
    }
  }
}

#define STATUS_OK 0
#define STATUS_BAD 1   // a NaN or +Inf
#define STATUS_EMPTY 2 // every logit is -Inf

// best finds the largest logit of the lowest id.
static __device__ __forceinline__ int best(const float *row, int vocab, u64 *scratch, u64 *key) {
  u64 least = ~0ull;
  int bad = 0;
  scan<false>(row, vocab, [&](int id, float l) {
    bad |= !(l < __int_as_float(0x7f800000)); // NaN or +Inf
    const u64 k = key_of(l, id);
    least = k < least ? k : least;
  });
  bad = __syncthreads_or(bad);
  *key = block_min(least, scratch);
  if (bad) return STATUS_BAD;
  return logit_of(*key) == __int_as_float((int)0xff800000u) ? STATUS_EMPTY : STATUS_OK;
}

// td_argmax sets tokens [rows] i32 to the largest logit's lowest id, status
// [rows] i32 to 0, 1 (a NaN or +Inf; token 0) or 2 (all -Inf; token 0).
// logits [rows, vocab] f32. Grid (rows), block 512.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
    td_argmax(int32_t *tokens, int32_t *status, const float *logits, int32_t vocab) {
  overlap();
  __shared__ u64 scratch[32];
  u64 key;
  const int s = best(logits + (int64_t)blockIdx.x * vocab, vocab, scratch, &key);
  if (threadIdx.x == 0) {
    tokens[blockIdx.x] = s ? 0 : id_of(key);
    status[blockIdx.x] = s;
  }
}

static __device__ __forceinline__ double uniform(u64 seed, u64 n, uint32_t stream) {
  uint32_t c[4] = {(uint32_t)n, (uint32_t)(n >> 32), stream, 0};
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
  for (int i = 0; i < 10; i++) {
    const uint32_t h0 = __umulhi(0xD2511F53u, c[0]), l0 = 0xD2511F53u * c[0];
    const uint32_t h1 = __umulhi(0xCD9E8D57u, c[2]), l1 = 0xCD9E8D57u * c[2];
    c[0] = h1 ^ c[1] ^ k0, c[1] = l1, c[2] = h0 ^ c[3] ^ k1, c[3] = l0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return (double)((u64)(c[0] >> 5) * 67108864ull + (c[1] >> 6)) * (1.0 / 9007199254740992.0);
}

struct Row {
  const float *logits;
  int vocab;
  double top, temperature;
  u64 last; // key of the last kept token

  __device__ __forceinline__ double weight(float l) const {
    const double x = ((double)l - top) / temperature;
    return x < -708.0 ? 0.0 : exp(x);
  }
};

// Sorts keys [0, n) of shared memory; n <= SAMPLE_SORT.
static __device__ void sort_keys(u64 *keys, int n) {
  int size = 32;
  while (size < n) size *= 2;
  for (int i = threadIdx.x; i < size; i += SAMPLE_THREADS)
    if (i >= n) keys[i] = ~0ull;
  __syncthreads();
  for (int width = 2; width <= size; width *= 2)
    for (int step = width / 2; step; step /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += SAMPLE_THREADS) {
        const int a = i / step * 2 * step + i % step, b = a + step;
        const bool up = (a & width) == 0;
        const u64 x = keys[a], y = keys[b];
        if (x > y == up) keys[a] = y, keys[b] = x;
      }
      __syncthreads();
    }
}

// Gathers the keys in (low, high] to shared memory and returns how many; sorted,
// unless they are more than fit.
static __device__ int gather(const Row &r, SampleShared &s, u64 low, bool from_start, u64 high) {
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  scan<false>(r.logits, r.vocab, [&](int id, float l) {
    const u64 k = key_of(l, id);
    if ((k > low || from_start) && k <= high) {
      const int at = atomicAdd(&s.count, 1);
      if (at < SAMPLE_SORT) s.keys[at] = k;
    }
  });
  __syncthreads();
  const int n = s.count;
  if (n <= SAMPLE_SORT) sort_keys(s.keys, n);
  return n;
}

// The first of the sorted keys at which base plus the weights up to it reach
// target, or the last key.
template <class Weight>
static __device__ u64 crossing(SampleShared &s, int n, double base, double target, Weight weight) {
  const int each = SAMPLE_SORT / SAMPLE_THREADS, first = threadIdx.x * each, lane = threadIdx.x % 32;
  double w[each], sum = 0;
#pragma unroll
  for (int i = 0; i < each; i++) {
    w[i] = first + i < n ? weight(logit_of(s.keys[first + i])) : 0;
    sum += w[i];
  }
  double before = sum; // inclusive over the warp
#pragma unroll
  for (int i = 1; i < 32; i <<= 1) {
    const double y = __shfl_up_sync(FULL_WARP, before, i);
    if (lane >= i) before += y;
  }
  if (lane == 31) s.total[threadIdx.x / 32] = before;
  if (threadIdx.x == 0) s.cut = ~0ull;
  __syncthreads();
  before -= sum;
  for (int i = 0; i < (int)threadIdx.x / 32; i++) base += s.total[i];
  before += base;
#pragma unroll
  for (int i = 0; i < each; i++) {
    before += w[i];
    if (first + i < n && before >= target) {
      atomicMin(&s.cut, s.keys[first + i]);
      break;
    }
  }
  __syncthreads();
  const u64 cut = s.cut == ~0ull ? s.keys[n - 1] : s.cut;
  __syncthreads();
  return cut;
}

// Sums weights of keys up to each of seven pivots within (low, high], and in
// sums[7] of the whole. Every thread gets the result.
template <bool Long, class Weight>
static __device__ void sum_below(const Row &r, SampleShared &s, u64 low, bool from_start, u64 high,
                                 const u64 (&pivot)[7], double (&sums)[8], Weight weight) {
#pragma unroll
  for (int j = 0; j < 8; j++) sums[j] = 0;
  scan<Long>(r.logits, r.vocab, [&](int id, float l) {
    const u64 k = key_of(l, id);
    if (!(k > low || from_start) || k > high) return;
    const double w = weight(l);
#pragma unroll
    for (int j = 0; j < 7; j++)
      if (k <= pivot[j]) sums[j] += w;
    sums[7] += w;
  });
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const double x = warp_sum(sums[j]);
    if (threadIdx.x % 32 == 0) s.part[j][threadIdx.x / 32] = x;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; j++) {
    sums[j] = 0;
    for (int i = 0; i < SAMPLE_WARPS; i++) sums[j] += s.part[j][i];
  }
  __syncthreads();
}

// find returns the first kept key at which the weights up to it reach target;
// with share, target is that share of the kept weights. Otherwise the last key.
template <bool Long, class Weight>
static __device__ u64 find(const Row &r, SampleShared &s, double target, bool share, float spread, Weight weight) {
  u64 low = 0, high = r.last, pivot[7];
  bool from_start = true;
  double base = 0;
  for (int j = 0; j < 7; j++) // first guess: 1/2, 1, 2, ... times the spread below the top
    pivot[j] = key_of((float)(r.top - (double)spread * (double)(1 << j) * 0.5), -1);
  while (true) {
    double sums[8];
    sum_below<Long>(r, s, low, from_start, high, pivot, sums, weight);
    if (share) target *= sums[7], share = false;
#pragma unroll
    for (int j = 6; j >= 0; j--)
      if (pivot[j] < high && base + sums[j] >= target) high = pivot[j];
    double add = 0;
#pragma unroll
    for (int j = 0; j < 7; j++) // what is below high does not reach
      if (pivot[j] < high && (pivot[j] > low || from_start)) low = pivot[j], from_start = false, add = sums[j];
    base += add;
    const int n = gather(r, s, low, from_start, high);
    if (n == 0) return high;
    if (n <= SAMPLE_SORT) return crossing(s, n, base, target, weight);
    const u64 start = from_start ? 0 : low + 1, step = (high - start) / 8;
    for (int j = 0; j < 7; j++) pivot[j] = start + (j + 1) * step;
  }
}

// The last kept key of at least the share p of the largest weight.
static __device__ u64 at_least(const Row &r, SampleShared &s, double p) {
  const float bound = (float)(r.top + r.temperature * (log(p) - 1e-6)) - 1e-3f * (float)fabs(r.top) - 1e-6f;
  u64 last = 0;
  scan<true>(r.logits, r.vocab, [&](int id, float l) {
    if (l < bound) return;
    const u64 k = key_of(l, id);
    if (k <= r.last && k > last && r.weight(l) >= p) last = k;
  });
  return ~block_min(~last, s.best);
}

// walk draws: the first kept id, ascending, at which the running sum exceeds
// u of the total. The warps sum a part each, then parts of that part.
static __device__ int walk(const Row &r, SampleShared &s, double u) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto kept = [&](int id, float l) { return key_of(l, id) <= r.last ? r.weight(l) : 0.0; };
  int first = 0, length = r.vocab;
  double base = 0, target = 0;
  for (int level = 0; level < 2; level++) {
    const int part = (length + SAMPLE_WARPS - 1) / SAMPLE_WARPS, from = first + warp * part, to = min(min(from + part, first + length), r.vocab);
    double sum = 0;
#pragma unroll 1
    for (int id = from + lane; id < to; id += 32 * 8) {
      float l[8]; // in flight together
#pragma unroll
      for (int i = 0; i < 8; i++) l[i] = id + 32 * i < to ? r.logits[id + 32 * i] : __int_as_float((int)0xff800000u);
#pragma unroll
      for (int i = 0; i < 8; i++) sum += kept(id + 32 * i, l[i]);
    }
    sum = warp_sum(sum);
    if (lane == 0) s.total[warp] = sum;
    __syncthreads();
    if (level == 0) {
      for (int i = 0; i < SAMPLE_WARPS; i++) target += s.total[i];
      target *= u;
    }
    int at = -1, last = 0;
    double running = base;
    for (int i = 0; i < SAMPLE_WARPS && at < 0; i++) {
      if (s.total[i] > 0) last = i;
      if (running + s.total[i] > target) at = i;
      else running += s.total[i];
    }
    if (at < 0) { // rounding: the last part that has any weight
      at = last;
      target = 1e300;
    }
    base = running;
    first += at * part;
    length = part;
    __syncthreads();
  }
  if (warp == 0) {
    int token = -1, last = 0;
    for (int from = first; from < first + length && token < 0; from += 32) {
      const int id = from + lane;
      double w = id < first + length && id < r.vocab ? kept(id, r.logits[id]) : 0.0;
      const unsigned some = __ballot_sync(FULL_WARP, w > 0);
      if (some) last = from + 31 - __clz((int)some);
#pragma unroll
      for (int i = 1; i < 32; i <<= 1) {
        const double y = __shfl_up_sync(FULL_WARP, w, i);
        if (lane >= i) w += y;
      }
      const unsigned over = __ballot_sync(FULL_WARP, base + w > target);
      if (over) token = from + __ffs((int)over) - 1;
      base += __shfl_sync(FULL_WARP, w, 31);
    }
    if (lane == 0) s.count = token < 0 ? last : token;
  }
  __syncthreads();
  return s.count;
}

struct Logprobs {
  double *own, *top;
  int32_t *rank, *top_ids;
};

static __device__ void logprobs(Row r, SampleShared &s, int token, int want, const Logprobs &out) {
  r.temperature = 1;
  r.last = key_of(-3.402823466e38f, -1);
  const u64 own = key_of(r.logits[token], token);
  double sum = 0;
  int before = 0;
  scan<true>(r.logits, r.vocab, [&](int id, float l) {
    const u64 k = key_of(l, id);
    before += k < own;
    if (k <= r.last) sum += r.weight(l);
  });
  sum = block_sum(sum, s.total);
  __syncthreads();
  before = (int)block_sum((double)before, s.total);
  const double norm = r.top + log(sum);
  if (threadIdx.x == 0) {
    out.own[blockIdx.x] = (double)r.logits[token] - norm;
    out.rank[blockIdx.x] = before + 1;
  }
  for (int i = threadIdx.x; i < MAX_TOP; i += SAMPLE_THREADS) out.top_ids[blockIdx.x * MAX_TOP + i] = -1;
  __syncthreads();
  if (want <= 0) return;
  const u64 cut = find<false>(r, s, (double)want, false, 1.0f, [](float) { return 1.0; });
  const int n = min(gather(r, s, 0, true, cut), want);
  if ((int)threadIdx.x < n) {
    const u64 k = s.keys[threadIdx.x];
    out.top_ids[blockIdx.x * MAX_TOP + threadIdx.x] = id_of(k);
    out.top[blockIdx.x * MAX_TOP + threadIdx.x] = (double)logit_of(k) - norm;
  }
}

// td_sample picks a token for every row.
//   tokens, status   [rows] i32, as td_argmax
//   logits           [rows, vocab] f32, shaped
//   rows             [rows] SampleRow
//   counts           [slots, vocab] i32; the token of a row with a slot is noted
//   logprob          [rows] f64 and rank [rows] i32 (from 1) of the token, and
//   top_ids          [rows, 20] i32 (-1 behind the last), top_logprobs [rows, 20]
//                    f64: for rows that ask for log-probabilities
// Grid (rows), block 512.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
    td_sample(int32_t *tokens, int32_t *status, const float *logits, const void *rows, int32_t *counts, double *logprob,
              int32_t *rank, int32_t *top_ids, double *top_logprobs, int32_t vocab) {
  overlap();
  __shared__ SampleShared s;
  const SampleRow p = ((const SampleRow *)rows)[blockIdx.x];
  Row r;
  r.logits = logits + (int64_t)blockIdx.x * vocab;
  r.vocab = vocab;
  u64 top;
  const int state = best(r.logits, vocab, s.best, &top);
  if (state) {
    if (threadIdx.x == 0) tokens[blockIdx.x] = 0, status[blockIdx.x] = state;
    return;
  }
  r.top = (double)logit_of(top);
  r.temperature = p.temperature;
  int token = id_of(top);
  if (p.temperature >= 1e-5) {
    r.last = key_of(-3.402823466e38f, -1);
    auto weight = [&](float l) { return r.weight(l); };
    if (p.top_k > 0 && p.top_k < vocab) r.last = find<false>(r, s, (double)p.top_k, false, 2.0f, [](float) { return 1.0; });
    if (p.min_p > 0) r.last = at_least(r, s, p.min_p);
    if (p.top_p < 1) r.last = find<true>(r, s, p.top_p, true, (float)p.temperature, weight);
    token = walk(r, s, uniform(p.seed, p.index, p.stream));
  }
  if (threadIdx.x == 0) {
    tokens[blockIdx.x] = token;
    status[blockIdx.x] = STATUS_OK;
    if (p.counts >= 0) atomicAdd(&counts[(int64_t)p.counts * vocab + token], 2);
  }
  if (p.logprobs >= 0) {
    __syncthreads();
    logprobs(r, s, token, p.logprobs, Logprobs{logprob, top_logprobs, rank, top_ids});
  }
}
