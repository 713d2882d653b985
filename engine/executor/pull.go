package executor

import (
	"fmt"
	"slices"
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// The gen side of a hand-over: blocks the index lacks are pulled; what cannot
// be pulled is prefilled here.

// leastKeepAlive keeps a foreign handle from asking for a flood.
const leastKeepAlive = 50 * time.Millisecond

// nextKeepAlive is when a waiting request renews its lease again.
func (c *Core) nextKeepAlive(h *transfer.Handle) time.Duration {
	if h.Lease <= 0 {
		return never
	}
	return c.now + max(h.Lease/3, leastKeepAlive)
}

// handOver judges the handle of a new GenerationOnly request. It reports
// whether blocks are to be pulled; otherwise the request goes on without them
// or was ended.
func (c *Core) handOver(s *sequence, h *transfer.Handle) bool {
	if s.req.GenFirst {
		return c.expectBlocks(s, h)
	}
	s.Offered, s.pull.handle = h.PromptTokens, h
	diff := c.misfitting(h.Layout)
	code := request.LayoutMismatch
	if diff == "" {
		code = request.TransferFailed
		if h.Root != s.root || !slices.Equal(c.chainOf(s, h), h.Hashes) {
			diff = "the prompt, model or cache_salt differs from the one that was prefilled"
		}
	}
	if diff == "" {
		return true
	}
	if !c.cfg.LocalRecompute {
		c.fail(s, request.Errorf(code, "cannot use the context worker's KV blocks: %s", diff))
		return false
	}
	c.stats.Recomputed++
	c.release(h, 0)
	c.inject(s)
	return false
}

// release lets the ctx worker of a handle know that its blocks will not be
// fetched. epoch is that of the last grant, 0 = there was none.
func (c *Core) release(h *transfer.Handle, epoch uint32) {
	own := *h
	own.Epoch = max(own.Epoch, epoch)
	c.fx().Releases = append(c.fx().Releases, own)
}

// startPull orders the blocks that s lacks beyond the first have.
func (c *Core) startPull(s *sequence, have int) {
	if !c.enter(s, request.GenRecv) {
		return
	}
	c.hold(s, HoldRecv)
	p := &s.pull
	p.have, p.started, p.seen = have, c.now, c.now
	s.times.PullBegan = c.now
	p.blocks = c.blocksFor(s.Offered) - have
	c.recvOpen++
	c.recvBlocks += p.blocks
	if !s.Borrows { // else it is yet to be admitted
		s.cached = min(have*c.cfg.BlockTokens, len(s.req.Prompt))
		s.admitted = true
		c.countPrefix(s)
	}
	c.retime(s)
	held := have * c.cfg.BlockTokens / p.handle.Layout.BlockTokens
	order := transfer.Pull{
		Handle: *p.handle, Have: p.handle.Hashes[:held:held], Dst: slices.Clone(s.Table[have : have+p.blocks]), BlockTokens: c.cfg.BlockTokens,
	}
	if p.handle.GenFirst {
		order.Prompt = promptHash(s, p.handle.Hashes, p.handle.Layout.BlockTokens)
	}
	c.fx().Pulls = append(c.fx().Pulls, order)
}

// misfitting says why blocks of another worker cannot be used here, or "". Blocks
// of another size can where ours can be made of them.
func (c *Core) misfitting(theirs transfer.Layout) string {
	if _, ok := transfer.Reshapes(theirs, c.cfg.Layout); ok {
		return ""
	}
	return layoutDiff(c.cfg.Layout, theirs)
}

// chainOf returns the hashes of the full blocks that a handle offers of the prompt
// of s, whose size may be another than here.
func (c *Core) chainOf(s *sequence, h *transfer.Handle) []blockhash.Hash {
	b, n := h.Layout.BlockTokens, h.PromptTokens/h.Layout.BlockTokens
	if b == c.cfg.BlockTokens {
		return s.chain(n, b)
	}
	out, last := make([]blockhash.Hash, n), s.root
	for i := range out {
		last = blockhash.Next(last, s.tokens[i*b:(i+1)*b])
		out[i] = last
	}
	return out
}

// PullEvent takes a byte path's report about one of our pulls.
func (c *Core) PullEvent(now time.Duration, e transfer.PullEvent) {
	c.now = now
	s := c.byGen[e.ID]
	if s == nil {
		s = c.borrows[e.ID]
	}
	if s == nil || s.holds&holdRecv == 0 {
		c.stats.UnknownMessages++
		return
	}
	p := &s.pull
	p.seen, p.answered = now, true
	p.verified = max(p.verified, e.Progress)
	if !e.Done {
		if s.State == request.GenRecv {
			c.retime(s)
		}
		return
	}
	c.recvOpen--
	c.recvBlocks -= p.blocks
	s.times.PullEnded = now
	if e.OK && p.blocks > 0 && s.State == request.GenRecv && !s.req.GenFirst { // else it waited for the prefill
		average(&c.loads.pull, (now-p.started)/time.Duration(p.blocks))
	}
	if s.State == request.Closed {
		c.settleLoan(s, false, e.OK)
		c.drop(s, holdRecv)
		return
	}
	s.holds &^= holdRecv
	if s.Borrows {
		c.borrowed(s, e.OK)
		return
	}
	switch {
	case e.Ended && s.req.GenFirst:
		c.endedThere(s, e)
	case e.OK:
		c.pulled(s, e)
	default:
		c.pullFailed(s, e)
	}
}

// pulled makes a complete, confirmed pull usable.
func (c *Core) pulled(s *sequence, e transfer.PullEvent) {
	if s.req.GenFirst && !c.adopt(s, e.First) {
		c.pullFailed(s, unusable())
		return
	}
	if !c.enter(s, request.GenReady) {
		return
	}
	s.settle(s.Offered)
	c.commit(s)
	c.forkOff(s, nil)
	c.goOn(s)
}

// goOn lets a request run whose blocks nobody else writes any more.
func (c *Core) goOn(s *sequence) {
	c.sch.Received(&s.Seq)
	c.inject(s)
}

// inject shows the tokens that the ctx worker sampled, before any step of s,
// unless the client has them already.
func (c *Core) inject(s *sequence) {
	out := Output{First: s.emitted}
	for _, t := range s.runs().FirstTokens {
		text, rest, end := c.show(s, t.ID)
		if !s.req.FirstEmitted {
			out.Tokens = append(out.Tokens, t)
			out.Text += text
		}
		out.Text += rest
		if out.Finish = end; end != request.Running {
			c.finish(s, out)
			return
		}
	}
	if len(out.Tokens) > 0 {
		c.emit(s, out)
	}
}

// pullFailed finishes the prompt here, from the last verified block on, or ends
// the request.
func (c *Core) pullFailed(s *sequence, e transfer.PullEvent) {
	if !c.cfg.LocalRecompute || e.Code == transfer.RejectPrompt {
		c.fail(s, pullError(e))
		return
	}
	c.stats.Recomputed++
	c.note(EventPullFailed, s.req.ID, pullError(e))
	if gone := e.Code == transfer.RejectStale || e.Code == transfer.RejectUnknown; !gone && !s.pull.stopped { // else it was cancelled
		c.release(s.pull.handle, e.Epoch)
	}
	b := c.cfg.BlockTokens
	good := s.pull.have + s.pull.verified
	if e.Code == transfer.RejectStale {
		good = s.pull.have // the ctx worker may have overwritten what was read
	}
	s.settle(min(good*b, s.Offered, s.Known-1))
	// What came without confirmation, and what is computed from it, is used by
	// this request but never shared.
	s.private = s.private || good > s.pull.have
	if !c.enter(s, request.Prefill) {
		return
	}
	c.goOn(s)
	if s.State == request.Prefill && s.Computed < s.pull.have*b {
		// All of the prompt is here, but what follows its last token is not known, and
		// that token's block is not for this request to write.
		c.sch.Requeue(&s.Seq)
		s.done, s.committed = 0, 0
		c.enter(s, request.Paused)
	}
}

// pullError maps a byte path's failure to the client's error.
func pullError(e transfer.PullEvent) *request.Error {
	code := request.TransferFailed
	switch e.Code {
	case transfer.RejectUnknown:
		code = request.UnknownTransfer
	case transfer.RejectLayout:
		code = request.LayoutMismatch
	case string(request.TransferTimeout):
		code = request.TransferTimeout
	}
	return &request.Error{Code: code, Message: fmt.Sprintf("fetching the KV blocks failed: %s", e.Reason)}
}

// pullOverdue stops a pull that has made no progress for too long. The blocks
// stay out of use until the byte path says that it is done with them.
func (c *Core) pullOverdue(s *sequence) {
	if s.pull.stopped {
		return
	}
	if !c.cfg.LocalRecompute && !s.Borrows {
		c.fail(s, request.Errorf(request.TransferTimeout, "the context worker sent nothing for too long"))
		return
	}
	s.pull.stopped = true
	c.fx().StopPulls = append(c.fx().StopPulls, s.pull.handle.ID)
}
