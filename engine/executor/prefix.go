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
	if !c.cfg.BlockReuse || s.scoring() {
		return scheduler.Match{}
	}
	b := c.cfg.BlockTokens
	if q.State == request.GenInit {
		below := c.matchPull(s)
		return scheduler.Match{Blocks: c.match, Unreferenced: c.unreferenced(), Fetch: below.Host + below.Disk, Wait: below.Any()}
	}
	limit := q.Known - 1
	below := c.matchTiers(s, limit/b)
	m := scheduler.Match{Blocks: c.match, Unreferenced: c.unreferenced(), Fetch: below.Host + below.Disk, Wait: below.Any()}
	if at := len(c.match) * b; !m.Wait && at < limit {
		m.From, m.Tokens = c.kv.MatchPartial(s.parent(len(c.match)), s.tokens[at:min(limit, at+b)])
		m.FromFree = m.Tokens > 0 && c.kv.Unreferenced(m.From)
	}
	return m
}

// unreferenced returns how many blocks of c.match are free.
func (c *Core) unreferenced() (n int) {
	for _, id := range c.match {
		if id >= 0 && c.kv.Unreferenced(id) {
			n++
		}
	}
	return n
}

// Use implements scheduler.Prefix.
func (p prefix) Use(q *scheduler.Seq, m scheduler.Match) {
	c, s := p.c, p.c.slots[q.Slot]
	s.reserve()
	q.Table = c.kv.Adopt(q.Table[:0], m.Blocks, s.hashes, s.root, s.tokens)
	if m.Tokens > 0 {
		c.kv.BeginCopy(m.From)
	}
	s.committed, s.private = len(m.Blocks), false
	c.weighed(m.Fetch)
	for _, id := range m.Blocks {
		if id >= 0 && !c.kv.Indexed(id) {
			c.stats.PendingShare += uint64(c.cfg.BlockTokens)
		}
	}
}

// Expect implements scheduler.Prefix.
func (p prefix) Expect(q *scheduler.Seq, n int) {
	c, s := p.c, p.c.slots[q.Slot]
	if !c.cfg.BlockReuse || !c.cfg.ShareInPass || s.private || s.scoring() { // its rows may run in pieces
		return
	}
	b := c.cfg.BlockTokens
	full := (q.Computed + n) / b
	chain := s.chain(full, b)
	for i := q.Computed / b; i < full; i++ {
		c.kv.Expect(q.Table[i], chain[i])
	}
}
