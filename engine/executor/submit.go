package executor

import (
	"math"
	"slices"
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
		s.pull.keepAlive = now + keepAliveEvery(h)
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

// refuse judges a request at arrival: nothing that can never run, or that this
// worker does not do, is queued.
func (c *Core) refuse(r *request.Request, h *transfer.Handle) *request.Error {
	if c.fatal != nil || c.draining {
		return request.Errorf(request.EngineDead, "this worker is shutting down")
	}
	if err := c.refuseRole(r, h); err != nil {
		return err
	}
	if err := c.refuseTokens(r); err != nil {
		return err
	}
	if err := checkSampling(&r.Sampling, c.cfg.Vocab); err != nil {
		return err
	}
	if n := c.completion(r); n > c.cfg.Blocks {
		return request.Errorf(request.CapacityNever,
			"prompt and max_tokens need %d KV blocks, this worker has %d: shorten one of them", n, c.cfg.Blocks)
	}
	if r.TransferID != 0 && r.Kind != request.Full && c.recent.refused(transfer.ID(r.TransferID), c.now) {
		return request.Errorf(request.Cancelled, "aborted before it came")
	}
	if c.sch.Waiting() >= c.cfg.MaxQueued {
		return request.Errorf(request.QueueFull, "%d requests are waiting; try again later", c.cfg.MaxQueued)
	}
	return nil
}

func (c *Core) refuseRole(r *request.Request, h *transfer.Handle) *request.Error {
	const param = "disaggregated_params"
	ok := c.cfg.Role == Mixed || (c.cfg.Role == Ctx) == (r.Kind == request.ContextOnly)
	if !ok {
		return request.Invalid(param+".request_type", "a %s worker does not take this type of request", c.cfg.Role)
	}
	side := c.byCtx
	switch r.Kind {
	case request.Full:
		return nil
	case request.GenerationOnly:
		side = c.byGen
		if h == nil {
			return request.Invalid(param+".encoded_opaque_state", "the hand-over handle is missing")
		}
		if len(r.FirstTokens) == 0 {
			return request.Invalid(param+".first_gen_tokens", "the first token is missing")
		}
		if h.PromptTokens != len(r.Prompt) || int64(h.ID) != r.TransferID {
			return request.Invalid(param, "the handle is for transfer %d with %d prompt tokens, the request for %d with %d",
				h.ID, h.PromptTokens, r.TransferID, len(r.Prompt))
		}
	}
	if r.TransferID == 0 {
		return request.Invalid(param+".disagg_request_id", "the id is missing")
	}
	if side[transfer.ID(r.TransferID)] != nil {
		return request.Invalid(param+".disagg_request_id", "id %d is in use", r.TransferID)
	}
	return nil
}

func (c *Core) refuseTokens(r *request.Request) *request.Error {
	p := len(r.Prompt)
	switch {
	case p == 0:
		return request.Invalid("prompt", "the prompt is empty")
	case p >= c.cfg.MaxSeqLen:
		return request.Invalid("prompt", "the prompt has %d tokens; at most %d fit the context of %d", p, c.cfg.MaxSeqLen-1, c.cfg.MaxSeqLen)
	case r.MaxTokens < 1:
		return request.Invalid("max_tokens", "%d is not at least 1", r.MaxTokens)
	case !c.cfg.ChunkPrefill && p > c.cfg.MaxNumTokens:
		return request.Invalid("prompt", "the prompt has %d tokens; without chunked prefill at most %d can be run", p, c.cfg.MaxNumTokens)
	case len(r.FirstTokens) > c.maxTokens(r):
		return request.Invalid("max_tokens", "%d is less than the tokens generated already", r.MaxTokens)
	}
	for _, t := range r.Prompt {
		if t < 0 || int(t) >= c.cfg.Vocab {
			return request.Invalid("prompt", "token id %d is not in the vocabulary of %d", t, c.cfg.Vocab)
		}
	}
	for _, t := range r.FirstTokens {
		if t.ID < 0 || int(t.ID) >= c.cfg.Vocab {
			return request.Invalid("disaggregated_params.first_gen_tokens", "token id %d is not in the vocabulary of %d", t.ID, c.cfg.Vocab)
		}
	}
	return nil
}

// checkSampling reports the first parameter outside its range.
func checkSampling(s *request.Sampling, vocab int) *request.Error {
	finite := func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
	switch {
	case !finite(s.Temperature) || s.Temperature < 0:
		return request.Invalid("temperature", "%v is not a number of at least 0", s.Temperature)
	case s.TopK < 0:
		return request.Invalid("top_k", "%d is negative", s.TopK)
	case !(s.TopP > 0 && s.TopP <= 1):
		return request.Invalid("top_p", "%v is not in (0, 1]", s.TopP)
	case !(s.MinP >= 0 && s.MinP <= 1):
		return request.Invalid("min_p", "%v is not in [0, 1]", s.MinP)
	case !finite(s.RepetitionPenalty) || s.RepetitionPenalty <= 0:
		return request.Invalid("repetition_penalty", "%v is not above 0", s.RepetitionPenalty)
	case !(s.PresencePenalty >= -2 && s.PresencePenalty <= 2):
		return request.Invalid("presence_penalty", "%v is not in [-2, 2]", s.PresencePenalty)
	case !(s.FrequencyPenalty >= -2 && s.FrequencyPenalty <= 2):
		return request.Invalid("frequency_penalty", "%v is not in [-2, 2]", s.FrequencyPenalty)
	case s.Logprobs < -1 || s.Logprobs > 20:
		return request.Invalid("top_logprobs", "%d is not in 0..20", s.Logprobs)
	case s.MinTokens < 0:
		return request.Invalid("min_tokens", "%d is negative", s.MinTokens)
	}
	for _, b := range s.LogitBias {
		if b.Token < 0 || int(b.Token) >= vocab || !finite(b.Value) {
			return request.Invalid("logit_bias", "token id %d with bias %v is not valid", b.Token, b.Value)
		}
	}
	if i := slices.IndexFunc(s.StopTokenIDs, func(t int32) bool { return t < 0 || int(t) >= vocab }); i >= 0 {
		return request.Invalid("stop_token_ids", "token id %d is not in the vocabulary of %d", s.StopTokenIDs[i], vocab)
	}
	return nil
}

// Cancel ends a request without an error. Unknown and finished ids are counted
// and ignored. Call it also between Plan and Apply: a request whose last step
// runs ends as cancelled.
func (c *Core) Cancel(now time.Duration, id request.ID) {
	c.now = now
	s := c.byID[id]
	if s == nil || s.State == request.Closed {
		c.stats.UnknownCancels++
		return
	}
	c.cancel(s)
}

func (c *Core) cancel(s *sequence) {
	if s.State == request.CtxSend {
		c.endLease(s)
		return
	}
	c.finish(s, Output{Finish: request.FinishCancelled})
}

// Abort cancels both legs that this worker has of a hand-over, and refuses the
// id for one lease if it has not come yet.
func (c *Core) Abort(now time.Duration, id transfer.ID) AbortState {
	c.now = now
	ctx, gen := c.byCtx[id], c.byGen[id]
	if ctx == nil && gen == nil {
		if c.recent.ended(id, now) {
			return AbortDone
		}
		c.recent.add(id, true, now)
		return AbortUnknown
	}
	state := AbortAborted
	for _, s := range []*sequence{ctx, gen} {
		if s == nil {
			continue
		}
		if s.holds&holdRecv != 0 || s.holds&holdLease != 0 && s.lease.attached {
			state = AbortSettling
		}
		if s.State != request.Closed {
			c.cancel(s)
		}
	}
	return state
}

// Drain stops taking requests. Those that are here end as usual; when none is
// left that computes or pulls, leases that nobody attached to are revoked.
func (c *Core) Drain(now time.Duration) {
	c.now = now
	c.draining = true
	c.revokeIdle()
}

func (c *Core) revokeIdle() {
	if !c.draining || c.alive > c.openLeases {
		return
	}
	for _, s := range c.slots {
		if s != nil && s.State == request.CtxSend && !s.lease.attached {
			c.endLease(s)
		}
	}
}
