// Scenarios that plant a fault and check that it is found.
#include <setjmp.h>
#include <sys/wait.h>
#include <unistd.h>
#include "driver.h"

// The result differs from that with the barrier: it depends on the order.
SCENARIO(missing_barrier) {
  CUdeviceptr x = put(iota(64)), y = device(256);
  OK(run("td_no_barrier", nullptr, 1, 64, 256, x, y, 64));
  auto got = get<int>(y, 64);
  int wrong = 0;
  for (int i = 0; i < 64; i++) wrong += got[(size_t)i] != 63 - i;
  TRUE(wrong > 0);
  printf("found in %d of 64 threads\n", wrong);
}

SCENARIO(missing_second_barrier) {
  CUdeviceptr x = put(std::vector<int>(64, 0)), y = device(256);
  OK(run("td_no_second_barrier", nullptr, 1, 64, 0, x, y, 64, 4));
  auto got = get<int>(y, 64);
  int wrong = 0;
  for (int v : got) wrong += v != 0 + 1 + 2 + 3;
  printf("found in %s threads\n", wrong ? "some" : "no");
}

template <class... A>
static void broken(int code, const char* name, unsigned grid, unsigned block, unsigned shared, A... a) {
  OK(run(name, nullptr, grid, block, shared, a...));
  WANT(code, cuCtxSynchronize());
  CUdeviceptr p;
  TRUE((int)cuMemAlloc(&p, 4) == code);  // sticky
}

SCENARIO(divergent_barrier) { broken(719, "td_divergent", 1, 32, 0, device(256)); }
SCENARIO(deadlock) { broken(719, "td_deadlock", 1, 64, 0, device(256)); }
SCENARIO(exited_lane) { broken(719, "td_exited_lane", 1, 32, 0, device(256)); }
SCENARIO(masks_differ) { broken(719, "td_masks_differ", 1, 32, 0, device(256)); }
SCENARIO(shuffle_source_outside) { broken(710, "td_source_outside", 1, 32, 0, device(256)); }
SCENARIO(stack_overflow) { broken(700, "td_overflow", 1, 1, 0, device(256), 100); }
SCENARIO(division_by_zero) { broken(719, "td_divide", 3, 32, 0, device(256), 0); }
SCENARIO(device_assert) { broken(710, "td_assert", 1, 32, 0, device(256), 20); }
SCENARIO(shared_overrun) { broken(719, "td_reverse", 1, 64, 128, put(iota(64)), device(256), 64); }
SCENARIO(out_of_bounds_block_index) { broken(700, "td_block_index", 65, 4, 0, put(iota(64)), device(65 * 16)); }

SCENARIO(use_after_free) {
  CUdeviceptr x = put(iota(64)), y = device(256);
  OK(cuMemFree(x));
  WANT(1, cuMemcpyHtoD(x, "abcd", 4));
  broken(700, "td_shift", 1, 64, 0, x, y, 1, 64);
}

SCENARIO(peer_access_not_enabled) {
  CUcontext c0, c1;
  OK(cuCtxGetCurrent(&c0));
  CUdeviceptr y = device(256);
  OK(cuDevicePrimaryCtxRetain(&c1, 1));
  OK(cuCtxSetCurrent(c1));
  CUdeviceptr x = put(iota(64));
  OK(cuCtxSetCurrent(c0));
  broken(700, "td_shift", 1, 64, 0, x, y, 1, 64);
}

SCENARIO(double_free) {
  CUdeviceptr x = device(1000);
  WANT(1, cuMemFree(x + 256));
  OK(cuMemFree(x));
  WANT(1, cuMemFree(x));
}

SCENARIO(copy_out_of_bounds) {
  CUdeviceptr x = device(1024);
  std::vector<char> h(2048);
  WANT(1, cuMemcpyHtoD(x, h.data(), 1025));
  WANT(1, cuMemsetD32(x + 512, 0, 129));
}

// Compute reads what a copy on another stream has not brought yet.
SCENARIO(missing_event_wait) {
  CUstream copy = stream(), compute = stream();
  int* h;
  OK(cuMemHostAlloc((void**)&h, 256, 0));
  for (int i = 0; i < 64; i++) h[i] = i;
  CUdeviceptr x = device(256), y = device(256);
  OK(cuMemcpyHtoDAsync(x, h, 256, copy));
  OK(run("td_shift", compute, 1, 64, 0, x, y, 1, 64));
  OK(cuStreamSynchronize(compute));
  int v = get<int>(y, 1)[0];
  OK(cuCtxSynchronize());
  printf("%s\n", v == 1 ? "unnoticed" : "found");
}

SCENARIO(unpinned_async_copy) {
  std::vector<char> h(256);
  WANT(1, cuMemcpyHtoDAsync(device(256), h.data(), 256, stream()));
  char* pinned;
  OK(cuMemHostAlloc((void**)&pinned, 256, 0));
  WANT(1, cuMemcpyDtoHAsync(pinned + 1, device(256), 256, stream()));
}

SCENARIO(pinned_memory_freed_too_early) {
  CUstream s = stream();
  char* h;
  OK(cuMemHostAlloc((void**)&h, 256, 0));
  OK(cuMemcpyHtoDAsync(device(256), h, 256, s));
  OK(cuMemFreeHost(h));
  printf("%d\n", (int)cuStreamSynchronize(s));
}

