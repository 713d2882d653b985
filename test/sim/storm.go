package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"tandem/engine/executor"
	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// Faults is how much of each fault a Storm has: probabilities, in a tick, of a
// message or of a step.
type Faults struct {
	Lose, Repeat         float64 // messages between workers
	Cut, Kill, Slow      float64 // connections, a worker, the network
	Step, BadToken       float64 // failed steps, tokens that cannot be sampled
	Cancel, Abort, Reset float64 // of requests, of hand-overs, of the cache
	Jump                 float64 // of the clock
	Disk                 float64 // tiers below the device that hang
	Gone                 float64 // frontends that never send the second leg
	MaxDelay             time.Duration
}

// StormLog counts what happened, so that tests can tell that something did.
type StormLog struct {
	Requests, Choices, Complete            int
	Ticks, Iterations, Rows, Fed           int
	Cuts, Kills, Slows, Steps, BadTokens   int
	Cancels, Aborts, Resets, Jumps, Fatals int
	Resumed, Emptied, Stuck, Shelved       int
	Failed                                 map[request.Code]int

	Recomputed, Stale, Expired, Paused, Evicted, Hits, Onboarded, BadMoves, Passed uint64
}

// Storm is a seeded run of random clients at a ctx and a gen worker, or a mixed
// one, of a random configuration with every fault there is.
type Storm struct {
	*Cluster
	Seed   uint64
	Faults Faults
	Log    StormLog

	rng   *rand.Rand // not the network's: what is sent does not change what is asked for
	next  request.ID
	calm  Net // without a slow spell
	plain []*Track
	slow  int // ticks that the spell still takes
}

// NewStorm makes the run of a seed.
func NewStorm(seed uint64) (*Storm, error) {
	s := &Storm{Seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), Log: StormLog{Failed: map[request.Code]int{}}}
	ctx, gen, err := s.workers()
	if err != nil {
		return nil, err
	}
	s.Cluster = NewCluster(ctx, gen, seed)
	s.drawFaults()
	for _, w := range s.Cluster.workers() {
		s.attend(w)
	}
	return s, nil
}

