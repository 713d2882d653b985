package adprouter

import "fmt"

// Check recomputes what the router keeps incrementally and compares.
func (r *Router) Check() error { return r.bind.check() }

// checkResult tests the last result: every request placed once or handed back,
// no rank filled beyond the cap, an honest target.
func (r *Router) checkResult(states []RankState, batch []Item) error {
	seen := make([]int, len(batch))
	active := make([]int, len(states))
	for rank, s := range states {
		active[rank] = s.Active
	}
	for _, p := range r.res.Placed {
		seen[p.Index]++
		if moved := p.From >= 0; moved != (p.Reason == Moved) || p.From == p.Rank || p.From < -1 || p.From >= len(states) {
			return fmt.Errorf("request %d came to rank %d as %s from %d", p.ID, p.Rank, p.Reason, p.From)
		}
		active[p.Rank] += batch[p.Index].weight()
	}
	for _, i := range r.res.Unplaced {
		seen[i]++
	}
	for i, n := range seen {
		if n != 1 {
			return fmt.Errorf("request %d has %d places", batch[i].ID, n)
		}
	}
	for rank, a := range active {
		switch {
		case a != r.res.Active[rank]:
			return fmt.Errorf("rank %d has %d active requests, the result says %d", rank, a, r.res.Active[rank])
		case a > r.cfg.Cap && a > states[rank].Active:
			return fmt.Errorf("rank %d was filled to %d, beyond the cap of %d", rank, a, r.cfg.Cap)
		case a > r.res.Target && (a <= r.cfg.Cap || r.cfg.Kind == ConversationAware):
			return fmt.Errorf("rank %d has %d active requests, the target is %d", rank, a, r.res.Target)
		}
	}
	if r.Len() > max(r.cfg.MaxSessions, 1) {
		return fmt.Errorf("%d bindings, at most %d are allowed", r.Len(), r.cfg.MaxSessions)
	}
	return nil
}
