package router

import (
	"cmp"
	"math"

	"tandem/serve/discovery"
)

// KVAware takes the instance that has most of the prompt, weighed against its load. An instance that has more than its share
// of the open requests gets no more, whatever it has: a beginning that all prompts share would else draw all of them to the
// one that had it first, and nobody else would ever have it.
type KVAware struct {
	ledger
	blocks    residency
	block     int     // configured tokens per block, 0 = as the worker says
	batch     int     // max_batch_size of workers that do not tell theirs
	imbalance float64 // most open requests of an instance, as a multiple of the mean
	ties      uint64
}

// uncrowded is how many open requests an instance may always have: with fewer, waiting costs less than an empty cache.
const uncrowded = 4

// NewKVAware builds the router from a valid configuration.
func NewKVAware(c Config) *KVAware {
	r := &KVAware{
		ledger: newLedger(), blocks: newResidency(c.Backfill == nil || *c.Backfill),
		block: c.TokensPerBlock, batch: cmp.Or(c.MaxBatchSize, DefaultMaxBatchSize), imbalance: DefaultMaxImbalance,
	}
	if c.MaxImbalance != nil {
		r.imbalance = *c.MaxImbalance
	}
	return r
}

// Kind implements Router.
func (r *KVAware) Kind() string { return KindKVAware }

// Select implements Router.
func (r *KVAware) Select(req Request) (Selection, error) {
	ps := prompts{req: &req, block: cmp.Or(r.block, DefaultKVBlock)}
	ps.prepare()
	r.mu.Lock()
	defer r.mu.Unlock()
	list := req.usable()
	if len(list) == 0 {
		return Selection{}, ErrNoServers
	}
	best := make([]int, 0, len(list)) // of the highest score
	top, matched := 0.0, make([]int, len(list))
	s := shareOf(list, r.imbalance, r.batch, r.busy)
	for i := range list {
		if s.full(r.busy(list[i].ID), capacity(&list[i], r.batch), uncrowded) {
			continue
		}
		p := ps.of(&list[i])
		matched[i] = r.blocks.matched(&list[i], p)
		score := float64(matched[i])/float64(p.padded()) - float64(r.busy(list[i].ID))/capacity(&list[i], r.batch)
		if len(best) == 0 || score > top {
			best, top = append(best[:0], i), score
		} else if score == top {
			best = append(best, i)
		}
	}
	i := best[r.ties%uint64(len(best))]
	r.ties++
	why := Load
	if matched[i] > 0 {
		why = Cached
	}
	return r.take(list[i], why, ps.of(&list[i]), matched[i]), nil
}

// share divides requests among the places of all instances, so as to bound those of each.
type share struct{ requests, places float64 }

// shareOf is a multiple of the open requests of a list and one more. batch is the places of instances that do not tell theirs.
func shareOf(list []discovery.Instance, imbalance float64, batch int, load func(instance string) int64) share {
	open, places := int64(0), 0.0
	for i := range list {
		open += load(list[i].ID)
		places += capacity(&list[i], batch)
	}
	return share{imbalance * float64(open+1), places}
}

// full reports whether one more is more than the share of an instance with that load and that many places, and more than
// least. The instance with the least load for its places is never full.
func (s share) full(load int64, places float64, least int64) bool {
	return load+1 > least && float64(load+1) > math.Ceil(s.requests*places/s.places) // in this order whole shares are exact
}

// take charges the instance; when the leg ends well its blocks are noted.
func (r *KVAware) take(in discovery.Instance, why Outcome, p *prompt, matched int) Selection {
	sel := r.grant(in, why, 1)
	sel.Matched, sel.Prompt = min(matched, p.tokens), p.tokens
	charge, done := sel.Reservation, *p
	sel.Reservation = &Reservation{release: func(success bool) {
		charge.Release(success)
		if !success {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.blocks.served(&in, &done)
	}}
	return sel
}

// capacity is how many requests an instance runs at once.
func capacity(in *discovery.Instance, batch int) float64 {
	return float64(cmp.Or(in.Info.MaxBatchSize, batch) * max(1, in.Info.ADPSize))
}

// Observe implements Listener.
func (r *KVAware) Observe(instance, incarnation string, events []Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blocks.observe(instance, incarnation, events)
}

// Unobserved implements Listener.
func (r *KVAware) Unobserved(instance, incarnation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.blocks.byID[instance]; h != nil && h.incarnation == incarnation {
		h.live = false
	}
}

// Warnings implements Listener.
func (r *KVAware) Warnings() []discovery.Warning {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blocks.warnings(r.block)
}

// Forget implements Router: a new process has an empty cache.
func (r *KVAware) Forget(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.blocks.byID, instance)
}

// Stats implements Router.
func (r *KVAware) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats()
}
