package model

import (
	"slices"
	"strings"
	"testing"
)

// What a rank records, with weights by their file's names.
func TestBuildRecordsRanks(t *testing.T) {
	for _, tc := range []struct {
		model string
		p     Parallel
		want  string
	}{
		{"gguf-qwen2.gguf", Parallel{Rank: 1, Size: 2}, `
Columns 1 = 0[16:32]
Columns 4 = 3[64:128]
Columns 6 = 5[16:32]
Embed 0 token_embd.weight
AttnInput 2 0 blk.0.attn_norm.weight blk.0.attn_q.weight[64:128]+blk.0.attn_k.weight[32:64]+blk.0.attn_v.weight[32:64] blk.0.attn_q.bias[64:128]+blk.0.attn_k.bias[32:64]+blk.0.attn_v.bias[32:64] none none
Attention 4 2 layer 0 scale 0.1768
GatherColumns 3 [0 64 128]
AddLinear 1 3 blk.0.attn_output.weight[16:32] none
GatherColumns 0 [0 16 32]
GatedMLP 6 0 blk.0.ffn_norm.weight blk.0.ffn_gate.weight[16:32]+blk.0.ffn_up.weight[16:32]
GatherColumns 5 [0 16 32]
AddLinear 1 5 blk.0.ffn_down.weight[16:32] none
GatherColumns 0 [0 16 32]
Logits 0 output_norm.weight output.weight[32:64] [0 32 64]
`},
		{"gguf-qwen3moe-quant.gguf", Parallel{Rank: 2, Size: 3}, `
Columns 1 = 0[21:32]
Columns 4 = 3[64:128]
Embed 0 token_embd.weight
AttnInput 2 0 blk.0.attn_norm.weight blk.0.attn_q.weight[64:128]+blk.0.attn_k.weight[32:64]+blk.0.attn_v.weight[32:64] none blk.0.attn_q_norm.weight blk.0.attn_k_norm.weight
Attention 4 2 layer 0 scale 0.1768
GatherColumns 3 [0 32 64 128]
AddLinear 1 3 blk.0.attn_output.weight[21:32] none
GatherColumns 0 [0 10 21 32]
MoE 5 0 blk.0.ffn_norm.weight blk.0.ffn_gate_inp.weight
expert blk.0.ffn_gate_exps.weight[5]+blk.0.ffn_up_exps.weight[5] blk.0.ffn_down_exps.weight[5]
expert blk.0.ffn_gate_exps.weight[6]+blk.0.ffn_up_exps.weight[6] blk.0.ffn_down_exps.weight[6]
AddShares 0 5
Logits 0 output_norm.weight token_embd.weight[32:64] [0 16 32 64]
`},
		{"gguf-qwen3moe-quant.gguf", Parallel{Size: 4, AttentionDP: true}, `
Shared 3
Shared 4
Embed 0 token_embd.weight
AttnInput 1 0 blk.0.attn_norm.weight blk.0.attn_q.weight+blk.0.attn_k.weight+blk.0.attn_v.weight none blk.0.attn_q_norm.weight blk.0.attn_k_norm.weight
Attention 2 1 layer 0 scale 0.1768
AddLinear 0 2 blk.0.attn_output.weight none
GatherRows 3 0
MoE 4 3 blk.0.ffn_norm.weight blk.0.ffn_gate_inp.weight
expert blk.0.ffn_gate_exps.weight[0]+blk.0.ffn_up_exps.weight[0] blk.0.ffn_down_exps.weight[0]
AddShares 0 4
Logits 0 output_norm.weight token_embd.weight
`},
		{"gguf-qwen2.gguf", Parallel{Size: 2, AttentionDP: true, SplitMLP: true}, `
Shared 3
Columns 4 = 3[0:16]
Shared 5
Columns 6 = 5[0:16]
Embed 0 token_embd.weight
AttnInput 1 0 blk.0.attn_norm.weight blk.0.attn_q.weight+blk.0.attn_k.weight+blk.0.attn_v.weight blk.0.attn_q.bias+blk.0.attn_k.bias+blk.0.attn_v.bias none none
Attention 2 1 layer 0 scale 0.1768
AddLinear 0 2 blk.0.attn_output.weight none
GatherRows 3 0
GatedMLP 6 3 blk.0.ffn_norm.weight blk.0.ffn_gate.weight[0:16]+blk.0.ffn_up.weight[0:16]
GatherColumns 5 [0 16 32]
AddLinear 4 5 blk.0.ffn_down.weight[0:16] none
GatherColumns 3 [0 16 32]
OwnRows 0 3
Logits 0 output_norm.weight output.weight
`},
	} {
		ck := open(t, tc.model)
		ck.Config.Layers = 1
		var r recorder
		if err := Build(&r, ck, tc.p); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(r.calls, "\n"); got != strings.TrimSpace(tc.want) {
			t.Errorf("%s %+v:\n%s\nwant%s", tc.model, tc.p, got, tc.want)
		}
	}
}

// Ranks that share nothing record what one rank does.
func TestDenseRanksOfAttentionDPAreWhole(t *testing.T) {
	var one, rank recorder
	if err := Build(&one, open(t, "qwen3"), Parallel{}); err != nil {
		t.Fatal(err)
	}
	if err := Build(&rank, open(t, "qwen3"), Parallel{Rank: 1, Size: 2, AttentionDP: true}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(one.calls, rank.calls) || !slices.Equal(one.loads, rank.loads) {
		t.Errorf("a rank records\n%s", strings.Join(rank.calls, "\n"))
	}
}
