#include "memory.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace tdemu {

namespace {

constexpr size_t kPage = 4096, kGrain = 256;
constexpr size_t kSpan = size_t(1) << 38;  // addresses per device

struct Arena {
  int fd = -1;
  char* base = nullptr;
  size_t next = kPage, used = 0;
  std::multimap<size_t, size_t> freed;  // pages -> offset, for when the span is used up
};

struct Memory {
  std::mutex mu;
  size_t capacity = 0;
  std::vector<Arena> arenas;
  std::map<uintptr_t, Allocation> live;
  std::map<uintptr_t, Allocation> dead;   // freed, latest at an address
  std::map<uintptr_t, size_t> pinned;     // own and registered
  std::map<uintptr_t, size_t> pinned_own; // to their mapping
  std::map<uintptr_t, std::pair<char*, size_t>> foreign;
};

Memory& memory() {
  static Memory* m = new Memory;
  return *m;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

[[noreturn]] void die(const char* what) {
  perror(what);
  abort();
}

std::string hex(uintptr_t p) {
  char b[32];
  snprintf(b, sizeof b, "0x%zx", static_cast<size_t>(p));
  return b;
}

template <class Map>
typename Map::iterator at_or_before(Map& m, uintptr_t p) {
  auto it = m.upper_bound(p);
  return it == m.begin() ? m.end() : --it;
}

struct IpcHandle {
  char magic[8];
  int32_t pid, fd;
  uint64_t offset, size;
};

}  // namespace

void memory_start(int devices, size_t capacity) {
  Memory& m = memory();
  m.capacity = capacity;
  m.arenas.resize(static_cast<size_t>(devices));
  for (Arena& a : m.arenas) {
    a.fd = memfd_create("cuda-emulator", MFD_CLOEXEC);
    if (a.fd < 0 || ftruncate(a.fd, kSpan)) die("cuda emulator: memory of a device");
    void* p = mmap(nullptr, kSpan, PROT_NONE, MAP_SHARED | MAP_NORESERVE, a.fd, 0);
    if (p == MAP_FAILED) die("cuda emulator: addresses of a device");
    a.base = static_cast<char*>(p);
  }
}

size_t memory_capacity() { return memory().capacity; }

size_t memory_used(int device) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  return m.arenas[static_cast<size_t>(device)].used;
}

// take_range finds pages for an allocation and the guard behind it.
static bool take_range(Arena& a, size_t pages, size_t* off) {
  if (a.next + pages <= kSpan) {
    *off = a.next;
    a.next += pages;
    return true;
  }
  auto it = a.freed.find(pages);
  if (it == a.freed.end()) return false;
  *off = it->second;
  a.freed.erase(it);
  return true;
}

uintptr_t device_alloc(int device, size_t size) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  Arena& a = m.arenas[static_cast<size_t>(device)];
  size_t n = round_up(size, kGrain), pages = round_up(n, kPage), off;
  if (n < size || n > m.capacity - a.used) return 0;
  if (!take_range(a, pages + kPage, &off)) return 0;
  char* low = a.base + off;
  if (mprotect(low, pages, PROT_READ | PROT_WRITE)) return 0;
  memset(low, 0xff, pages);
  a.used += n;
  auto p = reinterpret_cast<uintptr_t>(low + pages - n);
  m.live[p] = {p, n, device, size};
  m.dead.erase(p);
  return p;
}

std::string device_free(uintptr_t p) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto it = m.live.find(p);
  if (it == m.live.end()) {
    if (m.dead.count(p)) return "double free of " + hex(p);
    auto in = at_or_before(m.live, p);
    if (in != m.live.end() && p < in->first + in->second.size)
      return hex(p) + " is not the beginning of its allocation";
    return hex(p) + " was never allocated";
  }
  Allocation al = it->second;
  if (al.device < 0) return hex(p) + " belongs to another process; close it instead";
  Arena& a = m.arenas[static_cast<size_t>(al.device)];
  size_t pages = round_up(al.size, kPage);
  char* low = reinterpret_cast<char*>(p + al.size) - pages;
  mprotect(low, pages, PROT_NONE);
  size_t off = static_cast<size_t>(low - a.base);
  fallocate(a.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(off), static_cast<off_t>(pages));
  a.used -= al.size;
  a.freed.emplace(pages + kPage, off);
  m.live.erase(it);
  m.dead[p] = al;
  if (m.dead.size() > 100000) m.dead.erase(m.dead.begin());
  return "";
}

static std::string describe_locked(Memory& m, uintptr_t p) {
  auto it = at_or_before(m.live, p);
  auto old = at_or_before(m.dead, p);
  auto text = [&](const Allocation& a) {
    return std::to_string(a.asked) + " bytes at " + hex(a.base) + " on device " + std::to_string(a.device);
  };
  if (it != m.live.end() && p < it->first + it->second.size)
    return ", " + std::to_string(p - it->first) + " bytes into the allocation of " + text(it->second);
  if (old != m.dead.end() && p < old->first + old->second.size)
    return ", inside the freed allocation of " + text(old->second);
  if (it != m.live.end() && p < it->first + it->second.size + (1 << 20))
    return ", " + std::to_string(p - it->first - it->second.size) + " bytes behind the allocation of " + text(it->second);
  auto next = m.live.upper_bound(p);
  if (next != m.live.end() && next->first - p < 1 << 20)
    return ", " + std::to_string(next->first - p) + " bytes before the allocation of " + text(next->second);
  return "";
}

