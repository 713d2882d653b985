package adprouter

import (
	"cmp"
	"math/bits"
	"slices"
)

// routeKV weighs the cached prefix of each rank against its load.
func (r *Router) routeKV(batch []Item) {
	for _, i := range r.order {
		if !r.placeWarming(batch, i) {
			r.rest = append(r.rest, i)
		}
	}
	// Requests with the same beginning follow each other, longest first, so that
	// they see each other's load while they choose.
	slices.SortStableFunc(r.rest, func(a, b int) int {
		return cmp.Or(slices.Compare(batch[a].Head, batch[b].Head), cmp.Compare(batch[b].Tokens, batch[a].Tokens))
	})
	r.setTarget(batch)
	for _, i := range r.rest {
		it := &batch[i]
		rank, cached := r.score(it)
		if rank < 0 {
			r.res.Unplaced = append(r.res.Unplaced, i)
			continue
		}
		reason := Balanced
		if cached && it.match(rank) > 0 {
			reason = Cache
		}
		r.placeKV(batch, i, rank, reason)
	}
}

func (r *Router) placeKV(batch []Item, i, rank int, reason Reason) {
	r.place(batch, i, rank, reason)
	r.tokens[rank] += batch[i].uncached(rank)
}

// placeWarming places a request on its own rank, or on a rank that is still cold.
func (r *Router) placeWarming(batch []Item, i int) bool {
	it := &batch[i]
	rank, reason := it.Rank, Explicit
	if rank < 0 {
		rank, reason = r.coldRank(it), Warmup
	}
	if rank < 0 || rank >= r.cfg.Ranks || !r.fits(it, rank) {
		return false
	}
	r.placeKV(batch, i, rank, reason)
	if r.cfg.Compat || it.Rank < 0 || r.warm.shared(it) {
		r.warm.done(rank)
	}
	return true
}

// coldRank returns the rank that the request shall warm up, or -1. In compat mode
// that is always the lowest cold one, which blocks the others while it is full.
func (r *Router) coldRank(it *Item) int {
	if r.warm.count == 0 {
		return -1
	}
	if !r.cfg.Compat && !r.warm.vote(it) {
		return -1
	}
	for rank, cold := range r.warm.pending {
		if cold && (r.cfg.Compat || r.fits(it, rank)) {
			return rank
		}
	}
	return -1
}

// load is a 128-bit score.
type load struct{ hi, lo uint64 }

func (a load) compare(b load) int { return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo)) }

// product returns x*y*z. Callers keep it below 2^127.
func product(x, y, z uint64) load {
	hi, lo := bits.Mul64(x, y)
	carry, low := bits.Mul64(lo, z)
	return load{hi*z + carry, low}
}

func (a load) plus(b load) load {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, _ := bits.Add64(a.hi, b.hi, carry)
	return load{hi, lo}
}

// score returns the open rank with the least (tokens to compute, weighed load),
// -1 if none is open, and whether cached prefixes counted.
func (r *Router) score(it *Item) (best int, cached bool) {
	total, match := int64(0), int64(0)
	for rank := range r.active {
		if r.open(it, rank) {
			total += r.tokens[rank]
			match = max(match, it.match(rank))
		}
	}
	cached = match*1000 > int64(r.cfg.MatchThreshold)*max(int64(it.Tokens), 1)
	return r.least(it, max(total, int64(it.Tokens)), cached), cached
}

// least compares scores times their common denominator.
func (r *Router) least(it *Item, denominator int64, cached bool) int {
	best, bestLoad, seed := -1, load{}, mix(uint64(it.ID))
	for rank := range r.active {
		if !r.open(it, rank) {
			continue
		}
		compute := int64(it.Tokens)
		if cached {
			compute = it.uncached(rank)
		}
		l := product(uint64(compute), uint64(denominator), 1000).
			plus(product(uint64(r.tokens[rank]), uint64(it.Tokens), uint64(r.cfg.LoadWeight)))
		if best >= 0 {
			order := cmp.Or(l.compare(bestLoad), cmp.Compare(r.tokens[rank], r.tokens[best]))
			if order == 0 {
				order = cmp.Compare(mix(seed+uint64(rank)), mix(seed+uint64(best)))
			}
			if order > 0 {
				continue
			}
		}
		best, bestLoad = rank, l
	}
	return best
}
