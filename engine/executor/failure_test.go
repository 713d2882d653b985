package executor

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"tandem/engine/request"
)

type severeError struct{}

func (severeError) Error() string { return "out of memory" }
func (severeError) Severe() bool  { return true }

// stepWith runs one iteration whose step fails if fail says so of the batch.
func (r *rank) stepWith(now time.Duration, fail func(*Batch) error) *Batch {
	b := r.Plan(now)
	r.collect()
	if b == nil {
		return nil
	}
	if err := fail(b); err != nil {
		r.Apply(now, Result{Err: err})
	} else {
		r.Apply(now, r.run(b))
	}
	r.collect()
	return b
}

func hundred(t *testing.T) *rank {
	c := testConfig(Mixed)
	c.BlockTokens, c.Blocks, c.MaxNumTokens, c.MaxBatch, c.MaxSeqLen, c.ShareInPass = 4, 400, 64, 16, 64, false
	r := newRank(t, c)
	for i := range 100 {
		r.submit(ask(i+1, 6, count(i*7%100, 9+i%5)...), nil)
	}
	return r
}

// TestAFailedStepEndsOnlyItsRequests is scenario 26: the device refuses the tenth
// step and whatever of its requests is tried again.
func TestAFailedStepEndsOnlyItsRequests(t *testing.T) {
	r := hundred(t)
	var batch []request.ID
	computed := map[request.ID]int{}
	for n := 1; ; n++ {
		b := r.stepWith(0, func(b *Batch) error {
			if n == 10 {
				for _, row := range b.Rows {
					batch = append(batch, row.Request.ID)
					computed[row.Request.ID] = row.Pos
				}
			}
			for _, row := range b.Rows {
				if slices.Contains(batch, row.Request.ID) {
					return errors.New("refused")
				}
			}
			return nil
		})
		if b == nil {
			break
		}
	}
	if len(batch) < 8 || r.Fatal() != nil {
		t.Fatalf("%d rows in the step that failed, %v", len(batch), r.Fatal())
	}
	for id, cl := range r.clients {
		if slices.Contains(batch, id) {
			if cl.finish != request.FinishError || cl.err.Code != request.StepFailed {
				t.Errorf("request %d of the batch: %q %v", id, cl.finish, cl.err)
			}
			if n := r.Cached(cl.req.Prompt, ""); n > computed[id] {
				t.Errorf("request %d: %d tokens are in the index, %d were computed before", id, n, computed[id])
			}
			continue
		}
		if cl.finish != request.FinishLength || !slices.Equal(cl.tokens, r.oracle(cl.req, 0, 6)) {
			t.Errorf("request %d: %q %v", id, cl.finish, cl.err)
		}
	}
	r.check()
	st := r.Stats()
	if st.StepErrors != 3 || st.ErrorBudget != errorPoints-3 { // the step, and each half of it
		t.Errorf("%d errors, budget %v", st.StepErrors, st.ErrorBudget)
	}
}

func TestAStepThatFailsOnceHurtsNobody(t *testing.T) {
	r := hundred(t)
	for n := 1; ; n++ {
		b := r.stepWith(0, func(*Batch) error {
			if n == 10 {
				return errors.New("refused")
			}
			return nil
		})
		if b == nil {
			break
		}
	}
	for id, cl := range r.clients {
		if cl.finish != request.FinishLength || !slices.Equal(cl.tokens, r.oracle(cl.req, 0, 6)) {
			t.Errorf("request %d: %q %v", id, cl.finish, cl.err)
		}
	}
	r.verifyEnd(true)
}

// TestRareFailuresAreBorne: the budget tells a device that fails now and then from
// one that is broken, whatever the time says.
func TestRareFailuresAreBorne(t *testing.T) {
	for _, c := range []struct {
		every, steps int // one step of every fails
		dead         bool
	}{{1000, 30_000, false}, {150, 10_000, false}, {50, 1500, true}, {2, 100, true}} {
		r := newRank(t, holdConfig())
		n, id := 0, 0
		for n < c.steps && r.Fatal() == nil {
			id++
			r.submit(ask(id, 2, 1, 2, 3), nil)
			for more := true; more && r.Fatal() == nil; {
				more = r.stepWith(time.Duration(n)*time.Millisecond, func(*Batch) error {
					if n++; n%c.every == 0 {
						return errors.New("refused")
					}
					return nil
				}) != nil
			}
		}
		if st := r.Stats(); (r.Fatal() != nil) != c.dead || !c.dead && st.ErrorBudget < 9 {
			t.Errorf("one step in %d fails: after %d steps %v points are left, fatal: %v", c.every, n, st.ErrorBudget, r.Fatal())
		}
	}
}

func TestErrorBudget(t *testing.T) {
	minute := time.Minute
	type failure struct {
		at  time.Duration
		err error
	}
	plain := func(n int, at time.Duration) (out []failure) {
		for range n {
			out = append(out, failure{at, errors.New("refused")})
		}
		return out
	}
	for _, c := range []struct {
		name  string
		fails []failure
		left  float64
		dead  bool
	}{
		{"nine errors", plain(9, 0), 1, false},
		{"ten in a row", plain(10, 0), 0, true},
		{"one severe", []failure{{0, severeError{}}}, 5, false},
		{"two severe, the second wrapped", []failure{{0, severeError{}}, {0, fmt.Errorf("a step: %w", severeError{})}}, 0, true},
		{"a minute gives a point back", append(plain(9, 0), plain(1, minute)...), 1, false},
		{"never more than ten", append(plain(1, 0), plain(9, 100*minute)...), 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRank(t, holdConfig())
			for i, f := range c.fails { // each fails once only
				r.submit(ask(i+1, 2, 1, 2, 3), nil)
				r.stepWith(f.at, func(*Batch) error { return f.err })
				if r.Fatal() == nil {
					for r.stepWith(f.at, func(*Batch) error { return nil }) != nil {
					}
				}
			}
			if st := r.Stats(); st.ErrorBudget != c.left || (r.Fatal() != nil) != c.dead {
				t.Fatalf("%v points left, fatal: %v", st.ErrorBudget, r.Fatal())
			}
			if !c.dead {
				return
			}
			if cl := r.clients[request.ID(len(c.fails))]; cl.err == nil || cl.err.Code != request.EngineDead {
				t.Errorf("the last request ended %q %v", cl.finish, cl.err)
			}
			events := r.Recorder().Events(nil)
			if len(events) < 2 || !slices.ContainsFunc(events, func(e EventRecord) bool { return e.Kind == EventFatal && e.Text != "" }) {
				t.Errorf("the flight recorder has %+v", events)
			}
		})
	}
}
