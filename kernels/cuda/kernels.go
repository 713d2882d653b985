package cuda

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Kind is the type of a kernel's parameter.
type Kind byte

// The kinds of parameters.
const (
	Ptr Kind = 'p' // device address, 0 where the kernel allows null
	I32 Kind = 'i'
	I64 Kind = 'l'
	F32 Kind = 'f'
)

// Param is one parameter.
type Param struct {
	Name string
	Kind Kind
}

// Kernel is one entry of a module.
type Kernel struct {
	Name    string
	Module  string  // the source file without .cu
	Params  []Param // in order
	Threads int     // of a block, always exactly these
}

// Kernels returns all kernels, by name ascending. The slice is shared.
func Kernels() []Kernel { return table() }

// Find returns the kernel of that name.
func Find(name string) (*Kernel, error) {
	all := table()
	i, ok := slices.BinarySearchFunc(all, name, func(k Kernel, n string) int { return strings.Compare(k.Name, n) })
	if !ok {
		return nil, fmt.Errorf("there is no kernel %q", name)
	}
	return &all[i], nil
}

// signatures lists module, threads, name and parameters; {a|b} in a name stands
// for a kernel each.
const signatures = `
elementwise 256 td_embed out:p table:p ids:p hidden:i vocab:i
elementwise 256 td_merge_tokens ids:p host_ids:p from:p sampled:p rows:i
elementwise 256 td_rmsnorm out:p x:p delta:p weight:p cols:i eps:f
elementwise 256 td_norm_rows out:p x:p index:p weight:p cols:i eps:f
elementwise 128 td_act_mul_{f32|bf16} out:p in:p inter:i act:i
elementwise 256 td_add x:p delta:p bias:p n:l cols:i
elementwise 256 td_to_bf16 out:p in:p n:l
elementwise 256 td_fill_bf16 out:p n:l seed:l scale:f
elementwise 256 td_fill_f32 out:p n:l seed:l scale:f center:f
elementwise 128 td_fill_packed out:p tile_bytes:i code_bytes:i seed:l scale:f
rope 256 td_rope_table table:p position:p inv_freq:p rows:i half:i scale:f
rope 128 td_qkv q:p k:p v:p qkv:p bias:p q_norm:p k_norm:p rope:p slot:p heads:i kv_heads:i head_dim:i rope_dims:i adjacent:i block_tokens:i block_stride:l kv_type:i eps:f k_inv_scale:f v_inv_scale:f
attn_decode_{bf16|f16|e4m3} 128 td_attn_decode_$1_{64_g8|64_g16|128_g8|128_g16|256_g8} out:p q:p k:p v:p row:p length:p page_start:p pages:p tiles:p partial:p counter:p seqs:i heads:i kv_heads:i head_dim:i block_tokens:i block_stride:l scale:f v_scale:f
attn_prefill_{bf16|f16|e4m3} 128 td_attn_prefill_$1_{64|128|256} out:p q:p k:p v:p tiles:p row_start:p pos_start:p page_start:p pages:p heads:i kv_heads:i head_dim:i block_tokens:i block_stride:l scale:f v_scale:f
gemm 256 td_gemm_bf16 y:p w:p x:p bias:p rows:i n:i k:i mode:i act:i ldy:i
gemm 256 td_moe_gemm_bf16 y:p w:p x:p x_row:p runs:p run_count:p w_stride:l n:i k:i mode:i act:i
moe 256 td_router logits:p x:p norm:p w:p rows:i experts:i hidden:i eps:f
moe 128 td_router_few logits:p x:p norm:p w:p rows:i experts:i hidden:i eps:f
moe 128 td_moe_route expert:p weight:p logits:p rows:i experts:i used:i renorm:i
moe 1024 td_moe_sort slot:p slot_row:p runs:p run_count:p expert:p n:i used:i first:i held:i per:i
moe 128 td_moe_combine_{f32|bf16} x:p y:p slot:p weight:p used:i hidden:i add:i
gemv_{bf16|q4|q4m|q5|q5m|q6|q8|f8} 256 td_gemv_$1_{r8|r16|r32} y:p w:p x:p bias:p rows:i n:i k:i mode:i act:i ldy:i
gemv_{bf16|q4|q4m|q5|q5m|q6|q8|f8} 256 td_moe_gemv_$1_{r8|r16|r32} y:p w:p x:p x_row:p runs:p run_count:p w_stride:l n:i k:i mode:i act:i
gemv_{q4|q4m|q5|q5m|q6|q8|f8} 256 td_dequant_$1 out:p w:p n:i k:i
gemv_{q4|q4m|q5|q5m|q6|q8|f8} 128 td_embed_$1 out:p w:p ids:p n:i k:i
sample 256 td_count counts:p slot:p ids:p n:i vocab:i add:i
sample 512 td_shape_logits logits:p rows:p counts:p bias_ids:p bias_values:p ban_ids:p vocab:i
sample 512 td_argmax tokens:p status:p logits:p vocab:i
sample 512 td_sample tokens:p status:p logits:p rows:p counts:p logprob:p rank:p top_ids:p top_logprobs:p vocab:i
`

var table = sync.OnceValue(func() []Kernel {
	var all []Kernel
	for line := range strings.Lines(signatures) {
		if f := strings.Fields(line); len(f) > 0 {
			all = append(all, expand(f)...)
		}
	}
	slices.SortFunc(all, func(a, b Kernel) int { return strings.Compare(a.Name, b.Name) })
	return all
})

// expand makes the kernels of a line; $1 is the alternative of the module's name.
func expand(fields []string) []Kernel {
	var all []Kernel
	for _, module := range alternatives(fields[0]) {
		choice := module[strings.LastIndexByte(module, '_')+1:]
		for _, name := range alternatives(strings.ReplaceAll(fields[2], "$1", choice)) {
			k := Kernel{Name: name, Module: module}
			if _, err := fmt.Sscan(fields[1], &k.Threads); err != nil {
				panic("kernels: " + err.Error())
			}
			for _, p := range fields[3:] {
				param, kind, _ := strings.Cut(p, ":")
				k.Params = append(k.Params, Param{param, Kind(kind[0])})
			}
			all = append(all, k)
		}
	}
	return all
}

func alternatives(name string) []string {
	head, rest, ok := strings.Cut(name, "{")
	if !ok {
		return []string{name}
	}
	middle, tail, _ := strings.Cut(rest, "}")
	var all []string
	for m := range strings.SplitSeq(middle, "|") {
		all = append(all, head+m+tail)
	}
	return all
}
