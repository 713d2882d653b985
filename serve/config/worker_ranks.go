package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"tandem/engine/adprouter"
)

// MaxRanks is the most ranks of one instance.
const MaxRanks = 64

// AttentionDP is attention_dp_config.
type AttentionDP struct {
	adprouter.Settings `mapstructure:",squash"`

	DenseMLP string `mapstructure:"dense_mlp"` // DenseLocal or DenseSplit
}

// Where the dense MLPs of a model with attention DP are computed.
const (
	DenseLocal = "local" // each rank computes those of its own rows, with all weights
	DenseSplit = "split" // each rank keeps a share of the weights and computes it for all rows
)

// defaultHangTimeout is hang_timeout_sec.
const defaultHangTimeout = 30

func defaultAttentionDP() AttentionDP {
	return AttentionDP{Settings: adprouter.DefaultSettings(), DenseMLP: DenseLocal}
}

// ADP tells whether requests are placed on ranks.
func (w Worker) ADP() bool { return w.EnableAttentionDP && w.TensorParallelSize > 1 }

// HangTimeout is hang_timeout_sec, 0 = never.
func (w Worker) HangTimeout() time.Duration { return seconds(w.HangTimeoutSec) }

// Stall is stall_threshold_sec.
func (w Worker) Stall() time.Duration { return seconds(w.StallThreshold) }

func (w Worker) validateRanks() error {
	n := w.TensorParallelSize
	switch ep := w.MoeExpertParallelSize; {
	case n < 1 || n > MaxRanks:
		return fmt.Errorf("tensor_parallel_size: %d is outside 1..%d", n, MaxRanks)
	case ep != 1 && ep != n:
		return fmt.Errorf("moe_expert_parallel_size: %d must be tensor_parallel_size (%d), or be left out: experts spread over all ranks or none", ep, n)
	case w.HangTimeoutSec < 0:
		return fmt.Errorf("hang_timeout_sec: %g must not be negative; 0 is off", w.HangTimeoutSec)
	case w.AttentionDP.DenseMLP != DenseLocal && w.AttentionDP.DenseMLP != DenseSplit:
		return fmt.Errorf("attention_dp_config.dense_mlp: %q is not one of %s, %s", w.AttentionDP.DenseMLP, DenseLocal, DenseSplit)
	}
	if err := w.AttentionDP.Validate(); err != nil {
		return fmt.Errorf("attention_dp_config.%w", err)
	}
	return nil
}

// rankWarnings names settings that do nothing. named tells that the file has a
// section attention_dp_config.
func (w Worker) rankWarnings(named bool) []string {
	if off := w.DisableOverlap; off != nil && !*off && w.TensorParallelSize > 1 {
		return append(w.attentionWarnings(named), "disable_overlap_scheduler: false has no effect with tensor_parallel_size above 1: steps of several ranks run in turn")
	}
	return w.attentionWarnings(named)
}

func (w Worker) attentionWarnings(named bool) []string {
	a := w.AttentionDP
	switch {
	case w.EnableAttentionDP && w.TensorParallelSize == 1:
		return []string{"enable_attention_dp has no effect with tensor_parallel_size 1"}
	case !w.EnableAttentionDP && (named || a != defaultAttentionDP()):
		return []string{"attention_dp_config has no effect without enable_attention_dp"}
	case !w.EnableAttentionDP:
		return nil
	}
	return a.inert()
}

