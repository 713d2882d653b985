package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
)

// witness keeps what clients were given, to prove that each got one end.
type witness struct {
	mu      sync.Mutex
	streams []*Stream
	ends    map[request.ID]int
	choices map[request.ID]int
}

func (v *witness) add(s *Stream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.choices == nil {
		v.choices = map[request.ID]int{}
	}
	v.choices[s.id] = len(s.ends)
	v.streams = append(v.streams, s)
}

func (v *witness) end(id request.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ends[id]++
}

// check reads what clients left unread.
func (v *witness) check(t *testing.T) {
	t.Helper()
	for _, s := range v.streams {
		for {
			o, ok := s.pop()
			if !ok {
				break
			}
			if o.Finish != request.Running {
				v.ends[s.id]++
			}
		}
		if n := v.ends[s.id]; n != v.choices[s.id] {
			t.Errorf("request %d got %d ends", s.id, n)
		}
	}
}

// client sends n requests of all kinds and treats them badly.
func (v *witness) client(t *testing.T, e *Engine, seed uint64, n, ranks int) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for range n {
		talk := rng.IntN(12)
		prompt := make([]int32, 1+rng.IntN(60))
		for i := range prompt {
			prompt[i] = int32(i+talk) % vocab
		}
		r := greedy(e, 1+rng.IntN(30), prompt...)
		r.Choices = rng.IntN(4)
		if rng.IntN(3) > 0 {
			r.ConversationID = fmt.Sprint("c", talk)
		}
		if rng.IntN(5) == 0 {
			r.DPRank, r.DPRelax = rng.IntN(ranks), rng.IntN(2) == 0
		}
		if rng.IntN(8) == 0 {
			r.Deadline = e.Now() + time.Duration(rng.IntN(20))*time.Millisecond + 1
		}
		ctx, cancel := context.WithCancel(t.Context())
		if rng.IntN(4) == 0 {
			time.AfterFunc(time.Duration(rng.IntN(3))*time.Millisecond, cancel)
		}
		if rng.IntN(4) == 0 {
			if _, err := e.Abort(t.Context(), 1+int64(rng.IntN(40))); err != nil && !errors.Is(err, ErrStopped) {
				t.Error(err)
			}
		}
		v.use(t, ctx, e, r, rng)
		cancel()
	}
}

func (v *witness) use(t *testing.T, ctx context.Context, e *Engine, r *request.Request, rng *rand.Rand) {
	s, err := e.Submit(ctx, r, nil)
	if err != nil {
		var refused *request.Error
		if !errors.As(err, &refused) && !errors.Is(err, ErrStopped) && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		return
	}
	v.add(s)
	leave, open := rng.IntN(20), r.Answers()
	for n := 0; ; n++ {
		if n == leave {
			s.Cancel()
			if leave%2 == 0 {
				return
			}
		}
		o, err := s.Next(ctx)
		if err != nil {
			return
		}
		if o.Finish != request.Running {
			v.end(s.id)
			if open--; open == 0 {
				return
			}
		}
	}
}

// left lists what a rank's lockstep still keeps.
func left(l *lockstep.Rank) (kept []string) {
	for _, name := range []string{"waiting", "mine", "moving", "lent"} {
		if n := reflect.ValueOf(l).Elem().FieldByName(name).Len(); n > 0 {
			kept = append(kept, fmt.Sprint(n, " ", name))
		}
	}
	if n := reflect.ValueOf(l).Elem().FieldByName("clock").FieldByName("live").Len(); n > 0 {
		kept = append(kept, fmt.Sprint(n, " live"))
	}
	return kept
}

// buried wants nobody to wait for an engine that has ended.
func (w *world) buried() {
	w.t.Helper()
	for i, e := range w.engines {
		g := e.group
		g.mu.Lock()
		if n := len(g.subs) + len(g.remote); n > 0 {
			w.t.Errorf("process %d keeps %d submissions, %d remote ones", i, len(g.subs), len(g.remote))
		}
		g.mu.Unlock()
		for _, m := range g.members {
			if len(m.sinks) > 0 {
				w.t.Errorf("rank %d keeps %d sinks", m.id, len(m.sinks))
			}
		}
	}
}

