package executor

import (
	"slices"
	"time"

	"tandem/engine/request"
)

// maxRetention is the highest priority by which a block can be kept.
const maxRetention = 100

// refuseRetention refuses priorities that no block can have.
func refuseRetention(r *request.Retention) *request.Error {
	if r == nil {
		return nil
	}
	for _, k := range r.Prompt {
		if k.Priority > maxRetention || k.For < 0 {
			return request.Invalid("kv_cache_retention_config.token_range_retention_configs", "priority %d for %v: priorities are 0 to %d, durations positive", k.Priority, k.For, maxRetention)
		}
	}
	if k := r.Output; k != nil && (k.Priority > maxRetention || k.For < 0) {
		return request.Invalid("kv_cache_retention_config.decode_retention_priority", "priority %d for %v: priorities are 0 to %d, durations positive", k.Priority, k.For, maxRetention)
	}
	return nil
}

// retain gives what s leaves in the index the priorities that its request asks for,
// the end of a chain first. What a request has is not given up, so it is enough to do
// that when it gives its blocks back, and their time begins then.
func (c *Core) retain(s *sequence) {
	r, b := s.req.Retention, c.cfg.BlockTokens
	if r == nil || s.private {
		return
	}
	for i, h := range slices.Backward(s.hashes[:min(s.committed, len(s.hashes))]) {
		k := keepOf(r, i*b, (i+1)*b, len(s.req.Prompt))
		if k == nil {
			continue
		}
		until := time.Duration(0)
		if k.For > 0 {
			until = c.now + k.For
		}
		c.kv.Retain(h, k.Priority, until)
	}
}

// keepOf returns the highest of what is set for the tokens from to to-1, or nil.
func keepOf(r *request.Retention, from, to, prompt int) (best *request.Keep) {
	for i := range r.Prompt {
		k := &r.Prompt[i]
		if max(k.From, from) < min(k.To, to, prompt) && (best == nil || k.Priority > best.Priority) {
			best = k
		}
	}
	if k := r.Output; k != nil && to > prompt && (best == nil || k.Priority > best.Priority) {
		best = k
	}
	return best
}
