// The fake cuBLASLt: the functions and the few enumerators that the engine
// uses, computed on the CPU in stream order with float accumulation.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <vector>
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "hook.h"

namespace {

enum Status { success = 0, not_initialized = 1, invalid_value = 7, execution_failed = 13, not_supported = 15 };
enum Type { f32 = 0, f16 = 2, bf16 = 14 };
enum DescAttr { transa = 3, transb = 4, transc = 5, epilogue_attr = 7, bias_pointer = 8 };
enum Epilogue { plain = 1, bias = 4 };
enum PrefAttr { max_workspace = 1, align_a = 5, align_d = 8 };

struct Desc {
  int trans[3] = {};  // of A, B, C
  int epilogue = plain;
  uint64_t bias = 0;
};
struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t ld;
  size_t element() const { return type == f32 ? 4 : 2; }
  size_t bytes() const { return ((cols - 1) * static_cast<uint64_t>(ld) + rows) * element(); }
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t align[4] = {256, 256, 256, 256};
};

constexpr uint64_t kMagic = 0x746c2d756d65;
// The algorithm that the search hands out remembers what it was made for.
struct Algo {
  uint64_t magic, m, n, k, workspace;
  uint32_t align[4];
  uint64_t unused;
};
static_assert(sizeof(Algo) == 64);
struct Result {
  Algo algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Result) == 96);

struct Product {
  Desc desc;
  Layout a, b, c, d;
  uint64_t pa, pb, pc, pd, workspace;
  size_t workspace_bytes;
  uint64_t m, n, k;
  float alpha, beta;
};

float load(int type, uint64_t p, size_t i) {
  if (type == f32) return reinterpret_cast<const float*>(p)[i];
  uint16_t v = reinterpret_cast<const uint16_t*>(p)[i];
  return type == bf16 ? tdemu_bf16_to_float(v) : tdemu_half_to_float(v);
}

void store(int type, uint64_t p, size_t i, float v) {
  if (type == f32) {
    reinterpret_cast<float*>(p)[i] = v;
  } else {
    reinterpret_cast<uint16_t*>(p)[i] = type == bf16 ? tdemu_float_to_bf16(v) : tdemu_float_to_half(v);
  }
}

// vectors unpacks an operand to count vectors of k floats: rows of op(A), or
// columns of op(B).
std::vector<float> vectors(const Layout& l, uint64_t p, bool along_columns, uint64_t from, uint64_t count, uint64_t k) {
  std::vector<float> out(count * k);
  auto ld = static_cast<size_t>(l.ld);
  for (uint64_t v = 0; v < count; v++)
    for (uint64_t i = 0; i < k; i++)
      out[v * k + i] = load(l.type, p, along_columns ? (from + v) * ld + i : i * ld + from + v);
  return out;
}

typedef float Lanes __attribute__((vector_size(32), aligned(4)));

float dot(const float* x, const float* y, size_t n) {
  Lanes acc[2] = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (size_t j = 0; j < 2; j++)
      acc[j] += *reinterpret_cast<const Lanes*>(x + i + 8 * j) * *reinterpret_cast<const Lanes*>(y + i + 8 * j);
  acc[0] += acc[1];
  float s = 0;
  for (int j = 0; j < 8; j++) s += acc[0][j];
  for (; i < n; i++) s += x[i] * y[i];
  return s;
}

void compute(const Product& p) {
  constexpr uint64_t block = 64;
  auto cols = vectors(p.b, p.pb, !p.desc.trans[1], 0, p.n, p.k);
  for (uint64_t m0 = 0; m0 < p.m; m0 += block) {
    uint64_t mb = std::min(block, p.m - m0);
    auto rows = vectors(p.a, p.pa, p.desc.trans[0], m0, mb, p.k);
    for (uint64_t j = 0; j < p.n; j++)
      for (uint64_t i = 0; i < mb; i++) {
        float v = p.alpha * dot(&rows[i * p.k], &cols[j * p.k], p.k);
        size_t at = j * static_cast<size_t>(p.d.ld) + m0 + i;
        if (p.beta != 0) v += p.beta * load(p.c.type, p.pc, j * static_cast<size_t>(p.c.ld) + m0 + i);
        if (p.desc.epilogue == bias) v += load(p.d.type, p.desc.bias, m0 + i);
        store(p.d.type, p.pd, at, v);
      }
  }
}

int run(void* data, char* why, size_t n) {
  auto& p = *static_cast<Product*>(data);
  char text[400];
  auto bad = [&](const char* what, uint64_t at, size_t bytes) {
    if (!bytes || !tdemu_range(at, bytes, text, sizeof text)) return false;
    snprintf(why, n, "matrix product of %zux%zux%zu: %s: %s", (size_t)p.m, (size_t)p.n, (size_t)p.k, what, text);
    return true;
  };
  if (bad("A", p.pa, p.a.bytes()) || bad("B", p.pb, p.b.bytes()) || bad("D", p.pd, p.d.bytes()) ||
      bad("C", p.pc, p.beta != 0 ? p.c.bytes() : 0) ||
      bad("bias", p.desc.bias, p.desc.epilogue == bias ? p.m * p.d.element() : 0) ||
      bad("workspace", p.workspace, p.workspace_bytes))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  // Whoever else keeps something in the workspace shall notice.
  if (p.workspace_bytes) memset(reinterpret_cast<void*>(p.workspace), 0xff, p.workspace_bytes);
  compute(p);
  return CUDA_SUCCESS;
}

bool known(int type) { return type == f32 || type == f16 || type == bf16; }

