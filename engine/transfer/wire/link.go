package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// pullerStream is the gen side of a control stream.
type pullerStream interface {
	Send(*pb.PullerMessage) error
	Recv() (*pb.OwnerMessage, error)
	CloseSend() error
}

// link is a control stream with a goroutine that sorts what the owner sends.
// ctx ends, with the cause, when the pull is stopped, the stream breaks or the
// owner voids the pull. The stream outlives ctx until close, so that a stopped
// pull can still send CANCEL.
type link struct {
	p      *Puller
	ctx    context.Context
	cancel context.CancelCauseFunc
	stream pullerStream
	hangUp context.CancelFunc // ends the stream at once
	hung   context.Context    // that it did
	local  *Server            // when the owner is in this process
	handle transfer.Handle
	epoch  uint32 // of the ACCEPT

	answer   chan *pb.OwnerMessage // ACCEPT, REJECT, or the FIN of a request that ended
	accepted atomic.Bool
	progress chan struct{}
	ready    atomic.Uint32 // blocks of the ACCEPT that PROGRESS told of
	fin      chan *pb.Fin
	reply    chan *pb.DoneReply
	alive    func() // called by await for every PROGRESS

	sending sync.Mutex
	read    chan struct{} // closed when the reader is gone
	ended   bool          // then: the owner ended the stream, it did not break
	release func()
}

// openLink opens a control stream to the owner of a handle. fresh asks for a new
// connection.
func (p *Puller) openLink(ctx context.Context, h *transfer.Handle, fresh bool) (*link, error) {
	addr, _, err := splitEndpoint(h.Endpoint)
	if err != nil {
		return nil, err
	}
	l := &link{
		p: p, handle: *h, answer: make(chan *pb.OwnerMessage, 1), progress: make(chan struct{}, 1),
		fin: make(chan *pb.Fin, 1), reply: make(chan *pb.DoneReply, 1),
		read: make(chan struct{}), release: func() {}, alive: func() {},
	}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	streamCtx, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	l.hangUp, l.hung = hangUp, streamCtx
	// An owner that does not read blocks a message that is longer than the stream's window. A CANCEL has its grace.
	context.AfterFunc(l.ctx, func() { time.AfterFunc(2*cancelGrace, hangUp) })
	if !p.cfg.NoLocal {
		l.local = findLocal(h.Endpoint, h.Incarnation)
	}
	if l.local != nil {
		l.stream, err = dialLocal(streamCtx, l.local)
	} else {
		l.stream, err = p.dialControl(streamCtx, l, addr, fresh)
	}
	if err != nil {
		if cause := context.Cause(l.ctx); cause != nil {
			err = cause
		}
		l.hangUp()
		l.release()
		l.cancel(err)
		return nil, fmt.Errorf("control stream to %s: %w", h.Endpoint, err)
	}
	go l.readLoop()
	return l, nil
}

// dialControl opens a gRPC stream, within AttachTimeout and l.ctx.
func (p *Puller) dialControl(ctx context.Context, l *link, addr string, fresh bool) (pullerStream, error) {
	ct, err := p.controls.get(addr, fresh)
	if err != nil {
		return nil, err
	}
	l.release = func() { p.controls.put(ct) }
	timer := time.AfterFunc(p.cfg.AttachTimeout, func() { l.cancel(errTimeout("no connection to " + addr)) })
	defer timer.Stop()
	opened := context.AfterFunc(l.ctx, l.hangUp)
	stream, err := pb.NewTransferClient(ct.conn).Exchange(ctx)
	if err == nil && !opened() {
		err = context.Cause(l.ctx)
	}
	return stream, err
}

