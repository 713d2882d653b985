package parallel

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"tandem/engine/comm"
	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/test/tinymodel"
)

// mode is a way to divide a model.
type mode struct {
	name string
	p    model.Parallel // of rank 0
	// first rank of the second process, 0 if there is one.
	second int
}

func tp(size int) mode  { return mode{name: fmt.Sprintf("TP %d", size), p: model.Parallel{Size: size}} }
func adp(size int) mode { return attentionDP(size, false) }

func attentionDP(size int, split bool) mode {
	m := mode{name: fmt.Sprintf("ADP %d", size), p: model.Parallel{Size: size, AttentionDP: true, SplitMLP: split}}
	if split {
		m.name += " split MLP"
	}
	return m
}

// over spreads the ranks from second on over another process.
func (m mode) over(second int) mode {
	m.name, m.second = fmt.Sprintf("%s, %d and %d", m.name, second, m.p.Size-second), second
	return m
}

// open makes the device of a rank, with the model on it. A nil rank is alone.
type open func(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape, p model.Parallel, rank *comm.Rank) tinymodel.Backend

// world is the ranks of an instance, each with its device.
type world struct {
	mode
	ranks   []*comm.Rank
	devices []tinymodel.Backend
}

func newWorld(t testing.TB, ck *model.Checkpoint, m mode, kv tensor.KVShape, device open) *world {
	t.Helper()
	w := &world{mode: m, ranks: connect(t, m)}
	for r, rank := range w.ranks {
		p := m.p
		p.Rank = r
		shape := kv
		_, shape.KVHeads = p.KVHeads(&ck.Config)
		w.devices = append(w.devices, device(t, ck, shape, p, rank))
	}
	return w
}

// connect makes the groups of a mode: shared memory in a process, TCP between.
func connect(t testing.TB, m mode) (ranks []*comm.Rank) {
	t.Helper()
	cfg := comm.Config{Size: m.p.Size}
	var groups []*comm.Group
	keep := func(g *comm.Group, err error) {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		groups = append(groups, g)
	}
	if m.second == 0 {
		keep(comm.NewLocal(cfg))
	} else {
		l, err := comm.Listen("127.0.0.1:0", comm.Span{Last: m.second - 1}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var joined *comm.Group
		var joinErr error
		done := make(chan struct{})
		go func() {
			defer close(done)
			joined, joinErr = comm.Join(context.Background(), l.Addr(), comm.Span{First: m.second, Last: m.p.Size - 1}, cfg)
		}()
		keep(l.Accept(context.Background()))
		<-done
		keep(joined, joinErr)
	}
	for _, g := range groups {
		for r := g.Ranks().First; r <= g.Ranks().Last; r++ {
			ranks = append(ranks, g.Rank(r))
		}
	}
	return ranks
}

// step runs a batch on each rank at the same time and returns their logits. A
// rank that fails ends the group, so that no peer waits for it.
func (w *world) step(batches []*tensor.Batch) ([][][]float32, error) {
	rows := make([]int, len(batches))
	for r, b := range batches {
		rows[r] = b.Rows()
	}
	out, errs := make([][][]float32, len(batches)), make([]error, len(batches))
	var wg sync.WaitGroup
	for r, b := range batches {
		if len(w.ranks) > 0 {
			b.RankRows = rows
		}
		wg.Go(func() {
			if out[r], errs[r] = w.devices[r].Run(b); errs[r] != nil && len(w.ranks) > 0 {
				w.ranks[r].Fail(errs[r])
			}
		})
	}
	wg.Wait()
	for r, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return out, nil
}
