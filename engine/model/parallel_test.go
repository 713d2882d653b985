package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/tensor"
)

// Every row, head and expert belongs to one rank, except key and value heads
// that ranks in excess of them share.
func TestPartsCoverEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kv, group := rapid.IntRange(1, 12).Draw(t, "kv"), rapid.IntRange(1, 8).Draw(t, "group")
		c := &Config{
			Heads: kv * group, KVHeads: kv, Hidden: rapid.IntRange(96, 2000).Draw(t, "hidden"), Inter: 96, Vocab: 96,
			MoE: MoEConfig{Experts: rapid.IntRange(0, 200).Draw(t, "experts")},
		}
		size := rapid.IntRange(2, 9).Draw(t, "size")
		p := Parallel{Size: size}
		if err := p.Check(c); err != nil {
			if size <= c.Heads && (c.MoE.Experts == 0 || size <= c.MoE.Experts) {
				t.Fatal(err)
			}
			return
		}
		head, expert, seen := 0, 0, map[int]bool{}
		for r := range size {
			p.Rank = r
			first, n := p.Heads(c)
			kvFirst, kvN := p.KVHeads(c)
			if first != head || n < 1 || n%kvN != 0 {
				t.Fatalf("rank %d has heads %d+%d, expected from %d on, over %d", r, first, n, head, kvN)
			}
			if first/group != kvFirst || (first+n-1)/group != kvFirst+kvN-1 {
				t.Fatalf("rank %d has query heads %d+%d and key heads %d+%d, group %d", r, first, n, kvFirst, kvN, group)
			}
			for k := range kvN {
				if seen[kvFirst+k] && size <= kv {
					t.Fatalf("key head %d occurs twice", kvFirst+k)
				}
				seen[kvFirst+k] = true
			}
			head += n
			if c.MoE.Experts > 0 {
				first, n := p.experts(c.MoE.Experts)
				if first != expert || n < 1 {
					t.Fatalf("rank %d has experts %d+%d, expected from %d on", r, first, n, expert)
				}
				if even := c.MoE.Experts / size; size&(size-1) == 0 && (n < even || n > even+1) {
					t.Fatalf("rank %d of %d has %d of %d experts", r, size, n, c.MoE.Experts)
				}
				expert += n
			}
		}
		if head != c.Heads || expert != c.MoE.Experts || len(seen) != kv {
			t.Fatalf("%d heads, %d experts, %d key heads are held", head, expert, len(seen))
		}
		cuts := p.cuts(c.Hidden)
		for r := range size {
			if cuts[r+1] <= cuts[r] || c.Hidden >= 16*size && cuts[r]%16 != 0 {
				t.Fatalf("cuts %v of %d", cuts, c.Hidden)
			}
		}
		if cuts[0] != 0 || cuts[size] != c.Hidden {
			t.Fatalf("cuts %v of %d", cuts, c.Hidden)
		}
	})
}

func TestHeadsOfRanks(t *testing.T) {
	for _, tc := range []struct {
		heads, kv, size int
		want            string // first+n:kvFirst+kvN of each rank
	}{
		{9, 3, 2, "0+3:0+1 3+6:1+2"},
		{9, 3, 3, "0+3:0+1 3+3:1+1 6+3:2+1"},
		{9, 3, 4, "0+1:0+1 1+2:0+1 3+3:1+1 6+3:2+1"},
		{4, 2, 3, "0+1:0+1 1+1:0+1 2+2:1+1"},
		{8, 1, 4, "0+2:0+1 2+2:0+1 4+2:0+1 6+2:0+1"},
		{8, 8, 1, "0+8:0+8"},
	} {
		var got []string
		for r := range tc.size {
			p, c := Parallel{Rank: r, Size: tc.size}, &Config{Heads: tc.heads, KVHeads: tc.kv}
			first, n := p.Heads(c)
			kv, kvN := p.KVHeads(c)
			got = append(got, fmt.Sprintf("%d+%d:%d+%d", first, n, kv, kvN))
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%d heads over %d on %d ranks: %s, want %s", tc.heads, tc.kv, tc.size, s, tc.want)
		}
	}
}

