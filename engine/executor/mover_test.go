package executor

import (
	"fmt"
	"slices"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// movers is the fake byte path between ranks. Messages wait until the test
// advances a move.
type movers struct {
	t       fatal
	now     time.Duration
	ranks   []*rank
	moves   map[transfer.ID]*move
	order   []transfer.ID // ids of moves that have not ended
	serving map[transfer.ID]bool
	peer    transfer.Peer
	blocks  int // moved
	loans   map[transfer.ID]*rank
	release []transfer.ID // loans that the lender need not keep
}

// move is one pull.
type move struct {
	m        *movers
	to       *rank
	pull     transfer.Pull
	peer     transfer.Peer
	accept   *transfer.Accept
	refused  string
	reply    *transfer.DoneReply
	moved    int
	stopping bool
	asked    bool
	told     bool // DONE was sent
}

func newMovers(t fatal, cfgs ...Config) *movers {
	t.Helper()
	m := &movers{t: t, moves: map[transfer.ID]*move{}, serving: map[transfer.ID]bool{}, loans: map[transfer.ID]*rank{}}
	for i, cfg := range cfgs {
		cfg.Rank, cfg.Incarnation = i, "i"
		cfg.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 2, DType: "F32"}
		r := newRank(t, cfg)
		r.moved = m
		m.ranks = append(m.ranks, r)
	}
	return m
}

func (m *movers) carryOut(r *rank, e *Effects) {
	for _, id := range e.Revoked {
		delete(m.serving, id)
	}
	for _, h := range e.KeepAlives {
		m.ranks[h.Rank].KeepAlive(m.now, transfer.KeepAlive{ID: h.ID, Epoch: h.Epoch})
	}
	for _, p := range e.Pulls {
		m.peer++
		if m.moves[p.Handle.ID] != nil {
			m.t.Fatalf("transfer %d is pulled twice", p.Handle.ID)
		}
		m.moves[p.Handle.ID] = &move{m: m, to: r, pull: p, peer: m.peer}
		m.order = append(m.order, p.Handle.ID)
	}
	for _, a := range e.Accepts {
		if v := m.moves[a.ID]; v != nil && v.peer == a.Peer {
			m.serving[a.ID] = true
			v.accept = &a
		}
	}
	for _, a := range e.Rejects {
		if v := m.moves[a.ID]; v != nil && v.peer == a.Peer {
			v.refused = a.Reason
		}
	}
	for _, d := range e.Dones {
		if v := m.moves[d.ID]; v != nil && v.peer == d.Peer {
			v.reply = &d
		}
	}
	for _, id := range e.StopPulls {
		m.moves[id].stopping = true
	}
	for _, b := range e.Borrowed {
		if !b.Pulled {
			m.release = append(m.release, b.Transfer)
		}
	}
}

// end reports the last event of a pull.
func (v *move) end(e transfer.PullEvent) {
	id := v.pull.Handle.ID
	delete(v.m.moves, id)
	v.m.order = slices.DeleteFunc(v.m.order, func(o transfer.ID) bool { return o == id })
	e.ID, e.Done, e.Progress = id, true, v.moved
	v.to.PullEvent(v.m.now, e)
	v.to.collect()
}

// advance lets the byte path do its next thing.
func (v *move) advance() {
	h, m := v.pull.Handle, v.m
	from := m.ranks[h.Rank]
	switch {
	case v.stopping:
		from.Detach(m.now, transfer.Detach{Peer: v.peer, ID: h.ID, Cancelled: true})
		from.collect()
		v.end(transfer.PullEvent{Code: "stopped", Reason: "stopped"})
	case !v.asked:
		v.asked = true
		from.Attach(m.now, transfer.Attach{
			Peer: v.peer, ID: h.ID, Incarnation: h.Incarnation, Epoch: h.Epoch, Layout: h.Layout, Have: v.pull.Have,
		})
		from.collect()
	case v.refused != "":
		v.end(transfer.PullEvent{Code: v.refused, Reason: v.refused})
	case v.reply != nil && v.reply.OK:
		v.end(transfer.PullEvent{OK: true})
	case v.reply != nil || !v.told && !m.serving[h.ID]:
		v.end(transfer.PullEvent{Code: transfer.RejectStale, Reason: "stale"})
	case v.moved < len(v.pull.Dst):
		v.read(from)
	case !v.told:
		v.told = true
		from.Done(m.now, transfer.Done{Peer: v.peer, ID: h.ID, Epoch: v.accept.Epoch})
		from.collect()
	}
}

// read moves one block and proves that the lender's still holds the prompt.
func (v *move) read(from *rank) {
	m, n := v.m, from.cfg.BlockTokens
	if len(v.accept.Blocks) != len(v.pull.Dst) || v.accept.Skip != len(v.pull.Have) {
		m.t.Fatalf("granted %+v for %+v", *v.accept, v.pull)
	}
	src := from.cache[int(v.accept.Blocks[v.moved])*n:][:n]
	q := v.request()
	h, first := seed(q), (len(v.pull.Have)+v.moved)*n
	for p, t := range q.Prompt[:first+n] {
		if h = mixToken(h, t); p >= first && src[p-first] != h {
			m.t.Fatalf("INV-17: lent block %d of transfer %d holds something else", v.accept.Blocks[v.moved], v.pull.Handle.ID)
		}
	}
	copy(v.to.cache[int(v.pull.Dst[v.moved])*n:][:n], src)
	v.moved++
	m.blocks++
	v.to.PullEvent(m.now, transfer.PullEvent{ID: v.pull.Handle.ID, Progress: v.moved})
	v.to.collect()
}

func (v *move) request() *request.Request {
	if s := v.to.borrows[v.pull.Handle.ID]; s != nil {
		return s.req
	}
	panic(fmt.Sprintf("no borrower of %d", v.pull.Handle.ID))
}

// lend asks rank i for the blocks of q.
func (m *movers) lend(i int, id transfer.ID, q *request.Request) *transfer.Handle {
	r := m.ranks[i]
	cached, free := r.Cached(q.Prompt, q.CacheSalt), r.kv.Free()
	h, ok := r.Lend(m.now, id, q.Prompt, q.CacheSalt)
	r.collect()
	if ok != (h != nil) || ok && (h.PromptTokens > cached || h.PromptTokens%r.cfg.BlockTokens != 0 || h.ID != id || h.Rank != i) {
		m.t.Fatalf("lent %+v of %d cached tokens", h, cached)
	}
	if !ok && r.kv.Free() != free {
		m.t.Fatalf("a loan that was refused took blocks")
	}
	if ok {
		m.loans[id] = r
	}
	return h
}

// settle lets everything come to its end.
func (m *movers) settle() {
	for range 2000 {
		busy := false
		for _, id := range slices.Clone(m.order) {
			m.moves[id].advance()
		}
		for _, r := range m.ranks {
			r.hold = false
			busy = r.step(m.now) || busy
		}
		if busy || len(m.order) > 0 {
			continue
		}
		next := never
		for _, r := range m.ranks {
			if at, ok := r.NextDeadline(); ok {
				next = min(next, at)
			}
		}
		if next == never {
			return
		}
		m.now = max(m.now, next)
	}
	m.t.Fatalf("still busy")
}
