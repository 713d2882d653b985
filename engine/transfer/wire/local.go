package wire

import (
	"context"
	"errors"
	"io"
	"sync"

	pb "tandem/engine/transfer/transferpb"
)

// local finds servers of this process, so that two engines of one process (one
// command that starts both, tests) move blocks with a copy instead of sockets.
// The key has the incarnation: a port that was given to another worker since is
// not confused with it.
var local = struct {
	sync.Mutex
	servers map[localKey]*Server
}{servers: map[localKey]*Server{}}

type localKey struct{ endpoint, incarnation string }

func register(s *Server) {
	local.Lock()
	defer local.Unlock()
	local.servers[localKey{s.endpoint, s.cfg.Incarnation}] = s
}

func unregister(s *Server) {
	local.Lock()
	defer local.Unlock()
	key := localKey{s.endpoint, s.cfg.Incarnation}
	if local.servers[key] == s {
		delete(local.servers, key)
	}
}

func findLocal(endpoint, incarnation string) *Server {
	local.Lock()
	defer local.Unlock()
	return local.servers[localKey{endpoint, incarnation}]
}

// pipe is a control stream within the process.
type pipe struct {
	ctx     context.Context // of the puller
	up      chan *pb.PullerMessage
	down    chan *pb.OwnerMessage
	hangUp  chan struct{} // closed by the puller's CloseSend
	ended   chan struct{} // closed when the owner's side returned
	hanging sync.Once
}

// dialLocal opens a control stream to a server of this process.
func dialLocal(ctx context.Context, s *Server) (*pipe, error) {
	ss := s.open()
	if ss == nil {
		return nil, io.ErrClosedPipe
	}
	p := &pipe{
		ctx: ctx, up: make(chan *pb.PullerMessage), down: make(chan *pb.OwnerMessage, sessionBacklog),
		hangUp: make(chan struct{}), ended: make(chan struct{}),
	}
	go func() {
		_ = ss.serve(ownerEnd{p})
		close(p.ended)
	}()
	return p, nil
}

// Send gives the owner a message.
func (p *pipe) Send(m *pb.PullerMessage) error {
	select {
	case p.up <- m:
		return nil
	case <-p.ended:
		return io.EOF
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}

// Recv takes a message of the owner; what it sent before its end comes first.
func (p *pipe) Recv() (*pb.OwnerMessage, error) {
	select {
	case m := <-p.down:
		return m, nil
	case <-p.ctx.Done():
		return nil, context.Cause(p.ctx)
	case <-p.ended:
	}
	select {
	case m := <-p.down:
		return m, nil
	default:
		return nil, io.EOF
	}
}

// CloseSend tells the owner that no message follows.
func (p *pipe) CloseSend() error {
	p.hanging.Do(func() { close(p.hangUp) })
	return nil
}

// ownerEnd is the owner's view of a pipe.
type ownerEnd struct{ p *pipe }

func (e ownerEnd) Send(m *pb.OwnerMessage) error {
	select {
	case e.p.down <- m:
		return nil
	case <-e.p.ctx.Done():
		return context.Cause(e.p.ctx)
	}
}

func (e ownerEnd) Recv() (*pb.PullerMessage, error) {
	select {
	case m := <-e.p.up:
		return m, nil
	case <-e.p.hangUp:
		return nil, io.EOF
	case <-e.p.ended:
		return nil, io.EOF
	case <-e.p.ctx.Done():
		return nil, context.Cause(e.p.ctx)
	}
}

// localPath copies blocks from the pool of another engine of this process.
type localPath struct{}

func (localPath) name() string { return PathInproc }

func (localPath) offered(l *link, _ *pb.Accept) bool { return l.local != nil }

func (localPath) close() {}

func (localPath) open(ctx context.Context, pl *pull, l *link, a *pb.Accept, _ bool) (reader, error) {
	ss := l.local.byToken(token(a.GetToken()))
	if ss == nil {
		return nil, errStale
	}
	return &localReader{ctx: ctx, pl: pl, ss: ss, next: len(pl.order.Have) + pl.verified}, nil
}

// localReader copies one block with each poll, under the session's lock.
type localReader struct {
	ctx           context.Context
	pl            *pull
	ss            *session
	next, ordered int // blocks from the start of the prompt; those ordered
}

func (r *localReader) read(n int) error {
	req := &pullRequest{first: uint32(r.next + r.ordered), blocks: uint32(n), layerTo: uint16(r.ss.layers)}
	r.ordered += n
	return stale(r.ss.begin(nil, req))
}

func (r *localReader) poll() (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	block := r.ss.rank.memory.lent(r.ss.id, r.ss.blocks[r.next-r.ss.skip])
	if err := r.ss.read(nil, func() error { return r.pl.to.copy(r.pl.verified, block) }); err != nil {
		return 0, stale(err)
	}
	r.next, r.ordered = r.next+1, r.ordered-1
	r.ss.sent(PathInproc, block.size())
	return 1, nil
}

func (r *localReader) close(bool) {}

// stale turns the refusal of an owner in this process into what others get to hear.
func stale(err error) error {
	if errors.Is(err, errNotServed) {
		return errStale
	}
	return err
}
