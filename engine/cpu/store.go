package cpu

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
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
	keep    *Saved     // nil: nothing is kept between starts
	saved   *savedFile // nil: there was none

	mu      sync.Mutex
	entries map[string]*entry
	users   int // open backends
	packed  int // bytes that were not in the file
	closed  bool

	saving sync.WaitGroup
	stop   context.CancelFunc // of saving, nil before
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
func NewStore() *Store { return &Store{entries: map[string]*entry{}} }

// OpenStore makes a store that finds matrices in a file of an earlier start. What
// is wrong with the file is told to the log, and the matrices are packed.
func OpenStore(c Saved) *Store {
	s := NewStore()
	s.keep = &c
	f, err := openSaved(&c)
	switch {
	case err == nil:
		s.saved = f
	case errors.Is(err, errStale):
		c.log().Info("packed weights are stale and will be replaced", "file", c.Path)
	case !errors.Is(err, fs.ErrNotExist):
		c.log().Warn("packed weights cannot be used and will be replaced", "file", c.Path, "error", err)
	}
	return s
}

// Save writes what had to be packed, in the background, if the store keeps
// weights. It is called when all of them are loaded. Close ends it.
func (s *Store) Save() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep == nil || s.closed || s.stop != nil || s.packed == 0 || s.weights.Bytes() < s.keep.MinBytes {
		return
	}
	var list []toSave
	for key, e := range s.entries {
		if e.matrix != nil {
			list = append(list, toSave{key, e.matrix})
		}
	}
	slices.SortFunc(list, func(a, b toSave) int { return strings.Compare(a.key, b.key) })
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.saving.Go(func() { s.keep.save(ctx, list) })
}

// Mapped tells whether there was a file of packed weights.
func (s *Store) Mapped() bool { return s.saved != nil }

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
	if s.stop != nil {
		s.stop()
		s.saving.Wait()
	}
	s.weights.Close()
	if s.saved != nil {
		s.saved.close()
	}
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
	e.weight, e.err = s.make(key, build)
	if e.err != nil {
		s.mu.Lock()
		delete(s.entries, key)
		s.mu.Unlock()
	}
	close(e.ready)
	return e.weight, false, e.err
}

// make takes a weight from the file, or builds it.
func (s *Store) make(key string, build func(*kernels.Weights) (weight, error)) (weight, error) {
	if s.saved != nil {
		if e := s.saved.entries[key]; e != nil {
			if w, err := s.saved.matrix(e, &s.weights); err == nil {
				return w, nil
			}
		}
	}
	w, err := build(&s.weights)
	if err == nil && w.matrix != nil {
		s.mu.Lock()
		s.packed += w.bytes
		s.mu.Unlock()
	}
	return w, err
}

// key tells weights apart. A sample of the bytes is part of it, so that tensors
// which wrongly have one name, or parts of one, do not become one.
func (s *Store) key(kind weightKind, parts []tensor.Host) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", kind)
	for _, h := range parts {
		fmt.Fprintf(&b, "|%q %s %v %x", h.Name, h.DType, h.Shape, sample(h.Data))
	}
	return b.String()
}

// sample hashes some of the bytes, which costs little even when they are in a
// file.
func sample(data []byte) []byte {
	const piece = 256
	h := sha256.New()
	if len(data) <= 3*piece {
		h.Write(data)
	} else {
		for _, at := range []int{0, (len(data) - piece) / 2, len(data) - piece} {
			h.Write(data[at : at+piece])
		}
	}
	return h.Sum(nil)[:12]
}
