// Memory calls: allocation, pinned memory, copies, fills, sharing.
#include <cstdlib>
#include <cstring>
#include "driver.h"

namespace tdemu {

namespace {

// Side is one end of a copy, as the call names it.
enum class Side { host, device, any };

CUresult check_device_range(CUdeviceptr p, size_t n, const char* what, std::string* why) {
  Allocation a;
  if (device_find(p, n, &a, why)) return CUDA_SUCCESS;
  *why = std::string(what) + ": " + *why;
  return CUDA_ERROR_INVALID_VALUE;
}

// resolve finds out what an end of kind any is.
Side resolve(Side s, uintptr_t p) {
  if (s != Side::any) return s;
  return device_contains(p) ? Side::device : Side::host;
}

CUresult check_end(Side side, uintptr_t p, size_t n, bool async, const char* what) {
  std::string why;
  if (side == Side::device) {
    CUresult r = check_device_range(p, n, what, &why);
    return r ? refuse(r, why) : CUDA_SUCCESS;
  }
  if (async && !pinned_find(reinterpret_cast<void*>(p), n))
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  std::string(what) + ": an asynchronous copy needs pinned host memory for all its " +
                      std::to_string(n) + " bytes");
  return CUDA_SUCCESS;
}

// still_there repeats the check when the copy runs: the memory may be gone.
CUresult still_there(Side side, uintptr_t p, size_t n, bool async, const char* what, std::string* why) {
  if (side == Side::device) {
    if (check_device_range(p, n, what, why)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  } else if (async && !pinned_find(reinterpret_cast<void*>(p), n)) {
    *why = std::string(what) + ": the pinned host memory was freed before the copy ran";
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

CUresult copy(CUstream h, bool async, Side ds, uintptr_t to, Side ss, uintptr_t from, size_t n) {
  TDEMU_ENTER(c, async ? nullptr : "a blocking copy");
  if (!n) return CUDA_SUCCESS;
  ds = resolve(ds, to), ss = resolve(ss, from);
  if (CUresult r = check_end(ds, to, n, async, "copy target")) return r;
  if (CUresult r = check_end(ss, from, n, async, "copy source")) return r;
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  CUresult r = enqueue(c.lock, s, [=](std::string* why) {
    if (CUresult e = still_there(ds, to, n, async, "copy target", why)) return e;
    if (CUresult e = still_there(ss, from, n, async, "copy source", why)) return e;
    memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n);
    return CUDA_SUCCESS;
  });
  if (r || async) return r;
  drain(c.lock, s, s->pushed);
  return c.ctx->error;
}

template <class T>
CUresult fill(CUstream h, bool async, CUdeviceptr to, size_t pitch, T v, size_t width, size_t height) {
  TDEMU_ENTER(c, async ? nullptr : "a blocking fill");
  if (!width || !height) return CUDA_SUCCESS;
  if (to % sizeof(T)) return refuse(CUDA_ERROR_INVALID_VALUE, "the target of a fill is not aligned to its element");
  if (height > 1 && pitch < width * sizeof(T)) return refuse(CUDA_ERROR_INVALID_VALUE, "the pitch is below the width");
  size_t n = (height - 1) * pitch + width * sizeof(T);
  if (CUresult r = check_end(Side::device, to, n, false, "fill target")) return r;
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  CUresult r = enqueue(c.lock, s, [=](std::string* why) {
    if (CUresult e = still_there(Side::device, to, n, false, "fill target", why)) return e;
    for (size_t y = 0; y < height; y++) {
      auto* row = reinterpret_cast<T*>(to + y * pitch);
      for (size_t x = 0; x < width; x++) row[x] = v;
    }
    return CUDA_SUCCESS;
  });
  if (r || async) return r;
  drain(c.lock, s, s->pushed);
  return c.ctx->error;
}

uintptr_t at(const void* p) { return reinterpret_cast<uintptr_t>(p); }

CUresult out_of_memory(size_t n, int device) {
  return refuse(CUDA_ERROR_OUT_OF_MEMORY, std::to_string(n) + " bytes asked for, " +
                                              std::to_string(memory_capacity() - memory_used(device)) +
                                              " free on device " + std::to_string(device));
}

// copy_2d does a 2D copy row by row.
CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream h, bool async) {
  if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return refuse(CUDA_ERROR_NOT_SUPPORTED, "arrays are not emulated");
  bool from_host = p->srcMemoryType == CU_MEMORYTYPE_HOST, to_host = p->dstMemoryType == CU_MEMORYTYPE_HOST;
  uintptr_t from = from_host ? at(p->srcHost) : p->srcDevice, to = to_host ? at(p->dstHost) : p->dstDevice;
  from += p->srcY * p->srcPitch + p->srcXInBytes;
  to += p->dstY * p->dstPitch + p->dstXInBytes;
  for (size_t y = 0; y < p->Height; y++) {
    CUresult r = copy(h, async, to_host ? Side::host : Side::device, to + y * p->dstPitch,
                      from_host ? Side::host : Side::device, from + y * p->srcPitch, p->WidthInBytes);
    if (r) return r;
  }
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace tdemu

using namespace tdemu;

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  TDEMU_ENTER(c, "cuMemAlloc");
  if (!n) return refuse(CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
  *p = device_alloc(c.ctx->device, n);
  return *p ? CUDA_SUCCESS : out_of_memory(n, c.ctx->device);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* p, size_t* pitch, size_t width, size_t height, unsigned) {
  *pitch = (width + 511) / 512 * 512;
  return cuMemAlloc_v2(p, *pitch * height);
}

CUresult cuMemAllocAsync(CUdeviceptr* p, size_t n, CUstream h) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return refuse(CUDA_ERROR_NOT_SUPPORTED, "an allocation inside a capture is not emulated");
  if (!n) return refuse(CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
  *p = device_alloc(c.ctx->device, n);
  if (!*p) {  // frees that are queued may make room
    drain_context(c.lock, c.ctx);
    *p = device_alloc(c.ctx->device, n);
  }
  return *p ? CUDA_SUCCESS : out_of_memory(n, c.ctx->device);
}

// cuMemFree waits for all work of the device, as the hardware's does.
CUresult cuMemFree_v2(CUdeviceptr p) {
  TDEMU_ENTER(c, "cuMemFree");
  if (!p) return CUDA_SUCCESS;
  drain_context(c.lock, c.ctx);
  std::string why = device_free(p);
  return why.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_INVALID_VALUE, why);
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream h) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return refuse(CUDA_ERROR_NOT_SUPPORTED, "freeing inside a capture is not emulated");
  if (CUresult r = check_end(Side::device, p, 1, false, "free")) return r;
  return enqueue(c.lock, s, [p](std::string* why) {
    *why = device_free(p);
    return why->empty() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
  });
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  TDEMU_ENTER(c, nullptr);
  *total = memory_capacity();
  *free = *total - memory_used(c.ctx->device);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr p) {
  TDEMU_ENTER(c, nullptr);
  Allocation a;
  std::string why;
  if (!device_find(p, 1, &a, &why)) return refuse(CUDA_ERROR_NOT_FOUND, why);
  if (base) *base = a.base;
  if (size) *size = a.size;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** p, size_t n, unsigned) {
  TDEMU_ENTER(c, "cuMemHostAlloc");
  if (!n) return refuse(CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
  *p = pinned_alloc(n);
  return *p ? CUDA_SUCCESS : refuse(CUDA_ERROR_OUT_OF_MEMORY, "of the host");
}

CUresult cuMemFreeHost(void* p) {
  TDEMU_ENTER(c, "cuMemFreeHost");
  std::string why = pinned_free(p);
  return why.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_INVALID_VALUE, why);
}

CUresult cuMemHostRegister_v2(void* p, size_t n, unsigned) {
  TDEMU_ENTER(c, "cuMemHostRegister");
  if (!p || !n) return refuse(CUDA_ERROR_INVALID_VALUE, "an empty range");
  std::string why = pinned_register(p, n);
  return why.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, why);
}

