// The fake NCCL: ranks of one machine, in threads or processes, exchange over
// a shared memory file. Operations run in stream order; each must be called by
// its rank's own thread, as an operation waits for the other ranks.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "hook.h"

namespace {

enum Result { success, unhandled_cuda, system_error, internal_error, invalid_argument, invalid_usage, remote_error, in_progress };
enum Kind { all_reduce, all_gather, reduce_scatter, broadcast };
constexpr const char* kind_names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast"};
constexpr int kRanks = 8;
constexpr size_t kChunk = 256 << 10, kMail = 64 << 10;

struct Id {
  char name[128];
};

struct Mail {  // one chunk from one rank to another
  std::atomic<int> full;
  size_t size;
  char data[kMail];
};

struct Slot {
  int device;
  uint64_t kind, count, type;  // what the rank believes to do
  char data[kChunk];
};

struct Shared {
  std::atomic<int> joined, aborted, arrived;
  std::atomic<uint32_t> generation;
  Slot slots[kRanks];
  Mail mail[kRanks][kRanks];
};

struct Comm {
  Shared* s = nullptr;
  int n = 0, rank = 0, device = 0;
  std::string name;
  std::atomic<int> async{success};
  std::atomic<bool> aborted{false};
  bool joining = false;  // without blocking, until somebody asks and all are there
};

struct Collective {
  Comm* c;
  Kind kind;
  const char* send;
  char* recv;
  size_t count;
  int type, op, root;
};

struct Transfer {
  char* buf;
  size_t bytes, done;
  int peer;
  bool send;
};
struct Transfers {
  Comm* c;
  std::vector<Transfer> all;
};

thread_local std::string last_error;
Result refuse(Result r, const std::string& why) { return last_error = why, r; }

std::chrono::milliseconds patience() {
  const char* v = getenv("TANDEM_EMU_NCCL_TIMEOUT_MS");
  return std::chrono::milliseconds(v ? atoi(v) : 60000);
}

// wait_for polls; false: the group was aborted, or the peers did not come.
template <class F>
bool wait_for(Comm* c, F done) {
  auto until = std::chrono::steady_clock::now() + patience();
  for (int i = 0; !done(); i++) {
    if (c->aborted) return false;
    if (c->s->aborted || (i % 1024 == 1023 && std::chrono::steady_clock::now() > until)) {
      c->async = remote_error;
      c->s->aborted = 1;
      return false;
    }
    if (i < 100) sched_yield();
    else usleep(50);
  }
  return true;
}

bool meet(Comm* c) {
  Shared* s = c->s;
  uint32_t g = s->generation.load();
  if (s->arrived.fetch_add(1) + 1 == c->n) {
    s->arrived = 0;
    s->generation.fetch_add(1);
    return true;
  }
  return wait_for(c, [&] { return s->generation.load() != g; });
}

size_t type_size(int t) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return t >= 0 && t < 10 ? sizes[t] : 0;
}

template <class T, class A, class Load, class Store>
void fold(Comm* c, char* out, size_t n, int op, Load load, Store store) {
  for (size_t i = 0; i < n; i++) {
    A acc{};
    for (int r = 0; r < c->n; r++) {
      A v = load(reinterpret_cast<const T*>(c->s->slots[r].data)[i]);
      acc = r == 0 ? v : op == 1 ? acc * v : op == 2 ? std::max(acc, v) : op == 3 ? std::min(acc, v) : acc + v;
    }
    if (op == 4) acc = acc / static_cast<A>(c->n);
    reinterpret_cast<T*>(out)[i] = store(acc);
  }
}

template <class T>
void fold_plain(Comm* c, char* out, size_t n, int op) {
  fold<T, T>(c, out, n, op, [](T v) { return v; }, [](T v) { return v; });
}

// reduce folds what lies in the slots, in the order of the ranks, so that all
// ranks see the same bits.
void reduce(Comm* c, char* out, size_t bytes, int type, int op) {
  size_t n = bytes / type_size(type);
  switch (type) {
    case 0: return fold_plain<int8_t>(c, out, n, op);
    case 1: return fold_plain<uint8_t>(c, out, n, op);
    case 2: return fold_plain<int32_t>(c, out, n, op);
    case 3: return fold_plain<uint32_t>(c, out, n, op);
    case 4: return fold_plain<int64_t>(c, out, n, op);
    case 5: return fold_plain<uint64_t>(c, out, n, op);
    case 6: return fold<uint16_t, float>(c, out, n, op, tdemu_half_to_float, tdemu_float_to_half);
    case 7: return fold_plain<float>(c, out, n, op);
    case 8: return fold_plain<double>(c, out, n, op);
    default: return fold<uint16_t, float>(c, out, n, op, tdemu_bf16_to_float, tdemu_float_to_bf16);
  }
}

