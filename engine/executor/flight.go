package executor

import (
	"time"

	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// Steps overlap: while one runs, the next is planned with optimistic numbers.
// Seq.Computed and Seq.Known count what running steps will have computed and
// sampled; sequence.done and len(sequence.tokens) are what is certain. Of a row
// whose input is still being sampled the batch says which row yields it. What
// nobody can know in time, an end token or a stop string, makes a row in vain: its
// result is thrown away.

// flight is a step from its plan to its results.
type flight struct {
	batch   Batch
	rows    []scheduler.Row // of the batch
	share   share
	planned time.Duration // when
	reused  int           // leading copies of the batch that are for admissions; the rest are forks'
	void    bool          // the step before it failed: it ran on nothing
}

// flights are the steps that have no results yet, the older one first.
type flights struct {
	ring  [2]flight
	first int
	n     int
}

func (f *flights) oldest() *flight { return &f.ring[f.first] }

func (f *flights) newest() *flight { return &f.ring[f.first^(f.n-1)] }

// begin makes room for a step behind the others.
func (f *flights) begin() *flight {
	f.n++
	return f.newest()
}

// end takes the oldest step out. It stays as it is until the next begin.
func (f *flights) end() *flight {
	old := f.oldest()
	f.first ^= 1
	f.n--
	return old
}

// drop takes the newest step back.
func (f *flights) drop() { f.n-- }

// fly notes that the row of s with a number, from 1 on, is on its way.
func (c *Core) fly(s *sequence, number int, row *Row) {
	c.hold(s, HoldStep)
	s.Flying++
	s.row = number
	s.Computed = row.Pos + len(row.Tokens)
	if !row.Sample {
		return
	}
	s.Known++
	s.Ahead = true
	if s.Last = s.req.Kind == request.ContextOnly || s.emitted+s.Known-len(s.tokens) >= s.max; s.Last {
		c.lasts++
	}
}

// alight notes that a row of s has come back, whatever became of it.
func (c *Core) alight(s *sequence) {
	if s.Flying--; s.Flying == 0 {
		s.holds &^= holdStep
	}
}

// rollBack makes the numbers of s those of the last good step.
func (c *Core) rollBack(s *sequence) {
	s.Known = len(s.tokens)
	s.settle(s.done)
	c.follow(s)
}

// follow renews what is told of the tokens that s will have.
func (c *Core) follow(s *sequence) {
	s.Ahead = s.Known > len(s.tokens)
	if s.Last && !(s.Ahead && s.State.Alive()) {
		s.Last = false
		c.lasts--
	}
}

// settle sets what is computed for certain when nothing of s runs.
func (s *sequence) settle(n int) { s.Computed, s.done = n, n }

// ahead reports whether a step may be planned now. While one failed is being
// repeated, and before the one is back that ran on its results, none overlaps.
func (c *Core) ahead() bool {
	return c.flights.n == 0 || c.suspects == 0 && !c.flights.oldest().void
}
