package comm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"tandem/engine/comm/commpb"
)

// Listener is the process of rank 0 while the others join.
type Listener struct {
	commpb.UnimplementedLockstepServer

	cfg  Config
	hub  *hub
	root *root
	lis  net.Listener
	data net.Listener
	srv  *grpc.Server

	bg        sync.WaitGroup // both accept loops and every handler
	mu        sync.Mutex
	joined    []*leafConn // ascending
	refusals  []string    // of joins that did not fit, for the error
	strangers map[net.Conn]struct{}
	complete  chan struct{}
	started   chan struct{}
	accepted  bool
	closed    bool
}

// maxRefusals bounds what is kept of joins that did not fit.
const maxRefusals = 4

// Listen opens the meeting point of an instance whose ranks live in several
// processes. ranks are those of this process and begin with 0.
func Listen(addr string, ranks Span, cfg Config) (*Listener, error) {
	if err := checkConfig(&cfg, ranks); err != nil {
		return nil, err
	}
	if ranks.First != 0 {
		return nil, fmt.Errorf("%v cannot listen: the process of rank 0 does", ranks)
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for ranks: %w", err)
	}
	host, _, _ := net.SplitHostPort(lis.Addr().String())
	data, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		lis.Close()
		return nil, fmt.Errorf("listen for activations: %w", err)
	}
	l := &Listener{
		cfg: cfg, hub: newHub(cfg, ranks), lis: lis, data: data,
		strangers: map[net.Conn]struct{}{}, complete: make(chan struct{}), started: make(chan struct{}),
	}
	l.root = &root{hub: l.hub, lis: l}
	l.hub.up = l.root
	l.srv = grpc.NewServer(grpc.WaitForHandlers(true), grpc.ConnectionTimeout(3*time.Second),
		grpc.MaxRecvMsgSize(cfg.messageLimit()), grpc.MaxSendMsgSize(cfg.messageLimit()),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: cfg.patience()}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
	commpb.RegisterLockstepServer(l.srv, l)
	if ranks.Len() == cfg.Size {
		close(l.complete)
	}
	l.bg.Add(2)
	go func() {
		defer l.bg.Done()
		_ = l.srv.Serve(lis)
	}()
	go l.acceptData()
	return l, nil
}

func checkConfig(cfg *Config, ranks Span) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := cfg.checkSpan(ranks); err != nil {
		return err
	}
	if !littleEndian() {
		return errors.New("rank groups over several processes need a little-endian machine")
	}
	cfg.setDefaults()
	return nil
}

// messageLimit is the largest message: everybody's payloads.
func (c *Config) messageLimit() int {
	return min(c.Size, 16)*int(c.MaxPayload) + c.Size*(RecordBytes+16) + 1<<16
}

// Addr is where the other processes join.
func (l *Listener) Addr() string { return l.lis.Addr().String() }

// Accept waits until every rank has joined and starts the group. On an error,
// which names the ranks that did not come, the listener is closed.
func (l *Listener) Accept(ctx context.Context) (*Group, error) {
	g, err := l.accept(ctx)
	if err != nil {
		l.shut()
	}
	return g, err
}

func (l *Listener) accept(ctx context.Context) (*Group, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.JoinTimeout)
	defer cancel()
	select {
	case <-l.complete:
	case <-ctx.Done():
		err := l.incomplete(ctx)
		l.hub.fail(err)
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.hub.bar.over() {
		return nil, fmt.Errorf("rank group: %w", l.hub.cause())
	}
	l.accepted = true
	l.root.leaves = l.joined
	l.hub.start()
	close(l.started)
	return &Group{hub: l.hub}, nil
}

// incomplete says who did not join.
func (l *Listener) incomplete(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := l.missing()
	err := fmt.Errorf("%s did not join: %w", rankList(missing), context.Cause(ctx))
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%s did not join within %v: %w", rankList(missing), l.cfg.JoinTimeout, ErrTimeout)
	}
	for _, r := range l.refusals {
		err = fmt.Errorf("%w; refused: %s", err, r)
	}
	return err
}

// missing lists the ranks that have not joined.
func (l *Listener) missing() (ranks []int) {
	for r := range l.cfg.Size {
		if !l.hub.span.Has(r) && l.holder(Span{r, r}) == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Close ends the wait for ranks. A group that was accepted is closed by itself.
func (l *Listener) Close() error {
	l.mu.Lock()
	accepted := l.accepted
	l.mu.Unlock()
	if accepted {
		return nil
	}
	l.hub.fail(&PeerError{Ranks: l.hub.span, Err: ErrClosed})
	l.shut()
	return nil
}

// shut lets the leaves hear of the end and stops everything.
func (l *Listener) shut() {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	for conn := range l.strangers {
		conn.Close()
	}
	l.mu.Unlock()
	if !first {
		return
	}
	l.lis.Close()
	l.data.Close()
	timer := time.AfterFunc(linger, l.srv.Stop)
	l.srv.GracefulStop()
	timer.Stop()
	l.bg.Wait()
	for _, c := range l.joined {
		c.data.close()
	}
}

// acceptData gives each connection of the byte path to the leaf that has its
// token.
func (l *Listener) acceptData() {
	defer l.bg.Done()
	for {
		conn, err := l.data.Accept()
		if err != nil {
			return
		}
		l.bg.Add(1)
		go func() {
			defer l.bg.Done()
			defer l.strange(conn, false)
			if l.strange(conn, true); !l.adopt(conn) {
				conn.Close()
			}
		}()
	}
}

// strange notes connections that have not shown a token yet, so that closing
// need not wait for them.
func (l *Listener) strange(conn net.Conn, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !is:
		delete(l.strangers, conn)
	case l.closed:
		conn.Close()
	default:
		l.strangers[conn] = struct{}{}
	}
}

// adopt takes a connection whose token fits a leaf without one.
func (l *Listener) adopt(conn net.Conn) bool {
	var token [tokenBytes]byte
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err := io.ReadFull(conn, token[:])
	if err != nil || conn.SetDeadline(time.Time{}) != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	i := slices.IndexFunc(l.joined, func(c *leafConn) bool { return c.data == nil && slices.Equal(c.token, token[:]) })
	if i < 0 {
		return false
	}
	l.joined[i].data = &dataConn{conn: conn}
	l.checkComplete()
	return true
}

// checkComplete starts the group once all ranks and their byte paths are there.
func (l *Listener) checkComplete() {
	n := l.hub.span.Len()
	for _, c := range l.joined {
		if c.data == nil {
			return
		}
		n += c.span.Len()
	}
	if n == l.cfg.Size {
		close(l.complete)
	}
}

// holder returns the leaf that has one of the ranks.
func (l *Listener) holder(ranks Span) *leafConn {
	for _, c := range l.joined {
		if c.span.First <= ranks.Last && ranks.First <= c.span.Last {
			return c
		}
	}
	return nil
}