// agree makes sure that all ranks do the same operation.
bool agree(const Collective& x, char* why, size_t size) {
  Comm* c = x.c;
  for (int r = 0; r < c->n; r++) {
    const Slot& o = c->s->slots[r];
    if (o.kind == static_cast<uint64_t>(x.kind) && o.count == x.count && o.type == static_cast<uint64_t>(x.type)) continue;
    snprintf(why, size, "rank %d calls %s of %zu elements of type %d, rank %d calls %s of %zu elements of type %d", c->rank,
             kind_names[x.kind], x.count, x.type, r, kind_names[o.kind], (size_t)o.count, (int)o.type);
    return false;
  }
  return true;
}

// exchange moves one operation's data in chunks. piece(off) is where this
// rank's bytes of a chunk lie, take(off, n) uses the slots.
template <class Piece, class Take>
bool exchange(Comm* c, size_t bytes, Piece piece, Take take) {
  for (size_t off = 0; off < bytes; off += kChunk) {
    size_t n = std::min(kChunk, bytes - off);
    if (const char* from = piece(off)) memcpy(c->s->slots[c->rank].data, from, n);
    if (!meet(c)) return false;
    take(off, n);
    if (!meet(c)) return false;
  }
  return true;
}

void run_collective(const Collective& x) {
  Comm* c = x.c;
  size_t bytes = x.count * type_size(x.type);
  auto own = [&](size_t off) { return x.send + off; };
  switch (x.kind) {
    case all_reduce:
      exchange(c, bytes, own, [&](size_t off, size_t n) { reduce(c, x.recv + off, n, x.type, x.op); });
      return;
    case all_gather:
      exchange(c, bytes, own, [&](size_t off, size_t n) {
        for (int r = 0; r < c->n; r++) memcpy(x.recv + static_cast<size_t>(r) * bytes + off, c->s->slots[r].data, n);
      });
      return;
    case reduce_scatter:
      for (int t = 0; t < c->n; t++) {
        const char* part = x.send + static_cast<size_t>(t) * bytes;
        bool fine = exchange(c, bytes, [&](size_t off) { return part + off; }, [&](size_t off, size_t n) {
          if (t == c->rank) reduce(c, x.recv + off, n, x.type, x.op);
        });
        if (!fine) return;
      }
      return;
    case broadcast:
      exchange(
          c, bytes, [&](size_t off) { return c->rank == x.root ? x.send + off : nullptr; },
          [&](size_t off, size_t n) { memcpy(x.recv + off, c->s->slots[x.root].data, n); });
  }
}

// buffers checks that the memory is still there.
bool buffers(const Collective& x, char* why, size_t size) {
  size_t bytes = x.count * type_size(x.type), n = static_cast<size_t>(x.c->n);
  size_t send = x.kind == reduce_scatter ? bytes * n : bytes, recv = x.kind == all_gather ? bytes * n : bytes;
  bool reads = x.kind != broadcast || x.c->rank == x.root;
  return (!reads || !tdemu_range(reinterpret_cast<CUdeviceptr>(x.send), send, why, size)) &&
         !tdemu_range(reinterpret_cast<CUdeviceptr>(x.recv), recv, why, size);
}

