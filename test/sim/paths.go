package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// paths are the byte paths of an Instance: loans between its ranks, pulls from a
// ctx worker outside, and pullers outside that fetch what its ranks offer. What
// succeeds, fails and takes how long is drawn.
type paths struct {
	in    *Instance
	rng   *rand.Rand
	pulls map[transfer.ID]*fetch
	peers map[transfer.Peer]*fetch      // of ranks here
	outer map[transfer.Peer]*outside    // pullers elsewhere
	until map[transfer.ID]time.Duration // leases elsewhere
	freed map[transfer.ID]bool          // of those, what nobody here will come for
	open  map[transfer.ID]bool          // loans, and whether their lease is open
	spent map[transfer.ID]uint64        // of those, what nobody wants any more, and since which iteration
	peer  transfer.Peer
}

// fetch is a pull by a rank of the instance.
type fetch struct {
	rank int
	pull transfer.Pull
	peer transfer.Peer
	over bool
	stop bool // the rank wants it no more
}

// outside is a puller elsewhere.
type outside struct {
	rank   int
	handle *transfer.Handle
}

func newPaths(in *Instance, rng *rand.Rand) *paths {
	return &paths{
		in: in, rng: rng, pulls: map[transfer.ID]*fetch{},
		peers: map[transfer.Peer]*fetch{}, outer: map[transfer.Peer]*outside{},
		until: map[transfer.ID]time.Duration{}, freed: map[transfer.ID]bool{}, open: map[transfer.ID]bool{}, spent: map[transfer.ID]uint64{},
	}
}

// later runs do on a rank's core after a while, maybe in a pass of the rank.
func (p *paths) later(rank int, do func(now time.Duration, c *executor.Core)) {
	p.in.schedule(event{at: p.in.Now + time.Duration(p.rng.Int64N(int64(60*time.Millisecond))), early: true, do: func() {
		m := p.in.Ranks[rank]
		do(p.in.Now, m.Core)
		m.flush()
	}})
}

func (p *paths) effects(rank int, e *executor.Effects) {
	for _, pl := range e.Pulls {
		p.start(rank, pl)
	}
	for _, id := range e.StopPulls {
		if f := p.pulls[id]; f != nil {
			f.stop = true // and so the path itself ends the lease
			p.later(f.rank, func(time.Duration, *executor.Core) { p.end(f, false, "stopped") })
		}
	}
	for _, m := range e.Progress {
		p.claimed(rank, m)
	}
	for _, x := range e.Ends {
		delete(p.outer, x.Peer)
	}
	for _, a := range e.Accepts {
		if f := p.peers[a.Peer]; f != nil {
			p.later(rank, func(now time.Duration, c *executor.Core) { p.copy(f, &a, now, c) })
		} else if o := p.outer[a.Peer]; o != nil {
			p.outsideAccepted(o, a)
		}
	}
	for _, r := range e.Rejects {
		if f := p.peers[r.Peer]; f != nil {
			p.later(f.rank, func(time.Duration, *executor.Core) { p.end(f, false, r.Reason) })
		}
		delete(p.outer, r.Peer)
	}
	for _, d := range e.Dones {
		if f := p.peers[d.Peer]; f != nil {
			p.later(f.rank, func(time.Duration, *executor.Core) { p.end(f, d.OK, transfer.RejectStale) })
		}
		delete(p.outer, d.Peer)
	}
	for _, h := range e.KeepAlives {
		p.keptAlive(&h)
	}
	for _, h := range e.Releases {
		p.release(h.ID)
	}
	for _, b := range e.Borrowed {
		if b.OK {
			p.in.Log.Borrowed++
		}
		if !b.Pulled && p.open[b.Transfer] {
			p.spent[b.Transfer] = p.in.Log.Iterations
		}
	}
	for _, id := range e.Revoked {
		delete(p.spent, id)
		p.open[id] = false
	}
}

// start begins a pull: from another rank, or from a worker elsewhere.
func (p *paths) start(rank int, pl transfer.Pull) {
	p.peer++
	f := &fetch{rank: rank, pull: pl, peer: p.peer}
	if p.pulls[pl.Handle.ID] != nil {
		p.in.fail("rank %d pulls %d, which is being pulled", rank, pl.Handle.ID)
		return
	}
	p.in.Log.Pulls++
	p.pulls[pl.Handle.ID] = f
	h := pl.Handle
	if h.ID < 0 {
		p.in.Log.Loans++
		p.peers[f.peer] = f
		p.later(h.Rank, func(now time.Duration, c *executor.Core) {
			c.Attach(now, transfer.Attach{
				Peer: f.peer, ID: h.ID, Incarnation: h.Incarnation, Epoch: h.Epoch, Layout: h.Layout, Have: pl.Have,
			})
		})
		return
	}
	if p.in.Now > p.until[h.ID] {
		p.in.fail("request of transfer %d waited until its lease was over at %v", h.ID, p.until[h.ID])
	}
	if p.freed[h.ID] {
		p.in.fail("transfer %d is pulled after its lease was given up", h.ID)
	}
	delete(p.until, h.ID)
	switch p.rng.IntN(9) {
	case 0: // silence: the rank's own deadline ends it
	case 2:
		p.later(rank, func(time.Duration, *executor.Core) { p.end(f, false, "broken") })
	case 1:
		p.later(rank, func(time.Duration, *executor.Core) { p.end(f, false, transfer.RejectUnknown) })
	default:
		p.later(rank, func(time.Duration, *executor.Core) {
			if !f.over && !p.endsEarly(f) {
				p.write(f)
				p.end(f, true, "")
			}
		})
	}
}