std::string device_describe(uintptr_t p) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  return describe_locked(m, p);
}

bool device_find(uintptr_t p, size_t n, Allocation* a, std::string* why) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto it = at_or_before(m.live, p);
  if (it != m.live.end() && p < it->first + it->second.size) {
    if (n <= it->first + it->second.size - p) {
      if (a) *a = it->second;
      return true;
    }
    *why = "the range of " + std::to_string(n) + " bytes at " + hex(p) + " leaves its allocation" + describe_locked(m, p);
    return false;
  }
  *why = hex(p) + " is no device memory" + describe_locked(m, p);
  return false;
}

bool device_contains(uintptr_t p) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  for (const Arena& a : m.arenas)
    if (p >= reinterpret_cast<uintptr_t>(a.base) && p < reinterpret_cast<uintptr_t>(a.base) + kSpan) return true;
  return m.live.count(p) != 0;
}

void* pinned_alloc(size_t size) {
  Memory& m = memory();
  size_t n = round_up(size, kGrain), pages = round_up(n, kPage);
  void* p = mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  auto* low = static_cast<char*>(p);
  mprotect(low + pages, kPage, PROT_NONE);
  memset(low, 0xff, pages);
  std::lock_guard<std::mutex> lock(m.mu);
  auto at = reinterpret_cast<uintptr_t>(low + pages - n);
  m.pinned[at] = n;
  m.pinned_own[at] = pages + kPage;
  return low + pages - n;
}

std::string pinned_free(void* p) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto at = reinterpret_cast<uintptr_t>(p);
  auto it = m.pinned_own.find(at);
  if (it == m.pinned_own.end()) return hex(at) + " is no pinned memory of the driver, or was freed before";
  size_t n = m.pinned[at], all = it->second;
  munmap(reinterpret_cast<char*>(at + n) - (all - kPage), all);
  m.pinned.erase(at);
  m.pinned_own.erase(it);
  return "";
}

std::string pinned_register(void* p, size_t size) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto at = reinterpret_cast<uintptr_t>(p);
  auto before = at_or_before(m.pinned, at + size - 1);
  if (before != m.pinned.end() && before->first + before->second > at) return "the range is pinned already";
  m.pinned[at] = size;
  return "";
}

std::string pinned_unregister(void* p) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto at = reinterpret_cast<uintptr_t>(p);
  if (m.pinned_own.count(at) || !m.pinned.erase(at)) return hex(at) + " was not registered";
  return "";
}

bool pinned_find(const void* p, size_t n) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto at = reinterpret_cast<uintptr_t>(p);
  auto it = at_or_before(m.pinned, at);
  return it != m.pinned.end() && at - it->first <= it->second && n <= it->second - (at - it->first);
}

std::string ipc_export(uintptr_t p, void* handle) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto it = at_or_before(m.live, p);
  if (it == m.live.end() || p >= it->first + it->second.size || it->second.device < 0)
    return hex(p) + " is no memory of this process";
  const Arena& a = m.arenas[static_cast<size_t>(it->second.device)];
  IpcHandle h{{'t', 'd', 'e', 'm', 'u', 'i', 'p', 'c'}, getpid(), a.fd,
              it->first - reinterpret_cast<uintptr_t>(a.base), it->second.size};
  memset(handle, 0, 64);
  memcpy(handle, &h, sizeof h);
  return "";
}

std::string ipc_open(const void* handle, uintptr_t* p, bool* own) {
  Memory& m = memory();
  IpcHandle h;
  memcpy(&h, handle, sizeof h);
  *own = false;
  if (memcmp(h.magic, "tdemuipc", 8)) return "the bytes are no memory handle";
  if (h.pid == getpid()) return *own = true, "the memory belongs to this process";
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return std::string("the owner's memory cannot be opened: ") + strerror(errno);
  size_t low = h.offset / kPage * kPage, n = h.offset + h.size - low;
  void* at = mmap(nullptr, round_up(n, kPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(low));
  close(fd);
  if (at == MAP_FAILED) return std::string("the owner's memory cannot be mapped: ") + strerror(errno);
  std::lock_guard<std::mutex> lock(m.mu);
  *p = reinterpret_cast<uintptr_t>(at) + (h.offset - low);
  m.live[*p] = {*p, static_cast<size_t>(h.size), -1, static_cast<size_t>(h.size)};
  m.foreign[*p] = {static_cast<char*>(at), round_up(n, kPage)};
  return "";
}

std::string ipc_close(uintptr_t p) {
  Memory& m = memory();
  std::lock_guard<std::mutex> lock(m.mu);
  auto it = m.foreign.find(p);
  if (it == m.foreign.end()) return hex(p) + " is no open memory of another process";
  mprotect(it->second.first, it->second.second, PROT_NONE);  // later use faults
  m.live.erase(p);
  m.foreign.erase(it);
  return "";
}

}  // namespace tdemu
