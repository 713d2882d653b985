package wire

import (
	"context"
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

// copyBlocks is the byte path within the process: it copies the blocks of a
// request and announces FIN like servePull. put gets each block in order, under
// the session's lock, and must not block.
func (ss *session) copyBlocks(ctx context.Context, req *pullRequest, put func(i int, block extent) error) error {
	if err := ss.begin(nil, req); err != nil {
		return err
	}
	for i := range int(req.blocks) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		block := ss.rank.memory.at(ss.blocks[int(req.first)+i-ss.skip])
		if err := ss.read(nil, func() error { return put(i, block) }); err != nil {
			return err
		}
		ss.sent(block.size())
	}
	ss.send(ss.finOf(req.blocks, 0))
	return nil
}
