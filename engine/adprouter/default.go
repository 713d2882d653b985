package adprouter

import (
	"cmp"
	"slices"
)

// routeDefault balances prompt tokens, longest request first.
func (r *Router) routeDefault(batch []Item) {
	for _, i := range r.order {
		switch {
		case !r.placeExplicit(batch, i):
			r.rest = append(r.rest, i)
		case !r.cfg.Compat:
			// Users measured with a tally that forgets these tokens; without
			// compat the balance step sees them.
			r.tokens[batch[i].Rank] += int64(batch[i].Tokens)
		}
	}
	r.setTarget(batch)
	slices.SortStableFunc(r.rest, func(a, b int) int { return cmp.Compare(batch[b].Tokens, batch[a].Tokens) })
	for _, i := range r.rest {
		rank := r.pick(&batch[i], func(rank int) (int64, int64, int64) {
			return r.tokens[rank], int64(r.active[rank]), 0
		})
		if rank < 0 {
			r.res.Unplaced = append(r.res.Unplaced, i)
			continue
		}
		r.place(batch, i, rank, Balanced)
		r.tokens[rank] += int64(batch[i].Tokens)
	}
}
