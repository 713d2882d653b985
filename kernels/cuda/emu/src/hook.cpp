#include "hook.h"
#include <cstdio>
#include "driver.h"

using namespace tdemu;

CUresult tdemu_enqueue(CUstream h, int (*fn)(void*, char*, size_t), void* data, void (*drop)(void*)) {
  std::shared_ptr<void> keep(data, drop);
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  return enqueue(c.lock, s, [keep, fn](std::string* why) {
    char text[512] = "";
    int r = fn(keep.get(), text, sizeof text);
    *why = text;
    return static_cast<CUresult>(r);
  });
}

int tdemu_range(CUdeviceptr p, size_t n, char* why, size_t size) {
  std::string text;
  if (device_find(p, n, nullptr, &text)) return 0;
  snprintf(why, size, "%s", text.c_str());
  return 1;
}
