package comm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tandem/engine/comm/commpb"
)

// root is the remote of the process of rank 0: it gathers the parts of all
// leaves, in rank order, and answers each.
type root struct {
	hub    *hub
	leaves []*leafConn // ascending, all there when the group starts
	lis    *Listener

	// waiting is 1 + index of the leaf that a call waits for, negative for its
	// activations.
	waiting atomic.Int32
	wire    []byte // encoded table
	out     commpb.Step
}

// leafConn is what the root knows of one leaf.
type leafConn struct {
	span   Span
	stream commpb.Lockstep_JoinServer
	mu     sync.Mutex // for Send
	steps  chan *commpb.Step
	data   *dataConn
	token  []byte
	left   error // why its stream is over, for after that

	progress atomic.Uint64
	absent   atomic.Pointer[[]int] // its ranks that have not come, as it says
}

func (l *leafConn) send(m *commpb.RootMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream.Send(m)
}

// lost says that the ranks cannot be reached any more.
func (h *hub) lost(ranks Span, err error) error {
	r := h.ranks[0]
	return &PeerError{Ranks: ranks, Iter: r.iter.Load(), Op: Op(r.op.Load()), Err: fmt.Errorf("%w: %w", ErrLost, err)}
}

// next waits for a leaf's part of a collective.
func (c *root) next(i int, seq uint64, op Op) (*commpb.Step, error) {
	l := c.leaves[i]
	c.waiting.Store(int32(i) + 1)
	defer c.waiting.Store(0)
	select {
	case s := <-l.steps:
		return s, checkStep(s, l.span.First, c.hub.ranks[0].iter.Load(), seq, op)
	case <-c.hub.done:
		return nil, c.hub.err
	}
}

// checkStep tells whether a peer is at the same collective.
func checkStep(s *commpb.Step, rank int, iter, seq uint64, op Op) error {
	if got := Op(s.GetOp()); got != op {
		return diverged("collective", rank, iter, op, got)
	}
	if s.GetSeq() != seq {
		return diverged("step", rank, iter, seq, s.GetSeq())
	}
	return nil
}

// answer sends c.out to every leaf.
func (c *root) answer(seq uint64, op Op) error {
	c.out.Seq, c.out.Op = seq, uint32(op)
	m := &commpb.RootMessage{Kind: &commpb.RootMessage_Step{Step: &c.out}}
	for _, l := range c.leaves {
		if err := l.send(m); err != nil {
			return c.hub.lost(l.span, err)
		}
	}
	return nil
}

func (c *root) exchange(seq uint64, table []Record) error {
	iter := table[0].Iter
	for i, l := range c.leaves {
		s, err := c.next(i, seq, OpExchange)
		if err != nil {
			return err
		}
		if err := decodeRecords(table, l.span, s.GetRecords(), iter); err != nil {
			return err
		}
	}
	if err := checkTable(table, c.hub.cfg.MaxPayload); err != nil {
		return err
	}
	c.wire = encodeRecords(c.wire[:0], table)
	c.out.Records, c.out.Payloads = c.wire, nil
	return c.answer(seq, OpExchange)
}

func (c *root) gather(seq uint64, table []Record, parts [][]byte) error {
	for i, l := range c.leaves {
		s, err := c.next(i, seq, OpGather)
		if err != nil {
			return err
		}
		if got := s.GetPayloads(); len(got) != l.span.Len() {
			return diverged("payloads", l.span.First, table[0].Iter, l.span.Len(), len(got))
		}
		copy(parts[l.span.First:], s.GetPayloads())
	}
	if err := checkParts(table, parts); err != nil {
		return err
	}
	c.out.Records, c.out.Payloads = nil, parts
	return c.answer(seq, OpGather)
}

func (c *root) barrier(seq uint64) error {
	for i := range c.leaves {
		if _, err := c.next(i, seq, OpBarrier); err != nil {
			return err
		}
	}
	c.out.Records, c.out.Payloads = nil, nil
	return c.answer(seq, OpBarrier)
}

func (c *root) reduces() bool { return true }
func (c *root) wake()         { c.hub.wake() }
func (c *root) post([]byte)   { panic("comm: rank 0 needs no post") }

// beat tells each leaf how far the others are and whom the root waits for.
func (c *root) beat(progress uint64, missing []int) {
	for _, l := range c.leaves {
		progress += l.progress.Load()
	}
	b := &commpb.Beat{Progress: progress, Missing: uints(missing)}
	for _, l := range c.leaves {
		_ = l.send(&commpb.RootMessage{Kind: &commpb.RootMessage_Beat{Beat: b}}) // a broken stream ends by itself
	}
}

// missing lists the leaves that have not sent their part. Activations are read
// in rank order, so there it knows the first one only.
func (c *root) missing() (ranks []int) {
	at := int(c.waiting.Load())
	data := at < 0
	at = max(at, -at) - 1
	for i := at; i >= 0 && i < len(c.leaves); i++ {
		if l := c.leaves[i]; i == at || !data && len(l.steps) == 0 {
			if absent := l.absent.Load(); absent != nil && len(*absent) > 0 {
				ranks = append(ranks, *absent...)
				continue
			}
			for r := l.span.First; r <= l.span.Last; r++ {
				ranks = append(ranks, r)
			}
		}
	}
	return ranks
}

// end interrupts the calls; the handlers of the streams tell the leaves.
func (c *root) end(error) {
	c.lis.mu.Lock()
	defer c.lis.mu.Unlock()
	for _, l := range c.leaves {
		l.data.interrupt()
	}
}

func (c *root) close() { c.lis.shut() }

// received handles one message of a running leaf.
func (c *root) received(l *leafConn, m *commpb.LeafMessage) {
	h := c.hub
	switch k := m.GetKind().(type) {
	case *commpb.LeafMessage_Step:
		select {
		case l.steps <- k.Step:
		default:
			h.fail(diverged("pending steps", l.span.First, h.ranks[0].iter.Load(), cap(l.steps), cap(l.steps)+1))
		}
	case *commpb.LeafMessage_Posts:
		h.posted(l.span, k.Posts.GetMessages())
	case *commpb.LeafMessage_Wake:
		h.wake()
	case *commpb.LeafMessage_Beat:
		absent := ints(k.Beat.GetMissing())
		l.absent.Store(&absent)
		h.elsewhere.Add(k.Beat.GetProgress() - l.progress.Swap(k.Beat.GetProgress()))
	case *commpb.LeafMessage_Failure:
		err := failureError(k.Failure)
		if errors.Is(err, ErrLost) && k.Failure.GetFirst() == 0 { // it lost us, so we lost it
			err = h.lost(l.span, errors.New(k.Failure.GetReason()))
		}
		h.fail(err)
	default:
		h.fail(h.lost(l.span, errors.New("unknown message")))
	}
}

func encodeRecords(dst []byte, table []Record) []byte {
	for i := range table {
		n := len(dst)
		dst = slices.Grow(dst, RecordBytes)[:n+RecordBytes]
		table[i].Put((*[RecordBytes]byte)(dst[n:]))
	}
	return dst
}

func decodeRecords(table []Record, ranks Span, data []byte, iter uint64) (err error) {
	if want := ranks.Len() * RecordBytes; len(data) != want {
		return diverged("size", ranks.First, iter, want, len(data))
	}
	for r := ranks.First; r <= ranks.Last; r++ {
		at := (r - ranks.First) * RecordBytes
		if table[r], err = DecodeRecord(data[at:at+RecordBytes], r, iter); err != nil {
			return err
		}
	}
	return nil
}

// linger is how long an ended group waits for a peer to hear of it.
const linger = time.Second
