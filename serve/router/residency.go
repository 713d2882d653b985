package router

import (
	"fmt"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"tandem/serve/discovery"
)

// EventKind says what an Event tells.
type EventKind string

// The kinds of events. Others are no evidence for prefixes and are only counted.
const (
	EventCreated EventKind = "created" // the rank's whole index follows
	EventStored  EventKind = "stored"
	EventRemoved EventKind = "removed"
	EventCleared EventKind = "cleared"
)

// Event is one change of what a rank of an instance can reuse.
type Event struct {
	ID     uint64 // of the rank, without holes
	Rank   int
	Gap    bool // events before it were lost
	Kind   EventKind
	Blocks []uint64 // wire ids
}

// Listener is a Router that goes by what instances can reuse.
type Listener interface {
	Router
	// Observe applies events of one process of an instance, in order. False: events are missing or make no sense; the
	// rank's index is forgotten, and the caller begins anew with created.
	Observe(instance, incarnation string, events []Event) bool
	// Unobserved says that no events of the process come any more, so that only guesses remain.
	Unobserved(instance, incarnation string)
	// Warnings tells what keeps the router from going by residency.
	Warnings() []discovery.Warning
}

// Codes of warnings.
const (
	WarnEventsMissing = "W_KV_EVENTS_MISSING"
	WarnBlockSize     = "W_BLOCK_SIZE_MISMATCH"
)

const (
	maxRanks       = 1024
	maxBlocks      = 1 << 22 // of one rank; beyond it something is wrong
	maxGuesses     = 1 << 16 // blocks remembered of an instance that sends no events
	servedInSilent = 20      // requests after which an instance without events is suspect
)

// residency is what is known of the blocks that instances can reuse: exactly, by events, or by guess, from the prompts that
// they served. The router's lock is held.
type residency struct {
	backfill bool // guess
	byID     map[string]*holdings
}

// holdings are the blocks of one process.
type holdings struct {
	incarnation string
	live        bool // events come
	ranks       []rankBlocks
	guesses     *simplelru.LRU[uint64, struct{}] // nil = none yet
	served      int                              // legs that ended well and had a block to store
	stored      uint64                           // stored events
	block       int                              // tokens per block as the worker last told
}

// rankBlocks is the index of one rank.
type rankBlocks struct {
	has  map[uint64]struct{} // nil = not known
	next uint64              // id of the next event
}

func newResidency(backfill bool) residency {
	return residency{backfill: backfill, byID: map[string]*holdings{}}
}

// of returns what is known of the process that an instance was when it was listed, nil if nothing is.
func (r *residency) of(in *discovery.Instance) *holdings {
	if h := r.byID[in.ID]; h != nil && h.incarnation == in.Info.Incarnation {
		return h
	}
	return nil
}

// observe applies events. Those of a new process at the same address replace what was known.
func (r *residency) observe(instance, incarnation string, events []Event) bool {
	h := r.byID[instance]
	if h == nil || h.incarnation != incarnation {
		h = &holdings{incarnation: incarnation}
		r.byID[instance] = h
	}
	for i := range events {
		if !h.apply(&events[i]) {
			return false
		}
	}
	return true
}

func (h *holdings) apply(ev *Event) bool {
	if ev.Rank < 0 || ev.Rank >= maxRanks {
		return false
	}
	for len(h.ranks) <= ev.Rank {
		h.ranks = append(h.ranks, rankBlocks{})
	}
	rank := &h.ranks[ev.Rank]
	if ev.Kind == EventCreated {
		rank.has, rank.next, h.live = map[uint64]struct{}{}, ev.ID+1, true
		return true
	}
	if rank.has == nil || ev.Gap || ev.ID != rank.next || len(rank.has) > maxBlocks {
		*rank = rankBlocks{}
		return false
	}
	rank.next++
	switch ev.Kind {
	case EventStored:
		h.stored++
		for _, id := range ev.Blocks {
			rank.has[id] = struct{}{}
		}
	case EventRemoved:
		for _, id := range ev.Blocks {
			delete(rank.has, id)
		}
	case EventCleared:
		clear(rank.has)
	}
	return true
}

// matched returns how many units of the prompt an instance has from the beginning on: on its best rank, for a request runs
// on one rank.
func (r *residency) matched(in *discovery.Instance, p *prompt) int {
	h := r.of(in)
	if h == nil {
		return 0
	}
	best := 0
	for i := range h.ranks {
		if has := h.ranks[i].has; has != nil && !p.guess {
			best = max(best, leading(p.ids, func(id uint64) bool { _, ok := has[id]; return ok }))
		}
	}
	if h.guesses != nil && (p.guess || !h.live) {
		best = max(best, leading(p.ids, h.guesses.Contains))
	}
	return best * p.block
}

func leading(ids []uint64, has func(uint64) bool) (n int) {
	for n < len(ids) && has(ids[n]) {
		n++
	}
	return n
}

// served notes that an instance computed a prompt. Where events tell of its blocks there is nothing to guess.
func (r *residency) served(in *discovery.Instance, p *prompt) {
	h := r.of(in)
	if h == nil {
		if r.byID[in.ID] != nil {
			return // a newer process is known there
		}
		h = &holdings{incarnation: in.Info.Incarnation}
		r.byID[in.ID] = h
	}
	h.block = in.Info.TokensPerBlock
	if len(p.ids) > 0 {
		h.served++
	}
	if !r.backfill || h.live && !p.guess {
		return
	}
	if h.guesses == nil {
		lru, err := simplelru.NewLRU[uint64, struct{}](maxGuesses, nil)
		if err != nil {
			panic(fmt.Sprintf("router: a table of %d guesses: %v", maxGuesses, err))
		}
		h.guesses = lru
	}
	for _, id := range slices.Backward(p.ids) { // beginnings go last
		h.guesses.Add(id, struct{}{})
	}
}

// warnings lists instances that say too little, in order of their ids.
func (r *residency) warnings(block int) (out []discovery.Warning) {
	for _, id := range sortedKeys(r.byID) {
		h := r.byID[id]
		if h.served >= servedInSilent && h.stored == 0 {
			out = append(out, discovery.Warning{Code: WarnEventsMissing, Message: fmt.Sprintf(
				"worker %s served %d requests and told of no block: its cache is only guessed; see kv_cache_config.event_buffer_max_size and enable_block_reuse", id, h.served)})
		}
		if block > 0 && h.block > 0 && block != h.block {
			out = append(out, discovery.Warning{Code: WarnBlockSize, Message: fmt.Sprintf(
				"worker %s has blocks of %d tokens, router.tokens_per_block is %d: the worker's size holds", id, h.block, block)})
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
