package wire

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// phase of a session, only ever increasing.
type phase uint8

const (
	phaseOpen     phase = iota // no ATTACH yet, maybe KEEPALIVEs
	phaseAttached              // ATTACH is with the core
	phaseServing               // accepted: blocks may be read
	phaseDone                  // DONE is with the core: blocks are not read any more
	phaseEnded                 // last message queued, or stream gone
)

// ownerStream is the ctx side of a control stream: gRPC's, or a pipe within the
// process.
type ownerStream interface {
	Send(*pb.OwnerMessage) error
	Recv() (*pb.PullerMessage, error)
}

// session is one puller's control stream at the ctx side, and what it may read.
//
// Blocks are read only with reading held and while phase is phaseServing, so
// stop, which leaves that phase and then takes reading, waits for the last read.
type session struct {
	srv   *Server
	peer  transfer.Peer
	token token
	out   chan *pb.OwnerMessage
	ended chan struct{} // closed in phaseEnded

	reading sync.Mutex

	mu     sync.Mutex // behind the server's, which nobody takes who has this one
	phase  phase
	rank   *Transport   // from ATTACH on; if that is generation-first, once one has the transfer
	asked  []*Transport // until then: those that were asked
	first  []transfer.Token
	id     transfer.ID
	epoch  uint32 // of the lease, from Accept on
	skip   int
	blocks []int32
	ready  int // leading ones of blocks that are computed
	layers int
	conn   net.Conn // that is being written
	pushed bool     // this side was asked to send blocks
	renew  time.Time
	word   word // by which readers of shared memory see the end
}

// sessionBacklog is far more than one transfer's messages; a puller that lets
// it fill up has stopped reading.
const sessionBacklog = 64

func newSession(s *Server, peer transfer.Peer) *session {
	return &session{
		srv: s, peer: peer, token: newToken(),
		out: make(chan *pb.OwnerMessage, sessionBacklog), ended: make(chan struct{}),
	}
}

// rpcService adapts the generated interface.
type rpcService struct {
	pb.UnimplementedTransferServer
	s *Server
}

// Exchange serves one control stream.
func (r rpcService) Exchange(stream pb.Transfer_ExchangeServer) error {
	ss := r.s.open()
	if ss == nil {
		return status.Error(codes.Unavailable, "the worker is shutting down")
	}
	return ss.serve(stream)
}

// serve runs a control stream: messages of the puller are handled on a goroutine
// of their own, ours are sent here. Returning ends the stream.
func (ss *session) serve(stream ownerStream) error {
	gone := make(chan error, 1)
	go func() {
		defer ss.srv.forget(ss)
		var err error
		for err == nil {
			var m *pb.PullerMessage
			if m, err = stream.Recv(); err == nil {
				err = ss.handle(m)
			}
		}
		ss.detach(err)
		gone <- err
	}()
	for {
		select {
		case m := <-ss.out:
			if err := stream.Send(m); err != nil {
				ss.detach(err)
				return err
			}
		case err := <-gone:
			if _, ok := status.FromError(err); ok {
				return err
			}
			return nil
		case <-ss.ended:
			return ss.flush(stream)
		}
	}
}