CUresult cuMemHostUnregister(void* p) {
  TDEMU_ENTER(c, "cuMemHostUnregister");
  std::string why = pinned_unregister(p);
  return why.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, why);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* d, void* p, unsigned) {
  TDEMU_ENTER(c, nullptr);
  if (!pinned_find(p, 1)) return refuse(CUDA_ERROR_INVALID_VALUE, "the host memory is not pinned");
  return *d = at(p), CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) { return CUDA_SUCCESS; }
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute a, void* v) {
  auto* c = reinterpret_cast<Context*>(pool);
  bool used = a >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
  *static_cast<uint64_t*>(v) = used ? memory_used(c->device) : 0;
  return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void* v, CUpointer_attribute a, CUdeviceptr p) {
  TDEMU_ENTER(c, nullptr);
  Allocation al;
  std::string why;
  bool dev = device_find(p, 1, &al, &why);
  if (!dev && !pinned_find(reinterpret_cast<void*>(p), 1)) return refuse(CUDA_ERROR_INVALID_VALUE, why);
  switch (a) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(v) = dev ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<uint64_t*>(v) = p;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<int*>(v) = 0;
      return CUDA_SUCCESS;
    default: return refuse(CUDA_ERROR_NOT_SUPPORTED, "this attribute of a pointer is not emulated");
  }
}
CUresult cuPointerSetAttribute(const void*, CUpointer_attribute, CUdeviceptr) { return CUDA_SUCCESS; }

CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void* h, size_t n) {
  return copy(nullptr, false, Side::device, d, Side::host, at(h), n);
}
CUresult cuMemcpyDtoH_v2(void* h, CUdeviceptr d, size_t n) {
  return copy(nullptr, false, Side::host, at(h), Side::device, d, n);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr a, CUdeviceptr b, size_t n) {
  return copy(nullptr, false, Side::device, a, Side::device, b, n);
}
CUresult cuMemcpy(CUdeviceptr a, CUdeviceptr b, size_t n) { return copy(nullptr, false, Side::any, a, Side::any, b, n); }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void* h, size_t n, CUstream s) {
  return copy(s, true, Side::device, d, Side::host, at(h), n);
}
CUresult cuMemcpyDtoHAsync_v2(void* h, CUdeviceptr d, size_t n, CUstream s) {
  return copy(s, true, Side::host, at(h), Side::device, d, n);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr a, CUdeviceptr b, size_t n, CUstream s) {
  return copy(s, true, Side::device, a, Side::device, b, n);
}
CUresult cuMemcpyAsync(CUdeviceptr a, CUdeviceptr b, size_t n, CUstream s) {
  return copy(s, true, Side::any, a, Side::any, b, n);
}

// check_peer: the memory must lie on the device that the call names.
static CUresult check_peer(CUdeviceptr p, CUcontext h) {
  Context* c;
  Allocation a;
  std::string why;
  {
    Lock lock(driver().mu);
    if (CUresult r = context_of(h, &c)) return r;
  }
  if (device_find(p, 1, &a, &why) && a.device >= 0 && a.device != c->device)
    return refuse(CUDA_ERROR_INVALID_VALUE, "the memory lies on device " + std::to_string(a.device) +
                                                ", the context is of device " + std::to_string(c->device));
  return CUDA_SUCCESS;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr a, CUcontext ac, CUdeviceptr b, CUcontext bc, size_t n, CUstream s) {
  if (CUresult r = check_peer(a, ac)) return r;
  if (CUresult r = check_peer(b, bc)) return r;
  return copy(s, true, Side::device, a, Side::device, b, n);
}
CUresult cuMemcpyPeer(CUdeviceptr a, CUcontext ac, CUdeviceptr b, CUcontext bc, size_t n) {
  if (CUresult r = check_peer(a, ac)) return r;
  if (CUresult r = check_peer(b, bc)) return r;
  return copy(nullptr, false, Side::device, a, Side::device, b, n);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* p) { return copy_2d(p, nullptr, false); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* p) { return copy_2d(p, nullptr, false); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* p, CUstream s) { return copy_2d(p, s, true); }

CUresult cuMemsetD8_v2(CUdeviceptr p, unsigned char v, size_t n) { return fill(nullptr, false, p, 0, v, n, 1); }
CUresult cuMemsetD16_v2(CUdeviceptr p, unsigned short v, size_t n) { return fill(nullptr, false, p, 0, v, n, 1); }
CUresult cuMemsetD32_v2(CUdeviceptr p, unsigned v, size_t n) { return fill(nullptr, false, p, 0, v, n, 1); }
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) { return fill(s, true, p, 0, v, n, 1); }
CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) { return fill(s, true, p, 0, v, n, 1); }
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) { return fill(s, true, p, 0, v, n, 1); }
CUresult cuMemsetD2D8_v2(CUdeviceptr p, size_t pitch, unsigned char v, size_t w, size_t h) {
  return fill(nullptr, false, p, pitch, v, w, h);
}
CUresult cuMemsetD2D8Async(CUdeviceptr p, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s) {
  return fill(s, true, p, pitch, v, w, h);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr p, size_t pitch, unsigned v, size_t w, size_t h) {
  return fill(nullptr, false, p, pitch, v, w, h);
}
CUresult cuMemsetD2D32Async(CUdeviceptr p, size_t pitch, unsigned v, size_t w, size_t h, CUstream s) {
  return fill(s, true, p, pitch, v, w, h);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* h, CUdeviceptr p) {
  TDEMU_ENTER(c, nullptr);
  std::string why = ipc_export(p, h);
  return why.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_INVALID_VALUE, why);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* p, CUipcMemHandle h, unsigned) {
  TDEMU_ENTER(c, nullptr);
  uintptr_t v = 0;
  bool own;
  std::string why = ipc_open(&h, &v, &own);
  *p = v;
  if (why.empty()) return CUDA_SUCCESS;
  return refuse(own ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE, why);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr p) {
  TDEMU_ENTER(c, nullptr);
  drain_context(c.lock, c.ctx);
  std::string why = ipc_close(p);
  return why.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_INVALID_VALUE, why);
}

}  // extern "C"
