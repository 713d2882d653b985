package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTimeoutNamesWhoIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var stalls []Stall
		w := newWorld(t, layout{4}, Config{OnStall: func(s Stall) {
			if d := time.Since(start); d < 2*time.Second || d > 3*time.Second {
				t.Errorf("warned after %v", d)
			}
			stalls = append(stalls, s)
		}})
		errs := w.each(func(c Comm) error {
			if c.ID() == 1 || c.ID() == 3 {
				return nil
			}
			_, err := c.Exchange(t.Context(), record(c, 8))
			return err
		})
		if d := time.Since(start); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("timed out after %v", d)
		}
		for _, r := range []int{0, 2} {
			var late *TimeoutError
			if !errors.As(errs[r], &late) || !errors.Is(errs[r], ErrTimeout) || late.Op != OpExchange || late.Iter != 8 ||
				!slices.Equal(late.Missing, []int{1, 3}) {
				t.Errorf("rank %d: %v", r, errs[r])
			}
		}
		if len(stalls) != 1 || !slices.Equal(stalls[0].Missing, []int{1, 3}) || stalls[0].Op != OpExchange {
			t.Errorf("stalls %+v", stalls)
		}
		w.close()
	})
}

func TestProgressIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, layout{2}, Config{})
		w.all(t, func(c Comm) error {
			if c.ID() == 1 {
				for range 20 { // a forward of 400 s that reports each layer
					time.Sleep(20 * time.Second)
					c.Progress()
				}
			}
			return c.Barrier(t.Context())
		})
		w.close()
	})
}

func TestNoTimeoutWhenOffOrIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, layout{2}, Config{Timeout: -1})
		w.all(t, func(c Comm) error {
			if c.ID() == 1 {
				time.Sleep(time.Hour)
			}
			return c.Barrier(t.Context())
		})
		w.close()
		w = newWorld(t, layout{2}, Config{})
		time.Sleep(time.Hour) // nobody waits
		w.all(t, func(c Comm) error { return c.Barrier(t.Context()) })
		w.close()
	})
}

func TestDeadlineOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, layout{2}, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := w.ranks[0].Barrier(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrCancelled) {
			t.Error(err)
		}
		w.close()
	})
}

// TestTimeoutBetweenProcesses has every process name the rank that is missing,
// wherever it is, for tables and for activations.
func TestTimeoutBetweenProcesses(t *testing.T) {
	t.Parallel() // mostly waits
	for _, op := range []Op{OpExchange, OpGather, OpAllReduce} {
		for _, who := range []int{0, 2} {
			t.Run(fmt.Sprint(op, " without rank ", who), func(t *testing.T) {
				t.Parallel()
				stalled := make(chan Stall, 9)
				w := newWorld(t, layout{1, 1, 1}, Config{
					Timeout: 2 * time.Second, StallAfter: time.Second,
					OnStall: func(s Stall) { stalled <- s },
				})
				within(t, time.Minute, func() {
					for r, err := range w.each(func(c Comm) error { return allBut(t.Context(), c, who, op, w.of[c.ID()]) }) {
						var late *TimeoutError
						if !errors.As(err, &late) || late.Op != op || late.Iter != 4 || !slices.Equal(late.Missing, []int{who}) {
							t.Errorf("rank %d has %v", r, err)
						}
					}
				})
				if s := <-stalled; s.Op != op || s.Iter != 4 {
					t.Errorf("stall %+v", s)
				}
				w.close()
			})
		}
	}
}

// allBut goes to a collective, with all ranks but who.
func allBut(ctx context.Context, c Comm, who int, op Op, g *Group) error {
	rec := record(c, 4)
	rec.PayloadBytes = 1
	if op == OpExchange && c.ID() == who {
		c.Progress()
	} else if _, err := c.Exchange(ctx, rec); err != nil {
		return err
	}
	switch {
	case c.ID() == who:
		<-g.Done()
		return g.Err()
	case op == OpGather:
		_, err := c.Gather(ctx, []byte{1})
		return err
	}
	return c.AllReduce(ctx, make([]float32, 100))
}

// TestWorkElsewhereIsNoHang has one process compute for several time-outs while
// the others wait for it.
func TestWorkElsewhereIsNoHang(t *testing.T) {
	t.Parallel() // mostly waits
	for _, who := range []int{0, 2} {
		t.Run(fmt.Sprint("rank ", who), func(t *testing.T) {
			t.Parallel()
			var work atomic.Uint64
			w := newOddWorld(t, layout{1, 1, 1}, func(process int) Config {
				cfg := Config{Timeout: 2 * time.Second}
				if process == who {
					cfg.Work = work.Load
				}
				return cfg
			})
			w.all(t, func(c Comm) error {
				if c.ID() == who {
					for range 80 {
						time.Sleep(50 * time.Millisecond)
						work.Add(1)
					}
				}
				_, err := c.Exchange(t.Context(), record(c, 1))
				return err
			})
		})
	}
}
