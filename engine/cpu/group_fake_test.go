package cpu

import (
	"context"
	"errors"
	"sync"
	"testing"

	"tandem/engine/tensor"
)

// world is a group of ranks that are goroutines. They meet at a barrier, look at
// each other's memory, and meet again.
type world struct {
	mu      sync.Mutex
	change  *sync.Cond
	arrived int
	round   int
	err     error
	src     [][]float32
	calls   int // collectives that all ranks came to
}

// fakeGroup is one rank's place in a world.
type fakeGroup struct {
	*world
	id int
}

var errFake = errors.New("a peer is gone")

func newWorld(size int) *world {
	w := &world{src: make([][]float32, size)}
	w.change = sync.NewCond(&w.mu)
	return w
}

func (g fakeGroup) ID() int   { return g.id }
func (g fakeGroup) Size() int { return len(g.src) }

// fail ends the group.
func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.change.Broadcast()
}

func (w *world) meet() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.arrived++; w.arrived == len(w.src) {
		w.arrived = 0
		w.round++
		w.change.Broadcast()
	} else {
		for round := w.round; w.round == round && w.err == nil; {
			w.change.Wait()
		}
	}
	return w.err
}

// share shows src to the others while do runs.
func (g fakeGroup) share(src []float32, do func()) error {
	g.mu.Lock()
	g.src[g.id] = src
	g.mu.Unlock()
	if err := g.meet(); err != nil {
		return err
	}
	do()
	if g.id == 0 {
		g.calls++
	}
	return g.meet()
}

func (g fakeGroup) AllGather(_ context.Context, dst, src []float32, rows []int, width int) error {
	if len(dst) != sum(rows)*width || len(src) != rows[g.id]*width {
		panic("all-gather: wrong sizes")
	}
	return g.share(src, func() {
		for r, n := range rows {
			if r != g.id || n > 0 && &dst[0] != &src[0] {
				copy(dst, g.src[r][:n*width])
			}
			dst = dst[n*width:]
		}
	})
}

func (g fakeGroup) ReduceScatter(_ context.Context, dst, src []float32, rows []int, width int) error {
	if len(dst) != rows[g.id]*width || len(src) != sum(rows)*width {
		panic("reduce-scatter: wrong sizes")
	}
	first := sum(rows[:g.id]) * width
	var tree func(lo, hi, i int) float32
	tree = func(lo, hi, i int) float32 {
		if hi-lo == 1 {
			return g.src[lo][first+i]
		}
		mid := (lo + hi) / 2
		return tree(lo, mid, i) + tree(mid, hi, i)
	}
	return g.share(src, func() {
		for i := range dst {
			dst[i] = tree(0, g.Size(), i)
		}
	})
}

// runAll runs a step on all ranks at the same time.
func runAll(t testing.TB, ranks []*Backend, batches []tensor.Batch) [][]float32 {
	t.Helper()
	rows := make([]int, len(ranks))
	for r := range batches {
		rows[r] = batches[r].Rows()
	}
	logits, errs := make([][]float32, len(ranks)), make([]error, len(ranks))
	var wg sync.WaitGroup
	for r, b := range ranks {
		batches[r].RankRows = rows
		wg.Go(func() { logits[r], errs[r] = b.Run(&batches[r]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return logits
}
