package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"tandem/serve/discovery"
)

// ErrNoServers says that no candidate is left for a leg; the client gets 503.
var ErrNoServers = errors.New("no routable worker")

// Outcome says why an instance was chosen; a closed set, used as a metric label.
type Outcome string

// The outcomes.
const (
	Sticky   Outcome = "sticky"   // the conversation's instance
	Implicit Outcome = "implicit" // the instance of a conversation with the same prefix
	New      Outcome = "new"      // first placement
	Fallback Outcome = "fallback" // the conversation's instance is dead or excluded
	Load     Outcome = "load"     // least loaded, or next in turn
	Cached   Outcome = "cache"    // has a beginning of the prompt
	Overflow Outcome = "overflow" // not the conversation's instance, which has its full share
)

// Request is what placement may look at.
type Request struct {
	RoutingID      string  // affinity key or conversation id, "" = none
	ConversationID string  // the request's own id, "" = none
	Tokens         []int32 // prompt token ids when the client sent ids, or the frontend knows them
	Learned        bool    // the client did not send Tokens, so Text is there too
	Text           string  // prompt text, or role:content lines of a chat, when it did not
	Salt           string  // cache_salt of the request, part of its block ids
	MaxTokens      int     // output budget; counted by token loads on gen legs
	Generation     bool    // a gen leg

	// Candidates lists the routable instances in configuration order. It is called under the router's lock, after all
	// hashing, and must not call back into the router.
	Candidates func() []discovery.Instance
	Exclude    []string // instance ids that must not be chosen
}

func (r *Request) excluded(id string) bool { return slices.Contains(r.Exclude, id) }

// usable lists the candidates that are not excluded. The router's lock is held.
func (r *Request) usable() []discovery.Instance {
	all := r.Candidates()
	out := make([]discovery.Instance, 0, len(all))
	for _, in := range all {
		if !r.excluded(in.ID) {
			out = append(out, in)
		}
	}
	return out
}

// Selection is a router's answer.
type Selection struct {
	Instance    discovery.Instance
	Outcome     Outcome
	Matched     int  // tokens of the prompt that the instance is thought to have; code points without token ids
	Prompt      int  // length of the prompt in the same units, 0 = the router did not look
	Rank        *int // ADP rank of the instance that the request should go to, nil = the worker decides
	Reservation *Reservation
}

// Router places legs of one role.
type Router interface {
	// Kind is the name of the router in configuration.
	Kind() string
	// Select chooses an instance and charges it. ErrNoServers when no candidate is left.
	Select(Request) (Selection, error)
	// Forget drops what is known of an instance that left the cluster.
	Forget(instance string)
	// Stats is a snapshot for metrics.
	Stats() Stats
}

// Reporter is a router that weighs what workers say of their load.
type Reporter interface {
	// Report takes the number of requests that an instance has.
	Report(instance string, requests int)
}

// Stats counts a router's state and decisions.
type Stats struct {
	Open      int // reservations not released yet
	Sessions  int // conversations remembered
	Decisions map[Outcome]uint64
}

// Reservation charges one leg to an instance until it is released.
type Reservation struct {
	released atomic.Bool
	release  func(success bool)
}

// Release ends the charge; only the first call counts. A nil reservation may be released.
func (r *Reservation) Release(success bool) {
	if r != nil && r.released.CompareAndSwap(false, true) {
		r.release(success)
	}
}

// Around returns a reservation whose release is done by do, which must call release. r is not to be used any more.
func (r *Reservation) Around(do func(release func(), success bool)) *Reservation {
	return &Reservation{release: func(success bool) { do(func() { r.Release(success) }, success) }}
}

// ledger is the accounting every router has. Its mutex is the router's lock.
type ledger struct {
	mu        sync.Mutex
	open      int
	load      map[string]int64 // instance to charged weight
	decisions map[Outcome]uint64
}

func newLedger() ledger {
	return ledger{load: map[string]int64{}, decisions: map[Outcome]uint64{}}
}