// flush sends what was queued before the end.
func (ss *session) flush(stream ownerStream) error {
	for {
		select {
		case m := <-ss.out:
			if err := stream.Send(m); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// handle takes one message of the puller. An error ends the stream.
func (ss *session) handle(m *pb.PullerMessage) error {
	switch k := m.GetKind().(type) {
	case *pb.PullerMessage_Attach:
		return ss.attach(k.Attach)
	case *pb.PullerMessage_Done:
		ss.done(k.Done.GetEpoch())
	case *pb.PullerMessage_Cancel:
		return ss.cancelled(k.Cancel)
	case *pb.PullerMessage_KeepAlive:
		return ss.keepAlive(k.KeepAlive)
	}
	return nil // a message of a newer version
}

// errCancelled ends a stream whose puller sent CANCEL.
var errCancelled = status.Error(codes.Canceled, "cancelled by the puller")

func clip(s string) string { return s[:min(len(s), maxName)] }

func (ss *session) attach(a *pb.Attach) error {
	id := transfer.ID(a.GetId())
	if !signed(ss.srv.cfg.Key, purposeAttach, id, a.GetIncarnation(), a.GetMac()) {
		return status.Error(codes.Unauthenticated, "ATTACH is not signed with this worker's key")
	}
	layout, err := decodeLayout(a.GetLayout())
	if err != nil {
		ss.refuse(transfer.RejectLayout, err.Error())
		return nil
	}
	have, err := decodeHashes(a.GetHave())
	if err != nil {
		return status.Error(codes.InvalidArgument, "have: "+err.Error())
	}
	m := transfer.Attach{
		Peer: ss.peer, ID: id, Incarnation: a.GetIncarnation(), Epoch: a.GetEpoch(), Layout: layout, Have: have,
	}
	if a.GetGenFirst() {
		if len(a.GetPrompt()) != hashBytes || a.GetPromptTokens() > maxPrompt {
			return status.Error(codes.InvalidArgument, "gen_first without the prompt's hash, or with too long a prompt")
		}
		m.GenFirst, m.PromptTokens, m.Prompt, m.Early = true, int(a.GetPromptTokens()), transfer.Hash(a.GetPrompt()), a.GetEarly()
		if a.GetIncarnation() == ss.srv.cfg.Incarnation {
			return ss.attachFirst(m, layout.Layers)
		}
	}
	rank := ss.srv.rank(a.GetRank())
	if rank == nil || a.GetIncarnation() != ss.srv.cfg.Incarnation {
		ss.refuse(transfer.RejectUnknown, "the handle is of another worker or an earlier life of this one")
		return nil
	}
	ss.mu.Lock()
	if ss.phase != phaseOpen {
		ss.mu.Unlock()
		return errSecondAttach
	}
	ss.phase, ss.rank, ss.id, ss.layers = phaseAttached, rank, id, layout.Layers
	ss.mu.Unlock()
	rank.inbox(m)
	return nil
}

var errSecondAttach = status.Error(codes.InvalidArgument, "second ATTACH on one stream")

func (ss *session) refuse(reason, detail string) {
	ss.finish(&pb.OwnerMessage{Kind: &pb.OwnerMessage_Reject{Reject: &pb.Reject{Reason: reason, Detail: detail}}})
}

// done forwards DONE once nothing reads the blocks any more: the core may give
// them away at once.
func (ss *session) done(epoch uint32) {
	if ss.stop() {
		ss.mu.Lock()
		if !ss.pushed { // the puller read them by itself
			ss.rank.traffic.sent(PathShared, len(ss.blocks)*ss.rank.memory.blockBytes)
		}
		ss.mu.Unlock()
		ss.rank.inbox(transfer.Done{Peer: ss.peer, ID: ss.id, Epoch: epoch})
	}
}

func (ss *session) keepAlive(k *pb.KeepAlive) error {
	ss.mu.Lock()
	rank, id, epoch := ss.rank, ss.id, ss.epoch
	at := ss.phase
	ss.mu.Unlock()
	switch {
	case at == phaseServing:
		rank.inbox(transfer.KeepAlive{ID: id, Epoch: epoch})
		return nil
	case at > phaseServing:
		return nil // crossed with the end
	}
	id = transfer.ID(k.GetId())
	if !signed(ss.srv.cfg.Key, purposeKeepAlive, id, k.GetIncarnation(), k.GetMac()) {
		return status.Error(codes.Unauthenticated, "KEEPALIVE is not signed with this worker's key")
	}
	if k.GetIncarnation() != ss.srv.cfg.Incarnation {
		return nil
	}
	m := transfer.KeepAlive{ID: id, Epoch: k.GetEpoch()}
	if m.Epoch == 0 { // there is no lease yet, and nobody knows on which rank it will be
		for _, t := range ss.srv.all() {
			t.inbox(m)
		}
	} else if rank = ss.srv.rank(k.GetRank()); rank != nil {
		rank.inbox(m)
	}
	return nil
}

// cancelled takes a CANCEL, which may be of a transfer that another stream had.
func (ss *session) cancelled(m *pb.Cancel) error {
	ss.mu.Lock()
	own := ss.phase != phaseOpen
	ss.mu.Unlock()
	id := transfer.ID(m.GetId())
	switch {
	case own || id == 0 || m.GetIncarnation() != ss.srv.cfg.Incarnation:
		return errCancelled
	case !signed(ss.srv.cfg.Key, purposeCancel, id, m.GetIncarnation(), m.GetMac()):
		return status.Error(codes.Unauthenticated, "CANCEL is not signed with this worker's key")
	}
	owners := ss.srv.all() // nobody knows on which rank a transfer is that waits for its ctx leg
	if !m.GetGenFirst() {
		owners = slices.DeleteFunc(owners, func(t *Transport) bool { return t.id != m.GetRank() })
	}
	for _, t := range owners {
		t.inbox(transfer.Release{ID: id, Epoch: m.GetEpoch()})
	}
	return errCancelled
}

// grant moves an attached session to serving.
func (ss *session) grant(t *Transport, a transfer.Accept) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.phase != phaseAttached || ss.id != a.ID || ss.rank != t {
		return false
	}
	ss.phase, ss.epoch, ss.skip, ss.blocks, ss.first = phaseServing, a.Epoch, a.Skip, a.Blocks, a.First
	ss.ready = len(a.Blocks) - a.Coming
	return true
}

// grown notes how many blocks are computed and reports whether that is news for
// the puller.
func (ss *session) grown(t *Transport, p transfer.Progress) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.phase != phaseServing || ss.id != p.ID || ss.rank != t {
		return false
	}
	if p.Whole {
		p.Ready, ss.first = len(ss.blocks), p.First
	}
	if p.Ready > len(ss.blocks) || p.Ready <= ss.ready && !p.Whole {
		return false
	}
	ss.ready = p.Ready
	return true
}

// granted reports whether the session was ever allowed to read blocks of a
// transfer.
func (ss *session) granted(id transfer.ID) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.phase >= phaseServing && ss.id == id
}

