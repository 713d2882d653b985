package comm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childJob); job != "" {
		os.Exit(child(job))
	}
	goleak.VerifyTestMain(m)
}

// world is a whole instance: its groups and one Comm for each rank.
type world struct {
	groups []*Group
	of     []*Group // by rank
	ranks  []Comm
}

// layout is how many ranks each process has; one number is a group in one
// process.
type layout []int

func (l layout) size() (n int) {
	for _, c := range l {
		n += c
	}
	return n
}

func (l layout) String() string {
	if len(l) == 1 {
		return fmt.Sprintf("local %d", l[0])
	}
	return fmt.Sprintf("processes %v", []int(l))
}

// layouts are the implementations that the conformance tests run against.
var layouts = []layout{{1}, {2}, {3}, {4}, {8}, {1, 1}, {2, 2}, {1, 2, 1}, {1, 1, 1, 1}, {3, 4, 1}}

func newWorld(t testing.TB, l layout, cfg Config) *world {
	t.Helper()
	return newOddWorld(t, l, func(int) Config { return cfg })
}

// newOddWorld is newWorld with another configuration for each process.
func newOddWorld(t testing.TB, l layout, config func(process int) Config) *world {
	t.Helper()
	w := &world{groups: make([]*Group, len(l))}
	sized := func(process int) Config {
		cfg := config(process)
		cfg.Size = l.size()
		return cfg
	}
	if len(l) == 1 {
		g, err := NewLocal(sized(0))
		if err != nil {
			t.Fatal(err)
		}
		w.groups[0] = g
	} else {
		w.join(t, l, sized)
	}
	for _, g := range w.groups {
		for r := g.Ranks().First; r <= g.Ranks().Last; r++ {
			w.of = append(w.of, g)
			w.ranks = append(w.ranks, g.Rank(r))
		}
	}
	t.Cleanup(func() { w.close() })
	return w
}

// close closes all groups at once, as processes do.
func (w *world) close() {
	var wg sync.WaitGroup
	for _, g := range w.groups {
		wg.Go(func() { _ = g.Close() })
	}
	wg.Wait()
}

func (w *world) join(t testing.TB, l layout, config func(process int) Config) {
	t.Helper()
	lis, err := Listen("127.0.0.1:0", Span{0, l[0] - 1}, config(0))
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(l))
	var wg sync.WaitGroup
	first := l[0]
	for i, n := range l[1:] {
		ranks := Span{first, first + n - 1}
		first += n
		wg.Go(func() { w.groups[i+1], errs[i+1] = Join(context.Background(), lis.Addr(), ranks, config(i+1)) })
	}
	w.groups[0], errs[0] = lis.Accept(context.Background())
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("process %d: %v", i, err)
		}
	}
}

// each runs f for every rank at once and returns their errors.
func (w *world) each(f func(c Comm) error) []error {
	errs := make([]error, len(w.ranks))
	var wg sync.WaitGroup
	for i, c := range w.ranks {
		wg.Go(func() { errs[i] = f(c) })
	}
	wg.Wait()
	return errs
}

// all is each for what must succeed.
func (w *world) all(t testing.TB, f func(c Comm) error) {
	t.Helper()
	for r, err := range w.each(f) {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

// record is a record of a rank that differs from those of others.
func record(c Comm, iter uint64) Record {
	return Record{
		Iter: iter, ConfigEpoch: 7, Rank: uint16(c.ID()), Intent: Intent(c.ID() % 3),
		NumActive: uint32(c.ID()) + uint32(iter), ActiveTokens: iter << 33, RouteDigest: iter * 3,
	}
}

// values are n floats whose sum depends on the order of addition.
func values(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64()) * float32(int(1)<<rng.IntN(20))
	}
	return x
}

// within fails a test whose f does not return in time, instead of hanging.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("still running after %v", d)
	}
}
