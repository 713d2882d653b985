//go:build invariants

package adprouter

import "fmt"

// checked says whether every result is verified, which allocates.
const checked = true

// verify panics when a result breaks an invariant or the digest of the bindings
// is not that of the bindings. It walks all of them, so it is compiled in under
// the build tag invariants only.
func (r *Router) verify(states []RankState, batch []Item) {
	if err := r.bind.check(); err != nil {
		panic("adprouter: broken invariant: " + err.Error())
	}
	if err := r.checkResult(states, batch); err != nil {
		panic(fmt.Sprintf("adprouter: broken invariant: %v", err))
	}
}
