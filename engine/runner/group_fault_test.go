package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// burst submits n requests at once and returns how they ended.
func burst(t *testing.T, e *Engine, n, tokens int, change func(i int, r *request.Request)) []Output {
	t.Helper()
	out := make([]Output, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := greedy(e, tokens, int32(i%vocab), int32((i+7)%vocab))
			if change != nil {
				change(i, r)
			}
			s, err := e.Submit(t.Context(), r, nil)
			var refused *request.Error
			switch {
			case errors.As(err, &refused):
				out[i].Err = refused
			case errors.Is(err, ErrStopped):
				out[i].Err = errDead()
			case err != nil:
				t.Error(err)
			default:
				_, out[i] = collect(t, s)
			}
		}()
	}
	wg.Wait()
	return out
}

// fall waits for every process to end and returns the errors.
func (w *world) fall(limit time.Duration) []error {
	w.t.Helper()
	var errs []error
	timer := time.After(limit)
	for i, died := range w.died {
		select {
		case err := <-died:
			errs = append(errs, err)
		case <-timer:
			w.t.Fatalf("process %d still runs after %v", i, limit)
		}
	}
	return errs
}

func TestGroupPlacement(t *testing.T) {
	w := newWorld(t, worldConfig{size: 3, spans: []comm.Span{{Last: 1}, {First: 2, Last: 2}}})
	e := w.engines[0]
	for turn := range 4 {
		for c := range 7 {
			r := greedy(e, 3, int32(c), int32(turn))
			r.ConversationID = fmt.Sprint("c", c)
			s, err := e.Submit(t.Context(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := Route{Rank: c % 3, Reason: "sticky"}
			if turn == 0 {
				want.Reason = "new"
			}
			if got, _ := s.Route(); got != want {
				t.Errorf("turn %d of conversation %d: %+v, want %+v", turn, c, got, want)
			}
			collect(t, s)
		}
	}
	// Everything on one rank: the others pad.
	outs := burst(t, e, 12, 4, func(i int, r *request.Request) { r.DPRank = 1 })
	for i, o := range outs {
		if o.Finish != request.FinishLength {
			t.Errorf("request %d on rank 1: %q %v", i, o.Finish, o.Err)
		}
	}
	r := greedy(e, 3, 1)
	r.DPRank = 3
	if _, err := e.Submit(t.Context(), r, nil); err == nil || !strings.Contains(err.Error(), "attention_dp_rank") {
		t.Errorf("rank 3 of 3: %v", err)
	}
	st := e.Stats(time.Minute)
	if len(st.Ranks) != 3 || st.Ranks[1].Placed["explicit"] != 12 || st.Ranks[0].Padded == 0 {
		t.Errorf("stats %+v", st.Ranks)
	}
	w.stop()
}

func TestGroupQueues(t *testing.T) {
	hold := make(chan struct{})
	w := newWorld(t, worldConfig{
		size: 2, core: func(c *executor.Config) { c.MaxBatch = 1 },
		step: func(s *lockstep.Config) { s.QueueTimeout, s.MaxQueued = 50*time.Millisecond, 3 },
	})
	e := w.engines[0]
	for _, d := range w.devices {
		d.hold = hold
	}
	// Passes go on one by one until the queue has given up.
	ctx, cancel := context.WithCancel(t.Context())
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		for {
			select {
			case hold <- struct{}{}:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}()
	var running []*Stream
	for i := range 2 {
		s, err := e.Submit(t.Context(), greedy(e, 250, int32(i)), nil)
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, s)
	}
	counts := map[request.Code]int{}
	for _, o := range burst(t, e, 6, 3, nil) {
		if o.Err != nil {
			counts[o.Err.Code]++
		}
	}
	if counts[request.QueueFull] != 3 || counts[request.QueueTimeout] != 3 {
		t.Errorf("queue of 3 for 6 requests: %v", counts)
	}
	cancel()
	<-pumped
	close(hold)
	for _, s := range running {
		collect(t, s)
	}
	w.stop()
}

func TestGroupCancels(t *testing.T) {
	for name, spans := range spansOf(2) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldConfig{size: 2, spans: spans, core: func(c *executor.Config) { c.MaxBatch = 2 }})
			e := w.engines[0]
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					s, err := e.Submit(ctx, greedy(e, 200, int32(i), 3), nil)
					if err != nil {
						t.Error(err)
						return
					}
					if i%2 == 0 {
						s.Cancel()
					}
					if _, last := collect(t, s); i%2 == 0 && last.Finish != request.FinishCancelled && last.Finish != request.FinishLength {
						t.Errorf("request %d ended %q %v", i, last.Finish, last.Err)
					}
				}()
			}
			for i := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				go func() { cancel() }()
				if s, err := e.Submit(ctx, greedy(e, 100, int32(i)), nil); err == nil {
					_, _ = s.Next(ctx)
				}
			}
			wg.Wait()
			w.stop()
		})
	}
}

func TestGroupSurvivesABadBatch(t *testing.T) {
	w := newWorld(t, worldConfig{size: 2})
	e := w.engines[0]
	bad := errors.New("no such block")
	w.devices[1].check = func(b *tensor.Batch) error {
		if slices.Contains(b.Tokens, 13) {
			return bad
		}
		return nil
	}
	outs := burst(t, e, 8, 4, func(i int, r *request.Request) {
		r.Prompt, r.DPRank = []int32{int32(i), 20}, i%2
		if i == 5 {
			r.Prompt[0] = 13
		}
	})
	for i, o := range outs {
		if i == 5 {
			if o.Err == nil || o.Err.Code != request.StepFailed {
				t.Errorf("the bad request ended %q %v", o.Finish, o.Err)
			}
		} else if i%2 == 0 && o.Finish != request.FinishLength { // those of rank 1 may share its fate
			t.Errorf("request %d ended %q %v", i, o.Finish, o.Err)
		}
	}
	w.stop()
}

