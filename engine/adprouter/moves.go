package adprouter

import (
	"fmt"
	"slices"
)

// moveCalls is after how many calls of Route a move that nobody has ended is
// given up: a net below a driver that loses one, no deadline for copies.
const moveCalls = 1 << 14

// move is a change of home under way: decided, and not known to be copied yet.
type move struct {
	of     *binding
	tokens int64  // prompt length when last placed at the new home
	mark   int64  // as of a binding
	until  uint64 // call in which it is given up
}

// moves are those under way, by the call in which they are given up.
type moves struct {
	open   []move
	busy   []int  // [rank] of those, in how many it takes part
	calls  uint64 // of Route
	counts MoveCounts
}

// MoveCounts are totals since the start of the moves that Route decided. Started
// is the sum of all others.
type MoveCounts struct {
	Started   uint64
	Committed uint64
	Failed    uint64
	Expired   uint64 // nobody said how they ended
	Forgotten uint64 // the bound on conversations dropped the binding first
	Open      int    // under way
}

func (m *moves) find(e *binding) int {
	return slices.IndexFunc(m.open, func(o move) bool { return o.of == e })
}

// take removes the move of a binding that has one.
func (m *moves) take(e *binding) move {
	i := m.find(e)
	o := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	m.busy[e.rank]--
	m.busy[e.to]--
	return o
}

func (m *moves) digest(d uint64) uint64 {
	d = mix(d ^ m.calls)
	for i := range m.open {
		o := &m.open[i]
		d = mix(mix(d^o.of.hash) ^ uint64(o.tokens))
		d = mix(mix(d^uint64(o.mark)) ^ o.until)
	}
	return d
}

// check compares the moves with the bindings that say they move.
func (m *moves) check(moving int) error {
	if moving != len(m.open) {
		return fmt.Errorf("%d moves are under way, %d bindings move", len(m.open), moving)
	}
	busy, last := make([]int, len(m.busy)), uint64(0)
	for _, o := range m.open {
		if o.of.to < 0 || o.of.to == o.of.rank || o.until < last || o.until <= m.calls {
			return fmt.Errorf("in call %d: move from rank %d to %d until call %d", m.calls, o.of.rank, o.of.to, o.until)
		}
		busy[o.of.rank]++
		busy[o.of.to]++
		last = o.until
	}
	if !slices.Equal(busy, m.busy) {
		return fmt.Errorf("ranks take part in %v moves, counted are %v", busy, m.busy)
	}
	return nil
}

// start notes that a bound conversation is on its way to another rank, and
// touches it.
func (b *bindings) start(key string, e *binding, to int) {
	b.moves.open = append(b.moves.open, move{of: e, until: b.moves.calls + moveCalls})
	b.moves.busy[e.rank]++
	b.moves.busy[to]++
	b.moves.counts.Started++
	e.to, e.moved = to, b.touches+1
	b.touch(key, e)
}

// arrive notes a request that was placed at the new home.
func (b *bindings) arrive(e *binding, tokens int, mark int64) {
	m := &b.moves.open[b.moves.find(e)]
	m.tokens, m.mark = int64(tokens), mark
}

// end closes the move of a binding, if there is one, and returns it.
func (b *bindings) end(e *binding) (m move, open bool) {
	if e.to < 0 {
		return move{}, false
	}
	m = b.moves.take(e)
	e.to = -1
	b.count(e)
	return m, true
}

// commit gives a bound conversation a new home without using it.
func (b *bindings) commit(e *binding, rank int) {
	to, home := e.to, e.rank
	m, open := b.end(e)
	switch {
	case open && rank == home:
		b.moves.counts.Failed++
	case open:
		b.moves.counts.Committed++
	}
	if rank == home {
		return
	}
	e.rank = rank
	if open && rank == to {
		e.tokens, e.mark = m.tokens, m.mark
	} else {
		e.mark, e.moved = 0, b.touches
	}
	b.count(e)
}

// next begins a call of Route: moves that nobody has ended are given up.
func (b *bindings) next() {
	b.moves.calls++
	for len(b.moves.open) > 0 && b.moves.open[0].until <= b.moves.calls {
		b.end(b.moves.open[0].of)
		b.moves.counts.Expired++
	}
}

// Move makes rank the home of a bound conversation and ends its move. The driver
// calls it when the blocks have been copied, also if there were none to copy, on
// all ranks in the same iteration. It reports whether the conversation is bound
// and the rank exists. A second call for the same rank changes nothing.
func (r *Router) Move(key string, rank int) bool {
	e := r.bind.peek(key)
	if e == nil || rank < 0 || rank >= r.cfg.Ranks {
		return false
	}
	r.bind.commit(e, rank)
	return true
}

// MoveFailed ends the move of a conversation whose blocks could not be copied:
// its home stays what it was. It reports whether a move was under way. All ranks
// must call it in the same iteration.
func (r *Router) MoveFailed(key string) bool {
	e := r.bind.peek(key)
	if e == nil {
		return false
	}
	_, open := r.bind.end(e)
	if open {
		r.bind.moves.counts.Failed++
	}
	return open
}

// Moving returns where the move of a conversation that is under way goes.
func (r *Router) Moving(key string) (rank int, ok bool) {
	if e := r.bind.peek(key); e != nil && e.to >= 0 {
		return e.to, true
	}
	return 0, false
}

// Moves returns totals of changes of home.
func (r *Router) Moves() MoveCounts {
	c := r.bind.moves.counts
	c.Open = len(r.bind.moves.open)
	return c
}
