package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tandem/engine/tensor"
)

// One layer as of Qwen3-30B-A3B (128 experts of which 8 are used) beside a dense
// one of the same active width, both Q4_1 with random values. A row's bytes of
// weights are the same, so decode of one row should take about the same time.
func BenchmarkQwen3MoELayer(b *testing.B) {
	for _, kind := range []struct {
		name          string
		experts, used int
		inter         int
	}{{"experts", 128, 8, 768}, {"dense", 0, 0, 6144}} {
		s := shape{
			layers: 1, hidden: 2048, heads: 32, kvHeads: 4, headDim: 128, inter: kind.inter, vocab: 4096,
			experts: kind.experts, used: kind.used,
		}
		e := layerBackend(b, s)
		rng := rand.New(rand.NewPCG(2, 2))
		tokens, pages := tokensOf(rng, 512, s.vocab), shuffledPages(rng, 512, 512)
		for _, rows := range []int{1, 8, 512} {
			var batch tensor.Batch
			batch.Reset()
			if rows == 512 {
				batch.Add(tokens, 0, pages[:32], true)
			} else {
				for i := range rows {
					batch.Add(tokens[i:i+1], 0, pages[i:i+1], true)
				}
			}
			b.Run(fmt.Sprintf("%s/rows-%d", kind.name, rows), func(b *testing.B) {
				start := processorTime()
				for range b.N {
					if _, err := e.Run(&batch); err != nil {
						b.Fatal(err)
					}
				}
				speed(b, rows*b.N, start)
			})
		}
		e.Close()
	}
}

// layerBackend records a model of one layer; all its experts have equal bytes.
func layerBackend(b testing.TB, s shape) *Backend {
	b.Helper()
	e, err := New(Config{MaxRows: 512, KV: tensor.KVShape{
		Layers: 1, KVHeads: s.kvHeads, HeadDim: s.headDim, BlockTokens: 16, Blocks: 512, DType: tensor.BF16,
	}})
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	matrix := func(h tensor.Host) tensor.Matrix {
		m, err := e.Matrix(h)
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	q4 := func(rows, cols int) tensor.Host { return randomHost(rng, tensor.Q4_1, rows, cols) }
	ones := make([]float32, s.hidden)
	router := make([]float32, max(1, s.experts)*s.hidden)
	for i := range ones {
		ones[i] = 1
	}
	for i := range router {
		router[i] = float32(rng.NormFloat64())
	}
	norm, _ := e.Vector(host("norm", tensor.F32, ones, s.hidden))
	attn := s.heads * s.headDim
	x, q, a, m := e.Buffer(s.hidden), e.Buffer(attn), e.Buffer(attn), e.Buffer(s.inter)
	embed := matrix(q4(s.vocab, s.hidden))
	e.Embed(x, embed)
	e.AttnInput(q, x, tensor.AttnInput{
		Norm: norm, Eps: 1e-5, QKV: matrix(q4(attn+2*s.kvHeads*s.headDim, s.hidden)), Bias: tensor.None,
		QNorm: tensor.None, KNorm: tensor.None, Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, RoPE: s.rope(),
	})
	e.Attention(a, q, tensor.Attn{Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, Scale: 0.1})
	e.AddLinear(x, a, matrix(q4(s.hidden, attn)), tensor.None)
	gate, up, down := q4(s.inter, s.hidden), q4(s.inter, s.hidden), q4(s.hidden, s.inter)
	var mix tensor.MoE
	for range max(1, s.experts) {
		g, err := e.GateUp(gate, up)
		if err != nil {
			b.Fatal(err)
		}
		mix.GateUp, mix.Down = append(mix.GateUp, g), append(mix.Down, matrix(down))
	}
	if s.experts == 0 {
		e.GatedMLP(m, x, norm, 1e-5, mix.GateUp[0])
		e.AddLinear(x, m, mix.Down[0], tensor.None)
	} else {
		mix.Norm, mix.Eps, mix.Used, mix.Renorm = norm, 1e-5, s.used, true
		mix.Router = matrix(host("router", tensor.F32, router, s.experts, s.hidden))
		e.MoE(x, x, mix)
	}
	e.Logits(x, norm, 1e-5, embed, nil)
	if err := e.Seal(s.vocab); err != nil {
		b.Fatal(err)
	}
	return e
}
