package executor

import (
	"slices"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// The gen side of the generation-first style: a request pulls before its prompt
// was prefilled anywhere, and its first token comes with the blocks.

// expectBlocks completes the handle of a new request by what both sides must
// agree on. It reports whether blocks are to be pulled; otherwise the request has
// ended, since the ctx leg that waits for this one cannot be had.
func (c *Core) expectBlocks(s *sequence, template *transfer.Handle) bool {
	if diff := c.misfitting(template.Layout); diff != "" {
		c.fail(s, request.Errorf(request.LayoutMismatch, "cannot use the context worker's KV blocks: %s", diff))
		return false
	}
	h := *template
	h.PromptTokens, h.Root = len(s.req.Prompt), s.root
	h.Hashes = slices.Clone(c.chainOf(s, &h))
	s.Offered, s.pull.handle = h.PromptTokens, &h
	return true
}

// adopt takes the tokens that the ctx worker sampled and reports whether they
// can be used.
func (c *Core) adopt(s *sequence, first []transfer.Token) bool {
	if len(first) != 1 || first[0].ID < 0 || int(first[0].ID) >= c.cfg.Vocab {
		return false
	}
	own := *s.req
	for _, t := range first {
		r := request.Token{ID: t.ID, Logprob: t.Logprob, Rank: t.Rank}
		for _, top := range t.Top {
			r.Top = append(r.Top, request.TopLogprob(top))
		}
		own.FirstTokens = append(own.FirstTokens, r)
		s.append(t.ID)
	}
	s.adopted = &own
	return true
}

// runs is the request as its rows show it: with all output tokens that exist
// without a step of s, for penalties count them.
func (s *sequence) runs() *request.Request {
	if s.adopted != nil {
		return s.adopted
	}
	return s.req
}

// endedThere shows the tokens of a request that the ctx worker saw end. Should
// they not end it here, its prompt is computed here too.
func (c *Core) endedThere(s *sequence, e transfer.PullEvent) {
	s.pull.stopped = true
	if !c.adopt(s, e.First) {
		c.pullFailed(s, unusable())
		return
	}
	c.inject(s)
	if s.State != request.GenRecv {
		return
	}
	c.stats.Recomputed++
	s.settle(s.pull.have * c.cfg.BlockTokens)
	if c.enter(s, request.Prefill) {
		c.sch.Received(&s.Seq)
	}
}

// unusable is the end of a pull whose peer does not keep the rules.
func unusable() transfer.PullEvent {
	return transfer.PullEvent{Done: true, Code: string(request.TransferFailed), Reason: "the context worker sent no usable first token"}
}
