package model

import "fmt"

// Parallel says which part of a model a rank holds. The zero value is all of it.
type Parallel struct {
	Rank, Size int // 0 or 1: the rank is alone
	// AttentionDP gives each rank attention weights for its own requests and its
	// share of the experts; without it heads, MLP, experts and vocabulary are split.
	AttentionDP bool
	// SplitMLP, with AttentionDP, splits dense MLPs over the ranks too, which then
	// see the rows of all; else each rank has them whole and for its own rows.
	SplitMLP bool
}

func (p Parallel) alone() bool { return p.Size <= 1 }

// tensor reports whether all weights but the embedding table are split.
func (p Parallel) tensor() bool { return !p.alone() && !p.AttentionDP }

func (p Parallel) attentionDP() bool { return !p.alone() && p.AttentionDP }

// gathersMLP reports whether dense MLPs are split and see the rows of all ranks.
func (p Parallel) gathersMLP() bool { return p.attentionDP() && p.SplitMLP }

// Check reports why a model cannot be divided like this. Errors name the
// configuration key.
func (p Parallel) Check(c *Config) error {
	if p.Size < 0 || p.Rank < 0 || p.Rank >= max(p.Size, 1) {
		return fmt.Errorf("rank %d is not among the %d of tensor_parallel_size", p.Rank, p.Size)
	}
	if p.alone() {
		return nil
	}
	if p.gathersMLP() && c.Arch == archGemma3 {
		return fmt.Errorf("attention_dp_config.dense_mlp: split is not supported for %s", c.Arch)
	}
	if n := c.MoE.Experts; n > 0 && p.Size > n {
		return fmt.Errorf("moe_expert_parallel_size is %d (by default tensor_parallel_size), the model has only %d experts: use at most %d ranks", p.Size, n, n)
	}
	if p.tensor() && p.Size > c.Heads {
		return fmt.Errorf("tensor_parallel_size is %d, the model has only %d attention heads over %d key/value heads: use at most %d ranks, or enable_attention_dp",
			p.Size, c.Heads, c.KVHeads, c.Heads)
	}
	if !p.tensor() && !p.gathersMLP() {
		return nil
	}
	if n := min(c.Hidden, c.Inter, c.Vocab); p.Size > n {
		return fmt.Errorf("tensor_parallel_size is %d, the model has a weight of only %d rows", p.Size, n)
	}
	return nil
}

// KVHeads returns which key and value heads the rank caches: n from first on.
// With attention data parallelism these are all, for the rank's own requests.
// Ranks in excess of the heads share one: the cache has it on each of them.
func (p Parallel) KVHeads(c *Config) (first, n int) {
	if !p.tensor() {
		return 0, c.KVHeads
	}
	first = p.Rank * c.KVHeads / p.Size
	if p.Size >= c.KVHeads {
		return first, 1
	}
	return first, (p.Rank+1)*c.KVHeads/p.Size - first
}

// Heads returns which query heads the rank computes: n from first on.
func (p Parallel) Heads(c *Config) (first, n int) {
	if !p.tensor() {
		return 0, c.Heads
	}
	cuts := p.headCuts(c)
	return cuts[p.Rank], cuts[p.Rank+1] - cuts[p.Rank]
}

// headCuts returns where the query heads of each rank begin, and their number.
// A rank has the query heads of its key and value heads; ranks that share one
// of these divide its query heads.
func (p Parallel) headCuts(c *Config) []int {
	size, group := p.Size, c.Heads/c.KVHeads
	cuts := make([]int, size+1)
	for r := range size {
		kv := r * c.KVHeads / size
		// The first rank whose first head is kv or a later one, and the first beyond.
		from, to := ceilDiv(kv*size, c.KVHeads), ceilDiv((kv+1)*size, c.KVHeads)
		if size <= c.KVHeads {
			from, to = r, r+1
		}
		cuts[r] = kv*group + (r-from)*group/(to-from)
	}
	cuts[size] = c.Heads
	return cuts
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// rowUnit is the number of rows that backends pack together. Cuts are multiples
// of it where every rank gets one, so that no rank has a part of a unit.
const rowUnit = 16

// cuts returns where the rows of each rank begin, and their number.
func (p Parallel) cuts(rows int) []int {
	unit := rowUnit
	if rows < unit*p.Size {
		unit = 1
	}
	cuts := make([]int, p.Size+1)
	for r := range p.Size {
		cuts[r] = r * (rows / unit) / p.Size * unit
	}
	cuts[p.Size] = rows
	return cuts
}

// experts returns which of the experts the rank holds: n from first on. They
// are halved as the ranks are, so that each rank has what one branch of the sum
// over experts covers. Ranks of a power of two differ by at most one expert.
func (p Parallel) experts(total int) (first, n int) {
	lo, hi := 0, max(p.Size, 1)
	end := total
	for hi-lo > 1 {
		rank, expert := (lo+hi)/2, (first+end)/2
		if p.Rank < rank {
			hi, end = rank, expert
		} else {
			lo, first = rank, expert
		}
	}
	return first, end - first
}
