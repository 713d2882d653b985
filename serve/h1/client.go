package h1

import (
	"context"
	"crypto/tls"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"
)

// Client sends requests and keeps connections for the next ones. Set the fields before the first request.
type Client struct {
	// Dial opens a connection; nil = a net.Dialer without limits.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	TLS  *tls.Config // for https, nil = the system's roots
	// Connect bounds the opening of a connection with its handshake, which a worker that stands still accepts and never
	// does; 0 = only the call's ctx does.
	Connect time.Duration
	// MaxIdle connections are kept for each address, each for IdleTime at most. Let IdleTime be shorter than the workers'
	// own patience, so that a connection is not used in the moment in which they close it.
	MaxIdle  int
	IdleTime time.Duration

	mu       sync.Mutex
	idle     map[string][]*conn // by address, the newest last
	sweeping bool               // a sweep is due
}

// target is where a URL points.
type target struct {
	https      bool
	host, path string
}

func parseURL(url string) (t target, err error) {
	rest, ok := strings.CutPrefix(url, "http://")
	if !ok {
		if rest, ok = strings.CutPrefix(url, "https://"); !ok {
			return t, fmt.Errorf("h1: %q is neither http:// nor https://", url)
		}
		t.https = true
	}
	t.host, t.path = rest, "/"
	if at := strings.IndexByte(rest, '/'); at >= 0 {
		t.host, t.path = rest[:at], rest[at:]
	}
	for _, part := range []string{t.host, t.path} {
		if strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return t, fmt.Errorf("h1: the URL %q has a blank or control character", url)
		}
	}
	if t.host == "" || strings.ContainsAny(t.host, "@?#") {
		return t, fmt.Errorf("h1: the URL %q has no plain host", url)
	}
	return t, nil
}

// address is the host with a port.
func (t *target) address() string {
	if _, _, err := net.SplitHostPort(t.host); err == nil {
		return t.host
	}
	port := "80"
	if t.https {
		port = "443"
	}
	return net.JoinHostPort(strings.Trim(t.host, "[]"), port)
}

// key finds kept connections.
func (t *target) key() string {
	if t.https {
		return "s" + t.host
	}
	return t.host
}

// Post sends a request and returns when the head of the answer has come, whatever its status. The end of ctx ends the call at
// any moment until Close of the answer, which is required. Of an httptrace in ctx, GotConn (without the connection) and
// WroteRequest are called. A connection that did not come about, for want of TLS too, is a *net.OpError of "dial".
func (c *Client) Post(ctx context.Context, url string, h http.Header, body []byte) (*Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err //nolint:wrapcheck // callers look for the cause
	}
	to, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	head, err := appendHead(nil, &to, h, len(body))
	if err != nil {
		return nil, err
	}
	t := httptrace.ContextClientTrace(ctx)
	for {
		cn, err := c.connect(ctx, &to)
		if err != nil {
			return nil, err
		}
		if t != nil && t.GotConn != nil {
			t.GotConn(httptrace.GotConnInfo{Reused: cn.used})
		}
		r := &Response{client: c, conn: cn, key: to.key()}
		r.unwatch = context.AfterFunc(ctx, cn.abort)
		sent, err := cn.send(head, body)
		if err != nil && sent == 0 && cn.used && ctx.Err() == nil {
			r.cut() // it was closed while it was kept: the worker has seen nothing
			continue
		}
		if t != nil && t.WroteRequest != nil {
			t.WroteRequest(httptrace.WroteRequestInfo{Err: err})
		}
		// A worker may refuse and close while the body is still on its way: then its answer says more than the error.
		if herr := r.readHead(); herr != nil {
			r.cut()
			if err == nil {
				err = herr
			}
			return nil, err
		}
		r.keep = r.keep && err == nil
		return r, nil
	}
}

// connect takes a kept connection or opens one.
func (c *Client) connect(ctx context.Context, to *target) (*conn, error) {
	for {
		cn := c.take(to.key())
		if cn == nil {
			break
		}
		if time.Since(cn.since) < c.IdleTime && cn.alive() {
			cn.used = true
			return cn, nil
		}
		cn.close()
	}
	// Opening a connection needs more stack than all else that a call does. On another stack that memory is free again
	// at once; on this one it would stay as long as the call. A coroutine has one, and wakes no other thread.
	var cn *conn
	var err error
	next, stop := iter.Pull(func(func(struct{}) bool) { cn, err = c.open(ctx, to) })
	defer stop()
	next()
	return cn, err
}

// open makes a new connection.
func (c *Client) open(ctx context.Context, to *target) (*conn, error) {
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	if c.Connect > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Connect)
		defer cancel()
	}
	nc, err := dial(ctx, "tcp", to.address())
	if err != nil {
		return nil, err //nolint:wrapcheck // callers look for the *net.OpError
	}
	if !to.https {
		return newConn(nc, nc), nil
	}
	conf := c.TLS.Clone()
	if conf == nil {
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if conf.ServerName == "" {
		conf.ServerName, _, _ = net.SplitHostPort(to.address())
	}
	tc := tls.Client(nc, conf)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: nc.RemoteAddr(), Err: err}
	}
	return newConn(tc, nc), nil
}

// take returns the connection that was kept last, nil if there is none.
func (c *Client) take(key string) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[key]
	if len(list) == 0 {
		return nil
	}
	cn := list[len(list)-1]
	list[len(list)-1] = nil
	c.idle[key] = list[:len(list)-1]
	return cn
}

// put keeps a connection.
func (c *Client) put(key string, cn *conn) {
	if !c.keeps(key, cn) {
		cn.close()
	}
}

func (c *Client) keeps(key string, cn *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle[key]) >= c.MaxIdle {
		return false
	}
	if c.idle == nil {
		c.idle = map[string][]*conn{}
	}
	cn.since = time.Now()
	c.idle[key] = append(c.idle[key], cn)
	if !c.sweeping {
		c.sweeping = true
		time.AfterFunc(c.IdleTime, c.sweep)
	}
	return true
}

// sweep closes connections that were kept long enough.
func (c *Client) sweep() {
	limit, left := time.Now().Add(-c.IdleTime), false
	closeAll(c.without(func(list []*conn) (old int) {
		for old < len(list) && !list[old].since.After(limit) {
			old++
		}
		left = left || old < len(list)
		return old
	}, func() {
		if c.sweeping = left; left {
			time.AfterFunc(c.IdleTime/4+time.Millisecond, c.sweep)
		}
	}))
}

// CloseIdle closes the connections that are kept.
func (c *Client) CloseIdle() {
	closeAll(c.without(func(list []*conn) int { return len(list) }, func() {}))
}

// without takes out of each list as many connections, from its front, as the function says, calls then and returns them. To
// close them may take time, with TLS, and is not for those who wait for the lock.
func (c *Client) without(front func([]*conn) int, then func()) (out []*conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, list := range c.idle {
		n := front(list)
		out = append(out, list[:n]...)
		if n == len(list) {
			delete(c.idle, key)
			continue
		}
		c.idle[key] = append([]*conn(nil), list[n:]...)
	}
	then()
	return out
}

func closeAll(list []*conn) {
	for _, cn := range list {
		cn.close()
	}
}
