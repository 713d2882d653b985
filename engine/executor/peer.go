package executor

import (
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// The generation-first style: both legs of a hand-over start together. The gen
// side takes its blocks and attaches before anything is prefilled; the ctx leg
// is not scheduled before that. Whichever comes first waits for the other, with
// a deadline of its own: the ctx leg in CtxWaitPeer, the ATTACH in parked.

// parked is an ATTACH whose ctx leg has not come yet.
type parked struct {
	attach transfer.Attach
	until  time.Duration
}

// parking holds the parked in the order of their coming, which is that of their
// ends; beat is when the next PROGRESS is due for all of them.
type parking struct {
	list []parked
	beat time.Duration
}

// take removes the ATTACH of a transfer, the one that came last if there are
// several; older ones have been replaced by it.
func (p *parking) take(id transfer.ID) (m transfer.Attach, replaced []transfer.Attach, ok bool) {
	keep := p.list[:0]
	for _, w := range p.list {
		if w.attach.ID != id {
			keep = append(keep, w)
			continue
		}
		if ok && m.Peer != w.attach.Peer {
			replaced = append(replaced, m)
		}
		m, ok = w.attach, true
	}
	clear(p.list[len(keep):])
	p.list = keep
	return m, replaced, ok
}

// leave removes the ATTACH of a puller.
func (p *parking) leave(peer transfer.Peer, id transfer.ID) bool {
	for i, w := range p.list {
		if w.attach.Peer == peer && w.attach.ID == id {
			p.list = append(p.list[:i], p.list[i+1:]...)
			return true
		}
	}
	return false
}

// due is when parked needs attention.
func (p *parking) due() time.Duration {
	if len(p.list) == 0 {
		return never
	}
	return min(p.beat, p.list[0].until)
}

// progressEvery is how often a puller that waits hears that this loop lives.
func (c *Core) progressEvery() time.Duration { return max(c.cfg.Progress/3, time.Millisecond) }

// awaitPeer lets a new ctx leg wait for its puller, which may be here already.
func (c *Core) awaitPeer(s *sequence) {
	s.lease.expires = c.now + c.cfg.PeerWait
	if !c.enter(s, request.CtxWaitPeer) {
		return
	}
	c.awaiting++
	c.claim(s)
}

// claim brings a new ctx leg together with its puller, if that has come before it.
func (c *Core) claim(s *sequence) {
	m, replaced, ok := c.parked.take(transfer.ID(s.req.TransferID))
	for _, old := range replaced {
		c.turnAway(old, transfer.RejectStale, "another puller came for this transfer")
	}
	if ok {
		c.meet(s, m)
	}
}

// turnAway refuses an ATTACH.
func (c *Core) turnAway(m transfer.Attach, reason, detail string) {
	c.fx().Rejects = append(c.fx().Rejects, transfer.Reject{Peer: m.Peer, ID: m.ID, Reason: reason, Detail: detail})
}

// attachFirst takes the ATTACH of a gen leg that did not wait for the ctx reply.
func (c *Core) attachFirst(m transfer.Attach) {
	s := c.byCtx[m.ID]
	switch {
	case m.Incarnation != c.cfg.Incarnation:
		c.turnAway(m, transfer.RejectUnknown, "this worker was restarted since")
	case s != nil && s.req.GenFirst && s.State != request.Closed:
		c.meet(s, m)
	case s != nil || c.recent.refused(m.ID, c.now) || c.recent.ended(m.ID, c.now):
		c.turnAway(m, transfer.RejectUnknown, "the context leg has ended")
	case c.draining || c.fatal != nil:
		c.turnAway(m, transfer.RejectUnknown, "this worker is shutting down")
	case len(c.parked.list) >= c.cfg.MaxQueued:
		c.turnAway(m, transfer.RejectUnknown, "too many pullers wait for their context legs")
	default:
		if len(c.parked.list) == 0 {
			c.parked.beat = c.now + c.progressEvery()
		}
		c.parked.list = append(c.parked.list, parked{attach: m, until: c.now + c.cfg.PeerWait})
		c.tellProgress(m.Peer, m.ID, false)
	}
}

func (c *Core) tellProgress(peer transfer.Peer, id transfer.ID, claimed bool) {
	c.fx().Progress = append(c.fx().Progress, transfer.Progress{Peer: peer, ID: id, Claimed: claimed})
}

// meet brings a ctx leg and its puller together. Legs that do not fit each other
// end: no other puller would.
func (c *Core) meet(s *sequence, m transfer.Attach) {
	if reason, detail, code := c.misfit(s, &m); reason != "" {
		c.turnAway(m, reason, detail)
		if s.State != request.CtxSend {
			c.fail(s, request.Errorf(code, "the generation worker's request does not fit this one: %s", detail))
		}
		return
	}
	l := &s.lease
	if s.State == request.CtxSend {
		c.tellProgress(m.Peer, m.ID, true)
		c.serve(s, m)
		return
	}
	if l.attached && l.peer != m.Peer {
		c.turnAway(transfer.Attach{Peer: l.peer, ID: m.ID}, transfer.RejectStale, "another puller came for this transfer")
	}
	if !l.attached || l.peer != m.Peer { // else it came twice
		l.early, l.granted = m.Early, false
	}
	l.attached, l.gone, l.peer, l.have = true, false, m.Peer, m.Have
	l.beat = c.now + c.progressEvery()
	c.tellProgress(m.Peer, m.ID, true)
	if s.State != request.CtxWaitPeer {
		c.retime(s)
		c.publish(s)
		return
	}
	if c.awaiting--; c.enter(s, request.Waiting) {
		s.likely = c.likely(s)
		c.sch.Enqueue(&s.Seq)
	}
}

// misfit says what keeps a puller from a ctx leg, reason "" = nothing.
func (c *Core) misfit(s *sequence, m *transfer.Attach) (reason, detail string, code request.Code) {
	if d := layoutDiff(c.cfg.Layout, m.Layout); d != "" {
		return transfer.RejectLayout, d, request.LayoutMismatch
	}
	if m.PromptTokens != len(s.req.Prompt) || m.Prompt != c.ownPromptHash(s) {
		return transfer.RejectPrompt, "the prompt, model or cache_salt differs", request.TransferFailed
	}
	return "", "", ""
}

// ownPromptHash is promptHash for the blocks of this worker.
func (c *Core) ownPromptHash(s *sequence) blockhash.Hash {
	b := c.cfg.BlockTokens
	return promptHash(s, s.chain(len(s.req.Prompt)/b, b), b)
}

// promptHash is the value behind the whole prompt of the chain of its full blocks
// of b tokens, its last block full or not.
func promptHash(s *sequence, chain []blockhash.Hash, b int) blockhash.Hash {
	p, parent := len(s.req.Prompt), s.root
	if len(chain) > 0 {
		parent = chain[len(chain)-1]
	}
	if p%b == 0 {
		return parent
	}
	return blockhash.Next(parent, s.req.Prompt[p-p%b:])
}

// met reports whether s runs for a puller that waits for its end.
func (s *sequence) met() bool {
	return s.lease.attached && s.State.Alive() && s.req.Kind == request.ContextOnly
}

// part tells the puller of a ctx leg that ends before its hand-over: the tokens
// if they are the whole answer, else that nothing will come.
func (c *Core) part(s *sequence, out *Output) {
	if !s.met() {
		return
	}
	s.lease.attached, s.lease.granted = false, false
	id := transfer.ID(s.req.TransferID)
	if out.Finish == request.FinishStop || out.Finish == request.FinishLength {
		c.fx().Ends = append(c.fx().Ends, transfer.End{Peer: s.lease.peer, ID: id, First: handOverTokens(out.Tokens)})
		return
	}
	c.turnAway(transfer.Attach{Peer: s.lease.peer, ID: id}, transfer.RejectUnknown, "the context leg ended: "+string(out.Finish))
}

// lost notes that the puller of a ctx leg is gone before its end. The leg goes on:
// the puller may come back, and whoever asked for the leg wants its answer.
func (c *Core) lost(m transfer.Detach) bool {
	if c.parked.leave(m.Peer, m.ID) {
		return true
	}
	s := c.byCtx[m.ID]
	if s == nil || !s.met() || s.lease.peer != m.Peer {
		return false
	}
	s.lease.attached, s.lease.granted, s.lease.gone = false, false, m.Cancelled
	c.retime(s)
	return true
}

// prolong lets a ctx leg wait on for a puller that has no room yet, and reports
// whether there is one.
func (c *Core) prolong(id transfer.ID) bool {
	s := c.byCtx[id]
	if s == nil || s.State != request.CtxWaitPeer {
		return false
	}
	s.lease.expires = c.now + c.cfg.PeerWait
	c.retime(s)
	return true
}

// expireParked ends the waits that are over and tells the others that all is well.
func (c *Core) expireParked() {
	p := &c.parked
	for len(p.list) > 0 && p.list[0].until <= c.now {
		c.turnAway(p.list[0].attach, transfer.RejectUnknown, "the context leg did not come in time")
		p.list = p.list[1:]
	}
	if len(p.list) == 0 || p.beat > c.now {
		return
	}
	for _, w := range p.list {
		c.tellProgress(w.attach.Peer, w.attach.ID, false)
	}
	p.beat = c.now + c.progressEvery()
}

// dismiss turns all parked away.
func (c *Core) dismiss(why string) {
	for _, w := range c.parked.list {
		c.turnAway(w.attach, transfer.RejectUnknown, why)
	}
	c.parked.list = nil
}

// handOverTokens puts sampled tokens into the words of a hand-over.
func handOverTokens(in []request.Token) []transfer.Token {
	out := make([]transfer.Token, len(in))
	for i, t := range in {
		out[i] = transfer.Token{ID: t.ID, Logprob: t.Logprob, Rank: t.Rank}
		for _, top := range t.Top {
			out[i].Top = append(out[i].Top, transfer.TopLogprob(top))
		}
	}
	return out
}