// release ends a lease elsewhere.
func (p *paths) release(id transfer.ID) {
	if id < 0 || p.freed[id] {
		p.in.fail("transfer %d is given up: freed before %v", id, p.freed[id])
	}
	p.in.Log.Released++
	p.freed[id] = true
}

// keptAlive renews a lease elsewhere.
func (p *paths) keptAlive(h *transfer.Handle) {
	if h.ID > 0 {
		if p.freed[h.ID] {
			p.in.fail("the lease of transfer %d is renewed after it was given up", h.ID)
		}
		p.until[h.ID] = p.in.Now + h.Lease
	}
}

// lent notes loans that other ranks hear of.
func (p *paths) lent(loans []lockstep.Lent) {
	for _, l := range loans {
		if l.Handle == nil {
			continue
		}
		if _, over := p.open[l.Handle.ID]; !over {
			p.open[l.Handle.ID] = true
		}
	}
}

// check wants loans to end soon after their borrower has no use for them.
func (p *paths) check() {
	for id, since := range p.spent { // any order: each must have ended
		if p.in.Log.Iterations > since+4 {
			p.in.fail("loan %d is kept, though its borrower gave it up in iteration %d", id, since)
		}
	}
}

// write puts what a ctx worker would have computed into the blocks of a pull.
func (p *paths) write(f *fetch) {
	m, h := p.in.Ranks[f.rank], &f.pull.Handle
	b, t := m.cfg.BlockTokens, p.trackOf(m, h.ID)
	if t == nil {
		p.in.fail("pull %d is for nobody", h.ID)
		return
	}
	for i, id := range f.pull.Dst {
		for j, s := 0, m.Model.block(id); j < b; j++ {
			if at := (len(f.pull.Have)+i)*b + j; at < h.PromptTokens {
				s[j] = slot{token: t.Req.Prompt[at], pos: int32(at), root: h.Root.Wire()}
			}
		}
	}
}

func (p *paths) trackOf(m *Member, id transfer.ID) *Track {
	for _, t := range m.Tracks { // any order: ids are unique
		if transfer.ID(t.Req.TransferID) == id {
			return t
		}
	}
	return nil
}

// copy moves a loan from one rank's cache to another's.
func (p *paths) copy(f *fetch, a *transfer.Accept, now time.Duration, lender *executor.Core) {
	h := &f.pull.Handle
	if f.over {
		lender.Detach(now, transfer.Detach{Peer: f.peer, ID: h.ID, Cancelled: true})
		return
	}
	if a.Skip != len(f.pull.Have) || len(a.Blocks) != len(f.pull.Dst) {
		p.in.fail("loan %d: %d blocks from %d granted, %d from %d wanted", h.ID, len(a.Blocks), a.Skip, len(f.pull.Dst), len(f.pull.Have))
		return
	}
	if p.rng.IntN(10) == 0 { // the path breaks
		p.later(f.rank, func(time.Duration, *executor.Core) { p.end(f, false, "broken") })
		return
	}
	from, to := p.in.Ranks[h.Rank].Model, p.in.Ranks[f.rank].Model
	for i, id := range a.Blocks {
		copy(to.block(f.pull.Dst[i]), from.block(id))
	}
	p.later(h.Rank, func(now time.Duration, c *executor.Core) {
		c.Done(now, transfer.Done{Peer: f.peer, ID: h.ID, Epoch: a.Epoch})
	})
}

// end reports the end of a pull to its rank, once.
func (p *paths) end(f *fetch, ok bool, code string) {
	if f.over {
		return
	}
	f.over = true
	delete(p.pulls, f.pull.Handle.ID)
	delete(p.peers, f.peer)
	e := transfer.PullEvent{ID: f.pull.Handle.ID, Done: true, OK: ok, Code: code, Reason: code}
	if ok {
		e.Code, e.Reason, e.Progress = "", "", len(f.pull.Dst)
	}
	m := p.in.Ranks[f.rank]
	defer p.checkFreed(m, f, code)
	if ok && f.pull.Handle.GenFirst {
		e.First = p.first(m, e.ID)
		p.in.Log.Early++
	}
	m.Core.PullEvent(p.in.Now, e)
	m.flush()
}