func TestParallelCheck(t *testing.T) {
	c := &Config{Heads: 4, KVHeads: 2, Hidden: 32, Inter: 6, Vocab: 64, MoE: MoEConfig{Experts: 7}}
	for _, tc := range []struct {
		p    Parallel
		want string // in the error; empty = none
	}{
		{Parallel{}, ""},
		{Parallel{Size: 1}, ""},
		{Parallel{Rank: 3, Size: 4}, ""},
		{Parallel{Size: 7, AttentionDP: true}, ""},
		{Parallel{Rank: 4, Size: 4}, "rank 4 is not among the 4"},
		{Parallel{Rank: 1}, "rank 1 is not among"},
		{Parallel{Rank: -1, Size: 2}, "rank -1"},
		{Parallel{Size: -1}, "-1 of tensor_parallel_size"},
		{Parallel{Size: 5}, "tensor_parallel_size is 5, the model has only 4 attention heads over 2 key/value heads: use at most 4"},
		{Parallel{Size: 8, AttentionDP: true}, "moe_expert_parallel_size is 8"},
		{Parallel{Size: 7, AttentionDP: true, SplitMLP: true}, "only 6 rows"},
	} {
		err := tc.p.Check(c)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: error %v, want %q", tc.p, err, tc.want)
		}
	}
	gemma := &Config{Arch: archGemma3, Heads: 4, KVHeads: 2, Hidden: 32, Inter: 64, Vocab: 64}
	for p, refused := range map[Parallel]bool{
		{Size: 2}: false, {Size: 2, AttentionDP: true}: false, {Size: 2, AttentionDP: true, SplitMLP: true}: true,
	} {
		if err := p.Check(gemma); (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "dense_mlp: split is not supported for gemma3") {
			t.Errorf("gemma3, %+v: %v", p, err)
		}
	}
	ck := open(t, "qwen3moe-mixed")
	if err := Build(&recorder{}, ck, Parallel{Size: 5}); err == nil || !strings.Contains(err.Error(), "tensor_parallel_size") {
		t.Errorf("Build: %v", err)
	}
}

// partOps counts how often each byte of a checkpoint's tensors is handed out.
type partOps struct {
	recorder
	ck     *Checkpoint
	counts map[string][]int
	wrong  []string
}

func (o *partOps) Matrix(parts ...tensor.Host) (tensor.Matrix, error) {
	for _, h := range parts {
		if err := h.Validate(); err != nil {
			return tensor.None, err
		}
		from, _, _ := strings.Cut(h.Name, "[")
		i, ok := o.ck.index[from]
		if !ok {
			o.wrong = append(o.wrong, h.Name)
			continue
		}
		file := o.ck.tensors[i].Data
		if o.counts[from] == nil {
			o.counts[from] = make([]int, len(file))
		}
		first := -1
		for at := range file {
			if &file[at] == &h.Data[0] {
				first = at
			}
		}
		for at := range h.Data {
			o.counts[from][first+at]++
		}
	}
	return o.recorder.Matrix(parts...)
}

func (o *partOps) GateUp(gate, up tensor.Host) (tensor.Matrix, error) { return o.Matrix(gate, up) }

func (o *partOps) Vector(parts ...tensor.Host) (tensor.Vector, error) {
	m, err := o.Matrix(parts...)
	return tensor.Vector(m), err
}

// copies returns how many ranks hold each row of a tensor; 0 = one or more.
func copies(name string, p Parallel, c *Config) int {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) })
	}
	switch {
	case has("attn_k.", "attn_v.", "k_proj", "v_proj") && !p.AttentionDP && p.Size > c.KVHeads:
		return 0
	case has("exps", "experts."):
		return 1
	case has("ffn_gate.", "ffn_up.", "ffn_down.", "gate_proj", "up_proj", "down_proj"):
		if !p.AttentionDP || p.SplitMLP {
			return 1
		}
	case has("attn_q.", "attn_k.", "attn_v.", "q_proj", "k_proj", "v_proj", "output.", "o_proj", "lm_head"):
		if !p.AttentionDP {
			return 1
		}
	case has("token_embd", "embed_tokens"):
		if !p.AttentionDP && c.Tied {
			return p.Size + 1
		}
	}
	return p.Size
}

// Each rank is handed the rows of its part and no others, whatever the type.
func TestBuildHandsOutParts(t *testing.T) {
	for _, name := range []string{"gguf-llama-quant.gguf", "llama-bias-yarn", "gguf-qwen3moe-quant.gguf", "qwen3moe-mixed"} {
		for _, p := range []Parallel{{Size: 2}, {Size: 3}, {Size: 4}, {Size: 2, AttentionDP: true}, {Size: 3, AttentionDP: true, SplitMLP: true}} {
			ck := open(t, name)
			o := &partOps{ck: ck, counts: map[string][]int{}}
			for p.Rank = range p.Size {
				if err := Build(o, ck, p); err != nil {
					t.Fatal(err)
				}
			}
			if len(o.wrong) > 0 {
				t.Errorf("%s %+v: handed out %v", name, p, o.wrong)
			}
			for _, h := range ck.Tensors() {
				want := copies(h.Name, p, &ck.Config)
				for at, n := range o.counts[h.Name] {
					if n != want && (want > 0 || n == 0) {
						t.Fatalf("%s %+v: byte %d of %s is loaded %d times, want %d", name, p, at, h.Name, n, want)
					}
				}
				if len(o.counts[h.Name]) == 0 {
					t.Errorf("%s %+v: %s is not loaded", name, p, h.Name)
				}
			}
		}
	}
}