// oneOf draws one of list.
func oneOf[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

// between draws a time.
func (s *Storm) between(low, high time.Duration) time.Duration {
	return low + time.Duration(s.rng.Int64N(int64(high-low)+1))
}

func (s *Storm) workers() (ctx, gen *Worker, err error) {
	b := 1 << s.rng.IntN(5)
	if s.rng.IntN(4) == 0 {
		gen, err = NewWorker(s.config(executor.Mixed, b))
		return gen, gen, err
	}
	if ctx, err = NewWorker(s.config(executor.Ctx, b)); err == nil {
		gen, err = NewWorker(s.config(executor.Gen, b))
	}
	return ctx, gen, err
}

// longest is the most positions that a request of a Storm has.
const longest = 110

// config draws a worker.
func (s *Storm) config(role executor.Role, b int) executor.Config {
	rng, c := s.rng, executor.DefaultConfig()
	c.Role, c.Incarnation, c.Namespace = role, string(role), "m0"
	c.Layout = transfer.Layout{Layers: 2, KVHeads: 1, HeadDim: 4, DType: "F32", Packing: "p"}
	c.Vocab, c.MaxSeqLen, c.EventBuffer = 50000, 1<<20, 64
	c.BlockTokens, c.Blocks = b, longest/b+2+rng.IntN(600/b+1)
	c.MaxBatch, c.MaxNumTokens = 1+rng.IntN(12), b+1+rng.IntN(96)
	c.BlockReuse, c.PartialReuse, c.ShareInPass = rng.IntN(5) > 0, rng.IntN(2) == 0, rng.IntN(2) == 0
	c.Policy = oneOf(rng, scheduler.GuaranteedNoEvict, scheduler.MaxUtilization, scheduler.MaxUtilization, scheduler.StaticBatch)
	c.Chunking = oneOf(rng, scheduler.FirstCome, scheduler.EqualProgress)
	c.Queue = oneOf(rng, scheduler.FCFS, scheduler.Priority)
	c.ChunkPrefill, c.PrefillMixed, c.PrefillPerDecode = rng.IntN(4) > 0, oneOf(rng, 0, b, 2*b), oneOf(rng, 0, 1, 4)
	if !c.ChunkPrefill {
		c.MaxNumTokens = max(c.MaxNumTokens, longest)
	}
	c.QueueTimeout = oneOf(rng, 0, 0, 0, 5*time.Second)
	c.MaxQueued = oneOf(rng, 12, 64, 64, 64, 64, 64)
	c.MaxInflightBytes, c.MaxConcurrentRecv = oneOf(rng, int64(1), 5000, 1<<30), 1+rng.IntN(4)
	c.LocalRecompute = rng.IntN(3) > 0
	c.Lease, c.PeerWait = s.between(200*time.Millisecond, 3*time.Second), s.between(100*time.Millisecond, 3*time.Second)
	c.Attach, c.Progress, c.RecvTotal = time.Second, time.Second, 5*time.Second
	c.MaxLeasedFraction = oneOf(rng, 0.5, 1)
	if rng.IntN(2) == 0 {
		c.Tiers = kvcache.Tiers{HostBlocks: 1 + rng.IntN(c.Blocks), DiskBlocks: rng.IntN(2 * c.Blocks), MinPriority: 30}
		c.OnboardAlways = rng.IntN(3) > 0
	}
	if s.Seed%3 == 0 { // both workers serve one model
		c.Window = 1 + int(s.Seed*7%50)
	}
	return c
}

func (s *Storm) drawFaults() {
	rng := s.rng
	p := func(most float64) float64 { return most * rng.Float64() }
	s.Faults = Faults{
		Lose: p(0.1), Repeat: p(0.3), Cut: p(0.02), Kill: p(0.002), Slow: p(0.02), Step: p(0.02), BadToken: p(0.001),
		Cancel: p(0.03), Abort: p(0.02), Reset: p(0.01), Jump: p(0.004), Gone: p(0.1), Disk: p(0.002), MaxDelay: s.between(0, 100*time.Millisecond),
	}
	if rng.IntN(20) == 0 {
		s.Faults.Lose = 1 // nothing arrives
	}
	s.Net = Net{
		MaxDelay: s.Faults.MaxDelay, Lose: s.Faults.Lose, Repeat: s.Faults.Repeat, BlockTime: s.between(0, 30*time.Millisecond),
		Deaf: rng.IntN(4) == 0, ReadOn: rng.IntN(2) == 0, StopTime: s.between(0, 40*time.Millisecond),
		AttachTime: s.between(500*time.Millisecond, 4*time.Second),
		Moves:      1 + rng.IntN(8), MoveFail: p(0.05), MoveTime: s.between(0, 10*time.Millisecond),
	}
	s.calm = s.Net
}

// attend lets steps of a worker fail, and counts.
func (s *Storm) attend(w *Worker) {
	w.Overlap = oneOf(s.rng, InTurn, Heard, Eager, Lazy)
	w.Strict = s.rng.IntN(3) == 0
	w.FailStep = func(*executor.Batch) error {
		if s.rng.Float64() >= s.Faults.Step {
			return nil
		}
		s.Log.Steps++
		return errors.New("injected")
	}
	w.BadToken = func() bool {
		bad := s.rng.Float64() < s.Faults.BadToken
		if bad {
			s.Log.BadTokens++
		}
		return bad
	}
	// Cancels that cross the result, also of what was paused meanwhile and has no blocks any more.
	w.BeforeApply = func(b *executor.Batch) {
		cancel := func(id request.ID) {
			s.Log.Cancels++
			w.Core.Cancel(s.Now, id)
		}
		if r := b.Rows[s.rng.IntN(len(b.Rows))].Request; s.rng.Float64() < s.Faults.Cancel/4 {
			cancel(r.ID)
		}
		if w.Overlap == InTurn || s.rng.Float64() > 4*s.Faults.Cancel {
			return
		}
		for _, r := range w.Core.Requests(nil) {
			if r.State == request.Paused && slices.ContainsFunc(b.Rows, func(row executor.Row) bool { return row.Request.ID == r.ID }) {
				cancel(r.ID)
			}
		}
	}
}

// Run lets n requests come and go, and proves at the end that every client has
// one answer and nothing is left anywhere. Every step proves the rest.
func (s *Storm) Run(n int) error {
	err := s.guarded(n)
	s.count()
	if err != nil {
		return fmt.Errorf("at %v, tick %d, %+v: %w", s.Now, s.Log.Ticks, s.Faults, err)
	}
	return nil
}

// guarded turns a panic of a core into an error, so that its seed is told.
func (s *Storm) guarded(n int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("sim: panic: %v\n%s", p, debug.Stack())
		}
	}()
	return s.run(n)
}

func (s *Storm) run(n int) error {
	for s.Log.Requests < n {
		if s.live() < 16 {
			for range s.rng.IntN(4) {
				s.send()
			}
		}
		if err := s.strike(); err != nil {
			return err
		}
		if err := s.tick(); err != nil {
			return err
		}
	}
	if s.rng.IntN(4) == 0 {
		if err := s.cancelAll(); err != nil {
			return err
		}
	}
	for range 20000 {
		more, err := s.advance()
		if err != nil {
			return err
		}
		if !more {
			return s.Verify()
		}
	}
	return fmt.Errorf("sim: still busy after %d ticks", s.Log.Ticks)
}

