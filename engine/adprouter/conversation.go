package adprouter

const (
	// recentSpan is how many calls the memory of recent work spans: it loses one
	// part in recentSpan with each.
	recentSpan = 1024
	// recentPart of it is expected to come again soon.
	recentPart = 16
	// guestWork is what a sub-agent's turn is taken to compute where its parent
	// lives: the parent's last prompt tells nothing of it, and what the rank really
	// lacks comes with the next table.
	guestWork = 1024
)

// routeConversation sends each bound conversation home and places the others.
func (r *Router) routeConversation(batch []Item) {
	for _, i := range r.order {
		it := &batch[i]
		// A binding beats a rank that is named later. Who names no rank is
		// looked up below, when the bindings of this batch are known too.
		if it.Rank < 0 || it.Key != "" && r.bind.peek(it.Key) != nil || !r.placeExplicit(batch, i) {
			r.rest = append(r.rest, i)
			continue
		}
		r.addLoad(it, it.Rank, int64(it.Tokens))
		if it.Key != "" {
			r.bind.bind(it.Key, it.Rank, it.Tokens, r.mark(it.Rank))
		}
	}
	r.setTarget(batch)
	for _, i := range r.rest {
		r.placeConversation(batch, i)
	}
}

func (r *Router) placeConversation(batch []Item, i int) {
	it := &batch[i]
	var bound *binding
	if it.Key != "" {
		bound = r.bind.peek(it.Key)
	}
	if bound != nil {
		home := r.sticks(it, bound.rank)
		if r.cfg.Rehome.On && r.rehome(batch, i, bound, home) {
			return
		}
		if home {
			r.placeHome(batch, i, bound)
			return
		}
	}
	rank := r.placeNew(it)
	if rank < 0 {
		r.res.Unplaced = append(r.res.Unplaced, i)
		return
	}
	reason := First
	if it.Key == "" {
		reason = NoKey
	} else if bound != nil {
		reason = Overflow // stays bound, untouched, and comes home later
	}
	r.place(batch, i, rank, reason)
	r.addLoad(it, rank, int64(it.Tokens))
	if reason == First {
		r.bind.bind(it.Key, rank, it.Tokens, r.mark(rank))
	}
}

// sticks reports whether the home of a bound conversation takes the request.
func (r *Router) sticks(it *Item, home int) bool {
	return r.fits(it, home) && (r.cfg.StickyCap == Hard || r.active[home] < r.target)
}

func (r *Router) placeHome(batch []Item, i int, bound *binding) {
	it := &batch[i]
	r.place(batch, i, bound.rank, Sticky)
	if it.Guest {
		r.addLoad(it, bound.rank, min(int64(it.Tokens), guestWork))
		r.bind.touch(it.Key, bound)
		return
	}
	r.addLoad(it, bound.rank, added(it, bound.tokens)) // the last prompt is taken to be cached
	bound.tokens, bound.mark = int64(it.Tokens), r.mark(bound.rank)
	r.bind.touch(it.Key, bound)
}

// addLoad counts a placed request; compute is what it has to compute if nobody
// has looked.
func (r *Router) addLoad(it *Item, rank int, compute int64) {
	if len(it.Match) > 0 {
		compute = it.uncached(rank)
	}
	r.addWork(it, rank, compute)
}

// addWork counts a placed request: tokens as the wire counts them, work as what
// has to be computed.
func (r *Router) addWork(it *Item, rank int, compute int64) {
	r.tokens[rank] += int64(it.Tokens)
	r.queue[rank] += compute
	work := compute + int64(it.weight())*int64(r.cfg.DecodeCost)
	r.work[rank] += work
	r.recent[rank] += work
}

// mark is how much rank has computed when all that waits there now is: a rank
// computes in the order of placement.
func (r *Router) mark(rank int) int64 { return r.done[rank] + r.queue[rank] }

// placeNew chooses a rank by the configured placement, or -1 if none has room.
func (r *Router) placeNew(it *Item) int {
	switch r.cfg.Placement {
	case LeastQueued:
		return r.pick(it, func(rank int) (int64, int64, int64) { return int64(r.active[rank]), 0, 0 })
	case LeastQueuedRotating:
		return r.rotate(r.pick(it, func(rank int) (int64, int64, int64) { return int64(r.active[rank]), r.turn(rank), 0 }))
	case LeastTokens:
		return r.rotate(r.pick(it, func(rank int) (int64, int64, int64) {
			return r.tokens[rank], int64(r.active[rank]), r.turn(rank)
		}))
	case LeastWork:
		return r.rotate(r.pick(it, func(rank int) (int64, int64, int64) { return r.expected(it, rank), r.turn(rank), 0 }))
	default:
		return r.roundRobin(it)
	}
}

// roundRobin takes the first rank from the cursor on that is below the target;
// those it skips are passed for good.
func (r *Router) roundRobin(it *Item) int {
	rank := r.cursor
	for range r.cfg.Ranks {
		if r.open(it, rank) {
			return r.rotate(rank)
		}
		if rank++; rank == r.cfg.Ranks {
			rank = 0
		}
	}
	return -1
}

// turn is a rank's distance from the cursor.
func (r *Router) turn(rank int) int64 {
	if rank < r.cursor {
		rank += r.cfg.Ranks
	}
	return int64(rank - r.cursor)
}

// rotate moves the cursor behind the chosen rank.
func (r *Router) rotate(rank int) int {
	if rank >= 0 {
		r.cursor = (rank + 1) % r.cfg.Ranks
	}
	return rank
}

// outlook is the work of a rank: what waits there, and what its conversations
// are likely to bring next.
func (r *Router) outlook(rank int) int64 { return r.work[rank] + r.recent[rank]/recentPart }

// expected is the work that rank would have with the request: also what of this
// prompt is not cached.
func (r *Router) expected(it *Item, rank int) int64 { return r.outlook(rank) + it.uncached(rank) }
