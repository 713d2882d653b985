package wire

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// controls shares one gRPC connection per peer among its transfers.
type controls struct {
	dial func(context.Context, string) (net.Conn, error)

	mu    sync.Mutex
	conns map[string]*control
}

// control is one gRPC connection and how many streams use it.
type control struct {
	conn   *grpc.ClientConn
	addr   string
	users  int
	unused time.Time
	stale  bool // replaced by a newer one: close when the last user leaves
}

// controlIdle is when the connection to a peer that is not used is dropped.
const controlIdle = 5 * time.Minute

// get returns the connection to addr, a new one if fresh is set. Each get needs
// one put.
func (c *controls) get(addr string, fresh bool) (*control, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	ct := c.conns[addr]
	if ct != nil && fresh {
		c.retire(ct)
		ct = nil
	}
	if ct == nil {
		conn, err := grpc.NewClient("passthrough:///"+addr,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(c.dial),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
			grpc.WithIdleTimeout(time.Minute),
		)
		if err != nil {
			return nil, err
		}
		ct = &control{conn: conn, addr: addr}
		c.conns[addr] = ct
	}
	ct.users++
	return ct, nil
}

func (c *controls) put(ct *control) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ct.users--
	ct.unused = time.Now()
	if ct.stale && ct.users == 0 {
		_ = ct.conn.Close()
	}
}

// retire takes a connection out of use.
func (c *controls) retire(ct *control) {
	delete(c.conns, ct.addr)
	ct.stale = true
	if ct.users == 0 {
		_ = ct.conn.Close()
	}
}

// sweep drops the connections to peers that are gone for long.
func (c *controls) sweep() {
	for _, ct := range c.conns {
		if ct.users == 0 && time.Since(ct.unused) > controlIdle {
			c.retire(ct)
		}
	}
}

func (c *controls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ct := range c.conns {
		c.retire(ct)
	}
}

// dataPool keeps byte path connections between pulls from the same peer.
type dataPool struct {
	dial func(context.Context, string) (net.Conn, error)

	mu     sync.Mutex
	closed bool
	idle   map[string][]*idleConn
}

type idleConn struct {
	conn  net.Conn
	timer *time.Timer
}

// get returns an unused connection, which the peer may have closed since, or a
// new one if there is none or fresh is set.
func (p *dataPool) get(ctx context.Context, addr string, fresh bool) (net.Conn, error) {
	if !fresh {
		if conn := p.take(addr); conn != nil {
			return conn, nil
		}
	}
	return p.dial(ctx, addr)
}

// take returns an unused connection, nil if there is none.
func (p *dataPool) take(addr string) net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[addr]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	p.idle[addr] = list[:len(list)-1]
	c.timer.Stop()
	return c.conn
}

// put gives a connection back after a complete pull.
func (p *dataPool) put(addr string, conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return
	}
	c := &idleConn{conn: conn}
	c.timer = time.AfterFunc(poolIdle, func() { p.expire(addr, c) })
	p.idle[addr] = append(p.idle[addr], c)
}

func (p *dataPool) expire(addr string, c *idleConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[addr]
	for i, other := range list {
		if other == c {
			p.idle[addr] = append(list[:i:i], list[i+1:]...)
			_ = c.conn.Close()
		}
	}
	if len(p.idle[addr]) == 0 {
		delete(p.idle, addr)
	}
}

func (p *dataPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.idle {
		for _, c := range list {
			c.timer.Stop()
			_ = c.conn.Close()
		}
	}
	p.idle = nil
}