static std::string replaced(std::string s, const std::string& a, const std::string& b) {
  size_t at = s.find(a);
  TRUE(at != std::string::npos);
  return s.replace(at, a.size(), b);
}

SCENARIO(stale_ptx) {
  CUmodule m;
  char log[1000] = "";
  CUjit_option opts[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* vals[] = {log, (void*)sizeof log};
  std::string narrow = replaced(ptx(), ".param .u32 td_shift_param_2", ".param .u64 td_shift_param_2");
  WANT(200, cuModuleLoadDataEx(&m, narrow.c_str(), 2, opts, vals));
  TRUE(strstr(log, "td_shift"));
  WANT(200, cuModuleLoadData(&m, replaced(ptx(), ".entry td_shift", ".entry td_shifted").c_str()));
  WANT(200, cuModuleLoadData(&m, "hello"));
  WANT(209, cuModuleLoadData(&m, replaced(ptx(), "sm_80", "sm_100").c_str()));
  CUfunction f;
  OK(cuModuleLoadData(&m, ptx().c_str()));
  WANT(500, cuModuleGetFunction(&f, m, "td_none"));
}

SCENARIO(launch_limits) {
  CUdeviceptr x = device(256);
  WANT(1, run("td_shift", nullptr, 1, 1025, 0, x, x, 1, 1));
  WANT(1, run("td_shift", nullptr, 0, 32, 0, x, x, 1, 1));
  WANT(701, run("td_rmsnorm", nullptr, 1, 512, 0, x, x, x, 1, 1.0f));
  WANT(1, run("td_shift", nullptr, 1, 32, 49 << 10, x, x, 1, 1));
  CUfunction f = kernel("td_shift");
  OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10));
  OK(run("td_shift", nullptr, 1, 32, 100 << 10, x, x, 1, 1));
  WANT(1, cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228 << 10));
}

SCENARIO(synchronise_in_capture) {
  CUstream s = stream();
  CUgraph g;
  CUdeviceptr p;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  WANT(900, cuStreamSynchronize(s));
  WANT(901, cuStreamEndCapture(s, &g));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  WANT(900, cuMemAlloc(&p, 4));
  WANT(901, cuStreamEndCapture(s, &g));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  WANT(900, cuCtxSynchronize());
  WANT(901, cuStreamEndCapture(s, &g));
  OK(cuStreamSynchronize(s));
}

SCENARIO(unjoined_capture) {
  CUstream a = stream(), b = stream();
  CUevent e;
  CUgraph g;
  CUdeviceptr x = device(256);
  kernel("td_shift");
  OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuEventRecord(e, a));
  OK(cuStreamWaitEvent(b, e, 0));
  OK(run("td_shift", b, 1, 1, 0, x, x, 1, 1));
  WANT(907, cuEventSynchronize(e));
  OK(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_RELAXED));
  WANT(901, cuStreamEndCapture(a, &g));
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuEventRecord(e, a));
  OK(cuStreamWaitEvent(b, e, 0));
  OK(run("td_shift", b, 1, 1, 0, x, x, 1, 1));
  WANT(904, cuStreamEndCapture(a, &g));
}

SCENARIO(destroyed_handles) {
  CUstream s = stream();
  OK(cuStreamDestroy(s));
  WANT(400, cuStreamSynchronize(s));
  CUevent e;
  OK(cuEventCreate(&e, 0));
  OK(cuEventDestroy(e));
  WANT(400, cuEventRecord(e, nullptr));
}

// A panic of Go passes the C frames of the driver as a long jump does.
static jmp_buf away;
SCENARIO(host_function_that_never_returns) {
  CUstream s = stream();
  if (!setjmp(away)) {
    OK(cuLaunchHostFunc(s, [](void*) { longjmp(away, 1); }, nullptr));
    OK(cuStreamSynchronize(s));
    TRUE(false);
  }
  WANT(999, cuStreamSynchronize(s));
}

// Another process maps the memory, reads and changes it.
SCENARIO(ipc) {
  CUdeviceptr x = put(iota(64)), own;
  CUipcMemHandle h;
  OK(cuIpcGetMemHandle(&h, x));
  WANT(201, cuIpcOpenMemHandle(&own, h, 0));
  int to[2], from[2];
  TRUE(!pipe(to) && !pipe(from));
  char path[200];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  TRUE(n > 0);
  path[n] = 0;
  pid_t child = fork();
  if (!child) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    execl(path, path, "none", "ipc_child", (char*)nullptr);
    _Exit(1);
  }
  TRUE(write(to[1], &h, sizeof h) == sizeof h);
  int status;
  TRUE(waitpid(child, &status, 0) == child && status == 0);
  TRUE(get<int>(x, 1)[0] == 63);
}
SCENARIO(ipc_child) {
  CUipcMemHandle h;
  TRUE(read(0, &h, sizeof h) == sizeof h);
  CUdeviceptr p;
  OK(cuIpcOpenMemHandle(&p, h, 1));
  int v;
  OK(cuMemcpyDtoH(&v, p + 63 * 4, 4));
  OK(cuMemcpyHtoD(p, &v, 4));
  OK(cuIpcCloseMemHandle(p));
  TRUE(cuMemcpyDtoH(&v, p, 4) == CUDA_ERROR_INVALID_VALUE);
}