func TestGroupFalls(t *testing.T) {
	panics := func(w *world) { w.devices[1].strike(func() { panic("a broken device") }) }
	for _, c := range []struct {
		name  string
		world worldConfig
		spoil func(*world)
		want  string
	}{
		{name: "a rank panics", spoil: panics, want: "a broken device"},
		{
			name: "routing state differs",
			spoil: func(w *world) {
				e := w.engines[0]
				r := greedy(e, 2, 1)
				r.ConversationID = "x"
				s, err := e.Submit(w.t.Context(), r, nil)
				if err != nil {
					w.t.Fatal(err)
				}
				collect(w.t, s)
				members := w.engines[len(w.engines)-1].group.members
				lock := members[len(members)-1].lock
				w.devices[1].strike(func() { lock.Router().Move("x", 1) })
			},
			want: "routing state diverged",
		},
		{
			// The fake pass of the other rank waits for it until the group ends.
			name:  "a pass fails on one rank",
			spoil: func(w *world) { w.devices[1].strike(func() { w.devices[1].broken.Store(true) }) },
			want:  "a broken pass",
		},
		{
			name: "an exchange is lost",
			world: worldConfig{
				comm: func(c *comm.Config) { c.Timeout, c.StallAfter = 300*time.Millisecond, 50*time.Millisecond },
				wrap: func(g *comm.Group, rank int) comm.Comm {
					if rank != 1 {
						return g.Rank(rank)
					}
					return comm.NewFaulty(g, rank, &comm.Rule{Fault: comm.FaultLose, Rank: 1, Op: comm.OpExchange, Iter: 20})
				},
			},
			want: "rank 1 did not come to exchange of iteration",
		},
		{
			name: "a rank leaves",
			world: worldConfig{wrap: func(g *comm.Group, rank int) comm.Comm {
				if rank != 1 {
					return g.Rank(rank)
				}
				return comm.NewFaulty(g, rank, &comm.Rule{Fault: comm.FaultCut, Rank: 1, Op: comm.OpExchange, Iter: 20})
			}},
			want: "rank 1 left the group",
		},
	} {
		for name, spans := range spansOf(2) {
			t.Run(c.name+" in "+name, func(t *testing.T) {
				c.world.size, c.world.spans = 2, spans
				w := newWorld(t, c.world)
				if c.spoil != nil {
					c.spoil(w)
				}
				outs := burst(t, w.engines[0], 8, 240, nil)
				errs := w.fall(5 * time.Second)
				if got := fmt.Sprint(errs); !strings.Contains(got, c.want) {
					t.Errorf("the processes ended with %v, want %q", errs, c.want)
				}
				dead := 0
				for _, o := range outs {
					if o.Err != nil && o.Err.Code == request.EngineDead {
						dead++
					}
				}
				if dead == 0 {
					t.Errorf("no request heard of it: %+v", outs)
				}
				if h := w.engines[0].Stats(time.Minute).Health; h != HealthDead {
					t.Errorf("health is %q", h)
				}
			})
		}
	}
}

func TestGroupWithoutFreeBlocks(t *testing.T) {
	// One request takes all blocks of rank 0; the others of rank 0 wait for it
	// while rank 1 works, and rank 0 always takes part.
	w := newWorld(t, worldConfig{
		size: 2, core: func(c *executor.Config) { c.Blocks, c.MaxSeqLen, c.BlockReuse = 4, 64, false },
		router: func(r *adprouter.Config) { r.Kind = adprouter.Default },
	})
	outs := burst(t, w.engines[0], 12, 50, func(i int, r *request.Request) { r.DPRank = i % 2; r.DPRelax = false })
	for i, o := range outs {
		if o.Finish != request.FinishLength {
			t.Errorf("request %d ended %q %v", i, o.Finish, o.Err)
		}
	}
	w.stop()
}

// An event of any rank is heard at once, also when it comes while the rank waits
// in an exchange: the engine would else rest for a minute here.
func TestGroupHearsEvents(t *testing.T) {
	w := newWorld(t, worldConfig{size: 3})
	e := w.engines[0]
	limit := time.Now().Add(20 * time.Second)
	for i := range uint64(1000) {
		rank := int(i % 3)
		e.TransferEvent(rank, transfer.KeepAlive{ID: 1})
		for e.Stats(time.Minute).Ranks[rank].UnknownMessages < i/3+1 {
			if time.Now().After(limit) {
				t.Fatalf("event %d of rank %d was not heard", i, rank)
			}
			runtime.Gosched()
		}
	}
	w.stop()
}

// A rank that never comes back from its device does not keep the process.
func TestGroupLeavesAStuckRank(t *testing.T) {
	w := newWorld(t, worldConfig{size: 2, comm: func(c *comm.Config) { c.Timeout, c.StallAfter = 300*time.Millisecond, 50*time.Millisecond }})
	stuck := make(chan struct{})
	hang := func() { <-stuck }
	w.devices[1].late.Store(&hang)
	outs := burst(t, w.engines[0], 4, 50, nil)
	errs := w.fall(partingTime + 10*time.Second)
	if got := fmt.Sprint(errs); !strings.Contains(got, "rank 1 did not come to") {
		t.Errorf("ended with %v", errs)
	}
	for _, o := range outs {
		if o.Err == nil || o.Err.Code != request.EngineDead {
			t.Errorf("a request ended %q %v", o.Finish, o.Err)
		}
	}
	if !w.engines[0].stuck.Load() {
		t.Error("the engine does not know that a rank is stuck")
	}
	close(stuck)
}
