package sim

import (
	"fmt"

	"tandem/engine/blockhash"
	"tandem/engine/executor"
)

// slot is the fake K and V of one position: what was written, not numbers.
type slot struct {
	token int32
	pos   int32
	root  uint64
}

// Model is a fake model over a paged cache. Its next token is a hash of the
// root and all tokens before, as read back from the cache.
type Model struct {
	Vocab       int
	BlockTokens int
	Window      int // positions that a query reads, its own the last; 0 = all
	slots       []slot
}

// modelOf makes the model of a worker.
func modelOf(cfg *executor.Config) *Model {
	m := NewModel(cfg.Vocab, cfg.Blocks, cfg.BlockTokens)
	m.Window = cfg.Window
	return m
}

// NewModel makes a model with a cache of the given blocks.
func NewModel(vocab, blocks, blockTokens int) *Model {
	m := &Model{Vocab: vocab, BlockTokens: blockTokens, slots: make([]slot, blocks*blockTokens)}
	for i := range m.slots {
		m.slots[i].token = -1
	}
	return m
}

func (m *Model) block(id int32) []slot {
	return m.slots[int(id)*m.BlockTokens : (int(id)+1)*m.BlockTokens]
}

// Copy carries out partial-block copies in order.
func (m *Model) Copy(copies []executor.Copy) {
	for _, c := range copies {
		copy(m.block(c.To)[:c.Tokens], m.block(c.From)[:c.Tokens])
	}
}

// Write stores the K and V of a row.
func (m *Model) Write(root blockhash.Hash, r executor.Row) {
	for i, t := range r.Tokens {
		p := r.Pos + i
		m.block(r.Pages[p/m.BlockTokens])[p%m.BlockTokens] = slot{token: t, pos: int32(p), root: root.Wire()}
	}
}

// Spoil leaves behind what a step may that failed: anything where it wrote.
func (m *Model) Spoil(b *executor.Batch) {
	for _, c := range b.Copies {
		clear(m.block(c.To)[:c.Tokens])
	}
	for _, r := range b.Rows {
		for p := r.Pos; p < r.Pos+len(r.Tokens); p++ {
			m.block(r.Pages[p/m.BlockTokens])[p%m.BlockTokens] = slot{}
		}
	}
}

// Next reads all positions of a row, or those that its window reaches, and returns what the next tokens are
// drawn from. known are the tokens that the row's request really has: any other slot content is an error.
func (m *Model) Next(root blockhash.Hash, r executor.Row, known []int32) (uint64, error) {
	h := seed(root)
	first := 0
	if m.Window > 0 {
		first = r.Pos + 1 - m.Window
	}
	for p := range r.Pos + len(r.Tokens) {
		if p < first {
			h = mix(h, known[p])
			continue
		}
		if r.Pages[p/m.BlockTokens] < 0 {
			return 0, fmt.Errorf("sim: request %d reads position %d, whose block is gone", r.Request.ID, p)
		}
		s := m.block(r.Pages[p/m.BlockTokens])[p%m.BlockTokens]
		if want := (slot{token: known[p], pos: int32(p), root: root.Wire()}); s != want {
			return 0, fmt.Errorf("sim: request %d reads %+v at position %d of block %d, want %+v",
				r.Request.ID, s, p, r.Pages[p/m.BlockTokens], want)
		}
		h = mix(h, s.token)
	}
	return h, nil
}

// draw is the fake sampler: each choice draws another token from the same hash.
func draw(h uint64, vocab, choice int) int32 {
	return int32((h>>16 + 7919*uint64(choice)) % uint64(vocab))
}

// Oracle returns the n tokens that follow prompt, computed alone.
func Oracle(vocab int, root blockhash.Hash, prompt []int32, n int) []int32 {
	return OracleChoice(vocab, root, prompt, 0, n)
}

// OracleChoice returns the n tokens that follow prompt in a choice.
func OracleChoice(vocab int, root blockhash.Hash, prompt []int32, choice, n int) []int32 {
	h := seed(root)
	for _, t := range prompt {
		h = mix(h, t)
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = draw(h, vocab, choice)
		h = mix(h, out[i])
	}
	return out
}

func seed(root blockhash.Hash) uint64 { return 14695981039346656037 ^ root.Wire() }

func mix(h uint64, token int32) uint64 {
	h = (h ^ uint64(uint32(token))) * 1099511628211
	return h ^ h>>29
}
