package router

// RoundRobin takes candidates in turn.
type RoundRobin struct {
	ledger
	next uint64
}

// NewRoundRobin starts at the first candidate.
func NewRoundRobin() *RoundRobin { return &RoundRobin{ledger: newLedger()} }

// Kind implements Router.
func (r *RoundRobin) Kind() string { return KindRoundRobin }

// Select implements Router. The index survives changes of the list; an excluded pick costs a turn.
func (r *RoundRobin) Select(req Request) (Selection, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := req.Candidates()
	for range list {
		in := list[r.next%uint64(len(list))]
		r.next++
		if !req.excluded(in.ID) {
			return r.grant(in, Load, 1), nil
		}
	}
	return Selection{}, ErrNoServers
}

// Forget implements Router; turns need no memory of instances.
func (r *RoundRobin) Forget(string) {}

// Stats implements Router.
func (r *RoundRobin) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats()
}
