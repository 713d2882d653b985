// Scenarios that succeed.
#include <cmath>
#include <thread>
#include "driver.h"

SCENARIO(add) {
  int n = 1000;
  std::vector<float> a((size_t)n), b((size_t)n);
  for (int i = 0; i < n; i++) a[(size_t)i] = (float)i, b[(size_t)i] = 0.5f;
  CUdeviceptr x = put(a), y = put(b), z = device((size_t)n * 4);
  auto fresh = get<float>(z, 1);
  TRUE(std::isnan(fresh[0]));
  OK(run("td_add", nullptr, 4, 256, 0, x, y, z, n));
  auto got = get<float>(z, (size_t)n);
  for (int i = 0; i < n; i++) TRUE(got[(size_t)i] == (float)i + 0.5f);
}

SCENARIO(warp_ops) {
  CUdeviceptr y = device(8 * 32 * 4);
  OK(run("td_warp_ops", nullptr, 1, 32, 0, y));
  auto got = get<unsigned>(y, 256);
  for (unsigned l = 0; l < 32; l++) {
    unsigned want[] = {l < 3 ? l : l - 3, l % 8 + 3 > 7 ? l : l + 3, 0xaaaaaaaa, 15u << (l / 4 * 4), 496, 1, l < 8 ? l ^ 1 : l ^ 2, 11};
    for (unsigned i = 0; i < 8; i++)
      if (got[i * 32 + l] != want[i]) printf("FAIL row %u lane %u: %x, want %x\n", i, l, got[i * 32 + l], want[i]);
  }
}

static float bf(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  u &= 0xffff0000;
  memcpy(&f, &u, 4);
  return f;
}
static unsigned short bits(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  return (unsigned short)(u >> 16);
}

SCENARIO(mma) {
  std::vector<unsigned short> a(256), b(128);
  std::vector<float> fa(256), fb(128);
  for (int i = 0; i < 256; i++) fa[(size_t)i] = bf(sinf((float)i)), a[(size_t)i] = bits(fa[(size_t)i]);
  for (int i = 0; i < 128; i++) fb[(size_t)i] = bf(cosf((float)i)), b[(size_t)i] = bits(fb[(size_t)i]);
  CUdeviceptr c = device(128 * 4);
  OK(run("td_mma", nullptr, 1, 32, 0, put(a), put(b), c));
  auto got = get<float>(c, 128);
  for (int r = 0; r < 16; r++)
    for (int k = 0; k < 8; k++) {
      float want = 0;
      for (int i = 0; i < 16; i++) want += fa[(size_t)(r * 16 + i)] * fb[(size_t)(k * 16 + i)];
      TRUE(fabsf(got[(size_t)(r * 8 + k)] - want) < 1e-5f);
    }
}

SCENARIO(async_copy_needs_its_wait) {
  CUdeviceptr x = put(iota(128)), y = device(128);
  OK(run("td_async", nullptr, 1, 32, 0, x, y, 0));
  auto got = get<int>(y, 32);
  for (int i = 0; i < 32; i++) TRUE(got[(size_t)i] == 4 * ((i + 1) % 32));
  OK(run("td_async", nullptr, 1, 32, 0, x, y, 1));
  TRUE(get<int>(y, 32)[0] == -1);
}

// Stream b waits for stream a by an event.
SCENARIO(event_orders_streams) {
  CUstream a = stream(), b = stream();
  CUevent e;
  OK(cuEventCreate(&e, CU_EVENT_DEFAULT));
  CUdeviceptr x = put(iota(64)), y = device(256), z = device(256);
  OK(run("td_shift", a, 1, 64, 0, x, y, 5, 64));
  OK(cuEventRecord(e, a));
  OK(cuStreamWaitEvent(b, e, 0));
  OK(run("td_shift", b, 1, 64, 0, y, z, 7, 64));
  OK(cuStreamSynchronize(b));
  TRUE(get<int>(z, 64)[63] == 75);
  OK(cuEventQuery(e));
}

SCENARIO(graph) {
  CUstream a = stream(), b = stream();
  CUevent fork, join;
  OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr x = put(iota(64)), y = device(256), z = device(256), w = device(256);
  kernel("td_shift");
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(run("td_shift", a, 1, 64, 0, x, y, 1, 64));
  OK(cuEventRecord(fork, a));
  OK(cuStreamWaitEvent(b, fork, 0));
  OK(run("td_shift", b, 1, 64, 0, y, z, 1, 64));
  OK(cuEventRecord(join, b));
  OK(cuStreamWaitEvent(a, join, 0));
  OK(run("td_shift", a, 1, 64, 0, z, w, 1, 64));
  CUgraph g;
  OK(cuStreamEndCapture(a, &g));
  size_t n = 0;
  OK(cuGraphGetNodes(g, nullptr, &n));
  TRUE(n == 3);
  CUgraphExec x1;
  OK(cuGraphInstantiateWithFlags(&x1, g, 0));
  OK(cuGraphDestroy(g));
  TRUE(get<int>(w, 1)[0] == -1);  // nothing ran yet
  OK(cuGraphLaunch(x1, a));
  OK(cuStreamSynchronize(a));
  TRUE(get<int>(w, 64)[10] == 13);
  OK(cuMemcpyHtoD(x, std::vector<int>(64, 100).data(), 256));
  OK(cuGraphLaunch(x1, a));
  OK(cuStreamSynchronize(a));
  TRUE(get<int>(w, 64)[10] == 103);
  OK(cuGraphExecDestroy(x1));
}

