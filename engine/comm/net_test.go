package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wires are the connections that one leaf dialled, to be cut by a test: first
// the stream's, then the byte path.
type wires struct {
	mu    sync.Mutex
	conns []*wire
}

// wire is a connection that can freeze: then it delivers nothing more.
type wire struct {
	net.Conn
	frozen atomic.Bool
	thaw   chan struct{}
	once   sync.Once
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if w.frozen.Load() {
		<-w.thaw
		return 0, net.ErrClosed
	}
	return n, err
}

func (w *wire) SetDeadline(d time.Time) error {
	if !d.IsZero() && d.Before(time.Now()) {
		w.once.Do(func() { close(w.thaw) })
	}
	return w.Conn.SetDeadline(d)
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.thaw) })
	return w.Conn.Close()
}

func (w *wires) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &wire{Conn: conn, thaw: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return c, nil
}

// newCutWorld is a world of three processes; the last one's wires are returned.
func newCutWorld(t *testing.T, cfg Config) (*world, *wires) {
	t.Helper()
	cut := &wires{}
	cfg.Size = 3
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{groups: make([]*Group, 3)}
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for r := 1; r < 3; r++ {
		wg.Go(func() {
			own := cfg
			if r == 2 {
				own.Dial = cut.dial
			}
			w.groups[r], errs[r] = Join(context.Background(), lis.Addr(), Span{r, r}, own)
		})
	}
	w.groups[0], errs[0] = lis.Accept(context.Background())
	wg.Wait()
	for r, g := range w.groups {
		if errs[r] != nil {
			t.Fatal(errs[r])
		}
		w.of = append(w.of, g)
		w.ranks = append(w.ranks, g.Rank(r))
	}
	t.Cleanup(w.close)
	return w, cut
}

func TestCutConnections(t *testing.T) {
	for _, tc := range []struct {
		name   string
		wires  []int // which of the leaf's connections break
		during bool  // while the others wait in an all-reduce
	}{
		{"both while idle", []int{0, 1}, false},
		{"stream while idle", []int{0}, false},
		{"both in a collective", []int{1, 0}, true},
		{"stream in a collective", []int{0}, true},
		{"byte path in a collective", []int{1}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, cut := newCutWorld(t, Config{})
			within(t, time.Minute, func() { checkCut(t, w, cut, tc.wires, tc.during) })
		})
	}
}

func checkCut(t *testing.T, w *world, cut *wires, which []int, during bool) {
	errs := w.each(func(c Comm) error {
		if _, err := c.Exchange(t.Context(), record(c, lastIter)); err != nil {
			return err
		}
		if c.ID() == 2 {
			for _, i := range which {
				cut.conns[i].Conn.Close()
			}
		}
		for during || c.ID() != 2 { // the first one may still succeed
			if err := c.AllReduce(t.Context(), make([]float32, 1000)); err != nil {
				return err
			}
		}
		<-w.of[2].Done()
		return w.of[2].Err()
	})
	for r, err := range errs {
		blamed := 2
		if r == 2 {
			blamed = 0 // it cannot tell its own cut from the root's end
		}
		var p *PeerError
		if !errors.As(err, &p) || !errors.Is(err, ErrLost) || p.Iter != lastIter || p.Ranks != (Span{blamed, blamed}) {
			if r == 2 && errors.As(err, &p) && errors.Is(err, ErrLost) {
				continue // the root was first to tell
			}
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestFrozenProcess has a peer whose network takes nothing any more, while the
// root has much to send.
func TestFrozenProcess(t *testing.T) {
	t.Parallel() // mostly waits
	for _, op := range []Op{OpGather, OpAllGather} {
		t.Run(op.String(), func(t *testing.T) {
			t.Parallel()
			w, cut := newCutWorld(t, Config{Timeout: 1500 * time.Millisecond})
			w.all(t, func(c Comm) error {
				rec := record(c, 1)
				rec.PayloadBytes = 16 << 20
				_, err := c.Exchange(t.Context(), rec)
				return err
			})
			for _, c := range cut.conns {
				c.frozen.Store(true)
			}
			within(t, time.Minute, func() {
				for r, err := range w.each(func(c Comm) error {
					if op == OpGather {
						_, err := c.Gather(t.Context(), make([]byte, 16<<20))
						return err
					}
					rows, x := []int{1 << 12, 1 << 12, 1 << 12}, make([]float32, 3<<22)
					err := c.AllGather(t.Context(), x, x[c.ID()<<22:(c.ID()+1)<<22], rows, 1<<10)
					if err == nil { // rank 1 may have got its rows
						err = c.Barrier(t.Context())
					}
					return err
				}) {
					if err == nil {
						t.Errorf("rank %d: no error", r)
					}
					if r < 2 && !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrLost) {
						t.Errorf("rank %d: %v", r, err)
					}
				}
			})
		})
	}
}

func TestProcessThatDiesIsNamedAsAWhole(t *testing.T) {
	w := newWorld(t, layout{1, 3}, Config{})
	within(t, time.Minute, func() {
		w.groups[1].hub.up.(*leaf).cancel() // its stream breaks without a word
		err := w.ranks[0].Barrier(t.Context())
		var p *PeerError
		if !errors.As(err, &p) || p.Ranks != (Span{1, 3}) || !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		if want := "ranks 1-3 left the group at iteration 0"; err != nil && fmt.Sprint(err)[:len(want)] != want {
			t.Error(err)
		}
	})
}