int collective(void* data, char* why, size_t size) {
  auto& x = *static_cast<Collective*>(data);
  Comm* c = x.c;
  if (!x.count) return CUDA_SUCCESS;
  if (!buffers(x, why, size)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  Slot& mine = c->s->slots[c->rank];
  mine.kind = x.kind, mine.count = x.count, mine.type = static_cast<uint64_t>(x.type);
  if (!meet(c)) return CUDA_SUCCESS;  // the error is the communicator's
  if (!agree(x, why, size)) return CUDA_ERROR_LAUNCH_FAILED;
  run_collective(x);
  return CUDA_SUCCESS;
}

// transfers runs sends and receives of one group side by side.
int transfers(void* data, char* why, size_t size) {
  auto& x = *static_cast<Transfers*>(data);
  Comm* c = x.c;
  for (Transfer& t : x.all) {
    if (t.bytes && tdemu_range(reinterpret_cast<CUdeviceptr>(t.buf), t.bytes, why, size)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    t.done = 0;  // a graph runs it again
  }
  wait_for(c, [&] {
    bool all = true;
    for (Transfer& t : x.all) {
      Mail& m = t.send ? c->s->mail[c->rank][t.peer] : c->s->mail[t.peer][c->rank];
      if (t.done < t.bytes && m.full.load() == !t.send) {
        size_t n = t.send ? std::min(kMail, t.bytes - t.done) : std::min(m.size, t.bytes - t.done);
        if (t.send) memcpy(m.data, t.buf + t.done, m.size = n);
        else memcpy(t.buf + t.done, m.data, n);
        t.done += n;
        m.full = t.send;
      }
      all = all && t.done == t.bytes;
    }
    return all;
  });
  return CUDA_SUCCESS;
}

// Group is what a thread calls between GroupStart and GroupEnd.
struct Group {
  int depth = 0;
  std::vector<std::pair<CUstream, Transfers>> transfers;
  std::vector<std::pair<CUstream, Collective>> collectives;
  std::vector<Comm*> joining;
};
thread_local Group group;

Result queued(CUresult r) {
  if (!r) return success;
  const char* s = "";
  cuGetErrorString(r, &s);
  return refuse(unhandled_cuda, s);
}

Result queue(CUstream s, const Collective& x) {
  return queued(tdemu_enqueue(s, collective, new Collective(x), [](void* p) { delete static_cast<Collective*>(p); }));
}

Result call(Kind kind, const void* send, void* recv, size_t count, int type, int op, int root, void* comm, void* stream) {
  auto* c = static_cast<Comm*>(comm);
  if (!c || !type_size(type) || op < 0 || op > 4 || root < 0 || root >= c->n)
    return refuse(invalid_argument, "unknown type, operation or rank");
  CUdevice dev;
  if (cuCtxGetDevice(&dev) || dev != c->device)
    return refuse(invalid_argument, "the thread's current device is not that of the communicator");
  Collective x{c, kind, static_cast<const char*>(send), static_cast<char*>(recv), count, type, op, root};
  if (group.depth) return group.collectives.push_back({static_cast<CUstream>(stream), x}), success;
  return queue(static_cast<CUstream>(stream), x);
}

Result point(void* buf, size_t count, int type, int peer, void* comm, void* stream, bool send);

Result join(Comm* c) {
  Shared* s = c->s;
  const bool all = wait_for(c, [&] { return s->joined.load() >= c->n; });
  shm_unlink(c->name.c_str());
  if (!all) return refuse(remote_error, "a rank did not join");
  for (int r = 0; r < c->n; r++)
    if (r != c->rank && s->slots[r].device == c->device)
      return refuse(invalid_usage, "ranks " + std::to_string(std::min(r, c->rank)) + " and " +
                                       std::to_string(std::max(r, c->rank)) + " use the same device " +
                                       std::to_string(c->device));
  return success;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* v) { return *v = 22700, success; }

int ncclGetUniqueId(Id* id) {
  std::random_device rd;
  memset(id, 0, sizeof *id);
  snprintf(id->name, sizeof id->name, "/cuda-emu-nccl-%d-%08x%08x", getpid(), rd(), rd());
  return success;
}

int ncclCommInitRank(void** comm, int n, Id id, int rank) {
  if (n < 1 || n > kRanks || rank < 0 || rank >= n || strncmp(id.name, "/cuda-emu-nccl-", 15))
    return refuse(invalid_argument, "bad number of ranks, rank or id");
  CUdevice dev;
  if (cuCtxGetDevice(&dev)) return refuse(unhandled_cuda, "the thread has no current context");
  int fd = shm_open(id.name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared))) return refuse(system_error, "shared memory cannot be opened");
  void* p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return refuse(system_error, "shared memory cannot be mapped");
  auto* c = new Comm;
  c->s = static_cast<Shared*>(p);
  c->n = n, c->rank = rank, c->device = dev, c->name = id.name;
  c->s->slots[rank].device = dev;
  c->s->joined.fetch_add(1);
  *comm = c;
  if (group.depth) return group.joining.push_back(c), success;
  return join(c);
}

// Of the configuration only whether the call blocks is looked at.
int ncclCommInitRankConfig(void** comm, int n, Id id, int rank, void* config) {
  struct {
    size_t size;
    unsigned magic, version;
    int blocking;
  } given;
  memcpy(&given, config, sizeof given);
  if (given.magic != 0xcafebeef || given.size < sizeof given) return refuse(invalid_argument, "no configuration");
  if (given.blocking) return ncclCommInitRank(comm, n, id, rank);
  group.depth++;
  int r = ncclCommInitRank(comm, n, id, rank);
  group.depth--;
  if (r) return r;
  group.joining.pop_back();
  static_cast<Comm*>(*comm)->joining = true;
  return in_progress;
}

