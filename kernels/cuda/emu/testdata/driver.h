// What the scenarios share: checks, and the module of the test kernels.
#pragma once
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

inline const char* text_of(CUresult r) {
  const char* s = nullptr;
  cuGetErrorString(r, &s);
  return s ? s : "?";
}

// OK ends the scenario when a call fails.
#define OK(x)                                                                                  \
  do {                                                                                         \
    CUresult r_ = (x);                                                                         \
    if (r_) printf("FAIL %s:%d: %s: %d %s\n", __FILE__, __LINE__, #x, (int)r_, text_of(r_)), fflush(stdout), _Exit(1); \
  } while (0)
// WANT ends it when a call does not fail with the code, and prints why it failed.
#define WANT(code, x)                                                                          \
  do {                                                                                         \
    CUresult r_ = (x);                                                                         \
    if ((int)r_ != (code)) printf("FAIL %s:%d: %s: got %d %s, want %d\n", __FILE__, __LINE__, #x, (int)r_, text_of(r_), code), fflush(stdout), _Exit(1); \
    printf("%d %s\n", (int)r_, text_of(r_));                                                   \
  } while (0)
#define TRUE(x)                                                                                \
  do {                                                                                         \
    if (!(x)) printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #x), fflush(stdout), _Exit(1);    \
  } while (0)

struct Scenario {
  Scenario(const char* name, void (*run)());
};
#define SCENARIO(NAME)                       \
  static void NAME();                        \
  static Scenario NAME##_(#NAME, NAME);      \
  static void NAME()

CUdeviceptr device(size_t n);
CUfunction kernel(const char* name);
std::string ptx();
CUstream stream();

// run launches on a stream; arguments are passed by address.
template <class... A>
CUresult run(const char* name, CUstream s, unsigned grid, unsigned block, unsigned shared, A... a) {
  void* params[] = {(void*)&a..., nullptr};
  return cuLaunchKernel(kernel(name), grid, 1, 1, block, 1, 1, shared, s, params, nullptr);
}

template <class T>
std::vector<T> get(CUdeviceptr p, size_t n) {
  std::vector<T> v(n);
  OK(cuMemcpyDtoH(v.data(), p, n * sizeof(T)));
  return v;
}
template <class T>
CUdeviceptr put(const std::vector<T>& v) {
  CUdeviceptr p = device(v.size() * sizeof(T));
  OK(cuMemcpyHtoD(p, v.data(), v.size() * sizeof(T)));
  return p;
}
inline std::vector<int> iota(int n) {
  std::vector<int> v((size_t)n);
  for (int i = 0; i < n; i++) v[(size_t)i] = i;
  return v;
}
