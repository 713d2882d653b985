package router

import "tandem/serve/discovery"

// LoadBalancing takes the candidate with the least open work.
type LoadBalancing struct {
	ledger
	useTokens bool
	picks     uint64
}

// NewLoadBalancing counts open requests, or their tokens.
func NewLoadBalancing(useTokens bool) *LoadBalancing {
	return &LoadBalancing{ledger: newLedger(), useTokens: useTokens}
}

// Kind implements Router.
func (r *LoadBalancing) Kind() string { return KindLoad }

// Select implements Router.
func (r *LoadBalancing) Select(req Request) (Selection, error) {
	weight := int64(1)
	if r.useTokens {
		weight = tokenWeight(&req)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.least(req.usable())
	if len(list) == 0 {
		return Selection{}, ErrNoServers
	}
	in := list[r.picks%uint64(len(list))]
	r.picks++
	return r.grant(in, Load, weight), nil
}

// tokenWeight estimates a leg's tokens: ids if known, else a quarter of the text's bytes; gen legs also pay their output.
func tokenWeight(req *Request) int64 {
	weight := int64(len(req.Tokens))
	if req.Tokens == nil {
		weight = int64(len(req.Text)+3) / 4
	}
	if req.Generation {
		weight += int64(max(0, req.MaxTokens))
	}
	return weight
}

// least keeps the instances that share the smallest load, in list order. The lock is held.
func (l *ledger) least(list []discovery.Instance) []discovery.Instance {
	var out []discovery.Instance
	for _, in := range list {
		switch {
		case len(out) == 0 || l.load[in.ID] < l.load[out[0].ID]:
			out = append(out[:0], in)
		case l.load[in.ID] == l.load[out[0].ID]:
			out = append(out, in)
		}
	}
	return out
}

// Forget implements Router; the load of an instance goes as its legs end.
func (r *LoadBalancing) Forget(string) {}

// Stats implements Router.
func (r *LoadBalancing) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats()
}
