// A fixed set of threads that run one function together, phase by phase.
//
// The thread that calls tm_pool_run is worker 0; the others are created once
// and sleep between runs. Inside a run all workers execute the same phases:
// they claim items of a phase from each other's ranges and meet at a barrier.
// Results must not depend on who claims what.
#ifndef TM_POOL_H
#define TM_POOL_H

typedef struct tm_pool tm_pool;

// tm_pool_new starts threads-1 threads, worker i on processor cpus[i] unless cpus is
// null; the caller's thread is there while it runs a pool. It returns null when memory
// or threads run out, or a processor may not be used. One thread at a time may run a
// pool.
tm_pool *tm_pool_new(int threads, const int *cpus);

// tm_pool_free ends and joins the threads. The pool must be idle.
void tm_pool_free(tm_pool *p);

int tm_pool_threads(const tm_pool *p);

// tm_pool_run calls fn(ctx, worker) on every worker and returns when all have
// returned. Denormals count as zero inside; the caller's mode is restored.
void tm_pool_run(tm_pool *p, void (*fn)(void *ctx, int worker), void *ctx);

// tm_pool_barrier returns once every worker has called it, and makes all items
// of the next phase unclaimed.
void tm_pool_barrier(tm_pool *p, int worker);

// A worker's walk over the items of a phase: its own contiguous share first,
// then what others have left.
typedef struct {
	int items;
	int victim; // whose share is being claimed from
	int tried;  // shares found empty
	int lo, hi; // that share, once looked up; hi is 0 before
} tm_claim;

static inline tm_claim tm_claim_all(int worker, int items) { return (tm_claim){items, worker, 0, 0, 0}; }

// tm_claim_next returns an item in [0, items) that nobody else gets, or -1.
int tm_claim_next(tm_pool *p, tm_claim *c);

#endif
