// Grids: a pool of OS threads takes blocks; the launching thread takes part.
#include <signal.h>
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include "fiber.h"

namespace tdemu {

Order order_from_env() {
  const char* v = getenv("TANDEM_EMU_ORDER");
  if (!v || !*v || !strcmp(v, "forward")) return {};
  if (!strcmp(v, "reverse")) return {Order::reverse, 0};
  return {Order::random, strtoull(v, nullptr, 10) + 1};
}

struct Pool {
  std::mutex mu;
  std::condition_variable work, idle;
  std::deque<Job*> jobs;  // with blocks left to take
  int running = 0;        // workers inside some job
  int threads = 0;
  pid_t owner = 0;
};

// The pool is never destroyed: its threads run until the process ends.
static Pool& pool() {
  static Pool* p = new Pool;
  return *p;
}

static void take_blocks(Worker* w, Job* job) {
  w->order = order_from_env();
  for (;;) {
    uint64_t i = job->next.fetch_add(1);
    if (i >= job->blocks || job->failed.load(std::memory_order_relaxed)) return;
    run_block(w, job, w->order.kind == Order::reverse ? job->blocks - 1 - i : i);
  }
}

static void pool_thread() {
  Worker* w = this_worker();
  Pool& p = pool();
  std::unique_lock<std::mutex> lock(p.mu);
  for (;;) {
    p.work.wait(lock, [&] { return !p.jobs.empty(); });
    Job* job = p.jobs.front();
    p.jobs.pop_front();
    if (job->next.load() >= job->blocks) continue;
    // Others may join the same job.
    if (p.running + 1 < p.threads) p.jobs.push_back(job), p.work.notify_one();
    p.running++;
    job->helpers++;
    lock.unlock();
    take_blocks(w, job);
    lock.lock();
    p.running--;
    job->helpers--;
    p.idle.notify_all();
  }
}

static void start_threads(Pool& p) {
  if (p.owner == getpid()) return;
  p.owner = getpid();
  sigset_t all, old;
  sigfillset(&all);
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, s);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  unsigned n = std::max(1u, std::min(16u, std::thread::hardware_concurrency())) - 1;
  p.threads = static_cast<int>(n);
  for (unsigned i = 0; i < n; i++) std::thread(pool_thread).detach();
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

// run_pooled offers the job to the pool and returns when no thread is in it.
static void run_pooled(Worker* w, Job* job) {
  Pool& p = pool();
  std::unique_lock<std::mutex> lock(p.mu);
  start_threads(p);
  p.jobs.push_back(job);
  p.work.notify_one();
  lock.unlock();
  take_blocks(w, job);
  lock.lock();
  p.jobs.erase(std::remove(p.jobs.begin(), p.jobs.end(), job), p.jobs.end());
  p.idle.wait(lock, [&] { return job->helpers == 0; });
}

Code launch(const Kernel* k, dim3 grid, dim3 block, unsigned shared, void* const* params, std::string* text) {
  Job job;
  job.kernel = k, job.params = params;
  job.grid = grid, job.block = block, job.shared = shared;
  job.blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  Worker* w = this_worker();
  if (job.blocks == 1) {
    take_blocks(w, &job);  // waking the pool would cost more
  } else {
    run_pooled(w, &job);
  }
  if (job.failed.load()) *text = job.text;
  return job.code;
}

static std::vector<Kernel>& kernels() {
  static std::vector<Kernel> v;
  return v;
}
void table_add(Kernel k) { kernels().push_back(std::move(k)); }
const std::vector<Kernel>& table() { return kernels(); }
const Kernel* table_find(const char* name) {
  for (const Kernel& k : kernels())
    if (!strcmp(k.name, name)) return &k;
  return nullptr;
}

}  // namespace tdemu

static std::mutex last_mu;
static std::string last_text;

// tdemu_launch runs a kernel of the table to its end, outside of any driver
// state. Returns 0, a CUresult, or 500 for an unknown name; tdemu_error then
// has the text.
extern "C" int tdemu_launch(const char* name, const unsigned grid[3], const unsigned block[3], unsigned shared,
                            void** params) {
  const tdemu::Kernel* k = tdemu::table_find(name);
  std::string text = std::string("no kernel ") + name;
  uint64_t n = static_cast<uint64_t>(block[0]) * block[1] * block[2];
  int code = 500;
  if (k && (n == 0 || n > tdemu::kMaxThreads || shared > tdemu::kMaxShared || !grid[0] || !grid[1] || !grid[2])) {
    text = "launch of " + std::string(name) + ": invalid grid, block or shared memory size";
    code = 1;
  } else if (k) {
    code = tdemu::launch(k, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, params, &text);
  }
  std::lock_guard<std::mutex> lock(last_mu);
  if (code) last_text = text;
  return code;
}

// tdemu_error copies the text of the last failed tdemu_launch.
extern "C" void tdemu_error(char* to, size_t size) {
  std::lock_guard<std::mutex> lock(last_mu);
  snprintf(to, size, "%s", last_text.c_str());
}