// busy is the weight that is charged to an instance. The lock is held.
func (l *ledger) busy(instance string) int64 { return l.load[instance] }

// grant charges weight to the chosen instance. The lock is held.
func (l *ledger) grant(in discovery.Instance, why Outcome, weight int64) Selection {
	l.open++
	l.load[in.ID] += weight
	l.decisions[why]++
	id := in.ID
	return Selection{Instance: in, Outcome: why, Reservation: &Reservation{release: func(bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		if l.load[id] = max(0, l.load[id]-weight); l.load[id] == 0 {
			delete(l.load, id)
		}
	}}}
}

func (l *ledger) stats() Stats {
	st := Stats{Open: l.open, Decisions: make(map[Outcome]uint64, len(l.decisions))}
	for k, v := range l.decisions {
		st.Decisions[k] = v
	}
	return st
}

// Config is the router block of a server section. Zero values mean the defaults of DefaultConfig.
type Config struct {
	Type            string   `mapstructure:"type"`
	UseTokens       bool     `mapstructure:"use_tokens"`                      // load_balancing
	MatchThreshold  *float64 `mapstructure:"match_threshold"`                 // conversation
	TokensPerBlock  int      `mapstructure:"tokens_per_block"`                // all but round_robin and load_balancing
	HashSkipCount   int      `mapstructure:"hash_skip_count"`                 // conversation
	MaxSessions     int      `mapstructure:"max_sessions"`                    // conversation, hybrid
	MatchBasis      string   `mapstructure:"match_basis"`                     // conversation: request or session
	UseTokenIDs     bool     `mapstructure:"use_token_ids"`                   // conversation
	MaxBatchSize    int      `mapstructure:"max_batch_size"`                  // kv_cache_aware, hybrid, consistent_hash
	Backfill        *bool    `mapstructure:"backfill_block_hashes_on_finish"` // kv_cache_aware, hybrid
	CustomTokenizer string   `mapstructure:"custom_tokenizer"`                // conversation with use_token_ids, kv_cache_aware, hybrid
	MaxImbalance    *float64 `mapstructure:"max_imbalance"`                   // kv_cache_aware, hybrid, consistent_hash
	AffinityWeight  *float64 `mapstructure:"affinity_weight"`                 // hybrid
}

// The kinds of routers and the defaults of their arguments.
const (
	KindRoundRobin   = "round_robin"
	KindLoad         = "load_balancing"
	KindConversation = "conversation"
	KindKVAware      = "kv_cache_aware"
	KindHybrid       = "hybrid"
	KindConsistent   = "consistent_hash"

	DefaultMatchThreshold = 0.75
	DefaultTokensPerBlock = 128
	DefaultMaxSessions    = 100000
	BasisRequest          = "request"
	BasisSession          = "session"

	DefaultKVBlock        = 32 // tokens per block of workers that do not tell theirs
	DefaultMaxBatchSize   = 64 // of workers that do not tell theirs
	DefaultMaxImbalance   = 1.5
	DefaultAffinityWeight = 1.0
)

// KeepsConversations tells whether routers of a kind go by Request.RoutingID.
func KeepsConversations(kind string) bool {
	return kind == KindConversation || kind == KindHybrid || kind == KindConsistent
}

// Kinds lists the supported router types.
func Kinds() []string {
	return []string{KindRoundRobin, KindLoad, KindConversation, KindKVAware, KindHybrid, KindConsistent}
}

// NeedsTokens tells whether the router goes by token ids, where the frontend can make them.
func (c Config) NeedsTokens() bool {
	return c.Type == KindKVAware || c.Type == KindHybrid || c.Type == KindConversation && c.UseTokenIDs
}

