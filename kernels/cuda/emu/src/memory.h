// Device memory and pinned host memory of the emulator.
//
// Each device owns one shared memory file, mapped once without access. An
// allocation opens a range of it that ends, at 256-byte granularity, at a page
// without access; freeing closes the range again, and addresses are not used a
// second time before the space is used up. The file lets other processes map
// an allocation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace tdemu {

struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;       // as asked for, rounded up to 256
  int device = -1;       // -1: of another process
  size_t asked = 0;
};

void memory_start(int devices, size_t capacity);
size_t memory_capacity();
size_t memory_used(int device);

// device_alloc returns 0 when the capacity is used up.
uintptr_t device_alloc(int device, size_t size);
// device_free says what is wrong, or returns an empty text.
std::string device_free(uintptr_t p);

// device_find returns the live allocation that holds the range, or says in why
// what the range touches.
bool device_find(uintptr_t p, size_t n, Allocation* a, std::string* why);
bool device_contains(uintptr_t p);
std::string device_describe(uintptr_t p);

void* pinned_alloc(size_t size);
std::string pinned_free(void* p);
std::string pinned_register(void* p, size_t size);
std::string pinned_unregister(void* p);
bool pinned_find(const void* p, size_t n);

// Handles for other processes: 64 bytes.
std::string ipc_export(uintptr_t p, void* handle);
std::string ipc_open(const void* handle, uintptr_t* p, bool* own);
std::string ipc_close(uintptr_t p);

}  // namespace tdemu
