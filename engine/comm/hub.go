package comm

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// remote brings in what ranks of other processes contribute. Its calls run on
// the local rank that arrived last, one at a time.
type remote interface {
	// exchange fills the records of the other processes.
	exchange(seq uint64, table []Record) error
	// gather fills the payloads of the other processes. The root's check of all
	// of them runs before any is passed on.
	gather(seq uint64, table []Record, parts [][]byte) error
	barrier(seq uint64) error
	// collect runs when the local ranks have shown what they contribute.
	collect(seq uint64, h *hub) error
	// spread runs when the local ranks have reduced their shares.
	spread(seq uint64, h *hub) error
	// reduces tells whether the sums are made in this process.
	reduces() bool

	wake()
	// post takes over msg and does not block.
	post(msg []byte)
	beat(progress uint64, missing []int)
	// missing lists the ranks of other processes that a call waits for.
	missing() []int
	// end tells the other processes and interrupts calls; it does not wait.
	end(err error)
	// close waits until nothing of the remote runs any more.
	close()
}

// hub is the part of a group that lives in one process.
type hub struct {
	cfg   Config
	span  Span
	ranks []*Rank // the local ones, ascending
	bar   barrier
	up    remote // nil when all ranks are local

	woken chan struct{}
	once  sync.Once
	err   error // set before bar ends
	done  chan struct{}
	bg    sync.WaitGroup
	beats chan []int // whom to report as missing

	// elsewhere is the progress that other processes reported.
	elsewhere atomic.Uint64
	absent    atomic.Pointer[[]int] // leaf: whom the root waits for

	// The rest belongs to the collective that runs. What is double is written
	// for the next one while slow ranks still read the last one.
	seq    uint64
	table  [2][]Record
	parts  [2][][]byte
	src    [][]float32 // each rank's rows; another process's lie in inbox
	dst    [][]float32 // each local rank's result
	inbox  [][]float32
	offset []int // of each rank's part, in elements, and the end
}

func newHub(cfg Config, span Span) *hub {
	h := &hub{cfg: cfg, span: span, woken: make(chan struct{}, 1), done: make(chan struct{}), beats: make(chan []int, 1)}
	h.bar.init(span.Len())
	for i := range h.table {
		h.table[i] = make([]Record, cfg.Size)
		h.parts[i] = make([][]byte, cfg.Size)
	}
	h.src, h.dst, h.inbox = make([][]float32, cfg.Size), make([][]float32, cfg.Size), make([][]float32, cfg.Size)
	h.offset = make([]int, cfg.Size+1)
	for id := span.First; id <= span.Last; id++ {
		h.ranks = append(h.ranks, &Rank{
			hub: h, id: id, seat: id - span.First,
			table: make([]Record, cfg.Size), parts: make([][]byte, cfg.Size),
			scratch: make([]float32, scratchLen(cfg.Size)),
		})
	}
	return h
}

// fail ends the group for the first error it gets. It does not block.
func (h *hub) fail(err error) {
	h.once.Do(func() {
		h.err = err
		h.bar.end()
		close(h.done)
		if h.up != nil {
			h.up.end(err)
		}
	})
}

// cause is the error that ended the group. Only for after its end.
func (h *hub) cause() error {
	<-h.done
	return h.err
}

// quiet waits until no local rank touches another one's memory. It is short: a
// rank is busy only while it computes or its remote call is being interrupted.
func (h *hub) quiet() {
	for _, r := range h.ranks {
		for r.busy.Load() {
			runtime.Gosched()
		}
	}
}

// run does the work of the collective at which all local ranks have arrived.
func (h *hub) run() error {
	h.seq++
	lead := h.ranks[0]
	for _, r := range h.ranks[1:] {
		if err := lead.agrees(r); err != nil {
			return err
		}
	}
	switch {
	case lead.call.op == OpExchange:
		return h.runExchange(lead)
	case lead.call.op == OpGather:
		return h.runGather(lead)
	case h.up == nil:
		return nil
	case lead.call.op == OpBarrier:
		return h.up.barrier(h.seq)
	case lead.call.second:
		return h.up.spread(h.seq, h)
	}
	return h.up.collect(h.seq, h)
}

func (h *hub) runExchange(lead *Rank) error {
	table := h.table[lead.exchanges&1]
	if h.up != nil {
		if err := h.up.exchange(h.seq, table); err != nil {
			return err
		}
	}
	return checkTable(table, h.cfg.MaxPayload)
}

func (h *hub) runGather(lead *Rank) error {
	parts := h.parts[lead.gathers&1]
	if h.up != nil {
		return h.up.gather(h.seq, lead.table, parts)
	}
	return checkParts(lead.table, parts)
}

// checkParts compares payloads with what the table promised.
func checkParts(table []Record, parts [][]byte) error {
	for i := range table {
		if want, got := int(table[i].PayloadBytes), len(parts[i]); want != got {
			return diverged("payload_bytes", i, table[i].Iter, want, got)
		}
	}
	return nil
}

// call is what a rank asks for in one meeting.
type call struct {
	op     Op
	second bool // the meeting after the reduction
	n      int  // elements of an all-reduce
	width  int
	rows   []int
}

// agrees checks that another local rank asks for the same as r.
func (r *Rank) agrees(o *Rank) error {
	a, b, iter := &r.call, &o.call, r.iter.Load()
	switch {
	case a.op != b.op:
		return diverged("collective", o.id, iter, a.op, b.op)
	case o.iter.Load() != iter:
		return diverged("iter", o.id, iter, iter, o.iter.Load())
	case a.n != b.n:
		return diverged("elements", o.id, iter, a.n, b.n)
	case a.width != b.width:
		return diverged("width", o.id, iter, a.width, b.width)
	case !slices.Equal(a.rows, b.rows):
		return diverged("rows", o.id, iter, a.rows, b.rows)
	}
	return nil
}

// peerError attributes err to ranks, unless it already says more, and a
// divergence to the collective.
func peerError(ranks Span, iter uint64, op Op, err error) error {
	var (
		peer *PeerError
		late *TimeoutError
		div  *DivergenceError
	)
	switch {
	case errors.As(err, &peer) || errors.As(err, &late):
		return err
	case !errors.As(err, &div):
		return &PeerError{Ranks: ranks, Iter: iter, Op: op, Err: err}
	case errors.Unwrap(err) != nil || div.Op != OpNone: // it says more
		return err
	}
	found := *div // others may read div by now
	found.Op = op
	return &found
}