// Validate checks the block; errors name the key below "router".
func (c Config) Validate() error {
	if c.Type != "" && !slices.Contains(Kinds(), c.Type) {
		return fmt.Errorf("type: unknown router %q; supported: %s", c.Type, strings.Join(Kinds(), ", "))
	}
	if err := c.checkOwner(); err != nil {
		return err
	}
	switch {
	case c.MatchThreshold != nil && !(*c.MatchThreshold > 0 && *c.MatchThreshold <= 1):
		return fmt.Errorf("match_threshold: %v is outside (0, 1]", *c.MatchThreshold)
	case c.TokensPerBlock < 0 || c.TokensPerBlock > 1<<16:
		return fmt.Errorf("tokens_per_block: %d is outside 1..65536", c.TokensPerBlock)
	case c.HashSkipCount < 0:
		return fmt.Errorf("hash_skip_count: %d is negative", c.HashSkipCount)
	case c.MaxSessions < 0:
		return fmt.Errorf("max_sessions: %d is negative", c.MaxSessions)
	case c.MatchBasis != "" && c.MatchBasis != BasisRequest && c.MatchBasis != BasisSession:
		return fmt.Errorf("match_basis: %q is neither %s nor %s", c.MatchBasis, BasisRequest, BasisSession)
	case c.MaxBatchSize < 0:
		return fmt.Errorf("max_batch_size: %d is negative", c.MaxBatchSize)
	case c.MaxImbalance != nil && !(*c.MaxImbalance >= 1 && *c.MaxImbalance <= 1000):
		return fmt.Errorf("max_imbalance: %v is outside 1..1000", *c.MaxImbalance)
	case c.AffinityWeight != nil && !(*c.AffinityWeight >= 0 && *c.AffinityWeight <= 1000):
		return fmt.Errorf("affinity_weight: %v is outside 0..1000", *c.AffinityWeight)
	}
	return nil
}

// checkOwner refuses an argument that the chosen type would ignore.
func (c Config) checkOwner() error {
	conv, kv := []string{KindConversation}, []string{KindKVAware, KindHybrid}
	for _, arg := range []struct {
		name   string
		given  bool
		owners []string
	}{
		{"use_tokens", c.UseTokens, []string{KindLoad}},
		{"match_threshold", c.MatchThreshold != nil, conv},
		{"hash_skip_count", c.HashSkipCount != 0, conv},
		{"match_basis", c.MatchBasis != "", conv},
		{"use_token_ids", c.UseTokenIDs, conv},
		{"tokens_per_block", c.TokensPerBlock != 0, append(kv, KindConversation, KindConsistent)},
		{"max_sessions", c.MaxSessions != 0, []string{KindConversation, KindHybrid}},
		{"max_batch_size", c.MaxBatchSize != 0, append(kv, KindConsistent)},
		{"backfill_block_hashes_on_finish", c.Backfill != nil, kv},
		{"custom_tokenizer", c.CustomTokenizer != "", append(kv, conv...)},
		{"max_imbalance", c.MaxImbalance != nil, append(kv, KindConsistent)},
		{"affinity_weight", c.AffinityWeight != nil, []string{KindHybrid}},
	} {
		if arg.given && !slices.Contains(arg.owners, c.kind()) {
			return fmt.Errorf("%s: belongs to type %s, not %q", arg.name, strings.Join(arg.owners, " or "), c.kind())
		}
	}
	if c.CustomTokenizer != "" && !c.NeedsTokens() {
		return errors.New("custom_tokenizer: type conversation uses it only with use_token_ids")
	}
	return nil
}

func (c Config) kind() string {
	if c.Type == "" {
		return KindRoundRobin
	}
	return c.Type
}

// NewRouter builds the router that a valid configuration names.
func NewRouter(c Config) (Router, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	switch c.kind() {
	case KindLoad:
		return NewLoadBalancing(c.UseTokens), nil
	case KindConversation:
		return NewConversation(c), nil
	case KindKVAware:
		return NewKVAware(c), nil
	case KindHybrid:
		return NewHybrid(c), nil
	case KindConsistent:
		return NewConsistent(c), nil
	}
	return NewRoundRobin(), nil
}
