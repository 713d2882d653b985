// Start, devices, contexts and error texts.
#include <pthread.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "driver.h"

namespace tdemu {

Driver& driver() {
  static Driver* d = new Driver;
  return *d;
}

PerThread* per_thread() {
  static pthread_key_t key;
  static std::once_flag once;
  static std::atomic<uint64_t> next{1};
  std::call_once(once, [] { pthread_key_create(&key, [](void* p) { delete static_cast<PerThread*>(p); }); });
  auto* t = static_cast<PerThread*>(pthread_getspecific(key));
  if (!t) {
    t = new PerThread{};
    t->id = next.fetch_add(1);
    pthread_setspecific(key, t);
  }
  return t;
}

CUresult refuse(CUresult code, const std::string& why) {
  PerThread* t = per_thread();
  t->code = code;
  t->why = why;
  return code;
}

void break_context(Context* c, CUresult code, const std::string& why) {
  if (c->error) return;
  c->error = code;
  c->why = why;
  fprintf(stderr, "cuda emulator: device %d: error %d: %s\n", c->device, static_cast<int>(code), why.c_str());
  driver().changed.notify_all();
}

static Context* current() {
  PerThread* t = per_thread();
  return t->stack.empty() ? nullptr : t->stack.back();
}

// forbidden_by_capture finds a capture that forbids unsafe calls on this thread.
static Capture* forbidden_by_capture() {
  auto& v = driver().captures;
  v.erase(std::remove_if(v.begin(), v.end(), [](auto& w) { return w.expired() || !w.lock()->origin; }), v.end());
  for (auto& w : v) {
    auto c = w.lock();
    bool mine = c->thread == per_thread()->id;
    if (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL || (mine && c->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
      return c.get();
  }
  return nullptr;
}

Call::Call(const char* unsafe) : lock(driver().mu) {
  PerThread* t = per_thread();
  t->code = CUDA_SUCCESS;
  if (t->host_frame < reinterpret_cast<uintptr_t>(__builtin_frame_address(0))) t->host_frame = 0;
  if (!driver().started) {
    bad = refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called");
  } else if (t->host_frame) {
    bad = refuse(CUDA_ERROR_NOT_PERMITTED, "a function called by a stream must not call the driver");
  } else if (!(ctx = current())) {
    bad = refuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context");
  } else if (ctx->error) {
    bad = ctx->error;
  } else if (Capture* cap = unsafe ? forbidden_by_capture() : nullptr) {
    cap->invalid = true;
    cap->why = std::string(unsafe) + " was called inside a capture";
    bad = refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cap->why);
  }
}

static size_t parse_size(const char* v, size_t otherwise) {
  if (!v || !*v) return otherwise;
  char* end;
  double n = strtod(v, &end);
  switch (*end) {
    case 'k': case 'K': n *= 1 << 10; break;
    case 'm': case 'M': n *= 1 << 20; break;
    case 'g': case 'G': n *= 1 << 30; break;
    default: break;
  }
  return n >= 1 ? static_cast<size_t>(n) : otherwise;
}

static std::unique_ptr<Context> make_context(int device, bool primary) {
  auto c = std::make_unique<Context>();
  c->device = device;
  c->primary = primary;
  c->null_stream = std::make_shared<Stream>();
  c->null_stream->ctx = c.get();
  return c;
}

CUresult context_of(CUcontext h, Context** out) {
  for (auto& p : driver().primary)
    if (reinterpret_cast<CUcontext>(p.get()) == h) return *out = p.get(), CUDA_SUCCESS;
  auto it = driver().contexts.find(h);
  if (it == driver().contexts.end()) return refuse(CUDA_ERROR_INVALID_CONTEXT, "no such context");
  return *out = it->second.get(), CUDA_SUCCESS;
}

struct ErrorName {
  int code;
  const char *name, *text;
};
static const ErrorName error_names[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const ErrorName* error_name(CUresult r) {
  for (const ErrorName& e : error_names)
    if (e.code == static_cast<int>(r)) return &e;
  return nullptr;
}

// keep gives a text that lives as long as the process; equal texts share one.
static const char* keep(const std::string& s) {
  static std::mutex mu;
  static auto* all = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(mu);
  return all->insert(s).first->c_str();
}

// On a device of one multiprocessor no grid would be split, on one of many the
// tests would take long.
static int attribute(CUdevice_attribute a) {
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1 << 10;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 8;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 4 << 20;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1000000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 1000000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 64;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    default: return 0;
  }
}

CUresult launch_room(int device) {
  const size_t need = driver().launch_memory, used = need ? memory_used(device) : 0;
  if (need <= memory_capacity() - used) return CUDA_SUCCESS;
  return refuse(CUDA_ERROR_OUT_OF_MEMORY, "a launch needs " + std::to_string(need) + " bytes, " +
                                              std::to_string(memory_capacity() - used) + " free on device " + std::to_string(device));
}

static CUresult check_device(CUdevice d) {
  if (!driver().started) return refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called");
  if (d >= 0 && d < driver().devices) return CUDA_SUCCESS;
  return refuse(CUDA_ERROR_INVALID_DEVICE, "there is no device " + std::to_string(d));
}

}  // namespace tdemu

using namespace tdemu;

#define TDEMU_DEVICE(D) \
  if (CUresult bad_ = check_device(D)) return bad_

extern "C" {

CUresult cuInit(unsigned) {
  Driver& d = driver();
  Lock lock(d.mu);
  if (d.started) return CUDA_SUCCESS;
  const char* n = getenv("TANDEM_EMU_DEVICES");
  d.devices = n && *n ? atoi(n) : 1;
  if (d.devices <= 0) return CUDA_ERROR_NO_DEVICE;
  const char* mode = getenv("TANDEM_EMU_STREAMS");
  d.lazy = mode && !strcmp(mode, "lazy");
  memory_start(d.devices, parse_size(getenv("TANDEM_EMU_MEMORY"), size_t(1) << 30));
  d.launch_memory = parse_size(getenv("TANDEM_EMU_LAUNCH_MEMORY"), 0);
  for (int i = 0; i < d.devices; i++) d.primary.push_back(make_context(i, true));
  describe_address = device_describe;
  d.started = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* v) { return *v = 13000, CUDA_SUCCESS; }

CUresult cuGetErrorName(CUresult r, const char** s) {
  const ErrorName* e = error_name(r);
  *s = e ? e->name : nullptr;
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The text of an error of the calling thread also says why.
CUresult cuGetErrorString(CUresult r, const char** s) {
  const ErrorName* e = error_name(r);
  *s = e ? e->text : nullptr;
  if (!e) return CUDA_ERROR_INVALID_VALUE;
  PerThread* t = per_thread();
  Context* c = current();
  if (t->code == r && r) {
    *s = keep(std::string(e->text) + ": " + t->why);
  } else if (c && c->error == r && r) {
    Lock lock(driver().mu);
    *s = keep(std::string(e->text) + ": " + c->why);
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* n) {
  if (!driver().started) return CUDA_ERROR_NOT_INITIALIZED;
  return *n = driver().devices, CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* d, int i) {
  TDEMU_DEVICE(i);
  return *d = i, CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
  TDEMU_DEVICE(d);
  *v = a == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? d + 1 : attribute(a);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* s, int n, CUdevice d) {
  TDEMU_DEVICE(d);
  snprintf(s, static_cast<size_t>(n), "CUDA emulator");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* s, int n, CUdevice d) {
  TDEMU_DEVICE(d);
  snprintf(s, static_cast<size_t>(n), "0000:%02X:00.0", d + 1);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* u, CUdevice d) {
  TDEMU_DEVICE(d);
  memset(u, 0, sizeof *u);
  snprintf(u->bytes, sizeof u->bytes, "emulator-%d", d);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* n, CUdevice d) {
  TDEMU_DEVICE(d);
  return *n = memory_capacity(), CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice a, CUdevice b) {
  TDEMU_DEVICE(a);
  TDEMU_DEVICE(b);
  return *can = a != b, CUDA_SUCCESS;
}
CUresult cuDeviceGetP2PAttribute(int* v, CUdevice_P2PAttribute a, CUdevice x, CUdevice y) {
  TDEMU_DEVICE(x);
  TDEMU_DEVICE(y);
  return *v = a != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && x != y, CUDA_SUCCESS;
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* p, CUdevice d) {
  TDEMU_DEVICE(d);
  return *p = reinterpret_cast<CUmemoryPool>(driver().primary[static_cast<size_t>(d)].get()), CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) {
  TDEMU_DEVICE(d);
  Lock lock(driver().mu);
  Context* p = driver().primary[static_cast<size_t>(d)].get();
  p->retained++;
  return *c = reinterpret_cast<CUcontext>(p), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
  TDEMU_DEVICE(d);
  Lock lock(driver().mu);
  Context* p = driver().primary[static_cast<size_t>(d)].get();
  if (!p->retained) return refuse(CUDA_ERROR_INVALID_CONTEXT, "the primary context was not retained");
  if (--p->retained == 0) drain_context(lock, p);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned* flags, int* active) {
  TDEMU_DEVICE(d);
  return *flags = 0, *active = driver().primary[static_cast<size_t>(d)]->retained > 0, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned) {
  TDEMU_DEVICE(d);
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned, CUdevice d) {
  TDEMU_DEVICE(d);
  Lock lock(driver().mu);
  auto c = make_context(d, false);
  Context* p = c.get();
  driver().contexts[p] = std::move(c);
  per_thread()->stack.push_back(p);
  return *out = reinterpret_cast<CUcontext>(p), CUDA_SUCCESS;
}
CUresult cuCtxDestroy_v2(CUcontext h) {
  Lock lock(driver().mu);
  auto it = driver().contexts.find(h);
  if (it == driver().contexts.end()) return refuse(CUDA_ERROR_INVALID_CONTEXT, "no such context");
  Context* c = it->second.get();
  drain_context(lock, c);
  auto& v = per_thread()->stack;
  if (!v.empty() && v.back() == c) v.pop_back();
  it->second.release();  // other threads may still have it current
  driver().contexts.erase(h);
  c->error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext h) {
  Lock lock(driver().mu);
  Context* c = nullptr;
  if (h)
    if (CUresult r = context_of(h, &c)) return r;
  auto& v = per_thread()->stack;
  if (!v.empty()) v.pop_back();
  if (c) v.push_back(c);
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext h) {
  Lock lock(driver().mu);
  Context* c;
  if (CUresult r = context_of(h, &c)) return r;
  per_thread()->stack.push_back(c);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* h) {
  auto& v = per_thread()->stack;
  if (v.empty()) return refuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context");
  if (h) *h = reinterpret_cast<CUcontext>(v.back());
  return v.pop_back(), CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* h) { return *h = reinterpret_cast<CUcontext>(current()), CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* d) {
  Context* c = current();
  if (!c) return refuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context");
  return *d = c->device, CUDA_SUCCESS;
}
CUresult cuCtxGetApiVersion(CUcontext, unsigned* v) { return *v = 3020, CUDA_SUCCESS; }
CUresult cuCtxGetFlags(unsigned* f) { return *f = 0, CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t* n, CUlimit) { return *n = kStackSize, CUDA_SUCCESS; }
CUresult cuCtxSynchronize() {
  TDEMU_ENTER(c, "cuCtxSynchronize");
  drain_context(c.lock, c.ctx);
  return c.ctx->error;
}
CUresult cuCtxEnablePeerAccess(CUcontext h, unsigned) {
  TDEMU_ENTER(c, nullptr);
  Context* peer;
  if (CUresult r = context_of(h, &peer)) return r;
  if (peer->device == c.ctx->device) return refuse(CUDA_ERROR_INVALID_DEVICE, "a device is no peer of itself");
  if (!c.ctx->peers.insert(peer).second)
    return refuse(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "of device " + std::to_string(peer->device));
  return CUDA_SUCCESS;
}
CUresult cuCtxDisablePeerAccess(CUcontext h) {
  TDEMU_ENTER(c, nullptr);
  Context* peer;
  if (CUresult r = context_of(h, &peer)) return r;
  if (!c.ctx->peers.erase(peer))
    return refuse(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "of device " + std::to_string(peer->device));
  return CUDA_SUCCESS;
}

}  // extern "C"
