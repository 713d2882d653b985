package executor

import (
	"tandem/engine/blockhash"
	"tandem/engine/kvcache"
	"tandem/engine/request"
)

// share is how a batch divides into prefill and decode.
type share struct {
	ctxRequests, genRequests, ctxTokens, genTokens int

	ctxPrior   int // sum over prefill rows of their tokens times the positions before them
	genContext int // sum of the context lengths of decode rows
}

// add counts a row of tokens behind pos positions.
func (s *share) add(ctx bool, pos, tokens int) {
	if ctx {
		s.ctxRequests++
		s.ctxTokens += tokens
		s.ctxPrior += tokens * pos
		return
	}
	s.genRequests++
	s.genTokens += tokens
	s.genContext += pos + tokens
}

// Load sums up what the ranks of an instance tell each other in each
// iteration. Between Plan and Apply it includes the planned batch, whose tokens
// are not computed yet. It takes time in proportion to the requests here and
// does not allocate.
func (c *Core) Load() Load {
	l := Load{Waiting: c.sch.Waiting(), Transfer: c.openLeases, FreeBlocks: c.kv.Free(), Retiring: c.closing}
	for _, s := range c.slots {
		if s == nil || !s.State.Alive() {
			continue
		}
		p := s.prompt
		l.Active++
		l.PromptTokens += p
		if s.choice == 0 { // which has computed it for all
			l.UncachedTokens += p - min(max(s.cached, c.expected(s)), p)
		}
		l.QueuedPrefill += p - min(c.provided(s), p)
	}
	if c.flights.n > 0 {
		f := c.flights.newest()
		l.CtxRequests, l.CtxTokens = f.share.ctxRequests, f.share.ctxTokens
		l.GenRequests, l.GenTokens = f.share.genRequests, f.share.genTokens
	}
	return l
}

// provided returns how many leading tokens of s need no computation here any
// more: they are computed, or a pull brings them.
func (c *Core) provided(s *sequence) int {
	if s.State == request.Fork {
		return s.prompt
	}
	if s.State == request.GenInit || s.State == request.GenRecv {
		return s.Offered
	}
	return max(s.done, c.expected(s))
}

// expected returns how many prompt tokens of a request that waits for its first
// blocks will be found: the whole prompt counted as work would make a rank look
// many times busier than it is.
func (c *Core) expected(s *sequence) int {
	if s.admitted || s.State != request.Waiting {
		return 0
	}
	return s.likely
}

// likely looks a new request up in the index. Its hashes are needed later anyway.
func (c *Core) likely(s *sequence) int {
	if !c.cfg.BlockReuse {
		return 0
	}
	b := c.cfg.BlockTokens
	c.match, _ = c.kv.MatchTiers(c.match[:0], s.chain((s.Known-1)/b, b), false, kvcache.Disk)
	return len(c.match) * b
}

// Cached returns how many tokens of a prompt, without its last one, full blocks
// of the index cover, in whatever tier. It changes nothing and hashes no block
// behind the first that is missing.
func (c *Core) Cached(prompt []int32, salt string) int {
	return c.lookup(prompt, salt, kvcache.Disk) * c.cfg.BlockTokens
}

// lookup finds the leading full blocks of a prompt, without its last token, in
// the tiers down to deepest. Those of the device, which can be read, are in c.match
// and the hashes of all in c.hashes until the next look-up.
func (c *Core) lookup(prompt []int32, salt string, deepest kvcache.Level) int {
	c.match, c.hashes = c.match[:0], c.hashes[:0]
	if !c.cfg.BlockReuse {
		return 0
	}
	b, h := c.cfg.BlockTokens, c.root(salt)
	for end := b; end < len(prompt); end += b {
		h = blockhash.Next(h, prompt[end-b:end])
		if id, ok := c.kv.Find(h); ok && (deepest > kvcache.Device || !c.kv.Inbound(id)) {
			c.match = append(c.match, id)
		} else if ok || c.kv.Level(h) > deepest {
			break
		}
		c.hashes = append(c.hashes, h)
	}
	return len(c.hashes)
}
