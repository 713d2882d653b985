package trace

import "sync"

// Ring keeps the newest records until they are drained. A nil Ring keeps nothing.
type Ring[T any] struct {
	mu   sync.Mutex
	size int
	list []T
	next int // the oldest, once list is full
	lost uint64
}

// NewRing returns a ring of size records, nil for 0.
func NewRing[T any](size int) *Ring[T] {
	if size <= 0 {
		return nil
	}
	return &Ring[T]{size: size}
}

// On tells whether records are kept.
func (r *Ring[T]) On() bool { return r != nil }

// Add keeps a record; the oldest goes when there is no room.
func (r *Ring[T]) Add(rec T) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) < r.size {
		r.list = append(r.list, rec)
		return
	}
	r.list[r.next] = rec
	r.next = (r.next + 1) % r.size
	r.lost++
}

// Drain returns all records, oldest first, each once. It is never nil.
func (r *Ring[T]) Drain() []T {
	if r == nil {
		return []T{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := append(append(make([]T, 0, len(r.list)), r.list[r.next:]...), r.list[:r.next]...)
	r.list, r.next = nil, 0
	return out
}

// Lost counts records that nobody drained in time.
func (r *Ring[T]) Lost() uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}
