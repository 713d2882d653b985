package runner

import (
	"maps"
	"sync"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
)

// Health says whether the engine can serve.
type Health string

// The health states, as /health prints them.
const (
	HealthOK       Health = "ok"
	HealthIdle     Health = "idle"
	HealthStalled  Health = "stalled"
	HealthDraining Health = "draining"
	HealthDead     Health = "dead"
)

// Stats is a snapshot of the engine, at most one iteration old.
type Stats struct {
	executor.Stats
	Health      Health
	LastStepAge time.Duration // since the end of the last iteration
	Alive       int           // requests that are not retired
	// Ranks are the ranks of the instance, whose sum the other figures are; nil
	// with one rank. Queued requests wait for a place on any of them.
	Ranks  []RankStats
	Queued int
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
	core  executor.Stats
	at    time.Duration
	ids   map[request.ID]struct{}
	drain bool
	dead  bool

	// The device's progress when it was last seen to move.
	progress uint64
	moved    time.Duration
}

func (s *status) set(core executor.Stats, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core, s.at = core, now
}

func (s *status) add(id request.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = make(map[request.ID]struct{})
	}
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

func (s *status) setDead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	clear(s.ids)
}

// Stats returns the newest snapshot. stall is how long the engine may go with
// work present and neither an iteration nor a phase of one finished before it
// counts as stalled: a long prefill on a slow machine is no stall.
func (e *Engine) Stats(stall time.Duration) Stats {
	now := e.Now()
	s := &e.status
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := e.device.Progress(); p != s.progress {
		s.progress, s.moved = p, now
	}
	out := Stats{Stats: s.core, LastStepAge: now - s.at, Alive: len(s.ids)}
	switch {
	case s.dead:
		out.Health = HealthDead
	case s.drain:
		out.Health = HealthDraining
	case len(s.ids) == 0:
		out.Health = HealthIdle
	case now-max(s.at, s.moved) > stall:
		out.Health = HealthStalled
	default:
		out.Health = HealthOK
	}
	return out
}
