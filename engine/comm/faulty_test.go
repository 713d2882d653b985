package comm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// faultyLoop runs iterations of the usual shape until the group ends or stop.
func faultyLoop(t *testing.T, w *world, stop uint64, rules ...*Rule) []error {
	return w.each(func(c Comm) error {
		f := NewFaulty(w.of[c.ID()], c.ID(), rules...)
		x := make([]float32, 40)
		for iter := range stop {
			rec := record(c, iter)
			rec.PayloadBytes = 2
			if _, err := f.Exchange(t.Context(), rec); err != nil {
				return err
			}
			if _, err := f.Gather(t.Context(), []byte{1, 2}); err != nil {
				return err
			}
			if err := f.AllReduce(t.Context(), x); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestFaultsEndInErrorsNeverInHangs(t *testing.T) {
	for _, op := range []Op{OpExchange, OpGather, OpAllReduce} {
		for _, tc := range []struct {
			fault Fault
			is    error
			says  string
		}{
			{FaultLose, ErrTimeout, "rank 1 did not come to " + op.String() + " of iteration 5 within 3"},
			{FaultDuplicate, ErrDivergence, "rank 1"},
			{FaultCut, ErrKilled, "rank 1 left the group at iteration"},
			{FaultKill, ErrTimeout, "rank 1 did not come to " + op.String() + " of iteration 5 within 3"},
		} {
			t.Run(fmt.Sprint(op, tc.fault), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, layout{3}, Config{})
					errs := faultyLoop(t, w, 10, &Rule{Fault: tc.fault, Rank: 1, Op: op, Iter: 5})
					for r, err := range errs {
						if r == 1 && tc.fault == FaultKill {
							tc.is, tc.says = ErrKilled, "" // the others come last in the next lap
						}
						if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
							t.Errorf("rank %d: %v, want %q", r, err, tc.says)
						}
						if r == 1 && tc.fault == FaultKill {
							tc.is, tc.says = ErrTimeout, "rank 1 did not come"
						}
					}
					w.close()
				})
			})
		}
	}
}

func TestDelayIsHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, layout{3}, Config{})
		for r, err := range faultyLoop(t, w, 10, &Rule{Fault: FaultDelay, Rank: 2, Iter: 3, Delay: 20 * time.Second}) {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		w.close()
	})
}

// TestFaultsBetweenProcesses kills a rank that shares its process with another.
func TestFaultsBetweenProcesses(t *testing.T) {
	t.Parallel() // mostly waits
	for _, tc := range []struct {
		fault Fault
		is    error
	}{{FaultLose, ErrTimeout}, {FaultDuplicate, ErrDivergence}, {FaultCut, nil}} {
		w := newWorld(t, layout{2, 2}, Config{Timeout: 3 * time.Second})
		within(t, time.Minute, func() {
			for r, err := range faultyLoop(t, w, 10, &Rule{Fault: tc.fault, Rank: 3, Op: OpExchange, Iter: 5}) {
				if err == nil || tc.is != nil && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), "rank 3") {
					t.Errorf("fault %d, rank %d: %v", tc.fault, r, err)
				}
			}
		})
		w.close()
	}
}

// TestFaultyWithoutRulesConforms runs the usual collectives through it.
func TestFaultyWithoutRulesConforms(t *testing.T) {
	w := newWorld(t, layout{2, 1}, Config{})
	for i, c := range w.ranks {
		w.ranks[i] = NewFaulty(w.of[i], c.ID())
	}
	const width = 3
	rows, all := []int{2, 0, 1}, make([][]float32, 3)
	for r := range all {
		all[r] = values(uint64(r), 9)
	}
	want := treeSums(all)
	w.all(t, func(c Comm) error {
		if err := c.Barrier(t.Context()); err != nil {
			return err
		}
		return checkRows(t.Context(), c, all, want, rows, width)
	})
}
