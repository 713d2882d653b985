package wire

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// Server is the transfer endpoint of one instance: a control listener, a byte
// path listener and the sessions of all pullers. Its methods may be called from
// any goroutine and never wait for a peer.
type Server struct {
	cfg      Config
	endpoint string
	dataPort uint32
	rpc      *grpc.Server
	data     net.Listener

	nextPeer atomic.Uint64
	wg       sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	ranks    map[uint32]*Transport
	sessions map[transfer.Peer]*session
	tokens   map[token]*session
	conns    map[net.Conn]bool

	paths   []ownerPath // besides TCP and that within the process
	retired []func()    // what sessions may still touch, to be freed after them
}

// Listen opens both listeners and serves them until Close. Ranks are added with
// Rank; until then their transfers are rejected.
func Listen(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	control, err := net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port)))
	if err != nil {
		return nil, fmt.Errorf("transfer control listener: %w", err)
	}
	data, err := net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.DataPort)))
	if err != nil {
		_ = control.Close()
		return nil, fmt.Errorf("transfer data listener: %w", err)
	}
	s := &Server{
		cfg: cfg, data: data,
		endpoint: endpointScheme + net.JoinHostPort(cfg.Advertise, strconv.Itoa(port(control))),
		dataPort: uint32(port(data)),
		ranks:    map[uint32]*Transport{},
		sessions: map[transfer.Peer]*session{},
		tokens:   map[token]*session{},
		conns:    map[net.Conn]bool{},
	}
	if shared := newSharedOwner(s); shared != nil {
		s.paths = append(s.paths, shared)
	}
	s.rpc = grpc.NewServer(
		// A dead puller is noticed although it owes us nothing.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 15 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(2*maxHandleBytes),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterTransferServer(s.rpc, rpcService{s: s})
	s.wg.Add(2)
	go func() { defer s.wg.Done(); _ = s.rpc.Serve(control) }()
	go func() { defer s.wg.Done(); s.acceptData() }()
	if !cfg.NoLocal {
		register(s)
	}
	return s, nil
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// Endpoint returns tcp://host:port of the control listener, for handles.
func (s *Server) Endpoint() string { return s.endpoint }

// Incarnation returns the name of this life of the worker.
func (s *Server) Incarnation() string { return s.cfg.Incarnation }

// Rank adds an ADP rank: its pool and the inbox of its driver, which gets
// Attach, Done, Detach, Release, KeepAlive and PullEvent values from several goroutines
// and must not block. A rank may be added once.
func (s *Server) Rank(rank int, memory transfer.Memory, inbox func(any)) *Transport {
	t := &Transport{
		Puller: NewPuller(s.cfg, memory, func(e transfer.PullEvent) { inbox(e) }),
		srv:    s, id: uint32(rank), inbox: inbox,
	}
	for _, path := range s.paths {
		path.register(t)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ranks[t.id] != nil {
		panic(fmt.Sprintf("wire: rank %d added twice", rank))
	}
	s.ranks[t.id] = t
	return t
}

// Transport is one rank's side of a Server: its own pulls and the answers of its
// core to pullers.
type Transport struct {
	*Puller
	srv   *Server
	id    uint32
	inbox func(any)
}

// Accept starts serving a pull.
func (t *Transport) Accept(a transfer.Accept) { t.srv.accept(t, a) }

// Reject refuses an ATTACH.
func (t *Transport) Reject(r transfer.Reject) {
	if ss := t.srv.session(r.Peer); ss != nil {
		ss.finish(&pb.OwnerMessage{Kind: &pb.OwnerMessage_Reject{Reject: &pb.Reject{Reason: r.Reason, Detail: r.Detail}}})
	}
}

// DoneReply answers a DONE and ends the session.
func (t *Transport) DoneReply(d transfer.DoneReply) {
	if ss := t.srv.session(d.Peer); ss != nil {
		ss.finish(&pb.OwnerMessage{Kind: &pb.OwnerMessage_DoneReply{DoneReply: &pb.DoneReply{Ok: d.OK}}})
	}
}

// Revoke ends the serving of a lease. When it returns, nothing here reads the
// lease's blocks any more, and pullers that read them in shared memory can tell what
// came too late; it waits at most for a memory copy in progress.
func (t *Transport) Revoke(id transfer.ID) { t.srv.revoke(id, nil) }

// EncodeHandle returns the bytes of a handle; an empty endpoint or incarnation
// means this server's.
func (t *Transport) EncodeHandle(h *transfer.Handle) []byte {
	own := *h
	if own.Endpoint == "" {
		own.Endpoint = t.srv.endpoint
	}
	if own.Incarnation == "" {
		own.Incarnation = t.srv.cfg.Incarnation
	}
	return EncodeHandle(&own)
}

// DecodeHandle parses and checks the bytes of a handle.
func (t *Transport) DecodeHandle(b []byte) (*transfer.Handle, error) { return DecodeHandle(b) }

func (s *Server) rank(rank uint32) *Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranks[rank]
}

// all returns the ranks of this process in their order.
func (s *Server) all() []*Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Transport, 0, len(s.ranks))
	for _, rank := range slices.Sorted(maps.Keys(s.ranks)) {
		out = append(out, s.ranks[rank])
	}
	return out
}

