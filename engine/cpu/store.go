package cpu

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// Store holds packed weights for several backends of one process. What two of
// them load from tensors of the same names, shapes, types and bytes is packed by
// the first and held once. Backends may load at the same time. Its owner closes
// it after the last backend.
type Store struct {
	weights kernels.Weights
	seed    maphash.Seed

	mu      sync.Mutex
	entries map[string]*entry
	users   int // open backends
	closed  bool
}

type weightKind byte

const (
	kindMatrix weightKind = iota
	kindGateUp
	kindVector
)

// weight is a matrix or a vector in the store.
type weight struct {
	matrix *kernels.Matrix
	vector []float32
	bytes  int
}

// entry is a weight, once ready is closed.
type entry struct {
	ready chan struct{}
	weight
	err error
}

// ErrInUse is returned by Close of a store that open backends use.
var ErrInUse = errors.New("backends still use the store of weights")

// NewStore makes an empty store.
func NewStore() *Store { return &Store{seed: maphash.MakeSeed(), entries: map[string]*entry{}} }

// Bytes is the memory that the weights take.
func (s *Store) Bytes() int { return s.weights.Bytes() }

// Close frees the weights. While a backend is open it does nothing but return
// ErrInUse. Closing twice does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		return fmt.Errorf("%w: %d", ErrInUse, s.users)
	}
	s.closed = true
	s.weights.Close()
	s.entries = nil
	return nil
}

func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("the store of weights is closed")
	}
	s.users++
	return nil
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
}

// get returns what the parts give. The first to ask for it makes it, others wait
// and find that it was there; after a failure the next one tries again.
func (s *Store) get(kind weightKind, parts []tensor.Host, build func(*kernels.Weights) (weight, error)) (w weight, had bool, err error) {
	key := s.key(kind, parts)
	s.mu.Lock()
	e, had := s.entries[key]
	if !had {
		e = &entry{ready: make(chan struct{})}
		s.entries[key] = e
	}
	s.mu.Unlock()
	if had {
		<-e.ready
		return e.weight, true, e.err
	}
	e.weight, e.err = build(&s.weights)
	if e.err != nil {
		s.mu.Lock()
		delete(s.entries, key)
		s.mu.Unlock()
	}
	close(e.ready)
	return e.weight, false, e.err
}

// key tells weights apart. A sample of the bytes is part of it, so that tensors
// which wrongly have one name do not become one.
func (s *Store) key(kind weightKind, parts []tensor.Host) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", kind)
	for _, h := range parts {
		fmt.Fprintf(&b, "|%q %s %v %x", h.Name, h.DType, h.Shape, s.sample(h.Data))
	}
	return b.String()
}

// sample hashes some of the bytes, which costs little even when they are in a
// file.
func (s *Store) sample(data []byte) uint64 {
	const piece = 256
	if len(data) <= 3*piece {
		return maphash.Bytes(s.seed, data)
	}
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, at := range []int{0, (len(data) - piece) / 2, len(data) - piece} {
		_, _ = h.Write(data[at : at+piece])
	}
	return h.Sum64()
}
