package comm

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// TestManyExchanges has ranks meet fast, with payloads and sums now and then.
func TestManyExchanges(t *testing.T) {
	for _, tc := range []struct {
		l layout
		n uint64
	}{{layout{2}, 100_000}, {layout{8}, 20_000}, {layout{2, 2}, 1_000}} {
		t.Run(tc.l.String(), func(t *testing.T) {
			n := tc.n
			if testing.Short() {
				n /= 10
			}
			w := newWorld(t, tc.l, Config{})
			w.all(t, func(c Comm) error { return lap(t.Context(), c, n) })
		})
	}
}

func lap(ctx context.Context, c Comm, n uint64) error {
	x, want := make([]float32, 33), float32(c.Size())
	for iter := range n {
		rec := record(c, iter)
		if iter%16 == 0 {
			rec.PayloadBytes = 3
		}
		table, err := c.Exchange(ctx, rec)
		if err != nil {
			return err
		}
		for i := range table {
			if table[i].Iter != iter || int(table[i].Rank) != i || table[i].NumActive != uint32(i)+uint32(iter) {
				return fmt.Errorf("iteration %d: rank %d is %+v", iter, i, table[i])
			}
		}
		if rec.PayloadBytes > 0 {
			if _, err := c.Gather(ctx, []byte{1, 2, 3}); err != nil {
				return err
			}
		}
		if iter%8 == 0 {
			for i := range x {
				x[i] = 1
			}
			if err := c.AllReduce(ctx, x); err != nil {
				return err
			}
			if x[0] != want || x[32] != want {
				return fmt.Errorf("iteration %d: sum %v", iter, x)
			}
		}
	}
	return nil
}

// TestNoGarbageInSteadyState counts what a process allocates in many rounds.
func TestNoGarbageInSteadyState(t *testing.T) {
	w := newWorld(t, layout{4}, Config{})
	rows, even := []int{2, 0, 1, 5}, slices.Repeat([]int{1}, 16)
	ctx := t.Context()
	iter := uint64(0)
	body := func(n uint64) func(c Comm) error {
		return func(c Comm) error {
			x, y, p := make([]float32, 80), make([]float32, 16), make([]byte, 100)
			for i := range n {
				rec := record(c, iter+i)
				rec.PayloadBytes = 100
				if _, err := c.Exchange(ctx, rec); err != nil {
					return err
				}
				if _, err := c.Gather(ctx, p); err != nil {
					return err
				}
				lo := sum(rows[:c.ID()]) * 10
				own := x[lo : lo+rows[c.ID()]*10]
				if err := c.AllGather(ctx, x, own, rows, 10); err != nil {
					return err
				}
				if err := c.ReduceScatter(ctx, own, x, rows, 10); err != nil {
					return err
				}
				if err := c.AllReduce(ctx, x); err != nil {
					return err
				}
				if err := c.AllToAll(ctx, y, x[:16], even, 4); err != nil {
					return err
				}
			}
			return nil
		}
	}
	w.all(t, body(10))
	iter += 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const rounds = 1000
	w.all(t, body(rounds))
	runtime.ReadMemStats(&after)
	// Starting the goroutines allocates; 20,000 collectives do not.
	if n := after.Mallocs - before.Mallocs; n > 500 {
		t.Errorf("%d allocations in %d rounds of 4 ranks", n, rounds)
	}
}
