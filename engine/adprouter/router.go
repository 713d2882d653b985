package adprouter

import (
	"slices"

	"tandem/engine/request"
)

// Placed is one request's place.
type Placed struct {
	Index  int // in the batch given to Route
	ID     request.ID
	Rank   int
	Reason Reason
	From   int // Moved: the rank with the conversation's blocks, else -1
	Work   int // Moved: prompt tokens to compute once the blocks are there, as far as is known
}

// Result is the answer of Route. It belongs to the router and is valid until
// the next call.
type Result struct {
	// Target is the per-rank number of active requests that the router aimed
	// at: a figure of load, no bound that anything may rely on.
	Target int
	// Placed lists requests in the order of placement, which is also the
	// order in which a rank queues its own.
	Placed []Placed
	// Unplaced lists the requests that no rank has room for, as ascending
	// positions in the batch. They go back to the head of the queue.
	Unplaced []int
	// Active is every rank's number of active requests afterwards.
	Active []int
}

// Router places batches of admitted requests. One goroutine owns it.
type Router struct {
	cfg      Config
	fallback bool
	bind     *bindings
	cursor   int // where the rotating placements go on
	warm     warmup
	recent   []int64 // [rank] work placed lately, decays with every call
	queue    []int64 // [rank] prefill that should wait: what was gathered, and placed since
	done     []int64 // [rank] prefill computed since the start, as the queues tell
	assigned uint64  // digest of the last assignment
	counts   [NumReasons]uint64

	// Scratch of one call.
	active      []int   // [rank] requests, including those placed in this call
	tokens      []int64 // [rank] token load
	work        []int64 // [rank] prefill tokens and decode cost, including those placed in this call
	order, rest []int   // positions in the batch
	target      int
	floor       int64 // least work of a rank before this call
	started     int   // moves of this call
	res         Result
}

// New returns a router, or an error that names the key to blame. An unknown
// placement becomes round_robin, and FellBack reports it.
func New(cfg Config) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Router{cfg: cfg, bind: newBindings(cfg.MaxSessions, cfg.Ranks)}
	if CheckPlacement(cfg.Placement) != nil {
		r.cfg.Placement, r.fallback = RoundRobin, true
	}
	r.cfg.Multiplier = max(cfg.Multiplier, 1000)
	if cfg.Kind == Default {
		r.cfg.Multiplier = 1000
	}
	r.recent, r.queue, r.done = make([]int64, cfg.Ranks), make([]int64, cfg.Ranks), make([]int64, cfg.Ranks)
	r.active, r.tokens, r.work = make([]int, cfg.Ranks), make([]int64, cfg.Ranks), make([]int64, cfg.Ranks)
	r.warm.init(cfg.Ranks, cfg.Kind == KVCacheAware && cfg.Warmup)
	return r, nil
}

// FellBack reports whether New replaced an unknown placement.
func (r *Router) FellBack() bool { return r.fallback }

// Config returns the configuration in force.
func (r *Router) Config() Config { return r.cfg }

// Route places a batch, in arrival order, over ranks with the gathered states.
// It must be called in every iteration, also with an empty batch, since recent
// work decays with the calls. Every request of the batch is either placed once
// or unplaced; no rank is filled beyond the cap. Route panics if the number of
// states is not that of the ranks.
func (r *Router) Route(states []RankState, batch []Item) *Result {
	r.begin(states, batch)
	r.bind.next()
	switch r.cfg.Kind {
	case KVCacheAware:
		r.routeKV(batch)
	case ConversationAware:
		r.routeConversation(batch)
	default:
		r.routeDefault(batch)
	}
	r.end()
	r.verify(states, batch)
	return &r.res
}

func (r *Router) begin(states []RankState, batch []Item) {
	if len(states) != r.cfg.Ranks {
		panic("adprouter: states of another number of ranks")
	}
	for i, s := range states {
		r.active[i], r.tokens[i] = s.Active, s.Tokens
		r.done[i] += max(r.queue[i]-s.QueuedPrefill, 0)
		r.queue[i] = s.QueuedPrefill
		r.work[i] = s.QueuedPrefill + int64(s.Decoding)*int64(r.cfg.DecodeCost)
		r.recent[i] -= (r.recent[i] + recentSpan - 1) / recentSpan
	}
	r.floor, r.started = slices.Min(r.work), 0
	r.res.Placed, r.res.Unplaced = r.res.Placed[:0], r.res.Unplaced[:0]
	r.order, r.rest = r.order[:0], r.rest[:0]
	for i := range batch {
		if batch[i].strict() {
			r.order = append(r.order, i)
		}
	}
	for i := range batch {
		if !batch[i].strict() {
			r.order = append(r.order, i)
		}
	}
}

