package cpu

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"tandem/engine/tensor"
)

// The shape of SmolLM2-135M: Q4_1 layers, a tied Q8_0 embedding, random values.
var smol = shape{layers: 30, hidden: 576, heads: 9, kvHeads: 3, headDim: 64, inter: 1536, vocab: 49152, adjacent: true}

func randomHost(rng *rand.Rand, d tensor.DType, rows, cols int) tensor.Host {
	size, _ := d.Bytes(cols)
	h := tensor.Host{Name: "random", DType: d, Shape: []int{rows, cols}, Data: make([]byte, size*rows)}
	for i := range h.Data {
		h.Data[i] = byte(rng.Uint32())
	}
	// Scales (and minima) of sane size, so that no value overflows.
	for g := 0; g < len(h.Data); g += d.GroupBytes() {
		h.Data[g+1] = 0x20
		if d == tensor.Q4_1 {
			h.Data[g+3] = 0xa0
		}
	}
	return h
}

func smolBackend(b *testing.B, blocks int) *Backend {
	b.Helper()
	s, rng := smol, rand.New(rand.NewPCG(1, 1))
	e, err := New(Config{
		MaxRows: 512,
		KV:      tensor.KVShape{Layers: s.layers, KVHeads: s.kvHeads, HeadDim: s.headDim, BlockTokens: 16, Blocks: blocks, DType: tensor.BF16},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.Close)
	matrix := func(d tensor.DType, rows, cols int) tensor.Matrix {
		m, err := e.Matrix(randomHost(rng, d, rows, cols))
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	ones := make([]float32, s.hidden)
	for i := range ones {
		ones[i] = 1
	}
	norm, _ := e.Vector(host("norm", tensor.F32, ones, s.hidden))
	attn := s.heads * s.headDim
	x, q, a, m := e.Buffer(s.hidden), e.Buffer(attn), e.Buffer(attn), e.Buffer(s.inter)
	embed := matrix(tensor.Q8_0, s.vocab, s.hidden)
	e.Embed(x, embed)
	for i := range s.layers {
		e.AttnInput(q, x, tensor.AttnInput{
			Layer: i, Norm: norm, Eps: 1e-5, QKV: matrix(tensor.Q4_1, attn+2*s.kvHeads*s.headDim, s.hidden), Bias: tensor.None,
			QNorm: tensor.None, KNorm: tensor.None, Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, RoPE: s.rope(),
		})
		e.Attention(a, q, tensor.Attn{Layer: i, Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, Scale: 0.125})
		e.AddLinear(x, a, matrix(tensor.Q4_1, s.hidden, attn), tensor.None)
		gateUp, err := e.GateUp(randomHost(rng, tensor.Q4_1, s.inter, s.hidden), randomHost(rng, tensor.Q4_1, s.inter, s.hidden))
		if err != nil {
			b.Fatal(err)
		}
		e.GatedMLP(m, x, norm, 1e-5, gateUp)
		e.AddLinear(x, m, matrix(tensor.Q4_1, s.hidden, s.inter), tensor.None)
	}
	e.Logits(x, norm, 1e-5, embed, nil)
	if err := e.Seal(s.vocab); err != nil {
		b.Fatal(err)
	}
	b.Log(e.Info())
	return e
}

// Prefill of 512 and 2,048 tokens in chunks of 512, and decode at two depths
// and batch sizes: tok/s of a model shaped as SmolLM2-135M.
func BenchmarkSmolLM2Shape(b *testing.B) {
	e := smolBackend(b, 8*2064/16)
	rng := rand.New(rand.NewPCG(2, 2))
	tokens := tokensOf(rng, 2048, smol.vocab)
	pages := shuffledPages(rng, e.cfg.KV.Blocks, e.cfg.KV.Blocks)
	run := func(b *testing.B, batch *tensor.Batch) {
		b.Helper()
		if _, err := e.Run(batch); err != nil {
			b.Fatal(err)
		}
	}
	var batch tensor.Batch
	for _, prompt := range []int{512, 2048} {
		b.Run(fmt.Sprintf("prefill-%d", prompt), func(b *testing.B) {
			start := processorTime()
			for range b.N {
				for pos := 0; pos < prompt; pos += 512 {
					batch.Reset()
					batch.Add(tokens[pos:pos+512], pos, pages[:129], pos+512 == prompt)
					run(b, &batch)
				}
			}
			speed(b, prompt*b.N, start)
		})
	}
	// Blocks that were never written are all one page of zeros, which is in cache.
	for s := range 8 {
		for pos := 0; pos < len(tokens); pos += 512 {
			batch.Reset()
			batch.Add(tokens[pos:pos+512], pos, pages[s*129:(s+1)*129], false)
			run(b, &batch)
		}
	}
	for _, depth := range []int{128, 2048} {
		for _, size := range []int{1, 8} {
			b.Run(fmt.Sprintf("decode-%d-batch-%d", depth, size), func(b *testing.B) {
				batch.Reset()
				for s := range size {
					batch.Add(tokens[s:s+1], depth, pages[s*129:(s+1)*129], true)
				}
				start := processorTime()
				for range b.N {
					run(b, &batch)
				}
				speed(b, size*b.N, start)
			})
		}
	}
}

// speed reports tokens a second, and tokens a second of processor time, which
// a busy machine changes less.
func speed(b *testing.B, tokens int, start time.Duration) {
	b.Helper()
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tok/s")
	b.ReportMetric(float64(tokens)/(processorTime()-start).Seconds(), "tok/cpu-s")
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
