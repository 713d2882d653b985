package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// ending is one way to end a group while all but one rank wait in an exchange.
type ending struct {
	name string
	do   func(w *world, c Comm) error
	is   error
	says string
}

const lastIter = 17

func endings(t *testing.T) []ending {
	boom := errors.New("out of paper")
	return []ending{
		{"close", func(_ *world, c Comm) error { return c.Close() }, ErrClosed, "closed"},
		{"fail", func(_ *world, c Comm) error { c.Fail(boom); return nil }, nil, "out of paper"},
		{"cancel", func(_ *world, c Comm) error {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(boom)
			if err := c.Barrier(ctx); err == nil {
				return errors.New("no error")
			}
			return nil
		}, nil, ""},
	}
}

func TestEveryPeerLearnsWhoLeftAndWhere(t *testing.T) {
	for _, l := range []layout{{2}, {8}, {1, 1}, {2, 2}, {1, 1, 1}} {
		for _, e := range endings(t) {
			for _, who := range []int{0, l.size() - 1} {
				t.Run(fmt.Sprintf("%v %s %d", l, e.name, who), func(t *testing.T) {
					w := newWorld(t, l, Config{})
					within(t, time.Minute, func() { checkEnding(t, w, e, who) })
				})
			}
		}
	}
}

func checkEnding(t *testing.T, w *world, e ending, who int) {
	errs := w.each(func(c Comm) error {
		if _, err := c.Exchange(t.Context(), record(c, lastIter)); err != nil {
			return err
		}
		if c.ID() == who {
			return e.do(w, c)
		}
		_, err := c.Exchange(t.Context(), record(c, lastIter+1))
		return err
	})
	for r, err := range errs {
		if r == who {
			if err != nil {
				t.Errorf("rank %d itself: %v", r, err)
			}
			continue
		}
		if e.name == "cancel" { // its barrier may meet the others' exchange first
			if err == nil {
				t.Errorf("rank %d: no error", r)
			}
			continue
		}
		var p *PeerError
		if !errors.As(err, &p) || !p.Ranks.Has(who) || p.Iter != lastIter || e.is != nil && !errors.Is(err, e.is) ||
			!strings.Contains(err.Error(), e.says) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for _, c := range w.ranks { // it stays so
		if err := c.Barrier(t.Context()); err == nil {
			t.Errorf("rank %d goes on", c.ID())
		}
	}
}

func TestCancelledRankEndsTheGroup(t *testing.T) {
	for _, l := range []layout{{3}, {1, 2}, {2, 1}} {
		t.Run(l.String(), func(t *testing.T) {
			w := newWorld(t, l, Config{})
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errors.New("shutting down"))
			// Rank 1 never comes; rank 2 is cancelled while it waits.
			errs := w.each(func(c Comm) error {
				switch c.ID() {
				case 1:
					<-w.of[1].Done()
					return w.of[1].Err()
				case 2:
					return c.AllReduce(ctx, make([]float32, 8))
				}
				return c.AllReduce(t.Context(), make([]float32, 8))
			})
			for r, err := range errs {
				var p *PeerError
				if !errors.Is(err, ErrCancelled) || !errors.As(err, &p) || !p.Ranks.Has(2) || p.Op != OpAllReduce ||
					!strings.Contains(err.Error(), "shutting down") {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

func TestDivergence(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(ctx context.Context, c Comm, odd bool) error
		want string
	}{
		{"collective", func(ctx context.Context, c Comm, odd bool) error {
			if odd {
				return c.Barrier(ctx)
			}
			_, err := c.Exchange(ctx, record(c, 5))
			return err
		}, "collective of rank 2 is barrier, want exchange"},
		{"iter", func(ctx context.Context, c Comm, odd bool) error {
			rec := record(c, 5)
			if odd {
				rec.Iter = 6
			}
			_, err := c.Exchange(ctx, rec)
			return err
		}, "iter of rank 2 is 6, want 5"},
		{"config epoch", func(ctx context.Context, c Comm, odd bool) error {
			rec := record(c, 5)
			if odd {
				rec.ConfigEpoch++
			}
			_, err := c.Exchange(ctx, rec)
			return err
		}, "iteration 5 in exchange: config_epoch of rank 2 is 8, want 7"},
		{"wrong rank", func(ctx context.Context, c Comm, odd bool) error {
			rec := record(c, 5)
			if odd {
				rec.Rank = 1
			}
			_, err := c.Exchange(ctx, rec)
			return err
		}, "rank of rank 2 is 1, want 2"},
		{"elements", func(ctx context.Context, c Comm, odd bool) error {
			x := make([]float32, 64)
			if odd {
				x = x[:63]
			}
			return c.AllReduce(ctx, x)
		}, "elements of rank 2 is 63, want 64"},
		{"payload", func(ctx context.Context, c Comm, odd bool) error {
			rec := record(c, 5)
			rec.PayloadBytes = 3
			if _, err := c.Exchange(ctx, rec); err != nil {
				return err
			}
			p := make([]byte, 3)
			if odd {
				p = p[:2]
			}
			_, err := c.Gather(ctx, p)
			return err
		}, "iteration 5 in gather: payload_bytes of rank 2 is 2, want 3"},
		{"skipped iteration", func(ctx context.Context, c Comm, odd bool) error {
			if _, err := c.Exchange(ctx, record(c, 5)); err != nil {
				return err
			}
			rec := record(c, 6)
			if odd {
				rec.Iter = 7
			}
			_, err := c.Exchange(ctx, rec)
			return err
		}, "iter of rank 2 is 7, want 6"},
	} {
		for _, l := range []layout{{3}, {1, 2}, {2, 1}} {
			t.Run(fmt.Sprintf("%s %v", tc.name, l), func(t *testing.T) {
				w := newWorld(t, l, Config{})
				within(t, time.Minute, func() {
					for r, err := range w.each(func(c Comm) error { return tc.do(t.Context(), c, c.ID() == 2) }) {
						if !errors.Is(err, ErrDivergence) || !strings.Contains(err.Error(), tc.want) {
							// In a process that hosts ranks 1 and 2, the leader compares with rank 1.
							t.Errorf("rank %d: %v, want %q", r, err, tc.want)
						}
					}
				})
			})
		}
	}
}

func TestErrorsCrossProcesses(t *testing.T) {
	for _, want := range []error{
		&PeerError{Ranks: Span{2, 3}, Iter: 9, Op: OpGather, Err: ErrClosed},
		&PeerError{Ranks: Span{1, 1}, Iter: 1 << 40, Err: fmt.Errorf("%w: %w", ErrCancelled, context.Canceled)},
		&PeerError{Ranks: Span{1, 1}, Iter: 4, Err: errors.New("odd")},
		&TimeoutError{Op: OpAllReduce, Iter: 3, Missing: []int{1, 4}, Waited: 1500 * time.Millisecond},
		&DivergenceError{Field: "iter", Rank: 3, Iter: 8, Op: OpExchange, Want: "8", Got: "9"},
	} {
		got := failureError(errorFailure(want))
		if got.Error() != want.Error() {
			t.Errorf("%v became %v", want, got)
		}
		ranks, iter, op := Blame(fmt.Errorf("engine: %w", got))
		if r, i, o := Blame(want); !slices.Equal(ranks, r) || len(r) == 0 || iter != i || op != o {
			t.Errorf("%v: blames %v at %d in %v", want, ranks, iter, op)
		}
		for _, reason := range failureCodes[1:] {
			if errors.Is(got, reason) != errors.Is(want, reason) {
				t.Errorf("%v: %v differs", want, reason)
			}
		}
	}
}

// TestMemoryIsTheCallersAfterAnError lets the race detector see whether a peer
// still reads or writes rows of a rank that got its error.
func TestMemoryIsTheCallersAfterAnError(t *testing.T) {
	for _, l := range []layout{{4}, {2, 2}} {
		for round := range 10 {
			w := newWorld(t, l, Config{})
			laps := make(chan struct{}, 1<<10)
			go func() {
				for range round + 1 {
					<-laps
				}
				w.ranks[0].Fail(errors.New("now"))
			}()
			w.each(func(c Comm) error {
				x := make([]float32, 1<<16)
				for {
					err := c.AllReduce(t.Context(), x)
					clear(x)
					if err != nil {
						return err
					}
					select {
					case laps <- struct{}{}:
					default:
					}
				}
			})
			w.close()
		}
	}
}

// TestErrorsWaitForBusyPeers holds a peer inside its share of a sum.
func TestErrorsWaitForBusyPeers(t *testing.T) {
	w := newWorld(t, layout{2}, Config{})
	peer := w.groups[0].Rank(1)
	peer.busy.Store(true)
	got := make(chan error, 1)
	go func() { got <- w.ranks[0].AllReduce(t.Context(), make([]float32, 8)) }()
	for w.groups[0].hub.bar.arrived.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	w.ranks[0].Fail(errors.New("now"))
	select {
	case err := <-got:
		t.Fatalf("%v while a peer may touch the rows", err)
	case <-time.After(20 * time.Millisecond):
	}
	peer.busy.Store(false)
	if err := <-got; err == nil {
		t.Error("no error")
	}
}
