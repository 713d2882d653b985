package adprouter

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Kind names a router.
type Kind string

// The routers.
const (
	Default           Kind = "default"            // fewest prompt tokens, longest request first
	KVCacheAware      Kind = "kv_cache_aware"     // cached prefix against load
	ConversationAware Kind = "conversation_aware" // the rank of the conversation's first turn
)

// Placement names how the conversation router places what is not bound.
type Placement string

// The placements. The last two are ours.
const (
	RoundRobin          Placement = "round_robin"
	LeastQueued         Placement = "least_queued"          // ties always go to the lowest rank
	LeastTokens         Placement = "least_tokens"          // gathered prompt tokens
	LeastQueuedRotating Placement = "least_queued_rotating" // least_queued, ties rotate
	LeastWork           Placement = "least_work"            // prefill and decode still to do
)

// Placements lists the valid placements.
func Placements() []Placement {
	return []Placement{RoundRobin, LeastQueued, LeastTokens, LeastQueuedRotating, LeastWork}
}

// StickyCap names what bounds the return of a bound conversation to its rank.
type StickyCap string

// The sticky caps.
const (
	Hard StickyCap = "hard" // max_num_active_requests
	Soft StickyCap = "soft" // the target of the batch
)

// Milli is a number in thousandths: routing is integer arithmetic, so that all
// ranks round alike.
type Milli int64

const (
	maxRanks  = 1024
	maxMilli  = 1_000_000_000 // a million
	maxCap    = 1 << 30
	maxTokens = 1 << 50 // of one rank; keeps the products of a score within 128 bits
)

// MilliOf rounds f to thousandths, halves away from zero. It fails on what is
// not finite or beyond a million.
func MilliOf(f float64) (Milli, error) {
	if math.IsNaN(f) || math.Abs(f) > maxMilli/1000 {
		return 0, fmt.Errorf("%v is not a number between -1000000 and 1000000", f)
	}
	return Milli(math.Round(f * 1000)), nil
}

// Config is what a Router needs to know; it must be equal on all ranks.
type Config struct {
	Kind           Kind
	Ranks          int       // of the instance
	Cap            int       // most active requests of a rank
	Placement      Placement // conversation router
	StickyCap      StickyCap // conversation router
	MaxSessions    int       // conversation router: conversations remembered, below 1 acts as 1
	Multiplier     Milli     // of the fair share, below 1 acts as 1; the default router has 1
	LoadWeight     Milli     // KV router: weight of load against cached tokens
	MatchThreshold Milli     // KV router: part of the prompt that must match more than this
	Warmup         bool      // KV router: give each rank one request first
	DecodeCost     int       // least_work: one request that decodes, in prefill tokens
	Rehome         Rehome    // conversation router
	Compat         bool      // keep the quirks of the default and the KV router that users measured
}

// Defaults returns the configuration of a router of the given size with the
// published default of every key.
func Defaults(ranks, limit int) Config {
	return Config{
		Kind: Default, Ranks: ranks, Cap: limit, Placement: RoundRobin, StickyCap: Hard, MaxSessions: 65536,
		Multiplier: 2000, LoadWeight: 1000, MatchThreshold: 100, DecodeCost: 64, Rehome: DefaultRehome(), Compat: true,
	}
}

// Validate reports the first value that New would refuse, naming its key.
// An unknown placement is no error here: New falls back, and says so.
func (c Config) Validate() error {
	switch {
	case !slices.Contains([]Kind{Default, KVCacheAware, ConversationAware}, c.Kind):
		return fmt.Errorf("router: %q is none of %s, %s, %s", c.Kind, Default, KVCacheAware, ConversationAware)
	case c.Ranks < 1 || c.Ranks > maxRanks:
		return fmt.Errorf("tp_size: %d is not between 1 and %d", c.Ranks, maxRanks)
	case c.Cap < 1 || c.Cap > maxCap:
		return fmt.Errorf("max_num_active_requests: %d is not between 1 and %d", c.Cap, maxCap)
	case c.StickyCap != Hard && c.StickyCap != Soft:
		return fmt.Errorf("sticky_cap: %q is neither %s nor %s", c.StickyCap, Hard, Soft)
	case c.Multiplier > maxMilli:
		return fmt.Errorf("fair_share_multiplier: more than %d", maxMilli/1000)
	case c.LoadWeight < 0 || c.LoadWeight > maxMilli:
		return fmt.Errorf("load_balance_weight: not between 0 and %d", maxMilli/1000)
	case c.MatchThreshold < 0 || c.MatchThreshold > 1000:
		return fmt.Errorf("match_rate_threshold: not between 0 and 1")
	case c.DecodeCost < 0 || c.DecodeCost > 1<<20:
		return fmt.Errorf("decode_cost: %d is not between 0 and %d", c.DecodeCost, 1<<20)
	}
	return c.Rehome.validate()
}

// CheckPlacement fails on an unknown placement.
func CheckPlacement(p Placement) error {
	if slices.Contains(Placements(), p) {
		return nil
	}
	names := make([]string, 0, len(Placements()))
	for _, q := range Placements() {
		names = append(names, string(q))
	}
	return fmt.Errorf("%q is none of %s", p, strings.Join(names, ", "))
}
