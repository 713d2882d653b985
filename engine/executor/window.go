package executor

import "tandem/engine/request"

// Where every layer of a model attends to a window, the blocks before it are not
// read again. They go back to the pool while their request runs on; what the index
// knows of them can be found until their room is needed.

// behind returns how many leading blocks no position of s that is still to be
// computed reads. It counts what is computed for certain: a step that fails is
// repeated from there.
func (c *Core) behind(s *sequence) int {
	if c.cfg.Window == 0 {
		return 0
	}
	return max(0, s.done+1-c.cfg.Window) / c.cfg.BlockTokens
}

// trim gives back the blocks of s that are before the window. A ctx leg keeps its
// blocks for the hand-over, and the first of several choices keeps them until the
// others have theirs; so does any request what the reuse policy has not let others
// see yet.
func (c *Core) trim(s *sequence) {
	n := min(c.behind(s), s.committed)
	if n == 0 || s.req.Kind == request.ContextOnly || len(s.forks) > 0 {
		return
	}
	if freed := c.kv.ReleaseHead(s.Table, n); freed > 0 {
		c.gained = c.now
		c.stats.WindowFreed += uint64(freed)
	}
}

// passed returns how many blocks of s a window has passed: they are in its table, but
// it has them no more.
func (s *sequence) passed() (n int) {
	for n < len(s.Table) && s.Table[n] < 0 {
		n++
	}
	return n
}