// shape finds m, n, k, or says that the layouts do not fit.
bool shape(const Desc& d, const Layout& a, const Layout& b, const Layout& c, const Layout& out, Algo* s) {
  uint64_t ka = d.trans[0] ? a.rows : a.cols, kb = d.trans[1] ? b.cols : b.rows;
  s->m = d.trans[0] ? a.cols : a.rows, s->n = d.trans[1] ? b.rows : b.cols, s->k = ka;
  return ka == kb && out.rows == s->m && out.cols == s->n && c.rows == s->m && c.cols == s->n && s->m && s->n && ka;
}

bool supported(const Desc& d, const Layout& a, const Layout& b, const Layout& c, const Layout& out) {
  bool out_fits = out.type == a.type || out.type == f32;
  return known(a.type) && a.type == b.type && c.type == out.type && out_fits && !d.trans[2] &&
         (d.epilogue == plain || d.epilogue == bias);
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
int cublasLtCreate(void** h) { return *h = new uint64_t(kMagic), success; }
int cublasLtDestroy(void* h) { return delete static_cast<uint64_t*>(h), success; }

int cublasLtMatmulDescCreate(void** d, int compute, int scale) {
  if (compute != 68 || scale != f32) return not_supported;
  return *d = new Desc, success;
}
int cublasLtMatmulDescDestroy(void* d) { return delete static_cast<Desc*>(d), success; }
int cublasLtMatmulDescSetAttribute(void* h, int attr, const void* v, size_t n) {
  auto* d = static_cast<Desc*>(h);
  int i = 0;
  if (attr == bias_pointer && n == 8) return memcpy(&d->bias, v, 8), success;
  if (n != 4) return invalid_value;
  memcpy(&i, v, 4);
  if (attr >= transa && attr <= transc && i >= 0 && i <= 1) return d->trans[attr - transa] = i, success;
  if (attr == epilogue_attr) return d->epilogue = i, success;
  return invalid_value;
}

int cublasLtMatrixLayoutCreate(void** l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  if (ld < static_cast<int64_t>(rows) || !rows || !cols) return invalid_value;
  return *l = new Layout{type, rows, cols, ld}, success;
}
int cublasLtMatrixLayoutDestroy(void* l) { return delete static_cast<Layout*>(l), success; }

int cublasLtMatmulPreferenceCreate(void** p) { return *p = new Preference, success; }
int cublasLtMatmulPreferenceDestroy(void* p) { return delete static_cast<Preference*>(p), success; }
int cublasLtMatmulPreferenceSetAttribute(void* h, int attr, const void* v, size_t n) {
  auto* p = static_cast<Preference*>(h);
  if (attr == max_workspace && n == 8) return memcpy(&p->workspace, v, 8), success;
  if (attr >= align_a && attr <= align_d && n == 4) return memcpy(&p->align[attr - align_a], v, 4), success;
  return invalid_value;
}

// The search answers two ways: one with a workspace where it is allowed, one without.
int cublasLtMatmulAlgoGetHeuristic(void* h, void* desc, void* a, void* b, void* c, void* d, void* pref, int want,
                                   void* results, int* found) {
  *found = 0;
  if (!h || *static_cast<uint64_t*>(h) != kMagic) return not_initialized;
  Algo s{};
  auto &la = *static_cast<Layout*>(a), &lb = *static_cast<Layout*>(b);
  auto &lc = *static_cast<Layout*>(c), &ld = *static_cast<Layout*>(d);
  auto& dd = *static_cast<Desc*>(desc);
  if (!shape(dd, la, lb, lc, ld, &s)) return invalid_value;
  if (!supported(dd, la, lb, lc, ld)) return not_supported;
  auto& p = *static_cast<Preference*>(pref);
  memcpy(s.align, p.align, sizeof s.align);
  s.magic = kMagic;
  auto* out = static_cast<Result*>(results);
  for (uint64_t ws : {std::min<uint64_t>(p.workspace, 4096), uint64_t(0)}) {
    if (*found == want || (*found && !p.workspace)) break;
    s.workspace = ws;
    out[(*found)++] = {s, ws, 0, 1.0f, {}};
  }
  return success;
}

int cublasLtMatmul(void* h, void* desc, const void* alpha, const void* a, void* la, const void* b, void* lb,
                   const void* beta, const void* c, void* lc, void* d, void* ld, const void* algo, void* workspace,
                   size_t bytes, void* stream) {
  if (!h || *static_cast<uint64_t*>(h) != kMagic) return not_initialized;
  auto at = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
  Product p{*static_cast<Desc*>(desc), *static_cast<Layout*>(la), *static_cast<Layout*>(lb), *static_cast<Layout*>(lc),
            *static_cast<Layout*>(ld), at(a), at(b), at(c), at(d), at(workspace), 0, 0, 0, 0,
            *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  Algo s{};
  if (!shape(p.desc, p.a, p.b, p.c, p.d, &s)) return invalid_value;
  if (!supported(p.desc, p.a, p.b, p.c, p.d)) return not_supported;
  p.m = s.m, p.n = s.n, p.k = s.k;
  if (algo) {
    const Algo& x = *static_cast<const Algo*>(algo);
    bool fits = x.magic == kMagic && x.m == s.m && x.n == s.n && x.k == s.k && x.workspace <= bytes;
    const uint64_t ptr[4] = {p.pa, p.pb, p.pc, p.pd};
    for (int i = 0; i < 4; i++) fits = fits && ptr[i] % x.align[i] == 0;
    if (!fits || (x.workspace && p.workspace % 16)) return invalid_value;
    p.workspace_bytes = x.workspace;
  }
  if (p.desc.epilogue == bias && !p.desc.bias) return invalid_value;
  CUresult r = tdemu_enqueue(static_cast<CUstream>(stream), run, new Product(p),
                             [](void* q) { delete static_cast<Product*>(q); });
  return r ? execution_failed : success;
}

}  // extern "C"
