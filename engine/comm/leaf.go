package comm

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"tandem/engine/comm/commpb"
)

// leaf is the remote of a process without rank 0: it sends the parts of its
// ranks to the root and gets everybody's.
type leaf struct {
	hub    *hub
	conn   *grpc.ClientConn
	stream commpb.Lockstep_JoinClient
	cancel context.CancelFunc
	mu     sync.Mutex // for Send
	waking atomic.Bool
	outbox outbox
	steps  chan *commpb.Step
	data   *dataConn

	heard  chan struct{} // closed when the stream is over
	ending sync.WaitGroup
	wire   []byte
}

// rootSpan is whom a leaf blames for silence of the root.
var rootSpan = Span{0, 0}

func (l *leaf) send(m *commpb.LeafMessage) error {
	l.mu.Lock()
	err := l.flushPosts() // what was posted before a collective arrives before it
	if err == nil {
		err = l.stream.Send(m)
	}
	l.mu.Unlock()
	l.flushWake()
	return err
}

// ask sends this process's part and waits for the root's answer.
func (l *leaf) ask(s *commpb.Step) (*commpb.Step, error) {
	if err := l.send(&commpb.LeafMessage{Kind: &commpb.LeafMessage_Step{Step: s}}); err != nil {
		// The reader may know why the stream broke.
		select {
		case <-l.hub.done:
			return nil, l.hub.err
		case <-time.After(linger):
			return nil, l.hub.lost(rootSpan, err)
		}
	}
	var a *commpb.Step
	select {
	case a = <-l.steps:
	case <-l.hub.done:
		select { // an answer that came before the end counts
		case a = <-l.steps:
		default:
			return nil, l.hub.err
		}
	}
	return a, checkStep(a, 0, l.hub.ranks[0].iter.Load(), s.Seq, Op(s.Op))
}

func (l *leaf) exchange(seq uint64, table []Record) error {
	own := l.hub.span
	l.wire = encodeRecords(l.wire[:0], table[own.First:own.Last+1])
	iter := table[own.First].Iter
	a, err := l.ask(&commpb.Step{Seq: seq, Op: uint32(OpExchange), Records: l.wire})
	if err != nil {
		return err
	}
	return decodeRecords(table, Span{0, len(table) - 1}, a.GetRecords(), iter)
}

func (l *leaf) gather(seq uint64, table []Record, parts [][]byte) error {
	own := l.hub.span
	a, err := l.ask(&commpb.Step{Seq: seq, Op: uint32(OpGather), Payloads: parts[own.First : own.Last+1]})
	if err != nil {
		return err
	}
	if got := len(a.GetPayloads()); got != len(parts) {
		return diverged("payloads", 0, table[0].Iter, len(parts), got)
	}
	for i, p := range a.GetPayloads() {
		if !own.Has(i) {
			parts[i] = p
		}
	}
	return checkParts(table, parts)
}

func (l *leaf) barrier(seq uint64) error {
	_, err := l.ask(&commpb.Step{Seq: seq, Op: uint32(OpBarrier)})
	return err
}

func (l *leaf) reduces() bool  { return false }
func (l *leaf) missing() []int { return []int{0} }

// wake does not block: whoever holds the stream sends it afterwards.
func (l *leaf) wake() {
	l.waking.Store(true)
	l.flushWake()
}

func (l *leaf) flushWake() {
	for l.waking.Load() && l.mu.TryLock() {
		if l.waking.Swap(false) {
			_ = l.stream.Send(&commpb.LeafMessage{Kind: &commpb.LeafMessage_Wake{Wake: &commpb.Wake{}}})
		}
		l.mu.Unlock()
	}
}

// beat tells the root how far the local ranks are and which of them it waits for.
func (l *leaf) beat(progress uint64, missing []int) {
	if len(missing) > 0 && !l.hub.span.Has(missing[0]) {
		missing = nil // it waits for others
	}
	_ = l.send(&commpb.LeafMessage{Kind: &commpb.LeafMessage_Beat{
		Beat: &commpb.Beat{Progress: progress, Missing: uints(missing)},
	}})
}

// read takes the root's messages until the stream is over.
func (l *leaf) read() {
	defer l.hub.bg.Done()
	defer close(l.heard)
	for {
		m, err := l.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the root left")
			}
			l.hub.fail(l.hub.lost(rootSpan, err))
			return
		}
		l.received(m)
	}
}

func (l *leaf) received(m *commpb.RootMessage) {
	h := l.hub
	switch k := m.GetKind().(type) {
	case *commpb.RootMessage_Step:
		select {
		case l.steps <- k.Step:
		default:
			h.fail(diverged("pending steps", 0, h.ranks[0].iter.Load(), cap(l.steps), cap(l.steps)+1))
		}
	case *commpb.RootMessage_Beat:
		absent := ints(k.Beat.GetMissing())
		h.absent.Store(&absent)
		h.elsewhere.Store(k.Beat.GetProgress())
	case *commpb.RootMessage_Failure:
		h.fail(failureError(k.Failure))
	default:
		h.fail(h.lost(rootSpan, errors.New("unknown message")))
	}
}

// end tells the root why the group is over, and interrupts calls. A root that
// does not listen is given up after a moment.
func (l *leaf) end(err error) {
	l.data.interrupt()
	l.ending.Add(2)
	go func() {
		defer l.ending.Done()
		_ = l.send(&commpb.LeafMessage{Kind: &commpb.LeafMessage_Failure{Failure: errorFailure(err)}})
		l.mu.Lock()
		defer l.mu.Unlock()
		_ = l.stream.CloseSend()
	}()
	go func() {
		defer l.ending.Done()
		timer := time.NewTimer(linger)
		defer timer.Stop()
		select {
		case <-l.heard:
		case <-timer.C:
		}
		l.cancel()
	}()
}

// close waits until the root has heard of the end, or was given up.
func (l *leaf) close() {
	<-l.heard
	l.ending.Wait()
	l.data.close()
	_ = l.conn.Close()
}
