package router

import (
	"cmp"

	"tandem/serve/discovery"
)

// KVAware takes the instance that has most of the prompt, weighed against its load.
type KVAware struct {
	ledger
	blocks residency
	block  int // configured tokens per block, 0 = as the worker says
	batch  int // max_batch_size of workers that do not tell theirs
	ties   uint64
}

// NewKVAware builds the router from a valid configuration.
func NewKVAware(c Config) *KVAware {
	return &KVAware{
		ledger: newLedger(), blocks: newResidency(c.Backfill == nil || *c.Backfill),
		block: c.TokensPerBlock, batch: cmp.Or(c.MaxBatchSize, DefaultMaxBatchSize),
	}
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
	for i := range list {
		p := ps.of(&list[i])
		matched[i] = r.blocks.matched(&list[i], p)
		score := float64(matched[i])/float64(p.padded()) - float64(r.load[list[i].ID])/capacity(&list[i], r.batch)
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
