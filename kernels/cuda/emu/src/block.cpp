// One block from outside: shared memory before and after, faults, reports.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include "fiber.h"

// The one dynamic shared array of all kernels. It and every static __shared__
// variable are thread-local, so each worker has its own.
alignas(1024) thread_local unsigned char dyn_smem[tdemu::kMaxShared + tdemu::kCanary];

namespace tdemu {

void worker_restore(Worker* w);
void block_fibers(Worker* w, Job* job, uint64_t index);

std::string (*describe_address)(uintptr_t) = nullptr;

static pthread_key_t worker_key;
static std::once_flag key_once;

// find_tls notes where this library's thread-local block of the calling thread lies.
static void find_tls(Worker* w) {
  dyn_smem[0] = 0;  // allocates the block
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* arg) {
        auto* w = static_cast<Worker*>(arg);
        for (int i = 0; i < info->dlpi_phnum; i++) {
          const auto& ph = info->dlpi_phdr[i];
          auto* data = static_cast<char*>(info->dlpi_tls_data);
          auto* mine = reinterpret_cast<char*>(dyn_smem);
          if (ph.p_type == PT_TLS && data && mine >= data && mine < data + ph.p_memsz)
            w->tls_low = data, w->tls_high = data + ph.p_memsz;
        }
        return 0;
      },
      w);
  if (!w->tls_low) {
    fprintf(stderr, "cuda emulator: cannot find its thread-local storage\n");
    abort();
  }
}

// poison_shared fills shared memory with NaN patterns. The runtime's own
// thread-local variables lie in the same block and are put back.
static void poison_shared(Worker* w, unsigned shared) {
  auto* dyn = reinterpret_cast<char*>(dyn_smem);
  char *low = w->tls_low, *high = w->tls_high;
  memset(low, 0xff, static_cast<size_t>(dyn - low));
  memset(dyn, 0xff, shared);
  memset(dyn + shared, 0xfe, kCanary);
  char* after = dyn + sizeof dyn_smem;
  memset(after, 0xff, static_cast<size_t>(high - after));
  worker_restore(w);
}

static bool canary_broken(unsigned shared, unsigned* at) {
  for (unsigned i = 0; i < kCanary; i++)
    if (dyn_smem[shared + i] != 0xfe) return *at = shared + i, true;
  return false;
}

static std::string fault_text(Worker* w) {
  char b[160];
  const Thread& t = w->cur->pub;
  const char* what = w->fault_signal == SIGFPE   ? "integer division by zero"
                     : w->fault_signal == SIGILL ? "an invalid instruction"
                                                 : "an illegal memory access";
  snprintf(b, sizeof b, "thread (%u,%u,%u): %s", t.tid.x, t.tid.y, t.tid.z, what);
  std::string s = b;
  if (w->fault_signal != SIGSEGV && w->fault_signal != SIGBUS) return s;
  snprintf(b, sizeof b, " at 0x%zx", static_cast<size_t>(w->fault_addr));
  s += b;
  auto low = reinterpret_cast<uintptr_t>(w->fault_stack);
  if (w->fault_addr < low && w->fault_addr >= low - kStackGuard) return s + " (the thread's local memory is used up)";
  if (describe_address) s += describe_address(w->fault_addr);
  return s;
}

static void report(Worker* w, Job* job, Code code, const std::string& text) {
  static std::mutex mu;
  std::lock_guard<std::mutex> lock(mu);
  if (job->failed.load()) return;
  const uint3& b = w->blk.bid;
  job->code = code;
  job->text = std::string("kernel ") + job->kernel->name + ", block (" + std::to_string(b.x) + "," +
              std::to_string(b.y) + "," + std::to_string(b.z) + "), " + text;
  job->failed.store(true);
}

void run_block(Worker* w, Job* job, uint64_t index) {
  if (!w->tls_low) {
    find_tls(w);
    std::call_once(key_once, [] { pthread_key_create(&worker_key, nullptr); });
    pthread_setspecific(worker_key, w);
    install_fault_handler();
  }
  poison_shared(w, job->shared);
  block_fibers(w, job, index);
  if (w->fault_signal) {
    bool memory = w->fault_signal == SIGSEGV || w->fault_signal == SIGBUS;
    report(w, job, memory ? illegal_address : launch_failed, fault_text(w));
  } else if (w->code != ok) {
    report(w, job, w->code, w->text);
  }
  unsigned at = 0;
  if (canary_broken(job->shared, &at))
    report(w, job, launch_failed, "wrote behind its dynamic shared memory of " + std::to_string(job->shared) +
                                      " bytes, at offset " + std::to_string(at));
}

static struct sigaction before[65];

// on_fault sends a fault inside a kernel home to its worker and hands every
// other one to the handler that was there before (Go's, which makes panics).
static void on_fault(int sig, siginfo_t* info, void* ctx) {
  auto* w = static_cast<Worker*>(pthread_getspecific(worker_key));
  if (w && w->in_kernel) {
    w->fault_signal = sig;
    w->fault_stack = w->cur->stack;
    w->fault_addr = reinterpret_cast<uintptr_t>(info->si_addr);
    w->in_kernel = false;
    context_escape(static_cast<ucontext_t*>(ctx), w->home);
    return;
  }
  const struct sigaction& old = before[sig];
  if (old.sa_flags & SA_SIGINFO) return old.sa_sigaction(sig, info, ctx);
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(sig);
  signal(sig, SIG_DFL);  // the instruction faults again and ends the process
}

// install_fault_handler makes sure that faults on this thread arrive on an
// alternate stack: the fault may be an overflow of the fiber's stack. Threads
// of Go have one already.
void install_fault_handler() {
  stack_t have;
  if (sigaltstack(nullptr, &have) == 0 && (have.ss_flags & SS_DISABLE)) {
    stack_t st{};
    st.ss_size = 64 << 10;
    st.ss_sp = malloc(st.ss_size);  // lives as long as the thread, of which there are few
    sigaltstack(&st, nullptr);
  }
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction sa {};
    sa.sa_sigaction = on_fault;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int sig : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(sig, &sa, &before[sig]);
  });
}

}  // namespace tdemu