// stop leaves phaseServing, if that is the phase, for phaseDone and reports
// whether it did. Either way no block is being read when it returns.
func (ss *session) stop() bool {
	ss.mu.Lock()
	serving := ss.phase == phaseServing
	if serving {
		ss.phase = phaseDone
		ss.srv.retract(ss)
		if ss.conn != nil {
			_ = ss.conn.SetWriteDeadline(time.Unix(1, 0)) // wakes a blocked write
		}
	}
	ss.mu.Unlock()
	ss.reading.Lock() // a reader that came first finishes, a later one sees the phase
	defer ss.reading.Unlock()
	return serving
}

// revoke tells the puller that its lease is over.
func (ss *session) revoke() {
	if ss.stop() {
		ss.finish(&pb.OwnerMessage{Kind: &pb.OwnerMessage_DoneReply{DoneReply: &pb.DoneReply{}}})
	}
}

// send queues a message. It never waits; a puller that does not read is cut off.
func (ss *session) send(m *pb.OwnerMessage) {
	select {
	case ss.out <- m:
	default:
		ss.end()
	}
}

// finish queues the last message of a session.
func (ss *session) finish(m *pb.OwnerMessage) {
	ss.stop()
	ss.mu.Lock()
	over := ss.phase == phaseEnded
	ss.mu.Unlock()
	if !over {
		ss.send(m)
		ss.end()
	}
}

// end closes the session without telling the core, which decided it.
func (ss *session) end() {
	ss.stop()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.phase != phaseEnded {
		ss.phase = phaseEnded
		close(ss.ended)
	}
}

// detach ends a session whose stream broke or whose puller left, and tells the
// core if it knows of the puller.
func (ss *session) detach(err error) {
	ss.stop()
	ss.mu.Lock()
	known := ss.phase == phaseAttached || ss.phase == phaseDone
	if ss.phase != phaseEnded {
		ss.phase = phaseEnded
		close(ss.ended)
	}
	ss.mu.Unlock()
	if known {
		reason := "stream ended"
		if err != nil {
			reason = clip(err.Error())
		}
		for _, t := range ss.owners() {
			t.inbox(transfer.Detach{
				Peer: ss.peer, ID: ss.id, Cancelled: errors.Is(err, errCancelled), Reason: reason,
			})
		}
	}
}
