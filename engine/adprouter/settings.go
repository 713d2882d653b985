package adprouter

import (
	"errors"
	"fmt"
)

// Settings is the section attention_dp_config of a worker file.
type Settings struct {
	EnableBalance     bool    `mapstructure:"enable_balance"`
	TimeoutIters      int     `mapstructure:"timeout_iters"`
	BatchingWaitIters int     `mapstructure:"batching_wait_iters"`
	KVCacheAware      bool    `mapstructure:"enable_kv_cache_aware_routing"`
	LoadWeight        float64 `mapstructure:"kv_cache_routing_load_balance_weight"`
	MatchThreshold    float64 `mapstructure:"kv_cache_routing_match_rate_threshold"`
	Multiplier        float64 `mapstructure:"kv_cache_routing_fair_share_multiplier"`
	Warmup            bool    `mapstructure:"kv_cache_routing_cold_start_warmup"`
	CountInTransfer   bool    `mapstructure:"kv_cache_routing_account_for_in_transfer"`
	Conversations     bool    `mapstructure:"kv_cache_routing_conversation_affinity"`
	MaxSessions       int     `mapstructure:"kv_cache_routing_max_sessions"`
	Placement         string  `mapstructure:"kv_cache_routing_new_conv_placement"`
	StickyCap         string  `mapstructure:"kv_cache_routing_sticky_cap"`
	Rehome            bool    `mapstructure:"kv_cache_routing_rehome"`
	RehomeMaxMoves    int     `mapstructure:"kv_cache_routing_rehome_max_moves"`
	RehomeGain        float64 `mapstructure:"kv_cache_routing_rehome_gain"`
	RehomeMinGain     int     `mapstructure:"kv_cache_routing_rehome_min_gain"`
	RehomeCopyCost    float64 `mapstructure:"kv_cache_routing_rehome_copy_cost"`
	RehomeCooldown    int     `mapstructure:"kv_cache_routing_rehome_cooldown"`
	Compat            bool    `mapstructure:"compat"`
	AllowPrecedence   bool    `mapstructure:"allow_precedence"` // both kinds of affinity may be on; conversations win
}

// DefaultSettings returns the defaults of all keys.
func DefaultSettings() Settings {
	h := DefaultRehome()
	return Settings{
		TimeoutIters: 50, BatchingWaitIters: 10, LoadWeight: 1, MatchThreshold: 0.1, Multiplier: 2,
		MaxSessions: 65536, Placement: string(RoundRobin), StickyCap: string(Hard), Compat: true,
		Rehome: true, RehomeMaxMoves: h.MaxMoves, RehomeGain: float64(h.Gain) / 1000, RehomeMinGain: h.MinGain,
		RehomeCopyCost: float64(h.CopyCost) / 1000, RehomeCooldown: h.Cooldown,
	}
}

// Validate reports the first wrong key, by its name within the section.
func (s Settings) Validate() error {
	switch {
	case s.TimeoutIters < 0:
		return errors.New("timeout_iters: must be 0 or more")
	case s.BatchingWaitIters < 0:
		return errors.New("batching_wait_iters: must be 0 or more")
	case s.Conversations && s.KVCacheAware && !s.AllowPrecedence:
		return errors.New("kv_cache_routing_conversation_affinity: is on together with enable_kv_cache_aware_routing; " +
			"turn one off, or set allow_precedence and the conversation decides")
	case !between(s.LoadWeight, 0, maxMilli/1000):
		return fmt.Errorf("kv_cache_routing_load_balance_weight: must be between 0 and %d", maxMilli/1000)
	case !between(s.MatchThreshold, 0, 1):
		return errors.New("kv_cache_routing_match_rate_threshold: must be between 0 and 1")
	case !between(s.Multiplier, 1, maxMilli/1000):
		return fmt.Errorf("kv_cache_routing_fair_share_multiplier: must be between 1 and %d", maxMilli/1000)
	case s.MaxSessions < 1:
		return errors.New("kv_cache_routing_max_sessions: must be 1 or more")
	case s.RehomeMaxMoves < 1 || s.RehomeMaxMoves > maxRanks:
		return fmt.Errorf("kv_cache_routing_rehome_max_moves: must be between 1 and %d", maxRanks)
	case !between(s.RehomeGain, 0, 1):
		return errors.New("kv_cache_routing_rehome_gain: must be between 0 and 1")
	case s.RehomeMinGain < 0 || s.RehomeMinGain > maxCap:
		return fmt.Errorf("kv_cache_routing_rehome_min_gain: must be between 0 and %d", maxCap)
	case !between(s.RehomeCopyCost, 0, maxMilli/1000):
		return fmt.Errorf("kv_cache_routing_rehome_copy_cost: must be between 0 and %d", maxMilli/1000)
	case s.RehomeCooldown < 0 || s.RehomeCooldown > maxCap:
		return fmt.Errorf("kv_cache_routing_rehome_cooldown: must be between 0 and %d", maxCap)
	case StickyCap(s.StickyCap) != Hard && StickyCap(s.StickyCap) != Soft:
		return fmt.Errorf("kv_cache_routing_sticky_cap: %q is neither %s nor %s", s.StickyCap, Hard, Soft)
	}
	if err := CheckPlacement(Placement(s.Placement)); err != nil {
		return fmt.Errorf("kv_cache_routing_new_conv_placement: %w", err)
	}
	return nil
}

// between is false for what is not a number.
func between(x, low, high float64) bool { return x >= low && x <= high }

// Router returns the configuration of the router that the settings select, for
// settings that are valid. The KV router needs block reuse; without it the
// default router takes its place, and lost says so.
func (s Settings) Router(ranks, limit int, blockReuse bool) (cfg Config, lost bool) {
	cfg = Defaults(ranks, limit)
	switch {
	case s.Conversations:
		cfg.Kind = ConversationAware
	case s.KVCacheAware && blockReuse:
		cfg.Kind = KVCacheAware
	default:
		lost = s.KVCacheAware
	}
	cfg.Placement, cfg.StickyCap, cfg.MaxSessions = Placement(s.Placement), StickyCap(s.StickyCap), s.MaxSessions
	cfg.Warmup, cfg.Compat = s.Warmup, s.Compat
	cfg.Rehome = Rehome{On: s.Rehome, MaxMoves: s.RehomeMaxMoves, MinGain: s.RehomeMinGain, Cooldown: s.RehomeCooldown}
	for _, f := range []struct {
		to   *Milli
		from float64
	}{
		{&cfg.LoadWeight, s.LoadWeight},
		{&cfg.MatchThreshold, s.MatchThreshold},
		{&cfg.Multiplier, s.Multiplier},
		{&cfg.Rehome.Gain, s.RehomeGain},
		{&cfg.Rehome.CopyCost, s.RehomeCopyCost},
	} {
		*f.to, _ = MilliOf(f.from) // Validate has bounded it
	}
	return cfg, lost
}

// NewBalance returns the balancer that the settings ask for, or nil.
func (s Settings) NewBalance(maxBatch int) *Balance {
	if !s.EnableBalance {
		return nil
	}
	return &Balance{TimeoutIters: s.TimeoutIters, BatchingWaitIters: s.BatchingWaitIters, MaxBatch: maxBatch}
}
