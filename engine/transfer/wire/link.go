package wire

import (
	"context"
	"fmt"
	"sync"
	"time"

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
// When the stream breaks, or the owner voids the pull, ctx is cancelled with the
// cause.
type link struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stream pullerStream
	local  *Server // when the owner is in this process

	answer   chan *pb.OwnerMessage // ACCEPT or REJECT
	progress chan struct{}
	fin      chan *pb.Fin
	reply    chan *pb.DoneReply

	sending sync.Mutex
	closing sync.Once
	read    chan struct{} // closed when the reader is gone
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
		answer: make(chan *pb.OwnerMessage, 1), progress: make(chan struct{}, 1),
		fin: make(chan *pb.Fin, 1), reply: make(chan *pb.DoneReply, 1),
		read: make(chan struct{}), release: func() {},
	}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	if !p.cfg.NoLocal {
		l.local = findLocal(h.Endpoint, h.Incarnation)
	}
	if l.local != nil {
		l.stream, err = dialLocal(l.ctx, l.local)
	} else {
		l.stream, err = p.dialControl(l, addr, fresh)
	}
	if err != nil {
		l.release()
		l.cancel(err)
		return nil, fmt.Errorf("control stream to %s: %w", h.Endpoint, err)
	}
	go l.readLoop()
	return l, nil
}

func (p *Puller) dialControl(l *link, addr string, fresh bool) (pullerStream, error) {
	ct, err := p.controls.get(addr, fresh)
	if err != nil {
		return nil, err
	}
	l.release = func() { p.controls.put(ct) }
	// Opening waits for the connection, which the dialer's own limit bounds less
	// tightly than an ATTACH.
	timer := time.AfterFunc(p.cfg.AttachTimeout, func() { l.cancel(errTimeout("no connection to " + addr)) })
	defer timer.Stop()
	stream, err := pb.NewTransferClient(ct.conn).Exchange(l.ctx)
	if err != nil {
		if cause := context.Cause(l.ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	return stream, nil
}

// readLoop sorts the owner's messages until the stream ends.
func (l *link) readLoop() {
	defer close(l.read)
	for {
		m, err := l.stream.Recv()
		if err != nil {
			l.cancel(fmt.Errorf("control stream: %w", err))
			return
		}
		switch k := m.GetKind().(type) {
		case *pb.OwnerMessage_Accept, *pb.OwnerMessage_Reject:
			offer(l.answer, m)
		case *pb.OwnerMessage_Progress:
			offer(l.progress, struct{}{})
		case *pb.OwnerMessage_Fin:
			offer(l.fin, k.Fin)
		case *pb.OwnerMessage_DoneReply:
			// The last message. Without a DONE it is a STALE that nobody waits
			// for; the stream's end behind it must not hide it.
			offer(l.reply, k.DoneReply)
			if !k.DoneReply.GetOk() {
				l.cancel(errStale)
			}
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
		if cause := context.Cause(l.ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("control stream: %w", err)
	}
	return nil
}

// close ends the stream and waits for the reader. reason, if not empty, is sent
// as CANCEL first, so that the owner need not wait for a lease to end.
func (l *link) close(reason string) {
	l.closing.Do(func() {
		if reason != "" && l.ctx.Err() == nil {
			_ = l.send(&pb.PullerMessage{Kind: &pb.PullerMessage_Cancel{Cancel: &pb.Cancel{Reason: reason}}})
		}
		_ = l.stream.CloseSend()
		l.cancel(context.Canceled)
		<-l.read
		l.release()
	})
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
