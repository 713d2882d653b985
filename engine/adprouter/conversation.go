package adprouter

const (
	// recentSpan is how many calls the memory of recent work spans: it loses one
	// part in recentSpan with each.
	recentSpan = 1024
	// recentPart of it is expected to come again soon.
	recentPart = 16
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
			r.bind.bind(it.Key, it.Rank, it.Tokens)
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
	compute := int64(it.Tokens)
	if bound != nil && r.sticks(it, bound.rank) {
		// What the last turn had is taken to be cached at home.
		if fresh := compute - bound.tokens; fresh > 0 {
			compute = fresh
		}
		r.placeHome(batch, i, bound, compute)
		return
	}
	rank := r.placeNew(it)
	if rank < 0 {
		r.res.Unplaced = append(r.res.Unplaced, i)
		return
	}
	reason := First
	switch {
	case it.Key == "":
		reason = NoKey
	case bound != nil:
		reason = Overflow // stays bound, untouched, and comes home later
	default:
		r.bind.bind(it.Key, rank, it.Tokens)
	}
	r.place(batch, i, rank, reason)
	r.addLoad(it, rank, compute)
}

// sticks reports whether the home of a bound conversation takes the request.
func (r *Router) sticks(it *Item, home int) bool {
	return r.fits(it, home) && (r.cfg.StickyCap == Hard || r.active[home] < r.target)
}

func (r *Router) placeHome(batch []Item, i int, bound *binding, compute int64) {
	reason, home := Sticky, bound.rank
	if bound.moved {
		reason = Moved
	}
	r.bind.touch(batch[i].Key, bound, batch[i].Tokens)
	r.place(batch, i, home, reason)
	r.addLoad(&batch[i], home, compute)
}

// addLoad counts a placed request: tokens as the wire counts them, work as what
// has to be computed.
func (r *Router) addLoad(it *Item, rank int, compute int64) {
	r.tokens[rank] += int64(it.Tokens)
	if len(it.Match) > 0 {
		compute = it.uncached(rank)
	}
	work := compute + int64(it.weight())*int64(r.cfg.DecodeCost)
	r.work[rank] += work
	r.recent[rank] += work
}

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

// expected is the work that rank would have with the request: what waits there,
// what its conversations are likely to bring next, and what of this prompt is
// not cached.
func (r *Router) expected(it *Item, rank int) int64 {
	return r.work[rank] + r.recent[rank]/recentPart + it.uncached(rank)
}
