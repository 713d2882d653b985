package executor

import (
	"slices"
	"time"

	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// A conversation that moves to another rank takes its K and V along: the old
// rank lends the blocks that it has of the prompt, the new one pulls them and
// prefills the rest. A loan only saves work: whatever goes wrong with it, the
// request prefills on its own.

// Lend pins the leading full blocks of a prompt, without its last token, that
// are in the index, and returns the handle by which Submit of another rank can
// pull them. They are under a lease named id that is as that of a finished
// ContextOnly request and gives no output; it also ends when nobody reads it and
// nothing here can run for want of its room. Fewer blocks are lent if running
// requests may need them. It reports false if nothing can be lent, the core
// is shutting down, or id is 0, in use or was aborted. prompt must not change
// while the lease lasts.
func (c *Core) Lend(now time.Duration, id transfer.ID, prompt []int32, salt string) (*transfer.Handle, bool) {
	c.now = now
	if id == 0 || c.byCtx[id] != nil || c.recent.refused(id, now) || c.fatal != nil || c.draining {
		return nil, false
	}
	c.lookup(prompt, salt, kvcache.Device)
	n := c.lendable(c.match)
	if n == 0 {
		return nil, false
	}
	p := n * c.cfg.BlockTokens
	s := &sequence{root: c.root(salt), tokens: prompt[:p:p], hashes: slices.Clone(c.hashes[:n]), prompt: p, heapAt: -1, lent: true}
	s.req = &request.Request{Kind: request.ContextOnly, Prompt: s.tokens, TransferID: int64(id), CacheSalt: salt}
	c.number++
	s.Number, s.Known, s.Complete, s.committed = c.number, p, n, n
	s.settle(p)
	s.Table = slices.Clone(c.match[:n])
	c.kv.Share(s.Table)
	c.register(s)
	c.index(s)
	c.lent++
	c.stats.Lent++
	if !c.enter(s, request.CtxSend) {
		return nil, false
	}
	return c.lease(s, p), true
}

// lendable returns how many of the blocks of a prefix can be pinned: no more
// are leased than the limit for admission, and none is taken that a running
// request was promised.
func (c *Core) lendable(blocks []int32) int {
	spare, lease := c.sch.Spare(), len(blocks)
	if limit := c.cfg.MaxLeasedFraction; limit < 1 {
		lease = int(limit*float64(c.cfg.Blocks)) - c.leased
	}
	for i, id := range blocks {
		if c.kv.Unreferenced(id) {
			spare--
		}
		if c.leaseRefs[id] == 0 {
			lease--
		}
		if spare < 0 || lease < 0 {
			return i
		}
	}
	return len(blocks)
}

// callIn ends loans that nobody reads yet when they are all that keeps this
// rank from running something. It reports whether there were any.
func (c *Core) callIn() bool {
	if c.lent == 0 || c.sch.Receiving()+c.sch.Loading()+c.closing > 0 || c.sch.Head() == nil {
		return false
	}
	before := c.lent
	for _, s := range c.slots {
		if s != nil && s.lent && !s.lease.attached {
			c.endLease(s)
		}
	}
	return c.lent < before
}

// borrow judges the loan of a new request and reports whether it is to be
// pulled; otherwise the request goes on without.
func (c *Core) borrow(s *sequence, h *transfer.Handle) bool {
	b, n := c.cfg.BlockTokens, len(h.Hashes)
	fits := s.req.Score == nil && h.ID != 0 && c.byGen[h.ID] == nil && c.borrows[h.ID] == nil &&
		n > 0 && h.PromptTokens == n*b && h.PromptTokens < len(s.req.Prompt) &&
		layoutDiff(c.cfg.Layout, h.Layout) == "" && h.Root == s.root && slices.Equal(s.chain(n, b), h.Hashes)
	if !fits {
		c.loanEnded(s.req.ID, h.ID, false, false)
		return false
	}
	if c.cfg.BlockReuse {
		if c.match = c.kv.Match(c.match[:0], s.hashes, false); len(c.match) == n {
			c.loanEnded(s.req.ID, h.ID, true, false)
			return false
		}
	}
	s.Offered, s.Borrows, s.pull.handle = h.PromptTokens, true, h
	c.borrows[h.ID] = s
	return true
}

// borrowed puts a request whose pull is over in its place in the queue. What came
// is in the index, as if it had been computed here, and takes no room while the
// request waits. Blocks of a pull that was not confirmed are computed anew.
func (c *Core) borrowed(s *sequence, ok bool) {
	if ok && c.cfg.BlockReuse && !s.private {
		b := c.cfg.BlockTokens
		for i := s.pull.have; i < s.Offered/b; i++ {
			c.kv.Commit(s.Table[i], s.parent(i), s.hashes[i], s.tokens[i*b:(i+1)*b])
		}
	}
	c.sch.Requeue(&s.Seq)
	s.done, s.committed = 0, 0
	if c.enter(s, request.Waiting) {
		s.likely = c.likely(s)
	}
	c.settleLoan(s, ok, ok)
}

// giveUpLoan makes a request that found no room for its loan a plain one. Two
// ranks that lend to each other would else keep each other out for ever.
func (c *Core) giveUpLoan(s *sequence) {
	c.sch.Remove(&s.Seq)
	if c.enter(s, request.Waiting) {
		c.sch.Enqueue(&s.Seq)
		c.settleLoan(s, false, false)
	}
}

// settleLoan tells what became of the loan of s, if it has one.
func (c *Core) settleLoan(s *sequence, ok, pulled bool) {
	if !s.Borrows {
		return
	}
	s.Borrows = false
	delete(c.borrows, s.pull.handle.ID)
	c.loanEnded(s.req.ID, s.pull.handle.ID, ok, pulled)
}

func (c *Core) loanEnded(r request.ID, id transfer.ID, ok, pulled bool) {
	switch {
	case !ok:
		c.stats.BorrowFailed++
	case pulled:
		c.stats.Borrowed++
	}
	c.fx().Borrowed = append(c.fx().Borrowed, Borrowed{ID: r, Transfer: id, OK: ok, Pulled: pulled})
}
