package executor

import (
	"errors"
	"slices"
	"testing"

	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// tight is a pool in which the older of two requests takes the other's blocks.
func tight() Config {
	c := forkConfig()
	c.Policy, c.BlockReuse, c.Blocks = scheduler.MaxUtilization, false, 6
	return c
}

// TestPausedWhileItRuns lets a request of several choices be paused while the step
// runs that samples their first tokens: the tokens count, and every choice goes on
// by itself when there is room.
func TestPausedWhileItRuns(t *testing.T) {
	r := newRank(t, tight())
	old := r.submit(ask(1, 10, count(0, 15)...), nil)
	r.step(0)                                            // 16 tokens known, 4 blocks
	young := r.submit(several(2, 2, 3, 1, 2, 3, 4), nil) // one block, and it needs another for each choice
	b := r.Plan(0)                                       // the 16th token and the prompt
	if len(b.Rows) != 2 || len(b.Rows[1].Forks) != 1 {
		t.Fatalf("%+v", b.Rows)
	}
	next := r.Plan(0) // both need a block and there is one
	if len(next.Rows) != 1 || r.clients[2].finish != request.Running || r.slots[1].State != request.Paused {
		t.Fatalf("the second request is %v; rows %+v", r.slots[1].State, next.Rows)
	}
	r.Apply(0, r.run(b))
	r.collect()
	if len(young.tokens) != 1 || len(young.forks[0].tokens) != 1 {
		t.Fatalf("%v, %v", young.tokens, young.forks[0].tokens)
	}
	if q := r.slots[2]; q.State != request.Paused || len(q.Table) != 0 {
		t.Fatalf("the second choice is %v with %d blocks of those that are gone", q.State, len(q.Table))
	}
	r.Apply(0, r.run(next))
	r.collect()
	r.drainQueue(0)
	if !slices.Equal(old.tokens, r.oracle(old.req, 0, 10)) {
		t.Errorf("%v", old.tokens)
	}
	r.verifyEnd(true)
	for i := range 2 {
		if got := young.choice(i).tokens; !slices.Equal(got, r.oracle(young.req, i, 3)) {
			t.Errorf("choice %d: %v", i, got)
		}
	}
}

// TestPausedThenCancelledWhileItRuns takes a request's blocks while its step runs and
// then cancels it: nothing of what the step computed may be entered into the index.
func TestPausedThenCancelledWhileItRuns(t *testing.T) {
	c := tight()
	c.BlockReuse = true
	r := newRank(t, c)
	r.submit(ask(1, 10, count(0, 15)...), nil)
	r.step(0)
	r.submit(ask(2, 8, 21, 22, 23, 24), nil) // one block, full when the step is done
	b := r.Plan(0)
	if len(b.Rows) != 2 {
		t.Fatalf("%+v", b.Rows)
	}
	next := r.Plan(0)
	if r.slots[1].State != request.Paused || len(r.slots[1].Table) != 0 {
		t.Fatalf("the second request is %v with %d blocks", r.slots[1].State, len(r.slots[1].Table))
	}
	r.Cancel(0, 2)
	r.Apply(0, r.run(b))
	r.collect()
	if got := r.clients[2].finish; got != request.FinishCancelled {
		t.Errorf("the second request ended %q", got)
	}
	r.Apply(0, r.run(next))
	r.collect()
	r.drainQueue(0)
	r.verifyEnd(true)
}

// TestPausedThenFailedWhileItRuns takes a request's blocks while its first step runs,
// which then fails: it waits already, and is not put back once more.
func TestPausedThenFailedWhileItRuns(t *testing.T) {
	r := newRank(t, tight())
	r.submit(ask(1, 10, count(0, 15)...), nil)
	r.step(0)
	r.submit(ask(2, 8, 21, 22, 23, 24), nil)
	b := r.Plan(0)
	next := r.Plan(0)
	if len(b.Rows) != 2 || r.slots[1].State != request.Paused || !r.slots[1].fresh {
		t.Fatalf("%+v, then the second request is %v", b.Rows, r.slots[1].State)
	}
	r.Apply(0, Result{Err: errors.New("injected")})
	r.collect()
	if st := r.Stats(); r.slots[1].State != request.Paused || st.IllegalTransition != 0 {
		t.Errorf("the second request is %v, %d illegal transitions", r.slots[1].State, st.IllegalTransition)
	}
	r.Apply(0, Result{Sampled: make([]Sampled, len(next.Rows))}) // in vain
	r.collect()
	r.drainQueue(0)
	r.verifyEnd(true)
}