// checkFreed wants the lease of a broken pull to be given up at once by whoever
// computes the prompt instead.
func (p *paths) checkFreed(m *Member, f *fetch, code string) {
	id := f.pull.Handle.ID
	if t := p.trackOf(m, id); id > 0 && code == "broken" && !f.stop && t != nil && t.Finish == request.Running && !p.freed[id] {
		p.in.fail("the lease of transfer %d is kept, though its pull broke", id)
	}
}

// offered is a hand-over that a worker elsewhere may fetch, or not.
func (p *paths) offered(rank int, h *transfer.Handle) {
	if p.rng.IntN(4) == 0 {
		return // nobody comes: the lease expires
	}
	p.peer++
	o, peer := &outside{rank: rank, handle: h}, p.peer
	p.outer[peer] = o
	p.later(rank, func(now time.Duration, c *executor.Core) {
		c.Attach(now, transfer.Attach{Peer: peer, ID: h.ID, Incarnation: h.Incarnation, Epoch: h.Epoch, Layout: h.Layout})
	})
}

// outsideAccepted lets a puller elsewhere finish, give up or break.
func (p *paths) outsideAccepted(o *outside, a transfer.Accept) {
	kind := p.rng.IntN(6)
	p.later(o.rank, func(now time.Duration, c *executor.Core) {
		switch kind {
		case 0:
			delete(p.outer, a.Peer)
			c.Detach(now, transfer.Detach{Peer: a.Peer, ID: a.ID})
		case 1:
			delete(p.outer, a.Peer)
			c.Detach(now, transfer.Detach{Peer: a.Peer, ID: a.ID, Cancelled: true})
		default:
			c.Done(now, transfer.Done{Peer: a.Peer, ID: a.ID, Epoch: a.Epoch})
		}
	})
}

// external returns a hand-over of a ctx worker elsewhere.
func external(cfg *executor.Config, r *request.Request) *transfer.Handle {
	if r.GenFirst {
		h := &transfer.Handle{ID: transfer.ID(r.TransferID), Incarnation: "elsewhere", Endpoint: "tcp://elsewhere:1", Lease: time.Second, Layout: cfg.Layout, GenFirst: true}
		h.Layout.BlockTokens = cfg.BlockTokens
		return h
	}
	h := &transfer.Handle{
		ID: transfer.ID(r.TransferID), Incarnation: "elsewhere", Endpoint: "tcp://elsewhere:1", Epoch: 1, Lease: time.Second,
		PromptTokens: len(r.Prompt), Layout: cfg.Layout, Root: blockhash.Root(cfg.Namespace, "", r.CacheSalt),
	}
	h.Layout.BlockTokens = cfg.BlockTokens
	at := h.Root
	for end := cfg.BlockTokens; end <= len(r.Prompt); end += cfg.BlockTokens {
		at = blockhash.Next(at, r.Prompt[end-cfg.BlockTokens:end])
		h.Hashes = append(h.Hashes, at)
	}
	return h
}

// verify compares what a client got with what the model says alone. It reports
// false only before the end.
func (p *paths) verify(t *Track) bool {
	for _, c := range t.Choices() {
		if !p.verifyChoice(c) {
			return false
		}
	}
	return true
}

func (p *paths) verifyChoice(t *Track) bool {
	if t.Finish == request.Running {
		p.in.fail("request %d is retired before its end", t.Req.ID)
		return false
	}
	root := p.in.Ranks[0].Root(t.Req)
	want := OracleChoice(p.in.cfg.Core.Vocab, root, t.Req.Prompt, t.Choice, max(t.Req.MaxTokens, 1))
	got := t.Tokens
	if t.Req.FirstEmitted {
		want = want[min(len(want), len(t.first())):]
	}
	if t.Finish == request.FinishLength {
		p.checkLength(t)
	}
	if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
		p.in.fail("request %d (%s): tokens %v, want %v", t.Req.ID, t.Finish, got, want)
	}
	return true
}

// checkLength wants all tokens of a request that ended by its length.
func (p *paths) checkLength(t *Track) {
	want := min(t.Req.MaxTokens, p.in.cfg.Core.MaxSeqLen-len(t.Req.Prompt))
	if t.Req.FirstEmitted {
		want -= len(t.first())
	}
	if len(t.Tokens) != want {
		p.in.fail("request %d has %d tokens, want %d", t.Req.ID, len(t.Tokens), want)
	}
}

// left says what byte path is still open.
func (p *paths) left() error {
	if len(p.pulls) > 0 {
		return fmt.Errorf("sim: %d pulls are open", len(p.pulls))
	}
	return nil
}
