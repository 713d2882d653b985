// The fake driver: its objects and the rules they share.
//
// One lock guards all objects; it is released while an operation of a stream
// runs. Device and pinned memory have a lock of their own (memory.h).
#pragma once
#include <cuda.h>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>
#include "fiber.h"
#include "memory.h"

namespace tdemu {

struct Context;
struct Stream;
struct Capture;

using Lock = std::unique_lock<std::mutex>;

// Dep is work that must be done first: operation seq of a stream.
struct Dep {
  std::shared_ptr<Stream> stream;
  uint64_t seq;
};

// Work is what an operation does; it returns a code and, with an error, says why.
using Work = std::function<CUresult(std::string* why)>;

struct Op {
  uint64_t seq = 0;
  std::vector<Dep> deps;
  Work run;  // may be empty
};

// Node is one operation of a graph.
struct Node {
  std::vector<size_t> deps;  // indices of earlier nodes
  Work run;
};

struct Graph {
  std::vector<Node> nodes;
};

// Capture is one capture in progress; every stream that joined points to it.
struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  Stream* origin;
  CUstreamCaptureMode mode;
  uint64_t thread;
  bool invalid = false;
  std::string why;
};

struct Stream {
  Context* ctx;
  unsigned flags = 0;
  int priority = 0;
  uint64_t pushed = 0, done = 0;
  bool busy = false, destroyed = false;
  uint64_t runner = 0;  // the thread that runs an operation
  std::deque<Op> queue;
  std::shared_ptr<Capture> capture;
  std::vector<size_t> tails;  // last nodes of this stream in the capture
  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};

// Mark is one recording of an event.
struct Mark {
  std::shared_ptr<Stream> stream;
  uint64_t seq = 0;
  std::chrono::steady_clock::time_point when;
  std::shared_ptr<Capture> capture;  // recorded inside a capture
  std::vector<size_t> nodes;
  bool done() const { return stream && stream->done >= seq; }
};

struct Event {
  Context* ctx;
  unsigned flags;
  std::shared_ptr<Mark> mark;
};

struct Context {
  int device;
  bool primary;
  int retained = 0;
  CUresult error = CUDA_SUCCESS;  // sticky
  std::string why;                // of the error
  std::shared_ptr<Stream> null_stream;
  std::vector<std::shared_ptr<Stream>> streams;  // without the null stream
  std::set<Context*> peers;
};

struct Function;

struct Module {
  Context* ctx;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Function {
  Module* module;
  const Kernel* kernel;
  unsigned max_threads = 1024;
  unsigned static_shared = 0;
  int max_dynamic = 48 << 10;
};

struct Driver {
  std::mutex mu;
  std::condition_variable changed;
  bool started = false;
  bool lazy = false;
  int devices = 1;
  size_t launch_memory = 0;  // what must be free for a launch
  std::vector<std::unique_ptr<Context>> primary;
  std::unordered_map<void*, std::unique_ptr<Context>> contexts;  // made by cuCtxCreate
  std::unordered_map<void*, std::shared_ptr<Stream>> streams;
  std::unordered_map<void*, std::unique_ptr<Event>> events;
  std::unordered_map<void*, std::unique_ptr<Module>> modules;
  std::unordered_map<void*, Function*> functions;
  std::unordered_map<void*, std::shared_ptr<Graph>> graphs, execs;
  std::vector<std::weak_ptr<Capture>> captures;
  uint64_t rng = 88172645463325252u;
};
Driver& driver();

// launch_room refuses a launch on a device that has too little memory left, as
// drivers do that take memory for a kernel then.
CUresult launch_room(int device);

// PerThread is what the driver knows of a thread. It is no thread_local
// variable: those of this library are shared memory of kernels.
struct PerThread {
  uint64_t id;
  std::vector<Context*> stack;
  // The stack frame that calls a host function, 0 outside. A call of the driver
  // from below that address comes from the function; one from above shows that
  // a panic of Go went past the frame.
  uintptr_t host_frame = 0;
  CUresult code = CUDA_SUCCESS;
  std::string why;
};
PerThread* per_thread();

// refuse notes why a call fails; cuGetErrorString of that code tells it.
CUresult refuse(CUresult code, const std::string& why);

// Call is the entry of a function that needs a context: it takes the lock and
// checks the thread, the context and its sticky error.
struct Call {
  Lock lock;
  Context* ctx = nullptr;
  CUresult bad = CUDA_SUCCESS;
  // unsafe_in_capture names the call when a capture forbids it.
  explicit Call(const char* unsafe_in_capture = nullptr);
};

// break_context makes an error sticky and reports it once.
void break_context(Context* c, CUresult code, const std::string& why);

// find_stream resolves a handle, 0 and 1 being the null stream.
std::shared_ptr<Stream> find_stream(Context* c, CUstream h);

// enqueue appends work to a stream or to its capture. In eager mode it runs
// before enqueue returns.
CUresult enqueue(Lock& lock, const std::shared_ptr<Stream>& s, Work run);
// drain runs, or waits for, everything up to an operation of s.
void drain(Lock& lock, const std::shared_ptr<Stream>& s, uint64_t upto);
void drain_context(Lock& lock, Context* c);
bool step(Lock& lock, const std::shared_ptr<Stream>& s);

CUresult context_of(CUcontext h, Context** c);
Work graph_work(std::shared_ptr<Graph> g);
void join_capture(const std::shared_ptr<Stream>& s, const Mark& m);

}  // namespace tdemu

#define TDEMU_ENTER(NAME, UNSAFE)  \
  ::tdemu::Call NAME(UNSAFE);      \
  if (NAME.bad) return NAME.bad
