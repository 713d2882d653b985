package adprouter

import "fmt"

// repay is how many times a move must save what its copy costs, besides what else
// it must save: both ranks and all that share their links pay for it.
const repay = 4

// Rehome says when a bound conversation leaves a home that is much busier than
// another rank and takes its blocks along. Work is in prefill tokens.
type Rehome struct {
	On       bool
	MaxMoves int   // started in one call of Route, and under way at one rank: where copies are slow there are fewer
	Gain     Milli // part of the work before the first token that must be saved
	MinGain  int   // work that must be saved
	CopyCost Milli // of the blocks of one token, in prefill tokens
	Cooldown int   // placements of bound conversations before the same one moves again
}

// DefaultRehome returns the defaults, switched off.
func DefaultRehome() Rehome {
	return Rehome{MaxMoves: 2, Gain: 500, MinGain: 2048, CopyCost: 20, Cooldown: 256}
}

func (h *Rehome) validate() error {
	switch {
	case h.MaxMoves < 1 || h.MaxMoves > maxRanks:
		return fmt.Errorf("rehome_max_moves: %d is not between 1 and %d", h.MaxMoves, maxRanks)
	case h.Gain < 0 || h.Gain > 1000:
		return fmt.Errorf("rehome_gain: not between 0 and 1")
	case h.MinGain < 0 || h.MinGain > maxCap:
		return fmt.Errorf("rehome_min_gain: %d is not between 0 and %d", h.MinGain, maxCap)
	case h.CopyCost < 0 || h.CopyCost > maxMilli:
		return fmt.Errorf("rehome_copy_cost: not between 0 and %d", maxMilli/1000)
	case h.Cooldown < 0 || h.Cooldown > maxCap:
		return fmt.Errorf("rehome_cooldown: %d is not between 0 and %d", h.Cooldown, maxCap)
	}
	return nil
}

// rehome places a request of a bound conversation on a rank that is not its
// home, if that saves enough; home says whether its home would take it. The
// binding stays: the driver moves it when the blocks have been copied.
func (r *Router) rehome(batch []Item, i int, bound *binding, home bool) bool {
	it := &batch[i]
	if it.strict() {
		return false // it names a rank, which only its home may overrule
	}
	if bound.to >= 0 {
		return r.follow(batch, i, bound, home)
	}
	if it.Guest || !r.mayMove(bound) {
		return false // only its own next turn brings a conversation's blocks along
	}
	fresh := r.fresh(it, bound)
	cached := int64(it.Tokens) - fresh
	if cached < fresh {
		return false // mostly new: what lies at home decides little
	}
	h := &r.cfg.Rehome
	copying := h.copying(cached)
	move := copying + fresh
	stay := r.work[bound.rank] + fresh
	if home && stay-r.floor-move-repay*copying < int64(h.MinGain) {
		return false // not even the least busy rank can be good enough
	}
	to := r.calmest(it, bound.rank)
	if to < 0 {
		return false
	}
	if !home {
		stay = r.work[to] + int64(it.Tokens) // it overflows and is computed anew
	}
	gain := stay - r.work[to] - move - repay*copying
	if gain < max(int64(h.MinGain), 1) || gain < stay*int64(h.Gain)/1000 {
		return false
	}
	r.started++
	r.bind.start(it.Key, bound, to)
	r.placeMoved(batch, i, bound, move)
	return true
}

// mayMove reports whether a conversation may leave home now, whatever it saves.
// While its last turn still waits there, the copy would miss that turn, and it
// would be computed twice.
func (r *Router) mayMove(bound *binding) bool {
	return r.started < r.cfg.Rehome.MaxMoves && r.bind.moves.busy[bound.rank] < r.cfg.Rehome.MaxMoves &&
		(bound.moved == 0 || r.bind.touches-bound.moved >= uint64(r.cfg.Rehome.Cooldown)) &&
		r.done[bound.rank] >= bound.mark
}

// follow sends a request after its conversation, which is on the move, unless
// that rank has become the busier one.
func (r *Router) follow(batch []Item, i int, bound *binding, home bool) bool {
	it := &batch[i]
	if !r.open(it, bound.to) || home && r.work[bound.to] > r.work[bound.rank] {
		return false
	}
	before := r.bind.moves.open[r.bind.moves.find(bound)].tokens
	r.bind.touch(it.Key, bound)
	compute := added(it, before)
	if it.Guest {
		compute = min(int64(it.Tokens), guestWork)
	}
	r.placeMoved(batch, i, bound, compute)
	if it.Guest { // what the next turn adds is not counted from a sub-agent's
		r.bind.arrive(bound, int(before), r.mark(bound.to))
	}
	return true
}

// placeMoved places a request where its conversation goes; compute is its work
// there, whatever matches there before the copy.
func (r *Router) placeMoved(batch []Item, i int, bound *binding, compute int64) {
	it := &batch[i]
	r.place(batch, i, bound.to, Moved)
	p := &r.res.Placed[len(r.res.Placed)-1]
	p.From, p.Work = bound.rank, int(compute)
	r.addWork(it, bound.to, compute)
	r.bind.arrive(bound, it.Tokens, r.mark(bound.to))
}

// fresh returns the tokens of a prompt that its home would compute: by what was
// looked up, else by the conversation's last prompt.
func (r *Router) fresh(it *Item, bound *binding) int64 {
	if len(it.Match) > 0 {
		return it.uncached(bound.rank)
	}
	return added(it, bound.tokens)
}

// added returns what a prompt adds to the one before it. One that does not go
// beyond that is another prompt, and all of it counts.
func added(it *Item, before int64) int64 {
	if n := int64(it.Tokens) - before; n > 0 {
		return n
	}
	return int64(it.Tokens)
}

// copying returns the cost of copying the blocks of that many tokens.
func (h *Rehome) copying(tokens int64) int64 { return (tokens*int64(h.CopyCost) + 999) / 1000 }

// calmest returns the open rank, not home, that has and is likely to get the
// least work, of equal ones the lowest; -1 if there is none that may take part in
// another move.
func (r *Router) calmest(it *Item, home int) int {
	best, least := -1, int64(0)
	for rank := range r.active {
		if rank == home || !r.open(it, rank) || r.bind.moves.busy[rank] >= r.cfg.Rehome.MaxMoves {
			continue
		}
		if w := r.outlook(rank); best < 0 || w < least {
			best, least = rank, w
		}
	}
	return best
}