SCENARIO(host_function) {
  CUstream a = stream();
  static int calls, inner;
  OK(cuLaunchHostFunc(a, [](void* p) {
    *(int*)p += 1;
    CUdeviceptr d;
    inner = (int)cuMemAlloc(&d, 4);
  }, &calls));
  OK(cuStreamSynchronize(a));
  TRUE(calls == 1 && inner == 800);
}

SCENARIO(query_makes_progress) {
  CUstream a = stream();
  CUdeviceptr x = put(iota(64)), y = device(256);
  for (int i = 0; i < 3; i++) OK(run("td_shift", a, 1, 64, 0, x, y, i, 64));
  int asked = 0;
  while (cuStreamQuery(a) == CUDA_ERROR_NOT_READY) TRUE(++asked < 10);
  printf("%s\n", asked == 3 ? "lazy" : asked == 0 ? "eager" : "?");
}

SCENARIO(null_stream_waits_for_blocking_streams) {
  CUstream a;
  OK(cuStreamCreate(&a, CU_STREAM_DEFAULT));
  CUdeviceptr x = put(iota(64)), y = device(256), z = device(256);
  OK(run("td_shift", a, 1, 64, 0, x, y, 1, 64));
  OK(run("td_shift", nullptr, 1, 64, 0, y, z, 1, 64));
  OK(run("td_shift", a, 1, 64, 0, z, x, 1, 64));
  OK(cuStreamSynchronize(a));
  TRUE(get<int>(x, 64)[0] == 3);
}

SCENARIO(pinned_copies) {
  CUstream a = stream();
  int *h, *back;
  OK(cuMemHostAlloc((void**)&h, 4096, CU_MEMHOSTALLOC_PORTABLE));
  std::vector<char> own(8192);
  back = (int*)own.data();
  OK(cuMemHostRegister(back, 4096, 0));
  for (int i = 0; i < 1024; i++) h[i] = i;
  CUdeviceptr d = device(4096);
  OK(cuMemcpyHtoDAsync(d, h, 4096, a));
  OK(cuMemcpyDtoHAsync(back, d, 4096, a));
  OK(cuStreamSynchronize(a));
  TRUE(back[1023] == 1023);
  OK(cuMemHostUnregister(back));
  OK(cuMemFreeHost(h));
}

SCENARIO(devices_and_peers) {
  int n, can;
  OK(cuDeviceGetCount(&n));
  TRUE(n == 2);
  OK(cuDeviceCanAccessPeer(&can, 0, 1));
  TRUE(can);
  CUcontext c0, c1;
  OK(cuCtxGetCurrent(&c0));
  CUdeviceptr x = put(iota(64));
  OK(cuDevicePrimaryCtxRetain(&c1, 1));
  OK(cuCtxEnablePeerAccess(c1, 0));
  CUdeviceptr far = 0, near = device(256);
  OK(cuCtxPushCurrent(c1));
  far = put(iota(64));
  OK(cuCtxPopCurrent(nullptr));
  OK(run("td_shift", nullptr, 1, 64, 0, far, near, 1, 64));
  TRUE(get<int>(near, 64)[63] == 64);
  WANT(704, cuCtxEnablePeerAccess(c1, 0));
  OK(cuCtxSetCurrent(c1));
  CUdeviceptr y = device(256);
  CUstream s = stream();
  OK(cuMemcpyPeerAsync(y, c1, x, c0, 256, s));
  OK(cuStreamSynchronize(s));
  TRUE(get<int>(y, 64)[63] == 63);
  WANT(1, cuMemcpyPeer(y, c0, x, c1, 256));
}

SCENARIO(capacity) {
  size_t free, total;
  OK(cuMemGetInfo(&free, &total));
  TRUE(total == 8 << 20 && free == total);
  CUdeviceptr p = device(5 << 20), q;
  WANT(2, cuMemAlloc(&q, 5 << 20));
  OK(cuMemGetInfo(&free, &total));
  TRUE(free == 3 << 20);
  OK(cuMemFree(p));
  for (int i = 0; i < 20; i++) OK(cuMemFree(device(7 << 20)));
}

SCENARIO(threads_at_once) {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; t++)
    all.emplace_back([] {
      CUcontext c;
      OK(cuDevicePrimaryCtxRetain(&c, 0));
      OK(cuCtxSetCurrent(c));
      static CUfunction f = kernel("td_shift");
      CUstream s = stream();
      CUdeviceptr x = put(iota(1000)), y = device(4000);
      for (int i = 0; i < 200; i++) {
        int n = 1000;
        void* p[] = {&x, &y, &i, &n};
        OK(cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, s, p, nullptr));
        OK(cuStreamSynchronize(s));
        TRUE(get<int>(y, 1000)[999] == 999 + i);
      }
    });
  for (auto& t : all) t.join();
}