// inert names settings of a router or balancer that is off.
func (a AttentionDP) inert() (warnings []string) {
	d := defaultAttentionDP()
	for _, s := range []struct {
		key, needs string
		set, works bool
	}{
		{"kv_cache_routing_new_conv_placement", "kv_cache_routing_conversation_affinity", a.Placement != d.Placement, a.Conversations},
		{"kv_cache_routing_sticky_cap", "kv_cache_routing_conversation_affinity", a.StickyCap != d.StickyCap, a.Conversations},
		{"kv_cache_routing_max_sessions", "kv_cache_routing_conversation_affinity", a.MaxSessions != d.MaxSessions, a.Conversations},
		{"kv_cache_routing_load_balance_weight", "enable_kv_cache_aware_routing", a.LoadWeight != d.LoadWeight, a.KVCacheAware},
		{"kv_cache_routing_match_rate_threshold", "enable_kv_cache_aware_routing", a.MatchThreshold != d.MatchThreshold, a.KVCacheAware},
		{"kv_cache_routing_cold_start_warmup", "enable_kv_cache_aware_routing", a.Warmup != d.Warmup, a.KVCacheAware},
		{"timeout_iters", "enable_balance", a.TimeoutIters != d.TimeoutIters, a.EnableBalance},
		{"batching_wait_iters", "enable_balance", a.BatchingWaitIters != d.BatchingWaitIters, a.EnableBalance},
	} {
		if s.set && !s.works {
			warnings = append(warnings, fmt.Sprintf("attention_dp_config.%s has no effect without attention_dp_config.%s", s.key, s.needs))
		}
	}
	return warnings
}

// RankGroup says which ranks of an instance that spreads over processes are in
// this one.
type RankGroup struct {
	Addr        string // where rank 0's process listens, host:port
	First, Last int    // ranks of this process, both included
}

// Leads tells whether rank 0, and with it the HTTP face, is in this process.
func (g *RankGroup) Leads() bool { return g == nil || g.First == 0 }

// String names the ranks, "2-3".
func (g *RankGroup) String() string {
	if g.First == g.Last {
		return strconv.Itoa(g.First)
	}
	return fmt.Sprintf("%d-%d", g.First, g.Last)
}

// Group reads the flags --rank-group and --ranks; nil when neither is given.
// Errors name the flag and what works.
func (w Worker) Group(addr, ranks string) (*RankGroup, error) {
	switch {
	case addr == "" && ranks == "":
		return nil, nil
	case ranks == "":
		return nil, errors.New("--rank-group needs --ranks A-B, the ranks of this process")
	case addr == "":
		return nil, errors.New("--ranks needs --rank-group HOST:PORT, where the process of rank 0 listens for the others")
	case w.TensorParallelSize == 1:
		return nil, errors.New("--rank-group needs a tensor_parallel_size above 1, which is the number of ranks")
	case w.Transceiver != nil && !w.EnableAttentionDP:
		return nil, errors.New("--rank-group: a worker that hands KV blocks over spreads over processes only with enable_attention_dp: " +
			"set it, keep all ranks in one process, or serve whole requests with --role mixed and no cache_transceiver_config")
	}
	g := &RankGroup{Addr: addr}
	if err := g.parse(ranks, w.TensorParallelSize); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 1 || n > 65535 {
		return nil, fmt.Errorf("--rank-group %q must be HOST:PORT, the same in all processes of the instance", addr)
	}
	if host == "" && !g.Leads() {
		return nil, fmt.Errorf("--rank-group %q names no host: this process has to know where the one of rank 0 is", addr)
	}
	return g, nil
}

func (g *RankGroup) parse(ranks string, size int) error {
	bad := fmt.Errorf("--ranks %q must be A-B, or one rank, from 0 to %d (tensor_parallel_size is %d)", ranks, size-1, size)
	first, last, isRange := strings.Cut(ranks, "-")
	if !isRange {
		last = first
	}
	for i, to := range []*int{&g.First, &g.Last} {
		text := strings.TrimSpace([]string{first, last}[i])
		n, err := strconv.Atoi(text)
		if err != nil || strings.HasPrefix(text, "+") || n < 0 || n >= size {
			return bad
		}
		*to = n
	}
	switch {
	case g.First > g.Last:
		return bad
	case g.First == 0 && g.Last == size-1:
		return fmt.Errorf("--ranks %s are all ranks: leave --rank-group and --ranks out, one process needs no group", ranks)
	}
	return nil
}
