#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// A thread spins this long before it sleeps, and never less than the minimum
// once its waits keep outlasting it (another process has the core).
enum { SPIN_MAX_NS = 40000, SPIN_MIN_NS = 2000 };

// gate is a counter that threads wait on to change.
typedef struct {
	_Alignas(64) atomic_uint value;
	_Alignas(64) atomic_int sleepers;
#if !defined(__linux__)
	pthread_mutex_t mutex;
	pthread_cond_t cond;
#endif
} gate;

typedef struct {
	_Alignas(64) atomic_int next; // items claimed of this worker's share
	int64_t spin_ns;              // written by its worker only
} seat;

typedef struct {
	tm_pool *pool;
	int worker;
} start_arg;

struct tm_pool {
	int threads;
	int crowded; // fewer processors than threads: sleep at once
	gate start;  // run counter
	gate phase;  // barrier counter
	_Alignas(64) atomic_int arrived;
	atomic_int stop;
	void (*fn)(void *ctx, int worker);
	void *ctx;
	seat *seats;
	pthread_t *ids;
	start_arg *args;
	int pinned, home; // the processor of worker 0
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// gate_sleep blocks while the value is still old. Spurious returns are allowed.
static void gate_sleep(gate *g, unsigned old)
{
	atomic_fetch_add(&g->sleepers, 1);
#if defined(__linux__)
	if (atomic_load(&g->value) == old) syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
#else
	pthread_mutex_lock(&g->mutex);
	while (atomic_load(&g->value) == old) pthread_cond_wait(&g->cond, &g->mutex);
	pthread_mutex_unlock(&g->mutex);
#endif
	atomic_fetch_sub(&g->sleepers, 1);
}

// gate_advance adds one and wakes the sleepers. A sleeper counts itself before
// it looks at the value, so one of the two sees the other.
static void gate_advance(gate *g)
{
#if defined(__linux__)
	atomic_fetch_add(&g->value, 1);
	if (atomic_load(&g->sleepers) > 0) syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
	pthread_mutex_lock(&g->mutex);
	atomic_fetch_add(&g->value, 1);
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->mutex);
#endif
}

// gate_wait returns when the value is no longer old. The spin shrinks while it
// is in vain and grows back when it pays.
static void gate_wait(tm_pool *p, gate *g, unsigned old, seat *s)
{
	if (!p->crowded) {
		int64_t end = 0;
		for (int i = 1; atomic_load_explicit(&g->value, memory_order_acquire) == old; i++) {
			relax();
			if (i % 16) continue;
			const int64_t t = now_ns();
			if (!end) end = t + s->spin_ns;
			if (t >= end) break;
		}
		if (atomic_load_explicit(&g->value, memory_order_acquire) != old) {
			s->spin_ns = s->spin_ns * 2 > SPIN_MAX_NS ? SPIN_MAX_NS : s->spin_ns * 2;
			return;
		}
		s->spin_ns = s->spin_ns / 2 < SPIN_MIN_NS ? SPIN_MIN_NS : s->spin_ns / 2;
	}
	while (atomic_load_explicit(&g->value, memory_order_acquire) == old) gate_sleep(g, old);
}

static int gate_init(gate *g)
{
	atomic_init(&g->value, 0);
	atomic_init(&g->sleepers, 0);
#if !defined(__linux__)
	if (pthread_mutex_init(&g->mutex, NULL)) return -1;
	if (pthread_cond_init(&g->cond, NULL)) return -1;
#endif
	return 0;
}

// Denormals are flushed to zero: they make the same kernel several times slower.
static uint64_t flush_denormals(void)
{
#if defined(__x86_64__)
	const unsigned old = __builtin_ia32_stmxcsr();
	__builtin_ia32_ldmxcsr(old | 0x8040u);
	return old;
#elif defined(__aarch64__)
	uint64_t old;
	__asm__ volatile("mrs %0, fpcr" : "=r"(old));
	__asm__ volatile("msr fpcr, %0" ::"r"(old | (1u << 24)));
	return old;
#else
	return 0;
#endif
}

static void restore_denormals(uint64_t old)
{
#if defined(__x86_64__)
	__builtin_ia32_ldmxcsr((unsigned)old);
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" ::"r"(old));
#else
	(void)old;
#endif
}

static void *worker_main(void *arg)
{
	tm_pool *p = ((start_arg *)arg)->pool;
	const int worker = ((start_arg *)arg)->worker;
	flush_denormals();
	for (unsigned seen = 0;; seen++) {
		gate_wait(p, &p->start, seen, &p->seats[worker]);
		if (atomic_load(&p->stop)) return NULL;
		p->fn(p->ctx, worker);
		tm_pool_barrier(p, worker);
	}
}

static int processors(void)
{
#if defined(__linux__)
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
	return INT32_MAX;
}

// Binds a thread to a processor. Other systems than Linux have no such call.
static int pin(pthread_t id, int cpu)
{
#if defined(__linux__)
	cpu_set_t set;
	CPU_ZERO(&set);
	if (cpu < 0 || cpu >= CPU_SETSIZE) return -1;
	CPU_SET(cpu, &set);
	return pthread_setaffinity_np(id, sizeof set, &set);
#else
	(void)id;
	(void)cpu;
	return -1;
#endif
}