// empty wants nothing of any request to be left after an end in good order.
func (w *world) empty() {
	w.t.Helper()
	w.buried()
	for _, e := range w.engines {
		if n := len(e.group.aborts); n > 0 {
			w.t.Errorf("%d aborts were not answered", n)
		}
		for _, m := range e.group.members {
			if kept := left(m.lock); kept != nil || len(m.sinks)+len(m.samples.of) > 0 {
				w.t.Errorf("rank %d keeps %v, %d sinks, %d samplers", m.id, kept, len(m.sinks), len(m.samples.of))
			}
		}
	}
}

type storm struct {
	size   int
	spans  []comm.Span
	router func(*adprouter.Config)
	blocks int
	drain  bool
}

func (c storm) run(t *testing.T) {
	w := newWorld(t, worldConfig{
		size: c.size, spans: c.spans, router: c.router, wire: true,
		core: func(k *executor.Config) {
			k.MaxBatch, k.Blocks, k.MaxQueued, k.MaxSeqLen, k.MaxNumTokens = 3, c.blocks, 8, 96, 40
			k.Lease, k.Progress, k.Attach = time.Second, time.Second, time.Second
		},
		step: func(s *lockstep.Config) {
			s.QueueTimeout, s.MaxQueued = 30*time.Millisecond, 6
			s.Router.Cap = 4
		},
		balance: func() *adprouter.Balance {
			return &adprouter.Balance{TimeoutIters: 3, BatchingWaitIters: 2, MaxBatch: 3}
		},
	})
	e := w.engines[0]
	v := &witness{ends: map[request.ID]int{}}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v.client(t, e, uint64(i), 25, c.size)
		}()
	}
	if c.drain {
		time.Sleep(30 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		go e.Shutdown(ctx)
		e.Shutdown(ctx)
		cancel()
	}
	within(t, 2*time.Minute, wg.Wait)
	if !c.drain {
		for limit := time.Now().Add(time.Minute); e.Stats(time.Minute).Alive > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("%d requests stay alive: %+v", e.Stats(time.Minute).Alive, e.Stats(time.Minute))
			}
		}
	}
	st := e.Stats(time.Minute)
	t.Logf("moves %d moved %d failed %d, lent %d borrowed %d failed %d evicted %d", st.Moves, st.Moved, st.MovesFailed, st.Lent, st.Borrowed, st.BorrowFailed, st.EvictedBlocks)
	w.stop()
	w.empty()
	v.check(t)
}

// within fails the test with all stacks when f takes longer than limit.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("still there after %v\n%s", limit, stacks())
	}
}

// Clients come, go and change their minds all at once, at instances that have
// little of everything; nothing of them stays.
func TestGroupStorm(t *testing.T) {
	kinds := []adprouter.Kind{adprouter.ConversationAware, adprouter.Default, adprouter.KVCacheAware}
	n := 0
	for _, size := range []int{1, 2, 3, 4} {
		for name, spans := range spansOf(size) {
			for _, drain := range []bool{false, true} {
				n++
				c := storm{size: size, spans: spans, drain: drain, blocks: 16 + 48*(n/2%2)}
				kind := kinds[(size+n)%3]
				if size > 2 {
					kind = kinds[0]
				}
				c.router = func(r *adprouter.Config) {
					r.Kind, r.Rehome = kind, adprouter.Rehome{On: true, MaxMoves: 8, Gain: 1} // any gain will do
				}
				t.Run(fmt.Sprintf("%d ranks in %s, %s, drain %t", size, name, kind, drain), c.run)
			}
		}
	}
}

