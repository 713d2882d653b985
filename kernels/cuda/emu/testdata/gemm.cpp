// Scenarios of the fake cuBLASLt.
#include <cmath>
#include "driver.h"

extern "C" {
int cublasLtCreate(void**);
int cublasLtMatmulDescCreate(void**, int, int);
int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t);
int cublasLtMatrixLayoutCreate(void**, int, uint64_t, uint64_t, int64_t);
int cublasLtMatmulPreferenceCreate(void**);
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t);
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int*);
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const void*, void*, size_t, void*);
}

static unsigned short bits(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static float value(unsigned short b) {
  unsigned u = (unsigned)b << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

struct Linear {
  int m = 5, n = 70, k = 48;
  void *lt, *desc, *w, *x, *y, *pref;
  char results[8][96];
  int found = 0;
  std::vector<unsigned short> hx, hw;
  std::vector<float> hy, hb;
  explicit Linear(bool bias) {
    int op = 1, epilogue = 4;
    uint64_t ws = 1 << 20;
    TRUE(!cublasLtCreate(&lt));
    TRUE(!cublasLtMatmulDescCreate(&desc, 68, 0));
    TRUE(!cublasLtMatmulDescSetAttribute(desc, 3, &op, 4));
    if (bias) TRUE(!cublasLtMatmulDescSetAttribute(desc, 7, &epilogue, 4));
    TRUE(!cublasLtMatrixLayoutCreate(&w, 14, (uint64_t)k, (uint64_t)n, k));
    TRUE(!cublasLtMatrixLayoutCreate(&x, 14, (uint64_t)k, (uint64_t)m, k));
    TRUE(!cublasLtMatrixLayoutCreate(&y, 0, (uint64_t)n, (uint64_t)m, n));
    TRUE(!cublasLtMatmulPreferenceCreate(&pref));
    TRUE(!cublasLtMatmulPreferenceSetAttribute(pref, 1, &ws, 8));
    TRUE(!cublasLtMatmulAlgoGetHeuristic(lt, desc, w, x, y, y, pref, 8, results, &found) && found == 2);
    for (int i = 0; i < m * k; i++) hx.push_back(bits(sinf((float)i)));
    for (int i = 0; i < n * k; i++) hw.push_back(bits(cosf((float)i)));
    for (int i = 0; i < m * n; i++) hy.push_back((float)i);
    for (int i = 0; i < n; i++) hb.push_back((float)i / 7);
  }
  int run(CUdeviceptr px, CUdeviceptr pw, CUdeviceptr py, float beta, CUdeviceptr ws, size_t bytes, CUstream s) {
    float one = 1;
    return cublasLtMatmul(lt, desc, &one, (void*)pw, w, (void*)px, x, &beta, (void*)py, y, (void*)py, y, results[0],
                          (void*)ws, bytes, s);
  }
};

SCENARIO(gemm) {
  Linear l(true);
  CUdeviceptr x = put(l.hx), w = put(l.hw), y = put(l.hy), b = put(l.hb), ws = device(1 << 20);
  TRUE(!cublasLtMatmulDescSetAttribute(l.desc, 8, &b, 8));
  CUstream s = stream();
  TRUE(l.run(x, w, y, 1, ws, 0, s) == 7);  // the workspace is too small
  TRUE(!l.run(x, w, y, 1, ws, 1 << 20, s));
  OK(cuStreamSynchronize(s));
  auto got = get<float>(y, l.hy.size());
  for (int i = 0; i < l.m; i++)
    for (int j = 0; j < l.n; j++) {
      double want = (double)l.hy[(size_t)(i * l.n + j)] + l.hb[(size_t)j];
      for (int k = 0; k < l.k; k++) want += (double)value(l.hx[(size_t)(i * l.k + k)]) * value(l.hw[(size_t)(j * l.k + k)]);
      TRUE(fabs(got[(size_t)(i * l.n + j)] - want) < 1e-4);
    }
}

// A captured product runs with each launch of the graph and not before.
SCENARIO(gemm_in_graph) {
  Linear l(false);
  CUdeviceptr x = put(l.hx), w = put(l.hw), y = put(l.hy), ws = device(1 << 20);
  CUstream s = stream();
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  TRUE(!l.run(x, w, y, 1, ws, 1 << 20, s));
  CUgraph g;
  OK(cuStreamEndCapture(s, &g));
  CUgraphExec e;
  OK(cuGraphInstantiateWithFlags(&e, g, 0));
  TRUE(get<float>(y, 1)[0] == 0);
  for (int i = 0; i < 2; i++) OK(cuGraphLaunch(e, s));
  OK(cuStreamSynchronize(s));
  double want = 0;
  for (int k = 0; k < l.k; k++) want += 2.0 * value(l.hx[(size_t)k]) * value(l.hw[(size_t)k]);
  TRUE(fabs(get<float>(y, 1)[0] - want) < 1e-4);
}

SCENARIO(gemm_out_of_bounds) {
  Linear l(false);
  CUdeviceptr x = put(l.hx), w = put(l.hw), ws = device(1 << 20), y = device(l.hy.size() * 4 - 600);
  TRUE(!l.run(x, w, y, 0, ws, 1 << 20, nullptr));
  WANT(700, cuCtxSynchronize());
}