func (s *Storm) tick() error {
	_, err := s.advance()
	return err
}

// advance is one tick, and what a supervisor does with engines that gave up.
func (s *Storm) advance() (bool, error) {
	s.Log.Ticks++
	more, err := s.Tick()
	if err != nil {
		return more, err
	}
	for _, w := range s.Cluster.workers() {
		if w.Core.Fatal() == nil {
			continue
		}
		s.Log.Fatals++
		if err := w.Land(s.Now); err != nil {
			return more, err
		}
		if w.Core.Stats().Receiving+len(w.shelf.queue) == 0 { // else byte paths and copies end first
			if err := w.Empty(); err != nil {
				return more, fmt.Errorf("an engine that gave up: %w", err)
			}
		}
		if err := s.kill(w); err != nil {
			return more, err
		}
		more = true
	}
	return more, nil
}

// cancelAll ends all requests and proves INV-14: two iterations and the time that
// byte paths take to stop later, the gen worker is empty, and a lease later the
// ctx worker.
func (s *Storm) cancelAll() error {
	s.CancelAll()
	for _, part := range s.emptied() {
		life := part.w.Core
		for end := s.Now + part.wait; s.Now <= end; {
			more, err := s.advance()
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
		if part.w.Core != life {
			continue
		}
		if err := s.gone(part.w); err != nil {
			return err
		}
		s.Log.Emptied++
	}
	return nil
}

// count sums up the cores' counters.
func (s *Storm) count() {
	for _, c := range s.Sessions {
		if c.Gen != nil {
			s.judge(c.Gen)
		} else {
			s.judge(c.Ctx)
		}
	}
	for _, t := range s.plain {
		s.judge(t)
	}
	for _, w := range s.Cluster.workers() {
		s.sum(w)
	}
	s.Log.Shelved = s.Shelved
}

func (s *Storm) judge(t *Track) {
	for _, q := range t.Choices() {
		s.Log.Choices++
		if q.Finish == request.FinishLength || q.Finish == request.FinishStop {
			s.Log.Complete++
		}
		if q.Err != nil {
			s.Log.Failed[q.Err.Code]++
		}
	}
}

// sum adds the counters of a core whose life ends.
func (s *Storm) sum(w *Worker) {
	st, l := w.Core.Stats(), &s.Log
	l.Iterations += int(st.Iter)
	l.Rows, l.Fed = l.Rows+w.Rows, l.Fed+w.Fed
	w.Rows, w.Fed = 0, 0
	l.Recomputed, l.Stale, l.Expired = l.Recomputed+st.Recomputed, l.Stale+st.StalePulls, l.Expired+st.LeasesExpired
	l.Paused, l.Evicted, l.Hits = l.Paused+st.Paused, l.Evicted+st.EvictedBlocks, l.Hits+st.PrefixHitTokens
	l.Passed += st.WindowFreed
	l.Onboarded, l.BadMoves = l.Onboarded+st.OnboardBytes, l.BadMoves+st.TierFailed
}

// Add sums logs up.
func (l *StormLog) Add(o *StormLog) {
	l.Requests, l.Choices, l.Complete = l.Requests+o.Requests, l.Choices+o.Choices, l.Complete+o.Complete
	l.Ticks, l.Iterations, l.Rows, l.Fed = l.Ticks+o.Ticks, l.Iterations+o.Iterations, l.Rows+o.Rows, l.Fed+o.Fed
	l.Cuts, l.Kills, l.Slows = l.Cuts+o.Cuts, l.Kills+o.Kills, l.Slows+o.Slows
	l.Steps, l.BadTokens = l.Steps+o.Steps, l.BadTokens+o.BadTokens
	l.Cancels, l.Aborts, l.Resets = l.Cancels+o.Cancels, l.Aborts+o.Aborts, l.Resets+o.Resets
	l.Jumps, l.Fatals, l.Resumed, l.Emptied = l.Jumps+o.Jumps, l.Fatals+o.Fatals, l.Resumed+o.Resumed, l.Emptied+o.Emptied
	l.Recomputed, l.Stale, l.Expired = l.Recomputed+o.Recomputed, l.Stale+o.Stale, l.Expired+o.Expired
	l.Paused, l.Evicted, l.Hits = l.Paused+o.Paused, l.Evicted+o.Evicted, l.Hits+o.Hits
	l.Passed += o.Passed
	l.Stuck, l.Shelved, l.Onboarded, l.BadMoves = l.Stuck+o.Stuck, l.Shelved+o.Shelved, l.Onboarded+o.Onboarded, l.BadMoves+o.BadMoves
	for code, n := range o.Failed {
		l.Failed[code] += n
	}
}