// handOver sends requests through both workers of a pair, or half of the way.
func (v *witness) handOver(t *testing.T, ctx, gen *Engine, ids *atomic.Int64, seed uint64, n, ranks int) {
	rng := rand.New(rand.NewPCG(seed, 11))
	abort := func(e *Engine, id int64) {
		if _, err := e.Abort(t.Context(), id); err != nil && !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
	}
	for range n {
		prompt := make([]int32, 1+rng.IntN(60))
		for i := range prompt {
			prompt[i] = int32(i) % vocab
		}
		id := ids.Add(1)
		if rng.IntN(6) == 0 {
			id = max(1, id-int64(rng.IntN(8))) // somebody else's
		}
		limit, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(60))*time.Millisecond)
		r := greedy(ctx, 8, prompt...)
		r.Kind, r.TransferID, r.Choices = request.ContextOnly, id, rng.IntN(3)
		if rng.IntN(2) == 0 {
			r.DPRank, r.DPRelax = rng.IntN(ranks), rng.IntN(2) == 0
		}
		if rng.IntN(6) == 0 {
			go abort(ctx, id)
		}
		out, ok := v.leg(t, limit, ctx, r, nil)
		if ok && out.Finish == request.FinishNotFinished && rng.IntN(5) > 0 {
			g := greedy(gen, 1+rng.IntN(20), prompt...)
			g.Kind, g.TransferID, g.FirstTokens, g.Choices = request.GenerationOnly, id, out.Tokens, r.Choices
			if rng.IntN(4) == 0 {
				go abort(gen, id)
			}
			if rng.IntN(8) == 0 {
				go abort(ctx, id)
			}
			v.leg(t, limit, gen, g, out.Opaque)
		}
		cancel()
	}
}

// leg returns the last output of a request, with the tokens of all choices.
func (v *witness) leg(t *testing.T, ctx context.Context, e *Engine, r *request.Request, opaque []byte) (Output, bool) {
	s, err := e.Submit(ctx, r, opaque)
	if err != nil {
		var refused *request.Error
		if !errors.As(err, &refused) && !errors.Is(err, ErrStopped) && ctx.Err() == nil {
			t.Error(err)
		}
		return Output{}, false
	}
	v.add(s)
	tokens, out := make([][]request.Token, r.Answers()), Output{}
	for open := r.Answers(); open > 0; {
		o, err := s.Next(ctx)
		if err != nil {
			return Output{}, false
		}
		tokens[o.Choice] = append(tokens[o.Choice], o.Tokens...)
		if o.Finish != request.Running {
			v.end(s.id)
			open--
			if o.Choice == 0 {
				out = o
			}
		}
	}
	out.Tokens = slices.Concat(tokens...)
	return out, true
}

// A pair of instances hands requests over while clients abort, leave and use ids
// twice, and while both are told to end.
func TestGroupHandOverStorm(t *testing.T) {
	for _, size := range []int{1, 3} {
		for name, spans := range spansOf(size) {
			for _, grace := range []time.Duration{0, 20 * time.Millisecond} {
				t.Run(fmt.Sprintf("%d ranks in %s, grace %v", size, name, grace), func(t *testing.T) {
					pair := func(role executor.Role) *world {
						return newWorld(t, worldConfig{
							size: size, spans: spans, wire: true,
							core: func(k *executor.Config) {
								k.Role, k.MaxBatch, k.Blocks, k.MaxSeqLen, k.MaxConcurrentRecv = role, 3, 32, 96, 4
								k.Lease, k.Attach, k.Progress, k.RecvTotal = 300*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond, time.Second
							},
							step: func(s *lockstep.Config) { s.QueueTimeout = 50 * time.Millisecond },
						})
					}
					c, g := pair(executor.Ctx), pair(executor.Gen)
					v := [2]*witness{{ends: map[request.ID]int{}}}
					var ids atomic.Int64
					var wg sync.WaitGroup
					for i := range 10 {
						wg.Go(func() { v[0].handOver(t, c.engines[0], g.engines[0], &ids, uint64(i), 25, size) })
					}
					if grace == 0 {
						within(t, 2*time.Minute, wg.Wait)
						for _, e := range []*Engine{c.engines[0], g.engines[0]} {
							for limit := time.Now().Add(time.Minute); e.Stats(time.Minute).Alive > 0; time.Sleep(time.Millisecond) {
								if time.Now().After(limit) {
									t.Fatalf("stay alive: %+v", e.Stats(time.Minute))
								}
							}
						}
						grace = 20 * time.Second
					} else {
						time.Sleep(60 * time.Millisecond)
					}
					st := g.engines[0].Stats(time.Minute)
					t.Logf("%+v", st.Stats)
					began := time.Now()
					c.drain(grace)
					g.drain(grace)
					t.Logf("drained in %v", time.Since(began))
					within(t, 2*time.Minute, wg.Wait)
					c.empty()
					g.empty()
					for _, s := range g.servers {
						s.Close()
					}
					c.close()
				})
			}
		}
	}
}