// end fixes the target and the digest of the assignment. The target must cover
// what was placed; beyond the cap only the conversation router admits to more.
func (r *Router) end() {
	most := slices.Max(r.active)
	if r.cfg.Kind != ConversationAware {
		most = min(most, r.cfg.Cap)
	}
	r.res.Target = max(r.target, most)
	r.res.Active = r.active
	slices.Sort(r.res.Unplaced)
	d := uint64(r.res.Target)
	for _, p := range r.res.Placed {
		d = mix(mix(d^uint64(p.ID)) ^ uint64(p.Rank) ^ uint64(p.From+1)<<32)
	}
	r.assigned = d
}

// fits reports whether rank has room for the request.
func (r *Router) fits(it *Item, rank int) bool { return r.active[rank]+it.weight() <= r.cfg.Cap }

func (r *Router) place(batch []Item, i, rank int, reason Reason) {
	it := &batch[i]
	r.active[rank] += it.weight()
	r.counts[reason]++
	r.res.Placed = append(r.res.Placed, Placed{Index: i, ID: it.ID, Rank: rank, Reason: reason, From: -1})
}

// placeExplicit obeys the request's rank if it has one with room.
func (r *Router) placeExplicit(batch []Item, i int) bool {
	it := &batch[i]
	if it.Rank < 0 || it.Rank >= r.cfg.Ranks || !r.fits(it, it.Rank) {
		return false
	}
	r.place(batch, i, it.Rank, Explicit)
	return true
}

// setTarget computes the target after explicit placement: the fair share of all
// requests, rest included, times the multiplier; not below the fullest rank, and
// last of all not above the cap.
func (r *Router) setTarget(batch []Item) {
	total := 0
	for _, a := range r.active {
		total += a
	}
	for _, i := range r.rest {
		total += batch[i].weight()
	}
	fair := (total + r.cfg.Ranks - 1) / r.cfg.Ranks
	soft := (fair*int(r.cfg.Multiplier) + 999) / 1000
	r.target = min(max(soft, slices.Max(r.active)), r.cfg.Cap)
}

// pick returns the rank with the least key among those below the target that
// have room for the request, -1 if there is none. Of equal ranks the lowest wins.
// There is no need to look at ranks that have reached the target: it is not below
// the fair share, so that all ranks reach it only when it is the cap, and a rank
// that holds more has no more room.
func (r *Router) pick(it *Item, key func(rank int) (a, b, c int64)) int {
	best := -1
	var bestA, bestB, bestC int64
	for rank := range r.active {
		if !r.open(it, rank) {
			continue
		}
		a, b, c := key(rank)
		if best < 0 || a < bestA || a == bestA && (b < bestB || b == bestB && c < bestC) {
			best, bestA, bestB, bestC = rank, a, b, c
		}
	}
	return best
}

// open reports whether rank is below the target and has room for the request.
func (r *Router) open(it *Item, rank int) bool { return r.active[rank] < r.target && r.fits(it, rank) }

// Cursor returns where the rotating placements go on.
func (r *Router) Cursor() int { return r.cursor }

// Pending returns the ranks that warm-up has not reached, ascending.
func (r *Router) Pending() []int {
	out := []int{}
	for rank, p := range r.warm.pending {
		if p {
			out = append(out, rank)
		}
	}
	return out
}

// Len returns the number of bound conversations.
func (r *Router) Len() int { return r.bind.lru.Len() }

// Evicted returns how many bindings the bound on their number has dropped.
func (r *Router) Evicted() uint64 { return r.bind.evicted }

// Home returns the rank that a conversation is bound to.
func (r *Router) Home(key string) (rank int, ok bool) {
	if e := r.bind.peek(key); e != nil {
		return e.rank, true
	}
	return 0, false
}

// Keys returns the bound conversations, least recently used first.
func (r *Router) Keys() []string { return r.bind.lru.Keys() }

// Counts returns how many requests were placed for each Reason since the start.
func (r *Router) Counts() [NumReasons]uint64 { return r.counts }
