// The fiber runtime: runs the blocks of a grid, one block at a time per OS
// thread, every CUDA thread as a fiber.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>
#include "../include/emu_thread.h"
#include "switch.h"
#include "table.h"

namespace tdemu {

constexpr size_t kStackSize = 64 << 10;
constexpr size_t kStackGuard = 64 << 10;  // below it; larger than most frames
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxShared = 227 << 10;  // dynamic shared memory, as on sm_90
constexpr unsigned kCanary = 1024;          // watched bytes behind the requested size

enum Code { ok = 0, illegal_address = 700, assertion = 710, launch_failed = 719 };

enum class State : uint8_t { fresh, ready, at_barrier, in_warp_op, done };

struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes, valid, group;
};

struct Fiber {
  Thread pub;  // first member: tdemu_self points here
  Saved ctx;
  char* stack;
  State state;
  const char* file;  // where it waits
  int line;
  unsigned mask;
  WarpFn fn;
  unsigned group;
  std::vector<AsyncCopy> copies;
};

// Job is one launch. Blocks are handed out by an atomic counter.
struct Job {
  const Kernel* kernel;
  void* const* params;
  dim3 grid, block;
  unsigned shared;
  uint64_t blocks;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  int helpers = 0;  // pool threads inside; guarded by the pool
  Code code = ok;
  std::string text;  // guarded by the pool's lock
};

// Order is the scheduling order of ready threads (and of blocks).
struct Order {
  enum Kind { forward, reverse, random } kind = forward;
  uint64_t seed = 0;
};
Order order_from_env();

// Worker is the state of one OS thread that runs blocks.
struct Worker {
  Saved home;
  Job* job = nullptr;
  Fiber* cur = nullptr;
  Block blk;
  Fiber* fibers = nullptr;
  unsigned n = 0, live = 0, arrived = 0;
  Vote vote;
  int votes = 0, vote_result = 0;
  const char* bar_file;
  int bar_line;
  void* rec[kMaxThreads];
  unsigned waiting[kMaxThreads / 32];  // per warp: lanes in a warp operation
  unsigned gone[kMaxThreads / 32];     // per warp: lanes that exited or do not exist
  uint16_t ring[kMaxThreads];
  unsigned head = 0, count = 0;
  uint64_t rng = 1;
  Order order;
  dim3 shape{0, 0, 0};  // block shape that fibers[].pub.tid describes
  std::vector<char*> stacks;
  char *tls_low = nullptr, *tls_high = nullptr;
  // a fault, as the signal handler notes it
  bool in_kernel = false;
  int fault_signal = 0;
  uintptr_t fault_addr = 0;
  char* fault_stack = nullptr;  // the low end
  // an error that the runtime found
  Code code = ok;
  std::string text;
};

Worker* this_worker();
void run_block(Worker* w, Job* job, uint64_t index);
void install_fault_handler();

// launch runs a grid to its end and returns ok or the code of its first
// failure with its description in text. Arguments are checked by the caller.
Code launch(const Kernel* k, dim3 grid, dim3 block, unsigned shared, void* const* params, std::string* text);

// describe_address says what device memory knows about an address; the driver
// sets it.
extern std::string (*describe_address)(uintptr_t);

}  // namespace tdemu
