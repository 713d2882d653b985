package executor

import (
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// prefix joins the scheduler to the block index: it knows the tokens.
type prefix struct{ c *Core }

// Match implements scheduler.Prefix.
func (p prefix) Match(q *scheduler.Seq) scheduler.Match {
	c, s := p.c, p.c.slots[q.Slot]
	if !c.cfg.BlockReuse {
		return scheduler.Match{}
	}
	b := c.cfg.BlockTokens
	limit, pull := q.Known-1, q.State == request.GenInit
	if pull {
		limit = q.Offered
	}
	c.match = c.kv.Match(c.match[:0], s.chain(limit/b, b), c.cfg.ShareInPass && !pull)
	m := scheduler.Match{Blocks: c.match}
	for _, id := range c.match {
		if c.kv.Unreferenced(id) {
			m.Unreferenced++
		}
	}
	if at := len(c.match) * b; !pull && at < limit {
		m.From, m.Tokens = c.kv.MatchPartial(s.parent(len(c.match)), s.tokens[at:min(limit, at+b)])
		m.FromFree = m.Tokens > 0 && c.kv.Unreferenced(m.From)
	}
	return m
}

// Use implements scheduler.Prefix.
func (p prefix) Use(q *scheduler.Seq, m scheduler.Match) {
	c, s := p.c, p.c.slots[q.Slot]
	s.reserve()
	q.Table = append(q.Table[:0], m.Blocks...)
	c.kv.Share(m.Blocks)
	if m.Tokens > 0 {
		c.kv.BeginCopy(m.From)
	}
	s.committed, s.private = len(m.Blocks), false
	for _, id := range m.Blocks {
		if !c.kv.Indexed(id) {
			c.stats.PendingShare += uint64(c.cfg.BlockTokens)
		}
	}
}

// Expect implements scheduler.Prefix.
func (p prefix) Expect(q *scheduler.Seq, n int) {
	c, s := p.c, p.c.slots[q.Slot]
	if !c.cfg.BlockReuse || !c.cfg.ShareInPass || s.private {
		return
	}
	b := c.cfg.BlockTokens
	full := (q.Computed + n) / b
	chain := s.chain(full, b)
	for i := q.Computed / b; i < full; i++ {
		c.kv.Expect(q.Table[i], chain[i])
	}
}
