package cluster

import (
	"context"
	"crypto/rand"
	"maps"
	"strings"
	"sync"
	"time"
)

// Limits of a Storage: far above what a cluster needs, so that a broken or hostile client cannot take the memory.
const (
	maxKeys       = 10_000
	maxKeyBytes   = 1 << 10
	maxValueBytes = 64 << 10
)

// sweepInterval is how often expired keys are dropped, and how late that may be before keys get the lateness as a credit.
const sweepInterval = time.Second

type item struct {
	value    string
	deadline time.Time // zero = never
}

// Storage keeps keys with a time to live in memory. Safe for concurrent use.
//
// A pause of this process must not count against those who keep their keys alive: when it notices that it ran late, all
// deadlines move by the lateness before anything expires.
type Storage struct {
	epoch string // of this storage: another one starts empty
	now   func() time.Time

	mu      sync.Mutex
	items   map[string]item
	last    time.Time     // when it last looked at the clock
	changed chan struct{} // closed and replaced after each change of keys or values
}

// NewStorage makes an empty storage; now nil means time.Now. Run drops what expires.
func NewStorage(now func() time.Time) *Storage {
	if now == nil {
		now = time.Now
	}
	return &Storage{epoch: rand.Text(), now: now, items: map[string]item{}, last: now(), changed: make(chan struct{})}
}

// Run sweeps until ctx ends.
func (s *Storage) Run(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.mu.Lock()
			s.sweep()
			s.mu.Unlock()
		}
	}
}

// sweep drops what has expired and returns the time it took it to be. The caller holds mu.
func (s *Storage) sweep() time.Time {
	now := s.now()
	late := now.Sub(s.last) - sweepInterval
	s.last = now
	if late > sweepInterval {
		for key, it := range s.items {
			if !it.deadline.IsZero() {
				it.deadline = it.deadline.Add(late)
				s.items[key] = it
			}
		}
	}
	dropped := false
	for key, it := range s.items {
		if !it.deadline.IsZero() && !now.Before(it.deadline) {
			delete(s.items, key)
			dropped = true
		}
	}
	if dropped {
		s.wake()
	}
	return now
}

func (s *Storage) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Set stores a value; ttl <= 0 means for ever. Errors: ErrExists, ErrFull, ErrTooLong.
func (s *Storage) Set(key, value string, ttl time.Duration, overwrite bool) error {
	if key == "" || len(key) > maxKeyBytes || len(value) > maxValueBytes {
		return ErrTooLong
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.sweep()
	old, exists := s.items[key]
	switch {
	case exists && !overwrite:
		return ErrExists
	case !exists && len(s.items) >= maxKeys:
		return ErrFull
	}
	s.items[key] = item{value, deadlineOf(now, ttl)}
	if !exists || old.value != value {
		s.wake()
	}
	return nil
}

func deadlineOf(now time.Time, ttl time.Duration) time.Time {
	if ttl <= 0 {
		return time.Time{}
	}
	return now.Add(ttl)
}

// Get returns a value.
func (s *Storage) Get(key string) (value string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	it, ok := s.items[key]
	return it.value, ok
}

// Delete drops a key and tells whether it was there.
func (s *Storage) Delete(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	if _, ok := s.items[key]; !ok {
		return false
	}
	delete(s.items, key)
	s.wake()
	return true
}

// Expire gives a key a new time to live and tells whether it was there; ttl <= 0 means for ever.
func (s *Storage) Expire(key string, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.sweep()
	it, ok := s.items[key]
	if ok {
		it.deadline = deadlineOf(now, ttl)
		s.items[key] = it
	}
	return ok
}

// List returns all keys that begin with prefix, with their values, and a channel that is closed at the next change.
func (s *Storage) List(prefix string) (map[string]string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	out := map[string]string{}
	for key, it := range maps.All(s.items) {
		if strings.HasPrefix(key, prefix) {
			out[key] = it.value
		}
	}
	return out, s.changed
}

// Follow calls apply with all keys below prefix, now and after each change, until ctx ends. It never has a problem.
func (s *Storage) Follow(ctx context.Context, prefix string, apply func(map[string]string), _ func(error)) {
	for {
		list, changed := s.List(prefix)
		apply(list)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
