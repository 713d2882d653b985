package runner

import (
	"maps"
	"reflect"
	"sync"
	"time"

	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Stats is a snapshot of the engine, at most one iteration old.
type Stats struct {
	executor.Stats
	Health Health
	// Reason says in words what keeps the engine from serving, or what a shutdown
	// waits for; empty while all is well.
	Reason string
	// Quiet is how long a stalled engine has made no headway at all.
	Quiet       time.Duration
	Timings     Timings       // of the ranks of this process
	LastStepAge time.Duration // since the end of the last iteration
	Alive       int           // requests that are not retired
	// Ranks are the ranks of the instance, whose sum the other figures are; nil
	// with one rank. Queued requests wait for a place on any of them.
	Ranks  []RankStats
	Queued int
	// Strict is how long the oldest request has waited whose rank is full.
	Strict time.Duration
	// Moves are conversations that changed their rank: decided, and those of them
	// that ended, with their blocks or without.
	Moves, Moved, MovesFailed uint64
	// Traffic is what moved between workers and the ranks of this process, by byte path.
	Traffic []transfer.Traffic
}

// RankStats is a snapshot of one attention-DP rank.
type RankStats struct {
	executor.Stats
	Steps      uint64            // forward passes that the rank took part in
	Padded     uint64            // of them without a row of its own
	Held       uint64            // iterations in which prefill was held back
	Active     int               // requests placed on the rank and not closed
	QueuedWork uint64            // prompt tokens still to compute
	Placed     map[string]uint64 // requests by reason of their place
}

// status is the part of the engine that others may read at any time. Its lock
// is held for copies only, never while the engine works.
type status struct {
	mu    sync.Mutex
	ranks []rankStatus
	queue lockstep.Stats // of rank 0
	ids   map[request.ID]struct{}
	drain bool
	dead  bool
	why   string // it is dead

	// The devices' progress when it was last seen to move.
	progress uint64
	moved    time.Duration
}

// rankStatus is a rank's last word.
type rankStatus struct {
	RankStats
	at time.Duration
	// step is the one that runs; nil of ranks elsewhere.
	step func() (executor.StepRecord, bool)
}

func (s *status) init(ranks int) {
	s.ranks = make([]rankStatus, ranks)
	s.ids = make(map[request.ID]struct{})
}

// set keeps a rank's figures. Placed is copied.
func (s *status) set(rank int, st RankStats, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := &s.ranks[rank]
	placed := to.Placed
	to.RankStats, to.at = st, now
	if st.Placed != nil {
		if placed == nil {
			placed = make(map[string]uint64)
		}
		maps.Copy(placed, st.Placed)
		to.Placed = placed
	}
}

// refresh is set for a rank whose loop is still in the step of before.
func (s *status) refresh(rank int, st executor.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := &s.ranks[rank]
	st.PoolFull = min(st.PoolFull, to.PoolFull) // as of to.at
	to.Stats = st
}

func (s *status) setQueue(l lockstep.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = l
	s.queue.Placed = nil // the rank's own
}

func (s *status) add(id request.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[id] = struct{}{}
}

func (s *status) remove(id request.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
}

func (s *status) alive() map[request.ID]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.ids)
}

func (s *status) draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drain
}

func (s *status) setDraining() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain = true
}

func (s *status) setDead(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead, s.why = true, why
	clear(s.ids)
}

// Stats returns the newest snapshot. stall is how long the engine may go with
// work present and neither an iteration nor a phase of one finished before it
// counts as stalled: a long prefill on a slow machine is no stall.
func (e *Engine) Stats(stall time.Duration) Stats {
	now := e.Now()
	progress := uint64(0)
	for _, r := range e.ranks {
		progress += r.device.Progress()
	}
	var times Timings
	for _, r := range e.ranks {
		r.times.addTo(&times)
	}
	s := &e.status
	s.mu.Lock()
	defer s.mu.Unlock()
	if progress != s.progress {
		s.progress, s.moved = progress, now
	}
	out := Stats{Timings: times, Traffic: e.traffic(), Alive: len(s.ids), Queued: s.queue.Queued, Strict: s.queue.Strict}
	moves := &s.queue.Moves
	out.Moves, out.Moved, out.MovesFailed = moves.Started, moves.Committed, moves.Failed+moves.Expired+moves.Forgotten
	last := now
	for i := range s.ranks {
		r := &s.ranks[i]
		last = min(last, r.at)
		if i == 0 {
			out.ErrorBudget = r.ErrorBudget
		}
		out.ErrorBudget = min(out.ErrorBudget, r.ErrorBudget)
		sum(&out.Stats, &r.Stats)
		if len(s.ranks) > 1 {
			one := r.RankStats
			one.Placed = maps.Clone(r.Placed)
			out.Ranks = append(out.Ranks, one)
		}
	}
	out.Waiting += s.queue.Queued
	out.LastStepAge = now - last
	s.judge(&out, now, last, stall)
	return out
}

// sum adds the figures of a rank; of Iter, LastStep and ages it keeps the highest.
func sum(to, add *executor.Stats) {
	iter := max(to.Iter, add.Iter)
	to.PoolFull = max(to.PoolFull, add.PoolFull)
	for k, age := range add.HoldAges {
		to.HoldAges[k] = max(to.HoldAges[k], age)
	}
	to.LastStep = max(to.LastStep, add.LastStep)
	a, b := reflect.ValueOf(to).Elem(), reflect.ValueOf(add).Elem()
	for i := range a.NumField() {
		switch f := a.Field(i); f.Kind() {
		case reflect.Int:
			f.SetInt(f.Int() + b.Field(i).Int())
		case reflect.Uint64:
			f.SetUint(f.Uint() + b.Field(i).Uint())
		}
	}
	to.Iter = iter
}