// The caller's thread belongs to the program, which may use it elsewhere between
// runs: it is bound for a run only.
#if defined(__linux__)
typedef cpu_set_t freedom;
static int come_home(const tm_pool *p, freedom *old)
{ return sched_getaffinity(0, sizeof *old, old) || pin(pthread_self(), p->home); }
static void leave_home(const freedom *old) { sched_setaffinity(0, sizeof *old, old); }
#else
typedef int freedom;
static int come_home(const tm_pool *p, freedom *old) { return (void)p, (void)old, -1; }
static void leave_home(const freedom *old) { (void)old; }
#endif

// p->threads counts those that exist, so that a failure frees just them. The
// threads take no signals: those belong to the program's own threads.
static int start_threads(tm_pool *p, int threads, const int *cpus)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int err = 0;
	for (int i = 1; i < threads && !err; i++) {
		p->args[i] = (start_arg){p, i};
		err = pthread_create(&p->ids[i], NULL, worker_main, &p->args[i]);
		if (!err) p->threads = i + 1;
		if (!err && cpus) err = pin(p->ids[i], cpus[i]);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

// Says whether the caller's thread may go to its processor, and lets it go back.
static int try_home(tm_pool *p, int cpu)
{
	freedom old;
	p->home = cpu;
	p->pinned = !come_home(p, &old);
	if (p->pinned) leave_home(&old);
	return !p->pinned;
}

tm_pool *tm_pool_new(int threads, const int *cpus)
{
	tm_pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
	if (!p) return NULL;
	*p = (tm_pool){.threads = 1};
	p->seats = aligned_alloc(64, sizeof *p->seats * (size_t)threads);
	p->ids = calloc((size_t)threads, sizeof *p->ids);
	p->args = calloc((size_t)threads, sizeof *p->args);
	if (!p->seats || !p->ids || !p->args || gate_init(&p->start) || gate_init(&p->phase)) {
		tm_pool_free(p);
		return NULL;
	}
	p->crowded = processors() < threads;
	for (int i = 0; i < threads; i++) {
		atomic_init(&p->seats[i].next, 0);
		p->seats[i].spin_ns = SPIN_MAX_NS;
	}
	if ((cpus && try_home(p, cpus[0])) || start_threads(p, threads, cpus)) {
		tm_pool_free(p);
		return NULL;
	}
	return p;
}

void tm_pool_free(tm_pool *p)
{
	if (!p) return;
	atomic_store(&p->stop, 1);
	if (p->threads > 1) gate_advance(&p->start);
	for (int i = 1; i < p->threads; i++) pthread_join(p->ids[i], NULL);
#if !defined(__linux__)
	pthread_mutex_destroy(&p->start.mutex);
	pthread_cond_destroy(&p->start.cond);
	pthread_mutex_destroy(&p->phase.mutex);
	pthread_cond_destroy(&p->phase.cond);
#endif
	free(p->seats);
	free(p->ids);
	free(p->args);
	free(p);
}

int tm_pool_threads(const tm_pool *p) { return p->threads; }

static void unclaim(tm_pool *p)
{
	for (int i = 0; i < p->threads; i++) atomic_store_explicit(&p->seats[i].next, 0, memory_order_relaxed);
}

void tm_pool_run(tm_pool *p, void (*fn)(void *ctx, int worker), void *ctx)
{
	const uint64_t mode = flush_denormals();
	freedom old;
	const int bound = p->pinned && !come_home(p, &old);
	p->fn = fn;
	p->ctx = ctx;
	if (p->threads > 1) gate_advance(&p->start);
	fn(ctx, 0);
	tm_pool_barrier(p, 0);
	if (bound) leave_home(&old);
	restore_denormals(mode);
}

void tm_pool_barrier(tm_pool *p, int worker)
{
	if (p->threads == 1) {
		unclaim(p);
		return;
	}
	const unsigned gen = atomic_load_explicit(&p->phase.value, memory_order_relaxed);
	if (atomic_fetch_add(&p->arrived, 1) == p->threads - 1) {
		atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
		unclaim(p);
		gate_advance(&p->phase);
		return;
	}
	gate_wait(p, &p->phase, gen, &p->seats[worker]);
}

int tm_claim_next(tm_pool *p, tm_claim *c)
{
	while (c->tried < p->threads) {
		if (c->hi == 0) {
			const int64_t n = c->items, v = c->victim;
			c->lo = (int)(n * v / p->threads);
			c->hi = (int)(n * (v + 1) / p->threads);
		}
		if (c->lo < c->hi) {
			const int i = atomic_fetch_add_explicit(&p->seats[c->victim].next, 1, memory_order_relaxed);
			if (i < c->hi - c->lo) return c->lo + i;
		}
		c->victim = c->victim + 1 < p->threads ? c->victim + 1 : 0;
		c->tried++;
		c->hi = 0;
	}
	return -1;
}
