package executor

import (
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Submit takes a new request; h belongs to GenerationOnly and is nil otherwise.
// A request that cannot be served gets its final output at once.
func (c *Core) Submit(now time.Duration, r *request.Request, h *transfer.Handle) {
	c.now = now
	if _, ok := c.byID[r.ID]; ok {
		c.reject(r, request.Invalid("request_id", "id %d is in use", r.ID), false)
		return
	}
	if err := c.refuse(r, h); err != nil {
		c.reject(r, err, true)
		return
	}
	s := c.newSequence(r, h)
	if r.Kind == request.GenerationOnly && c.handOver(s, h) {
		s.pull.keepAlive = c.nextKeepAlive(h)
		c.enter(s, request.GenInit)
		c.sch.EnqueueGen(&s.Seq)
		return
	}
	if s.State == request.New && c.enter(s, request.Waiting) {
		c.sch.Enqueue(&s.Seq)
	}
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
	c.fx().Outputs = append(c.fx().Outputs, out)
	if forget {
		c.fx().Retired = append(c.fx().Retired, r.ID)
	}
}

func (c *Core) newSequence(r *request.Request, h *transfer.Handle) *sequence {
	c.number++
	s := &sequence{req: r, root: c.root(r.CacheSalt), arrived: c.now, heapAt: -1}
	s.ID, s.Number, s.Priority = r.ID, c.number, r.Priority
	s.max = c.maxTokens(r)
	s.tokens = r.Prompt[:len(r.Prompt):len(r.Prompt)]
	s.Known = len(r.Prompt)
	for _, t := range r.FirstTokens {
		s.append(t.ID)
	}
	s.Complete = c.completion(r)
	s.pull.handle = h
	if n := len(c.vacant); n > 0 {
		s.Slot = c.vacant[n-1]
		c.vacant = c.vacant[:n-1]
	} else {
		s.Slot = len(c.slots)
		c.slots = append(c.slots, nil)
	}
	c.slots[s.Slot] = s
	c.byID[r.ID] = s
	switch r.Kind {
	case request.ContextOnly:
		c.byCtx[transfer.ID(r.TransferID)] = s
	case request.GenerationOnly:
		c.byGen[transfer.ID(r.TransferID)] = s
	}
	c.alive++
	return s
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
