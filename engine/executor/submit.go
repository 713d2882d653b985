package executor

import (
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Submit takes a new request. h is the handle of the ctx leg for GenerationOnly.
// For other kinds it is nil or another rank's loan, see Lend: blocks to pull
// before the rest of the prompt is computed here.
// A request that cannot be served gets its final output at once.
func (c *Core) Submit(now time.Duration, r *request.Request, h *transfer.Handle) {
	c.now = now
	err := c.refuseID(r)
	used := err != nil
	if !used {
		err = c.refuse(r, h)
	}
	if err == nil && c.sch.Waiting()+c.awaiting >= c.cfg.MaxQueued {
		err = request.Errorf(request.QueueFull, "%d requests are waiting; try again later", c.cfg.MaxQueued)
	}
	c.tally.Arrived++
	if err != nil {
		c.note(EventRefused, r.ID, err)
		c.reject(r, err, !used)
		if h != nil && r.Kind != request.GenerationOnly {
			c.loanEnded(r.ID, h.ID, false, false)
		}
		return
	}
	s := c.newSequence(r)
	c.beginTurn(s)
	if r.Kind == request.Full && !c.takeUp(s) {
		if h != nil {
			c.loanEnded(r.ID, h.ID, false, false)
		}
		return
	}
	if r.Kind == request.GenerationOnly && c.handOver(s, h) || h != nil && c.borrow(s, h) {
		s.pull.keepAlive = c.nextKeepAlive(h)
		c.enter(s, request.GenInit)
		c.sch.EnqueueGen(&s.Seq)
		if r.GenFirst && r.Kind == request.ContextOnly {
			c.claim(s)
		}
		return
	}
	if r.GenFirst && r.Kind == request.ContextOnly {
		c.awaitPeer(s)
		return
	}
	if s.State == request.New && c.enter(s, request.Waiting) {
		s.likely = c.likely(s)
		c.sch.Enqueue(&s.Seq)
	}
}

// takeUp counts the tokens that another worker decoded before its stream broke
// as output of s; they are computed like the prompt. It reports whether
// anything is left to do.
func (c *Core) takeUp(s *sequence) bool {
	if len(s.req.FirstTokens) > 0 {
		c.inject(s)
	}
	return s.State == request.New
}

// reject answers a request that never gets a record.
func (c *Core) reject(r *request.Request, err *request.Error, forget bool) {
	out := Output{
		Request: r, Finish: request.FinishError, Err: err,
		Usage: request.Usage{PromptTokens: len(r.Prompt)},
	}
	if err.Code == request.Cancelled {
		out.Finish, out.Err = request.FinishCancelled, nil
	}
	for out.Choice = range r.Answers() {
		c.fx().Outputs = append(c.fx().Outputs, out)
	}
	if forget {
		c.fx().Retired = append(c.fx().Retired, r.ID)
	}
}

// newSequence makes the records of a request and returns that of its first choice.
func (c *Core) newSequence(r *request.Request) *sequence {
	if r.Answers() == 1 {
		s := c.sequenceOf(r)
		c.index(s)
		return s
	}
	s := c.sequenceOf(ofChoice(r, 0))
	c.index(s)
	c.addForks(s, r)
	return s
}

// sequenceOf makes the record of one choice.
func (c *Core) sequenceOf(r *request.Request) *sequence {
	c.number++
	s := &sequence{req: r, prompt: len(r.Prompt), root: c.root(r.CacheSalt), arrived: c.now, entered: c.now, heapAt: -1}
	s.ID, s.Number, s.Priority = r.ID, c.number, r.Priority
	s.max = c.maxTokens(r)
	s.tokens = r.Prompt[:len(r.Prompt):len(r.Prompt)]
	s.Known = len(r.Prompt)
	for _, t := range r.FirstTokens {
		s.append(t.ID)
	}
	s.Complete = c.completion(r)
	c.register(s)
	return s
}

// register gives s a slot.
func (c *Core) register(s *sequence) {
	if n := len(c.vacant); n > 0 {
		s.Slot = c.vacant[n-1]
		c.vacant = c.vacant[:n-1]
	} else {
		s.Slot = len(c.slots)
		c.slots = append(c.slots, nil)
	}
	c.slots[s.Slot] = s
	c.alive++
}

// index makes a request findable by the first of its sequences.
func (c *Core) index(s *sequence) {
	if !s.lent {
		c.byID[s.req.ID] = s
	}
	switch s.req.Kind {
	case request.ContextOnly:
		c.byCtx[transfer.ID(s.req.TransferID)] = s
	case request.GenerationOnly:
		c.byGen[transfer.ID(s.req.TransferID)] = s
	}
}

// maxTokens clamps the budget to what fits the context.
func (c *Core) maxTokens(r *request.Request) int {
	return min(r.MaxTokens, c.cfg.MaxSeqLen-len(r.Prompt))
}

// completion returns the blocks that a request needs until its end. The last
// token's K and V are never written; a ctx leg writes the prompt only.
func (c *Core) completion(r *request.Request) int {
	if r.Kind == request.ContextOnly {
		return c.blocksFor(len(r.Prompt))
	}
	return c.blocksFor(max(len(r.Prompt)+c.maxTokens(r)-1, len(r.Prompt)))
}
