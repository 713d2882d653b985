// Fibers of one block: start, barrier, warp operations, deadlock, end.
#include "fiber.h"
#include <pthread.h>
#include <sys/mman.h>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace tdemu {

static thread_local Worker* tl_worker;

static uint64_t draw(Worker* w) {
  w->rng ^= w->rng << 13, w->rng ^= w->rng >> 7, w->rng ^= w->rng << 17;
  return w->rng;
}

// Stacks of threads that have ended, for others: a stack is two mappings, of which a
// process may have some ten thousand.
struct Idle {
  std::mutex mu;
  std::vector<char*> stacks;
};

static Idle& idle() {
  static auto* all = new Idle;
  return *all;
}

static char* new_stack() {
  {
    Idle& all = idle();
    std::lock_guard<std::mutex> lock(all.mu);
    if (!all.stacks.empty()) {
      char* p = all.stacks.back();
      all.stacks.pop_back();
      return p;
    }
  }
  auto* p = static_cast<char*>(mmap(nullptr, kStackSize + kStackGuard, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (p == MAP_FAILED) {
    perror("cuda emulator: no memory for fiber stacks");
    abort();
  }
  mprotect(p, kStackGuard, PROT_NONE);
  return p + kStackGuard;
}

static void fiber_entry();

static void give_stack(Worker* w, Fiber* f) {
  if (w->stacks.empty()) {
    f->stack = new_stack();
  } else {
    f->stack = w->stacks.back();
    w->stacks.pop_back();
  }
  context_init(f->ctx, f->stack, kStackSize, fiber_entry);
}

static void enqueue(Worker* w, unsigned thread) {
  w->ring[(w->head + w->count++) % kMaxThreads] = static_cast<uint16_t>(thread);
}

static std::string place(const Fiber& f) {
  char b[96];
  const Thread& t = f.pub;
  snprintf(b, sizeof b, "thread (%u,%u,%u)", t.tid.x, t.tid.y, t.tid.z);
  return b;
}

// leave abandons the block: the fibers are never resumed, their stacks are
// taken back by run_block.
[[noreturn]] static void leave(Worker* w, Code code, std::string text) {
  w->code = code;
  w->text = std::move(text);
  Saved dead;
  context_switch(dead, w->home);
  abort();
}

// deadlock lists the threads that still live, by the place they wait at.
static std::string deadlock_text(Worker* w) {
  std::string s = "deadlock:";
  std::vector<bool> seen(w->n);
  for (unsigned i = 0; i < w->n; i++) {
    if (seen[i] || w->fibers[i].state == State::done) continue;
    const Fiber& f = w->fibers[i];
    s += f.state == State::at_barrier ? " at barrier " : " at warp operation ";
    s += f.file;
    s += ":" + std::to_string(f.line) + " threads";
    for (unsigned k = i; k < w->n; k++) {
      const Fiber& g = w->fibers[k];
      if (g.state != f.state || g.line != f.line || g.file != f.file) continue;
      seen[k] = true;
      unsigned from = k;
      while (k + 1 < w->n && w->fibers[k + 1].state == f.state && w->fibers[k + 1].line == f.line) seen[++k] = true;
      s += " " + std::to_string(from) + (k > from ? "-" + std::to_string(k) : "");
    }
    s += ";";
  }
  return s;
}

static Fiber* pick(Worker* w) {
  if (!w->count) return nullptr;
  unsigned at = w->head % kMaxThreads;
  if (w->order.kind == Order::random && w->count > 1) {
    unsigned other = (w->head + draw(w) % w->count) % kMaxThreads;
    std::swap(w->ring[at], w->ring[other]);
  }
  w->head++, w->count--;
  return &w->fibers[w->ring[at]];
}

static void become(Worker* w, Fiber* f) {
  w->cur = f;
  f->state = State::ready;
  tdemu_self = &f->pub;
}

// block_here suspends the running fiber, which has set its state, and returns
// when it is scheduled again.
static void block_here(Worker* w) {
  Fiber* me = w->cur;
  Fiber* next = pick(w);
  if (!next) leave(w, launch_failed, deadlock_text(w));
  if (next == me) {
    become(w, me);
    return;
  }
  if (next->state == State::fresh) give_stack(w, next);
  become(w, next);
  context_switch(me->ctx, next->ctx);
}

static void release_barrier(Worker* w) {
  int v = w->votes;
  w->vote_result = w->vote == Vote::all ? v == static_cast<int>(w->live) : w->vote == Vote::any ? v != 0 : v;
  w->arrived = 0;
  w->votes = 0;
  bool back = w->order.kind == Order::reverse;
  for (unsigned k = 0; k < w->n; k++) {
    unsigned i = back ? w->n - 1 - k : k;
    if (w->fibers[i].state != State::at_barrier) continue;
    w->fibers[i].state = State::ready;
    enqueue(w, i);
  }
}

static void finish(Worker* w, Fiber* f) {
  f->state = State::done;
  w->live--;
  unsigned l = f->pub.linear, warp = l / 32;
  w->gone[warp] |= 1u << (l & 31);
  for (unsigned m = w->waiting[warp]; m; m &= m - 1) {
    const Fiber& g = w->fibers[warp * 32 + static_cast<unsigned>(__builtin_ctz(m))];
    if (g.mask >> (l & 31) & 1)
      leave(w, launch_failed, place(*f) + " exited while " + place(g) + " waits for it in a warp operation at " +
                                  g.file + ":" + std::to_string(g.line));
  }
  if (w->live && w->arrived == w->live) release_barrier(w);
}

// fiber_entry runs threads until no fresh one is next: a kernel without
// barriers stays on one hot stack and never switches.
static void fiber_entry() {
  Worker* w = tl_worker;
  for (;;) {
    Fiber* f = w->cur;
    w->job->kernel->call(w->job->params);
    finish(w, f);
    Fiber* next = pick(w);
    if (!next) {
      if (w->live) leave(w, launch_failed, deadlock_text(w));
      Saved dead;
      w->stacks.push_back(f->stack);
      f->stack = nullptr;
      context_switch(dead, w->home);
    }
    if (next->state == State::fresh) {
      next->stack = f->stack;
      f->stack = nullptr;
      become(w, next);
      continue;
    }
    w->stacks.push_back(f->stack);
    f->stack = nullptr;
    become(w, next);
    Saved dead;
    context_switch(dead, next->ctx);
  }
}

int barrier(Vote v, int pred, const char* file, int line) {
  Worker* w = tl_worker;
  Fiber* me = w->cur;
  me->file = file, me->line = line;
  if (w->arrived == 0) {
    w->bar_file = file, w->bar_line = line, w->vote = v;
  } else if (line != w->bar_line || file != w->bar_file || v != w->vote) {
    leave(w, launch_failed, "divergent barrier: " + place(*me) + " is at " + file + ":" + std::to_string(line) +
                                ", others are at " + w->bar_file + ":" + std::to_string(w->bar_line));
  }
  w->votes += pred != 0;
  me->state = State::at_barrier;
  if (++w->arrived == w->live) release_barrier(w);
  block_here(w);
  return w->vote_result;
}

// check_lanes compares the caller's operation with those of the given lanes,
// which wait. One is enough at arrival; the last one to arrive compares all.
static const char* check_lanes(Worker* w, const Fiber& me, unsigned lanes) {
  unsigned base = me.pub.linear & ~31u;
  for (; lanes; lanes &= lanes - 1) {
    const Fiber& g = w->fibers[base + static_cast<unsigned>(__builtin_ctz(lanes))];
    if (g.mask != me.mask) return "lanes disagree on the mask of a warp operation";
    if (g.fn != me.fn) return "lanes of one mask are in different warp operations";
  }
  return nullptr;
}

// check_arrival says what is wrong with an operation as its caller arrives.
static const char* check_arrival(Worker* w, const Fiber& me, unsigned others) {
  unsigned warp = me.pub.linear / 32, gone = w->gone[warp] & me.mask;
  if (!(me.mask >> (me.pub.linear & 31) & 1)) return "the caller's lane is not in the mask of a warp operation";
  if (gone) {
    unsigned i = warp * 32 + static_cast<unsigned>(__builtin_ctz(gone));
    return i < w->n ? "the mask names a lane that has exited" : "the mask names a lane that the block does not have";
  }
  return check_lanes(w, me, (others | (1u << (me.pub.linear & 31))) == me.mask ? others : others & -others);
}

void warp_op(unsigned mask, WarpFn fn, void* rec, const char* file, int line) {
  Worker* w = tl_worker;
  Fiber* me = w->cur;
  unsigned lin = me->pub.linear, base = lin & ~31u, lane = lin & 31, warp = lin / 32;
  me->file = file, me->line = line;
  me->mask = mask, me->fn = fn;
  me->state = State::in_warp_op;
  w->rec[lin] = rec;
  unsigned others = w->waiting[warp] & mask & ~(1u << lane);
  if (const char* what = check_arrival(w, *me, others)) {
    char m[24];
    snprintf(m, sizeof m, " (mask 0x%08x)", mask);
    leave(w, launch_failed, place(*me) + ": " + what + m + " at " + file + ":" + std::to_string(line));
  }
  if ((others | 1u << lane) != mask) {
    w->waiting[warp] |= 1u << lane;
    block_here(w);
    return;
  }
  w->waiting[warp] &= ~mask;
  void* recs[32] = {};
  for (unsigned m = mask; m; m &= m - 1) {
    unsigned l = static_cast<unsigned>(__builtin_ctz(m));
    recs[l] = w->rec[base + l];
  }
  fn(recs, mask);
  bool back = w->order.kind == Order::reverse;
  for (unsigned m = mask; m;) {
    unsigned l = back ? 31 - static_cast<unsigned>(__builtin_clz(m)) : static_cast<unsigned>(__builtin_ctz(m));
    m &= ~(1u << l);
    w->fibers[base + l].state = State::ready;
    enqueue(w, base + l);
  }
  block_here(w);
}

void yield(const char* file, int line) {
  Worker* w = tl_worker;
  w->cur->file = file, w->cur->line = line;
  enqueue(w, w->cur->pub.linear);
  block_here(w);
}

void fail(const char* what, const char* file, int line) {
  Worker* w = tl_worker;
  if (!file) file = w->cur->file, line = w->cur->line;
  leave(w, assertion, place(*w->cur) + ": " + what + " at " + file + ":" + std::to_string(line));
}

void async_copy(void* to, const void* from, unsigned bytes, unsigned valid) {
  Fiber* f = tl_worker->cur;
  if (reinterpret_cast<uintptr_t>(to) % bytes || (valid && reinterpret_cast<uintptr_t>(from) % bytes))
    fail("an asynchronous copy is not aligned to its size", "cp.async", static_cast<int>(bytes));
  f->copies.push_back({to, from, bytes, valid, f->group});
}

void async_commit() { tl_worker->cur->group++; }

void async_wait(unsigned pending) {
  Fiber* f = tl_worker->cur;
  size_t i = 0;
  for (; i < f->copies.size() && f->copies[i].group + pending < f->group; i++) {
    const AsyncCopy& c = f->copies[i];
    memcpy(c.to, c.from, c.valid);
    memset(static_cast<char*>(c.to) + c.valid, 0, c.bytes - c.valid);
  }
  f->copies.erase(f->copies.begin(), f->copies.begin() + static_cast<long>(i));
}

// leave_thread ends the worker of a thread that ends, and keeps its stacks.
static void leave_thread(void* ended) {
  auto* w = static_cast<Worker*>(ended);
  Idle& all = idle();
  std::lock_guard<std::mutex> lock(all.mu);
  all.stacks.insert(all.stacks.end(), w->stacks.begin(), w->stacks.end());
  delete[] w->fibers;
  delete w;
}

Worker* this_worker() {
  if (tl_worker) return tl_worker;
  static pthread_key_t key = [] {
    pthread_key_t made;
    if (pthread_key_create(&made, leave_thread)) abort();
    return made;
  }();
  tl_worker = new Worker;
  pthread_setspecific(key, tl_worker);
  return tl_worker;
}

void worker_restore(Worker* w) {
  tl_worker = w;
  tdemu_self = nullptr;
}

// seed_block puts all threads into the ring in the order of the run.
static void seed_block(Worker* w, Job* job, uint64_t index) {
  w->head = w->count = 0;
  w->rng = w->order.seed * 0x9e3779b97f4a7c15u + index * 0xd1342543de82ef95u + 1;
  for (unsigned i = 0; i < w->n; i++) enqueue(w, w->order.kind == Order::reverse ? w->n - 1 - i : i);
  if (job->block.x == w->shape.x && job->block.y == w->shape.y && job->block.z == w->shape.z) return;
  w->shape = job->block;
  for (unsigned i = 0; i < w->n; i++) {
    unsigned x = job->block.x, y = job->block.y;
    w->fibers[i].pub = {{i % x, i / x % y, i / x / y}, i, &w->blk};
  }
}

void block_fibers(Worker* w, Job* job, uint64_t index) {
  if (!w->fibers) w->fibers = new Fiber[kMaxThreads]();
  w->job = job;
  w->n = w->live = job->block.x * job->block.y * job->block.z;
  w->arrived = 0, w->votes = 0;
  w->code = ok;
  w->fault_signal = 0;
  for (unsigned i = 0; i < kMaxThreads / 32; i++) {
    w->waiting[i] = 0;
    w->gone[i] = w->n >= 32 * i + 32 ? 0 : w->n <= 32 * i ? ~0u : ~0u << (w->n - 32 * i);
  }
  w->blk.bdim = job->block, w->blk.gdim = job->grid;
  w->blk.bid = {static_cast<unsigned>(index % job->grid.x), static_cast<unsigned>(index / job->grid.x % job->grid.y),
                static_cast<unsigned>(index / job->grid.x / job->grid.y)};
  for (unsigned i = 0; i < w->n; i++) {
    w->fibers[i].state = State::fresh;
    w->fibers[i].group = 0;
    if (!w->fibers[i].copies.empty()) w->fibers[i].copies.clear();
  }
  seed_block(w, job, index);
  Fiber* first = pick(w);
  give_stack(w, first);
  become(w, first);
  w->in_kernel = true;
  context_switch(w->home, first->ctx);
  w->in_kernel = false;
  tdemu_self = nullptr;
  for (unsigned i = 0; i < w->n; i++) {
    if (!w->fibers[i].stack) continue;  // abandoned
    w->stacks.push_back(w->fibers[i].stack);
    w->fibers[i].stack = nullptr;
  }
}

}  // namespace tdemu

thread_local tdemu::Thread* tdemu_self;