func (s *Server) session(peer transfer.Peer) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[peer]
}

func (s *Server) byToken(t token) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[t]
}

// open makes a session for a new control stream; nil when the server closed.
func (s *Server) open() *session {
	ss := newSession(s, transfer.Peer(s.nextPeer.Add(1)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.sessions[ss.peer] = ss
	s.wg.Add(1)
	return ss
}

// forget drops a session whose control stream is gone.
func (s *Server) forget(ss *session) {
	for _, path := range s.paths {
		path.forget(ss)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ss.peer)
	delete(s.tokens, ss.token)
	s.wg.Done()
}

// accept publishes the token of an attached session and sends ACCEPT. Older
// pullers of the same transfer have been replaced and get STALE.
func (s *Server) accept(t *Transport, a transfer.Accept) {
	ss := s.session(a.Peer)
	if ss == nil {
		return // the stream broke; its Detach is on the way
	}
	s.revoke(a.ID, ss)
	size := 0
	if len(a.Blocks) > 0 {
		size = t.memory.at(a.Blocks[0]).size()
	}
	if !ss.grant(t, a) {
		return
	}
	s.mu.Lock()
	if s.sessions[a.Peer] == ss {
		s.tokens[ss.token] = ss
	}
	s.mu.Unlock()
	m := &pb.Accept{
		Epoch: a.Epoch, Skip: uint32(a.Skip), Blocks: uint32(len(a.Blocks)), Coming: uint32(a.Coming),
		BlockBytes: uint32(size), DataPort: s.dataPort, Token: ss.token[:],
	}
	s.describe(ss, m)
	ss.send(&pb.OwnerMessage{Kind: &pb.OwnerMessage_Accept{Accept: m}})
	if a.Coming == 0 {
		ss.fin()
	}
}

// describe adds the byte paths of the session's blocks to an ACCEPT.
func (s *Server) describe(ss *session, to *pb.Accept) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.phase != phaseServing {
		return // revoked since
	}
	for _, path := range s.paths {
		path.describe(ss, to)
	}
}

// retract ends what was described. The session's mu is held.
func (s *Server) retract(ss *session) {
	for _, path := range s.paths {
		path.retract(ss)
	}
}

func (s *Server) revoke(id transfer.ID, except *session) {
	s.mu.Lock()
	var hit []*session
	for _, ss := range s.sessions {
		if ss != except && ss.granted(id) {
			hit = append(hit, ss)
		}
	}
	s.mu.Unlock()
	for _, ss := range hit {
		ss.revoke()
	}
}

// Close ends every session and pull, closes the listeners and waits until no
// goroutine of the server or of its ranks is left. Pulls report their end.
func (s *Server) Close() {
	unregister(s)
	s.mu.Lock()
	s.closed = true
	var ranks []*Transport
	for _, t := range s.ranks {
		ranks = append(ranks, t)
	}
	var open []*session
	for _, ss := range s.sessions {
		open = append(open, ss)
	}
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	for _, t := range ranks {
		t.Puller.Close()
	}
	for _, ss := range open {
		ss.end()
	}
	for _, path := range s.paths {
		path.close()
	}
	_ = s.data.Close()
	s.rpc.Stop()
	s.wg.Wait()
	for _, free := range s.retired {
		free()
	}
}
