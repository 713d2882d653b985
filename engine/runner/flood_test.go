package runner

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
)

// More requests come during one pass than a group passes on at once.
func TestGroupTakesAFlood(t *testing.T) {
	for name, spans := range spansOf(2) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldConfig{
				size: 2, spans: spans, comm: func(c *comm.Config) { c.MaxPayload = 4000 },
				step: func(s *lockstep.Config) { s.MaxQueued = 100 },
			})
			e := w.engines[0]
			gate, reached := make(chan struct{}), make(chan struct{})
			w.devices[0].strike(func() { close(reached); <-gate })
			first, err := e.Submit(t.Context(), greedy(e, 2, 1), nil)
			if err != nil {
				t.Fatal(err)
			}
			<-reached
			var wg sync.WaitGroup
			wg.Go(func() {
				outs := burst(t, e, 60, 2, func(i int, r *request.Request) {
					r.Prompt = make([]int32, 200)
					if i%5 == 0 {
						r.Deadline = e.Now() + 1
					}
				})
				for i, o := range outs {
					if i%5 != 0 && o.Finish != request.FinishLength {
						t.Errorf("request %d ended %q %v", i, o.Finish, o.Err)
					}
				}
			})
			for {
				e.in.mu.Lock()
				n := len(e.in.new)
				e.in.mu.Unlock()
				if n == 60 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			close(gate)
			wg.Wait()
			collect(t, first)
			w.stop()
			w.empty()
		})
	}
}

// A deadline runs from the arrival, also while the request waits for a rank of
// another process.
func TestGroupKeepsDeadlines(t *testing.T) {
	w := newWorld(t, worldConfig{
		size: 2, spans: []comm.Span{{}, {First: 1, Last: 1}}, core: func(c *executor.Config) { c.MaxBatch = 1 },
	})
	e := w.engines[0]
	hold, paced := make(chan struct{}), make(chan struct{})
	w.devices[1].hold = hold
	go func() {
		defer close(hold)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-paced:
				return
			}
			select {
			case hold <- struct{}{}:
			case <-paced: // no step may come any more
				return
			}
		}
	}()
	ask := func(tokens int, limit time.Duration) (*Stream, error) {
		r := greedy(e, tokens, 1)
		if r.DPRank = 1; limit > 0 {
			r.Deadline = e.Now() + limit
		}
		return e.Submit(t.Context(), r, nil)
	}
	const limit = 500 * time.Millisecond
	told := ""
	kept := func() bool {
		first, err := ask(30, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer collect(t, first)
		began := time.Now()
		second, err := ask(240, limit)
		waited := time.Since(began)
		if err != nil {
			told = fmt.Sprintf("in the queue: %v", err)
			return false
		}
		_, last := collect(t, second)
		took := time.Since(began)
		told = fmt.Sprintf("after %v in the queue it ended %q %v after %v", waited, last.Finish, last.Err, took)
		return last.Err != nil && last.Err.Code == request.DeadlineExceeded && took <= limit+waited*3/4
	}
	for tries := 1; !kept(); tries++ { // the machine may have stood still meanwhile, but not each time
		if tries == 10 {
			t.Fatal(told)
		}
	}
	close(paced)
	w.stop()
}
