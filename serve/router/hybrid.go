package router

import (
	"cmp"
	"fmt"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"tandem/serve/discovery"
)

// Hybrid weighs three things: where the conversation lives, who has the prompt's blocks, and load. Nobody gets more than a
// bounded multiple of its fair share, so neither a popular prefix nor a busy conversation can crowd one instance.
type Hybrid struct {
	*KVAware
	affinity float64 // what the conversation's home is worth, in whole prompts found
	homes    *simplelru.LRU[string, string]
	others   map[string]int64 // requests of an instance that are not from here, by its last report
}

// NewHybrid builds the router from a valid configuration.
func NewHybrid(c Config) *Hybrid {
	r := &Hybrid{KVAware: NewKVAware(c), affinity: DefaultAffinityWeight, others: map[string]int64{}}
	if c.AffinityWeight != nil {
		r.affinity = *c.AffinityWeight
	}
	size := cmp.Or(c.MaxSessions, DefaultMaxSessions)
	lru, err := simplelru.NewLRU[string, string](size, nil)
	if err != nil {
		panic(fmt.Sprintf("router: session table of size %d: %v", size, err))
	}
	r.homes = lru
	return r
}

// Kind implements Router.
func (r *Hybrid) Kind() string { return KindHybrid }

// Select implements Router. A conversation whose home has its full share runs elsewhere this once and keeps the home.
func (r *Hybrid) Select(req Request) (Selection, error) {
	ps := prompts{req: &req, block: cmp.Or(r.block, DefaultKVBlock)}
	ps.prepare()
	r.mu.Lock()
	defer r.mu.Unlock()
	list := req.usable()
	if len(list) == 0 {
		return Selection{}, ErrNoServers
	}
	home := ""
	if req.RoutingID != "" {
		home, _ = r.homes.Get(req.RoutingID)
	}
	b := r.best(list, &ps, home)
	in := list[b.at]
	why := b.outcome(&req, in.ID, home)
	if req.RoutingID != "" && why != Sticky && why != Overflow {
		r.homes.Add(req.RoutingID, in.ID)
	}
	if own := req.ConversationID; own != "" && own != req.RoutingID {
		r.homes.Add(own, in.ID)
	}
	return r.take(in, why, ps.of(&in), b.matched), nil
}

// Report implements Reporter. What an instance has beyond the legs that are charged here comes from other frontends, or past
// them; it counts as load until the next report.
func (r *Hybrid) Report(instance string, requests int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := int64(requests) - r.load[instance]; n > 0 {
		r.others[instance] = n
		return
	}
	delete(r.others, instance)
}

// busy is the load of an instance, ours and that of others. The lock is held.
func (r *Hybrid) busy(instance string) int64 { return r.load[instance] + r.others[instance] }

// choice is the instance with the highest score.
type choice struct {
	at, matched int
	homeUsable  bool // the conversation's home may be chosen
	homeFull    bool // but has its full share
}

// best scores the instances that have room in their share. Among equals the home wins, then they take turns.
func (r *Hybrid) best(list []discovery.Instance, ps *prompts, home string) (b choice) {
	s := shareOf(list, r.imbalance, r.batch, r.busy)
	var ties, found []int
	top, homeAt := 0.0, -1
	for i := range list {
		in := &list[i]
		size := capacity(in, r.batch)
		full := s.full(r.busy(in.ID), size, 0)
		if in.ID == home {
			b.homeUsable, b.homeFull = true, full
		}
		if full {
			continue
		}
		p := ps.of(in)
		n := r.blocks.matched(in, p)
		score := float64(n)/float64(p.padded()) - float64(r.busy(in.ID))/size
		if in.ID == home {
			score += r.affinity
		}
		if len(ties) == 0 || score > top {
			ties, found, top, homeAt = ties[:0], found[:0], score, -1
		}
		if score == top {
			if in.ID == home {
				homeAt = len(ties)
			}
			ties, found = append(ties, i), append(found, n)
		}
	}
	k := int(r.ties % uint64(len(ties))) // never empty: the least loaded instance is within its share
	r.ties++
	if homeAt >= 0 {
		k = homeAt
	}
	b.at, b.matched = ties[k], found[k]
	return b
}

// outcome says why an instance was chosen.
func (b *choice) outcome(req *Request, chosen, home string) Outcome {
	switch {
	case home != "" && chosen == home:
		return Sticky
	case home != "" && !b.homeUsable:
		return Fallback
	case b.homeFull:
		return Overflow
	case b.matched > 0:
		return Cached
	case req.RoutingID != "" && home == "":
		return New
	}
	return Load
}

// Forget implements Router: the conversations of the instance find their next home by residency and load.
func (r *Hybrid) Forget(instance string) {
	r.KVAware.Forget(instance)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.others, instance)
	for _, key := range r.homes.Keys() {
		if at, ok := r.homes.Peek(key); ok && at == instance {
			r.homes.Remove(key)
		}
	}
}

// Stats implements Router.
func (r *Hybrid) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.stats()
	st.Sessions = r.homes.Len()
	return st
}
