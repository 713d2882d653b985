package runner

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/request"
)

// cutConn breaks after some writes, in the middle of the last one.
type cutConn struct {
	net.Conn
	left *atomic.Int64
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.left.Add(-1) != 0 {
		return c.Conn.Write(b)
	}
	n, _ := c.Conn.Write(b[:len(b)/2])
	_ = c.Conn.Close()
	return n, net.ErrClosed
}

// Wherever the connection between two processes breaks under load, all clients
// hear of it at once and nothing is left.
func TestGroupConnectionBreaks(t *testing.T) {
	for _, after := range []int64{40, 61, 90, 151, 400} {
		t.Run(fmt.Sprint(after, " writes"), func(t *testing.T) {
			var left atomic.Int64
			w := newWorld(t, worldConfig{
				size: 3, spans: []comm.Span{{}, {First: 1, Last: 2}}, wire: true,
				core: func(k *executor.Config) { k.MaxBatch = 3 },
				comm: func(c *comm.Config) {
					c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
						conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
						if err != nil {
							return nil, err
						}
						return &cutConn{conn, &left}, nil
					}
				},
			})
			left.Store(after)
			v := &witness{ends: map[request.ID]int{}}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() { v.client(t, w.engines[0], uint64(i), 200, 3) })
			}
			within(t, 2*time.Minute, wg.Wait)
			for i, err := range w.fall(5 * time.Second) {
				if err == nil {
					t.Errorf("process %d ended well", i)
				}
			}
			w.engines[0].Shutdown(t.Context())
			w.engines[0].Shutdown(t.Context())
			for rank := range 3 {
				for _, e := range w.engines {
					e.TransferEvent(rank, nil)
				}
			}
			if n := w.engines[0].Stats(time.Minute).Alive; n != 0 {
				t.Errorf("%d requests are alive", n)
			}
			w.buried()
			v.check(t)
			w.close()
		})
	}
}
