package executor

import (
	"tandem/engine/kvcache"
	"tandem/engine/request"
)

// maxTalks bounds the conversations whose last turns are remembered.
const maxTalks = 65536

// shareable returns how many leading blocks of s may be in the index now.
func (c *Core) shareable(s *sequence) int {
	full := s.done / c.cfg.BlockTokens
	switch {
	case c.cfg.Reuse == AllReusable || s.ended:
		return full
	case s.done < s.prompt:
		return s.committed
	}
	return max(s.committed, s.prompt/c.cfg.BlockTokens)
}

// talk is the key of the conversation of s. It is the request's own id, never that
// which it is routed by: the agents of one parent would else look like turns that
// overlap.
func (s *sequence) talk() kvcache.Conversation {
	return kvcache.Conversation{ID: s.req.ConversationID, Root: s.root}
}

// beginTurn lets the ledger follow a new request.
func (c *Core) beginTurn(s *sequence) {
	if c.ledger == nil || s.req.ConversationID == "" {
		return
	}
	if s.turn = c.ledger.Begin(s.talk(), s.Number); !s.turn {
		c.stats.ConvOverlap++
	}
}

// turnPrefilled lets what the turns before left behind go first, once the prompt
// of s is computed: from the end up to what others still build on.
func (c *Core) turnPrefilled(s *sequence) {
	if !s.turn || s.prefilled || s.done < s.prompt {
		return
	}
	s.prefilled = true
	b := c.cfg.BlockTokens
	for _, h := range c.ledger.Prefilled(s.talk(), s.Number, s.chain(s.prompt/b, b)) {
		if c.kv.Level(h) == kvcache.Nowhere {
			continue
		}
		if !c.kv.Demote(h) {
			return
		}
		c.stats.DeadTails++
	}
}

// endTurn ends the turn of a request that ends, and shares what only its good end
// makes shareable.
func (c *Core) endTurn(s *sequence, out *Output) {
	good := out.Finish == request.FinishStop || out.Finish == request.FinishLength
	if good && c.cfg.Reuse != AllReusable && len(s.Table) > 0 {
		s.ended = true
		c.commit(s)
	}
	c.closeTurn(s, good)
}

func (c *Core) closeTurn(s *sequence, good bool) {
	if !s.turn {
		return
	}
	s.turn = false
	if !good {
		c.ledger.End(s.talk(), s.Number, nil)
		return
	}
	b := c.cfg.BlockTokens
	c.ledger.End(s.talk(), s.Number, s.chain(s.done/b, b))
}
