//go:build !invariants

package adprouter

// checked says whether every result is verified, which allocates.
const checked = false

func (r *Router) verify([]RankState, []Item) {}
