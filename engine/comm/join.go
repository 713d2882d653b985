package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"tandem/engine/comm/commpb"
)

// joinPause is the time between two tries to reach the root.
const joinPause = 100 * time.Millisecond

// Join brings ranks of this process into the group whose rank 0 listens at addr,
// and returns when all have joined. It keeps trying while nobody listens there,
// up to JoinTimeout; a refusal, ErrRefused, is final.
func Join(ctx context.Context, addr string, ranks Span, cfg Config) (*Group, error) {
	if err := checkConfig(&cfg, ranks); err != nil {
		return nil, err
	}
	if ranks.First == 0 {
		return nil, fmt.Errorf("%v cannot join: the process of rank 0 listens", ranks)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address of rank 0: %w", err)
	}
	// The root knows who is missing, and its word comes first if both began together.
	wait, cancel := context.WithTimeout(ctx, cfg.JoinTimeout+min(cfg.JoinTimeout/4, 5*time.Second))
	defer cancel()
	for {
		l, err := open(wait, addr, cfg)
		if err == nil {
			l.hub = newHub(cfg, ranks)
			l.hub.up = l
			if err = l.enrol(wait, host); err == nil {
				l.hub.start()
				l.hub.bg.Add(2)
				go l.read()
				go l.deliver()
				return &Group{hub: l.hub}, nil
			}
			l.abandon()
		}
		var r *refusal
		if errors.As(err, &r) {
			return nil, fmt.Errorf("%v join %s: %w", ranks, addr, err)
		}
		select {
		case <-time.After(joinPause):
		case <-wait.Done():
			return nil, joinError(ctx, addr, ranks, cfg, err)
		}
	}
}

func joinError(ctx context.Context, addr string, ranks Span, cfg Config, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%v join %s: %w; last: %w", ranks, addr, context.Cause(ctx), err)
	}
	return fmt.Errorf("%v join %s: %w after %v; last: %w", ranks, addr, ErrTimeout, cfg.JoinTimeout, err)
}

// refusal is the root's word.
type refusal struct {
	reason string
}

func (e *refusal) Error() string        { return "join refused: " + e.reason }
func (e *refusal) Is(target error) bool { return target == ErrRefused }

// open begins a stream to the root, which outlives the join.
func open(wait context.Context, addr string, cfg Config) (*leaf, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(cfg.Dial),
		grpc.WithIdleTimeout(0),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: cfg.patience()}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.messageLimit()), grpc.MaxCallSendMsgSize(cfg.messageLimit())))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(wait, cancel)
	stream, err := commpb.NewLockstepClient(conn).Join(ctx)
	if stop(); err != nil {
		cancel()
		_ = conn.Close()
		return nil, plain(err)
	}
	return &leaf{
		conn: conn, stream: stream, cancel: cancel,
		steps: make(chan *commpb.Step, 2), heard: make(chan struct{}),
		outbox: outbox{ready: make(chan struct{}, 1)},
	}, nil
}

// abandon gives a stream up that did not become part of a group.
func (l *leaf) abandon() {
	l.cancel()
	l.data.close()
	_ = l.conn.Close()
}

// enrol speaks the join until the root says that all ranks are there.
func (l *leaf) enrol(wait context.Context, host string) error {
	defer context.AfterFunc(wait, l.cancel)()
	cfg, ranks := &l.hub.cfg, l.hub.span
	m, err := l.stream.Recv()
	if err != nil {
		return plain(err)
	}
	ch := m.GetChallenge()
	if ch == nil {
		return &refusal{reason: "the other side speaks another protocol"}
	}
	nonce := secret()
	err = l.send(&commpb.LeafMessage{Kind: &commpb.LeafMessage_Hello{Hello: &commpb.Hello{
		Version: cfg.version, Size: uint32(cfg.Size), ConfigEpoch: cfg.ConfigEpoch,
		First: uint32(ranks.First), Last: uint32(ranks.Last), Nonce: nonce,
		Mac: sign(cfg.Key, purposeJoin, ch.GetNonce(), nonce, ranks), Settings: cfg.Settings,
	}}})
	if err != nil {
		return plain(err)
	}
	if m, err = l.stream.Recv(); err != nil {
		return plain(err)
	}
	if r := m.GetRefusal(); r != nil {
		return &refusal{reason: r.GetReason()}
	}
	w := m.GetWelcome()
	if w == nil || !signed(cfg.Key, purposeWelcome, ch.GetNonce(), nonce, ranks, w.GetMac()) {
		return &refusal{reason: "the root does not prove that it has our internal_request_auth_key"}
	}
	if err := l.attach(wait, net.JoinHostPort(host, strconv.Itoa(int(w.GetDataPort()))), w.GetToken()); err != nil {
		return fmt.Errorf("byte path: %w", err)
	}
	return l.awaitStart()
}

// attach opens the byte path.
func (l *leaf) attach(wait context.Context, addr string, token []byte) error {
	conn, err := l.hub.cfg.Dial(wait, addr)
	if err != nil {
		return err
	}
	l.data = &dataConn{conn: conn}
	_, err = conn.Write(token)
	return err
}

func (l *leaf) awaitStart() error {
	for {
		m, err := l.stream.Recv()
		switch {
		case err != nil:
			return plain(err)
		case m.GetStart() != nil:
			return nil
		case m.GetFailure() != nil:
			return &refusal{reason: failureError(m.GetFailure()).Error()}
		}
	}
}

// plain takes the gRPC wording off an error.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Canceled {
		return fmt.Errorf("%w: the process closed it; its log may say why", ErrLost)
	} else if ok && s.Code() != codes.OK {
		return fmt.Errorf("%w: %s", ErrLost, s.Message())
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

func tcpPort(a net.Addr) int {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}