int ncclCommDestroy(void* comm) {
  auto* c = static_cast<Comm*>(comm);
  munmap(c->s, sizeof(Shared));
  delete c;
  return success;
}
int ncclCommFinalize(void*) { return success; }
// After an abort queued operations end without effect. The communicator stays
// in memory, because they still point to it.
int ncclCommAbort(void* comm) {
  auto* c = static_cast<Comm*>(comm);
  c->aborted = true;
  c->s->aborted = 1;
  shm_unlink(c->name.c_str());  // still there if it was joining
  return success;
}
int ncclCommGetAsyncError(void* comm, int* r) {
  auto* c = static_cast<Comm*>(comm);
  if (c->s->aborted && !c->aborted) c->async = remote_error;
  if (c->joining && !c->async) {
    if (c->s->joined < c->n) return *r = in_progress, success;
    c->joining = false;
    c->async = join(c);
  }
  return *r = c->async, success;
}
int ncclCommCount(void* c, int* n) { return *n = static_cast<Comm*>(c)->n, success; }
int ncclCommUserRank(void* c, int* n) { return *n = static_cast<Comm*>(c)->rank, success; }
int ncclCommCuDevice(void* c, int* n) { return *n = static_cast<Comm*>(c)->device, success; }

int ncclAllReduce(const void* s, void* r, size_t n, int type, int op, void* c, void* stream) {
  return call(all_reduce, s, r, n, type, op, 0, c, stream);
}
int ncclAllGather(const void* s, void* r, size_t n, int type, void* c, void* stream) {
  return call(all_gather, s, r, n, type, 0, 0, c, stream);
}
int ncclReduceScatter(const void* s, void* r, size_t n, int type, int op, void* c, void* stream) {
  return call(reduce_scatter, s, r, n, type, op, 0, c, stream);
}
int ncclBroadcast(const void* s, void* r, size_t n, int type, int root, void* c, void* stream) {
  return call(broadcast, s, r, n, type, 0, root, c, stream);
}
int ncclSend(const void* b, size_t n, int type, int peer, void* c, void* stream) {
  return point(const_cast<void*>(b), n, type, peer, c, stream, true);
}
int ncclRecv(void* b, size_t n, int type, int peer, void* c, void* stream) {
  return point(b, n, type, peer, c, stream, false);
}

int ncclGroupStart() { return group.depth++, success; }
int ncclGroupEnd() {
  if (!group.depth) return refuse(invalid_usage, "no group was started");
  if (--group.depth) return success;
  Group g;
  std::swap(g, group);
  int r = success;
  for (Comm* c : g.joining)
    if (!r) r = join(c);
  for (auto& x : g.collectives)
    if (!r) r = queue(x.first, x.second);
  for (auto& x : g.transfers)
    if (!r)
      r = queued(tdemu_enqueue(x.first, transfers, new Transfers(x.second), [](void* p) { delete static_cast<Transfers*>(p); }));
  return r;
}

const char* ncclGetErrorString(int r) {
  static const char* const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                      "invalid argument", "invalid usage", "remote process exited or there was a network error"};
  return r >= 0 && r <= remote_error ? texts[r] : "unknown result code";
}
const char* ncclGetLastError(void*) { return last_error.c_str(); }

}  // extern "C"

namespace {

// point queues one transfer, in a group together with the others of the stream.
Result point(void* buf, size_t count, int type, int peer, void* comm, void* stream, bool send) {
  auto* c = static_cast<Comm*>(comm);
  if (!c || !type_size(type) || peer < 0 || peer >= c->n) return refuse(invalid_argument, "unknown type or rank");
  Transfer t{static_cast<char*>(buf), count * type_size(type), 0, peer, send};
  auto* s = static_cast<CUstream>(stream);
  ncclGroupStart();
  auto at = std::find_if(group.transfers.begin(), group.transfers.end(),
                         [&](auto& x) { return x.first == s && x.second.c == c; });
  if (at == group.transfers.end()) at = group.transfers.insert(at, {s, Transfers{c, {}}});
  at->second.all.push_back(t);
  return static_cast<Result>(ncclGroupEnd());
}

}  // namespace
