package router

import (
	"cmp"
	"slices"

	"tandem/engine/blockhash"
	"tandem/serve/discovery"
)

// Consistent gives each conversation an order of instances that depends on nothing but their names, so that frontends which
// know nothing of each other place it alike, also after a restart, and an instance that comes or goes moves only its own
// share. A conversation runs on the first instance of its order that has room in its bounded share.
type Consistent struct {
	ledger
	imbalance float64
	block     int // units of the content that name a request without an id
	batch     int
	ties      uint64
}

// NewConsistent builds the router from a valid configuration.
func NewConsistent(c Config) *Consistent {
	r := &Consistent{
		ledger: newLedger(), imbalance: DefaultMaxImbalance,
		block: cmp.Or(c.TokensPerBlock, DefaultTokensPerBlock), batch: cmp.Or(c.MaxBatchSize, DefaultMaxBatchSize),
	}
	if c.MaxImbalance != nil {
		r.imbalance = *c.MaxImbalance
	}
	return r
}

// Kind implements Router.
func (r *Consistent) Kind() string { return KindConsistent }

// Select implements Router.
func (r *Consistent) Select(req Request) (Selection, error) {
	key, named := r.key(&req)
	r.mu.Lock()
	defer r.mu.Unlock()
	list := req.usable()
	if len(list) == 0 {
		return Selection{}, ErrNoServers
	}
	if !named {
		least := r.least(list)
		in := least[r.ties%uint64(len(least))]
		r.ties++
		return r.grant(in, Load, 1), nil
	}
	order(list, key)
	s := shareOf(list, r.imbalance, r.batch, r.busy)
	for i := range list {
		in := list[i]
		if s.full(r.busy(in.ID), capacity(&in, r.batch), 0) {
			continue
		}
		switch {
		case i > 0:
			return r.grant(in, Overflow, 1), nil
		case req.RoutingID != "":
			return r.grant(in, Sticky, 1), nil
		}
		return r.grant(in, Implicit, 1), nil
	}
	panic("router: no instance is within its share") // the least loaded one is
}

// key names what stays together: a conversation, or else requests that begin alike.
func (r *Consistent) key(req *Request) (key blockhash.Hash, named bool) {
	if req.RoutingID != "" {
		return blockhash.Root("conversation", "", req.RoutingID), true
	}
	units, root := req.Tokens, blockhash.Root("ids", "", req.Salt)
	if units == nil || req.Learned {
		// A text may be long; its first code points are enough.
		units, root = nil, blockhash.Root("text", "", req.Salt)
		for _, c := range req.Text {
			if units = append(units, c); len(units) == r.block {
				break
			}
		}
	}
	if len(units) < r.block {
		return key, false // too short to have anything in common
	}
	return blockhash.Next(root, units[:r.block]), true
}

// order sorts instances in the order in which they own key.
func order(list []discovery.Instance, key blockhash.Hash) {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	was := slices.Clone(list)
	for to, from := range discovery.RendezvousOrder(string(key[:]), ids) {
		list[to] = was[from]
	}
}

// Forget implements Router; nothing is remembered.
func (r *Consistent) Forget(string) {}

// Stats implements Router.
func (r *Consistent) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats()
}
