package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// levels lists the instruction sets of this machine.
func levels() []string {
	all := []string{"portable", "avx2", "avx512", "amx"}
	for i, name := range all {
		if name == kernels.ISA() {
			return all[:i+1]
		}
	}
	return all[:1]
}

func tokensOf(rng *rand.Rand, n, vocab int) []int32 {
	t := make([]int32, n)
	for i := range t {
		t[i] = rng.Int32N(int32(vocab))
	}
	return t
}

// shuffledPages returns n distinct blocks in random order.
func shuffledPages(rng *rand.Rand, n, blocks int) []int32 {
	pages := make([]int32, n)
	for i, p := range rng.Perm(blocks)[:n] {
		pages[i] = int32(p)
	}
	return pages
}

var shapes = map[string]shape{
	"heads 9/3 of 64, half-split": {layers: 2, hidden: 96, heads: 9, kvHeads: 3, headDim: 64, inter: 80, vocab: 50},
	"heads 9/3 of 64, adjacent":   {layers: 1, hidden: 96, heads: 9, kvHeads: 3, headDim: 64, inter: 80, vocab: 50, adjacent: true},
	"heads 4/4 of 32, bias":       {layers: 1, hidden: 72, heads: 4, kvHeads: 4, headDim: 32, inter: 50, vocab: 33, bias: true},
	"heads 4/2 of 128, qk norm":   {layers: 1, hidden: 40, heads: 4, kvHeads: 2, headDim: 128, inter: 48, vocab: 20, qkNorm: true},
	"heads 5/1 of 80, partial":    {layers: 1, hidden: 48, heads: 5, kvHeads: 1, headDim: 80, inter: 33, vocab: 17, ropeDims: 40},
	"experts 3 of 9, mixed":       {layers: 2, hidden: 48, heads: 2, kvHeads: 1, headDim: 32, inter: 40, vocab: 20, experts: 9, used: 3},
	"experts 4 of 4, renorm":      {layers: 1, hidden: 40, heads: 2, kvHeads: 1, headDim: 16, inter: 33, vocab: 17, experts: 4, used: 4, renorm: true},
	"experts 1 of 70":             {layers: 1, hidden: 33, heads: 2, kvHeads: 2, headDim: 16, inter: 16, vocab: 17, experts: 70, used: 1},
	"heads 26/1 of 16, adjacent":  {layers: 1, hidden: 16, heads: 26, kvHeads: 1, headDim: 16, inter: 16, vocab: 17, adjacent: true, ropeDims: 8},
}

// Prompts of many lengths, in one batch and then decoded, against the float64
// reference, for each instruction set and cache type.
func TestForwardMatchesReference(t *testing.T) {
	for name, s := range shapes {
		s.dtype = tensor.F32
		w := newWeights(s, 1)
		for _, kv := range []struct {
			dtype tensor.DType
			round func([]float64)
			tol   float64
		}{{tensor.F32, exact, 2e-4}, {tensor.BF16, toBF16, 2e-2}, {tensor.I8, toBytes, 2e-2}} {
			rng := rand.New(rand.NewPCG(3, 3))
			lengths := []int{1, 2, 17, 100}
			if name == "heads 9/3 of 64, adjacent" {
				lengths = append(lengths, 270)
			}
			var prompts [][]int32
			var want [][][]float64
			for _, n := range lengths {
				tokens, c := tokensOf(rng, n+2, s.vocab), &cache{}
				var logits [][]float64
				for _, token := range tokens {
					logits = append(logits, w.forward(c, token, kv.round))
				}
				prompts, want = append(prompts, tokens), append(want, logits)
			}
			for _, isa := range levels() {
				for _, blockTokens := range []int{8, 16, 48} {
					if name != "heads 9/3 of 64, adjacent" && blockTokens != map[tensor.DType]int{tensor.F32: 16, tensor.BF16: 48, tensor.I8: 8}[kv.dtype] {
						continue // one size for each cache type is enough for most shapes
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%d", name, kv.dtype, isa, blockTokens), func(t *testing.T) {
						b := build(t, w, Config{
							Threads: 2, MaxRows: 512, ISA: isa,
							KV: tensor.KVShape{
								Layers: s.layers, KVHeads: s.kvHeads, HeadDim: s.headDim, BlockTokens: blockTokens, Blocks: 64, DType: kv.dtype,
							},
						})
						compareForward(t, b, prompts, want, kv.tol)
					})
				}
			}
		}
	}
}

// compareForward prefills all but the last two tokens of each prompt, then
// decodes those.
func compareForward(t *testing.T, b *Backend, prompts [][]int32, want [][][]float64, tol float64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 5))
	free := shuffledPages(rng, b.cfg.KV.Blocks, b.cfg.KV.Blocks)
	pages := make([][]int32, len(prompts))
	for i, p := range prompts {
		n := (len(p) + b.cfg.KV.BlockTokens - 1) / b.cfg.KV.BlockTokens
		pages[i], free = free[:n], free[n:]
	}
	for step := range 3 {
		var batch tensor.Batch
		batch.Reset()
		var expect [][]float64
		for i, p := range prompts {
			pos, end := 0, len(p)-2
			if step > 0 {
				pos, end = end+step-1, end+step
			}
			batch.Add(p[pos:end], pos, pages[i], true)
			expect = append(expect, want[i][end-1])
		}
		got, err := b.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		vocab := len(expect[0])
		for i, e := range expect {
			if diff := relative(got[i*vocab:(i+1)*vocab], e); diff > tol {
				t.Errorf("step %d, prompt of %d tokens: logits differ by %.2g of their size, allowed %.2g", step, len(prompts[i]), diff, tol)
			}
		}
	}
}

// relative returns the largest difference over the largest value.
func relative(got []float32, want []float64) float64 {
	diff, size := 0.0, 0.0
	for i, w := range want {
		d := math.Abs(float64(got[i]) - w)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		diff, size = max(diff, d), max(size, math.Abs(w))
	}
	return diff / size
}
