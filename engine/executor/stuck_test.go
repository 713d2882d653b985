package executor

import (
	"testing"

	"tandem/engine/request"
)

// TestCopiesUnderWayAreNoDeadlock lets a request wait for blocks that content is
// still on its way to, for another one that has left.
func TestCopiesUnderWayAreNoDeadlock(t *testing.T) {
	r := withTiers(t, tierConfig())
	r.submit(ask(1, 1, count(0, 20)...), nil)
	r.finish(0)
	evictAll(r, 2)
	r.submit(ask(3, 3, append(count(0, 20), 1, 2)...), nil)
	r.step(0)
	r.Cancel(0, 3)
	r.collect()
	big := ask(4, 1, count(0, 13*4)...)
	big.CacheSalt = "nothing of it is here"
	waits := r.submit(big, nil)
	for range 4 {
		if r.step(0) {
			t.Fatal("there is room at once")
		}
	}
	if st := r.Stats(); st.Deadlocks != 0 || waits.finish != request.Running || r.Fatal() != nil {
		t.Fatalf("%q, %+v", waits.finish, st)
	}
	r.finish(0)
	if waits.finish != request.FinishLength {
		t.Errorf("%q %v", waits.finish, waits.err)
	}
	r.verifyEnd(false)
}