// readLoop sorts the owner's messages until the stream ends.
func (l *link) readLoop() {
	defer close(l.read)
	for {
		m, err := l.stream.Recv()
		if err != nil {
			l.ended = errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled && l.hung.Err() == nil
			l.cancel(fmt.Errorf("%w: %w", errLost, err))
			return
		}
		switch k := m.GetKind().(type) {
		case *pb.OwnerMessage_Accept:
			if l.accepted.CompareAndSwap(false, true) {
				offer(l.answer, m)
			}
		case *pb.OwnerMessage_Reject:
			if l.accepted.Load() { // of blocks that were still to come
				l.cancel((&rejected{k.Reject.GetReason(), k.Reject.GetDetail()}).pullError())
				return
			}
			offer(l.answer, m)
		case *pb.OwnerMessage_Progress:
			l.ready.Store(max(l.ready.Load(), k.Progress.GetBlocks()))
			offer(l.progress, struct{}{})
		case *pb.OwnerMessage_Fin:
			if k.Fin.GetFinished() && !l.accepted.Load() {
				offer(l.answer, m)
			}
			offer(l.fin, k.Fin)
		case *pb.OwnerMessage_DoneReply:
			// The last message. Without a DONE it is a STALE that nobody waits
			// for; the stream's end behind it must not hide it.
			offer(l.reply, k.DoneReply)
			if !k.DoneReply.GetOk() {
				l.cancel(errStale)
			}
			l.ended = true
			return
		}
	}
}

// offer puts v into a channel unless one waits there already.
func offer[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

func (l *link) send(m *pb.PullerMessage) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := l.stream.Send(m); err != nil {
		<-l.read // the stream has ended; the owner's last message may say why
		if cause := context.Cause(l.ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// errLost is the end of a control stream that nobody explained: the transfer may
// still be there.
var errLost = errors.New("control stream")

// cancelGrace bounds the delivery of a CANCEL.
const cancelGrace = time.Second

// close ends the stream. A stopped pull says so with CANCEL, in the background,
// because nobody will come back for its blocks. Any other end just hangs up: the
// lease stays, for another try or another gen worker. Called once; it tells which
// of them it was.
func (l *link) close() (stopped bool) {
	stopped = errors.Is(context.Cause(l.ctx), errStopped)
	l.cancel(context.Canceled)
	if !stopped {
		l.finish()
		return false
	}
	l.p.wg.Add(1) // the caller holds one, so Close still waits
	go func() {
		defer l.p.wg.Done()
		timer := time.AfterFunc(cancelGrace, l.hangUp)
		defer timer.Stop()
		heard := l.tell(&pb.Cancel{Reason: errStopped.reason})
		l.finish()
		if !heard {
			l.handle.Epoch = max(l.handle.Epoch, l.epoch)
			l.p.release(l.handle)
		}
	}()
	return true
}

// tell sends a CANCEL as the last message and reports whether the owner got it.
func (l *link) tell(m *pb.Cancel) bool {
	if l.send(&pb.PullerMessage{Kind: &pb.PullerMessage_Cancel{Cancel: m}}) != nil {
		return false
	}
	l.sending.Lock()
	_ = l.stream.CloseSend()
	l.sending.Unlock()
	<-l.read // the owner ends the stream, or it breaks
	return l.ended
}

func (l *link) finish() {
	l.hangUp()
	<-l.read
	l.release()
}

// news waits for a PROGRESS, then fin is nil, or FIN.
func (l *link) news(limit time.Duration) (fin *pb.Fin, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case fin = <-l.fin:
		return fin, nil
	case <-l.progress:
		l.alive()
		return nil, nil
	case <-timer.C:
		return nil, errTimeout(fmt.Sprintf("no sign of the owner within %v", limit))
	case <-l.ctx.Done():
		select {
		case fin = <-l.fin: // came before the stream's end
			return fin, nil
		default:
		}
		return nil, context.Cause(l.ctx)
	}
}

// ending returns how a pull ends early: by the FIN of a request that ended with
// its first token, which may have come just before err, or by err.
func (l *link) ending(fin *pb.Fin, err error) (*pb.Fin, error) {
	if fin == nil {
		select {
		case fin = <-l.fin:
		default:
		}
	}
	if fin.GetFinished() {
		return fin, nil
	}
	return nil, err
}

// await returns the next value of c. It fails when the link's context ends or
// after limit; PROGRESS starts the limit again.
func await[T any](l *link, c chan T, limit time.Duration, what string) (T, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var zero T
	for {
		select {
		case v := <-c:
			return v, nil
		case <-l.progress:
			l.alive()
			timer.Reset(limit)
		case <-timer.C:
			return zero, errTimeout(fmt.Sprintf("no %s within %v", what, limit))
		case <-l.ctx.Done():
			select {
			case v := <-c: // came before the stream's end
				return v, nil
			default:
			}
			return zero, context.Cause(l.ctx)
		}
	}
}
