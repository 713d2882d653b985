package disagg

import "sync"

// retryBurst is how many attempts may be repeated before the legs since then must have earned more.
const retryBurst = 100

// retryBudget bounds the repeated attempts of all requests to a part of all legs, so that a cluster which fails under its
// load does not get more of it. A nil budget has no bound.
type retryBudget struct {
	part float64 // earned by each leg
	obs  Observer

	mu   sync.Mutex
	left float64
}

func newRetryBudget(part float64, obs Observer) *retryBudget {
	if part <= 0 {
		return nil
	}
	return &retryBudget{part: part, obs: obs, left: retryBurst}
}

// earn counts a leg.
func (b *retryBudget) earn() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.left = min(retryBurst, b.left+b.part)
	b.mu.Unlock()
}

// spend tells whether an attempt may be repeated.
func (b *retryBudget) spend() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	ok := b.left >= 1
	if ok {
		b.left--
	}
	b.mu.Unlock()
	if !ok {
		b.obs.Happened(EventNoRetry)
	}
	return ok
}
