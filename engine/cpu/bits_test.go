package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/engine/tensor"
)

var bitsShape = shape{layers: 2, hidden: 96, heads: 6, kvHeads: 2, headDim: 32, inter: 96, vocab: 40, dtype: tensor.Q8_0}

func bitsConfig(threads int, isa string, dtype tensor.DType) Config {
	return Config{
		Threads: threads, MaxRows: 1500, ISA: isa,
		KV: tensor.KVShape{Layers: 2, KVHeads: 2, HeadDim: 32, BlockTokens: 16, Blocks: 256, DType: dtype},
	}
}

// alone returns the logits of every position of tokens, prefilled in one chunk.
func alone(t *testing.T, b *Backend, tokens, pages []int32) []float32 {
	t.Helper()
	var batch tensor.Batch
	batch.Reset()
	batch.Add(tokens, 0, pages, false)
	for i := range tokens {
		batch.LogitRows = append(batch.LogitRows, int32(i))
	}
	logits, err := b.Run(&batch)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(logits)
}

// A row's logits have the same bits alone, in chunks of any size, as decode
// steps, in ragged batches with others, with any number of threads and blocks of any size.
func TestBitsDependOnTheRowOnly(t *testing.T) {
	dense := newWeights(bitsShape, 2)
	s := bitsShape
	s.inter, s.experts, s.used = 64, 9, 4
	experts := newWeights(s, 2)
	for _, isa := range levels() {
		t.Run(isa+"/experts", func(t *testing.T) { checkBits(t, experts, bitsConfig(1, isa, tensor.BF16)) })
		for _, dtype := range []tensor.DType{tensor.BF16, tensor.F32, tensor.I8} {
			if isa == "portable" && dtype != tensor.BF16 {
				continue // slow, and the same code but for the loads
			}
			t.Run(fmt.Sprintf("%s/%s", isa, dtype), func(t *testing.T) { checkBits(t, dense, bitsConfig(1, isa, dtype)) })
		}
		for name, w := range map[string]*weights{"dense": dense, "experts": experts} {
			cfg := bitsConfig(1, isa, tensor.BF16)
			cfg.Activations = Activations8
			t.Run(isa+"/8 bits/"+name, func(t *testing.T) { checkBits(t, w, cfg) })
		}
	}
}

// checkBits compares passes with those of one thread that cfg describes.
func checkBits(t *testing.T, w *weights, cfg Config) {
	t.Helper()
	rng := rand.New(rand.NewPCG(9, 9))
	lengths := []int{1, 2, 15, 16, 17, 100, 255, 256, 257, 530}
	var prompts, pages [][]int32
	free := shuffledPages(rng, 200, 256)
	for _, n := range lengths {
		prompts = append(prompts, tokensOf(rng, n, w.vocab))
		blocks := (n + 15) / 16
		pages, free = append(pages, free[:blocks]), free[blocks:]
	}
	one := build(t, w, cfg)
	var want [][]float32
	for i := range prompts {
		want = append(want, alone(t, one, prompts[i], pages[i]))
	}
	for _, threads := range []int{1, 2, 3} {
		cfg := cfg
		cfg.Threads = threads
		cfg.KV.BlockTokens = []int{8, 16, 32}[threads-1]
		b := build(t, w, cfg)
		for round := range 3 {
			seed := uint64(threads*10 + round)
			raggedRun(t, b, rand.New(rand.NewPCG(seed, 1)), prompts, want, round)
		}
	}
}

// raggedRun feeds all prompts in batches of random chunks (round 0: large ones,
// 1: small ones, 2: one token where a prompt is past 240) and compares the
// logits of every row. Blocks are drawn anew.
func raggedRun(t *testing.T, b *Backend, rng *rand.Rand, prompts [][]int32, want [][]float32, round int) {
	t.Helper()
	free := shuffledPages(rng, 256, 256)
	pages, done := make([][]int32, len(prompts)), make([]int, len(prompts))
	for i, p := range prompts {
		n := (len(p) + b.cfg.KV.BlockTokens - 1) / b.cfg.KV.BlockTokens
		pages[i], free = free[:n], free[n:]
	}
	vocab := b.Vocab
	for left := true; left; {
		left = false
		var batch tensor.Batch
		batch.Reset()
		var owner, pos []int
		for _, i := range rng.Perm(len(prompts)) {
			if done[i] == len(prompts[i]) || rng.IntN(4) == 0 {
				left = left || done[i] < len(prompts[i])
				continue
			}
			chunk := 1 + rng.IntN([]int{600, 20, 40}[round])
			if round == 2 && done[i] > 240 {
				chunk = 1 + rng.IntN(2)
			}
			end := min(done[i]+chunk, len(prompts[i]))
			batch.Add(prompts[i][done[i]:end], done[i], pages[i], false)
			for ; done[i] < end; done[i]++ {
				batch.LogitRows = append(batch.LogitRows, int32(len(owner)))
				owner, pos = append(owner, i), append(pos, done[i])
			}
			left = left || end < len(prompts[i])
		}
		got, err := b.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		for r, i := range owner {
			for c, v := range want[i][pos[r]*vocab : (pos[r]+1)*vocab] {
				if g := got[r*vocab+c]; math.Float32bits(g) != math.Float32bits(v) {
					t.Fatalf("%d threads, prompt of %d, position %d: logit %d is %x, alone %x", b.threads, len(prompts[i]), pos[r], c, g, v)
				}
			}
		}
	}
}

// The form of activations is what Config says: 8 bits are near 16, and not the same but
// for weights that are floats.
func TestActivationsOfEightBits(t *testing.T) {
	for _, dtype := range []tensor.DType{tensor.Q8_0, tensor.F32} {
		s := bitsShape
		s.dtype = dtype
		w, tokens := newWeights(s, 2), tokensOf(rand.New(rand.NewPCG(1, 3)), 30, s.vocab)
		for _, isa := range levels() {
			cfg := bitsConfig(2, isa, tensor.BF16)
			long := alone(t, build(t, w, cfg), tokens, []int32{1, 2})
			cfg.Activations = Activations8
			short := alone(t, build(t, w, cfg), tokens, []int32{1, 2})
			want := make([]float64, len(long))
			for i, v := range long {
				want[i] = float64(v)
			}
			same := slices.Equal(short, long)
			if diff := relative(short, want); diff > 0.05 || same != (dtype == tensor.F32) {
				t.Errorf("%s %s: logits of 8 bits differ from those of 16 by %.2g of their size", dtype, isa, diff)
			}
		}
	}
}

// A copied block serves as the prefix of another sequence, and the bytes of a
// block carried to another backend do too.
func TestBlocksCanBeCopiedAndMoved(t *testing.T) {
	for _, dtype := range []tensor.DType{tensor.BF16, tensor.F32, tensor.I8} {
		w := newWeights(bitsShape, 2)
		b, other := build(t, w, bitsConfig(2, "", dtype)), build(t, w, bitsConfig(2, "", dtype))
		rng := rand.New(rand.NewPCG(1, 2))
		tokens := tokensOf(rng, 45, w.vocab)
		want := alone(t, b, tokens, []int32{7, 3, 9})
		if err := b.CopyBlockPrefix(9, 20, 11); err != nil {
			t.Fatal(err)
		}
		for i, id := range []int32{7, 3, 9} {
			if n := copy(other.Block(int32(100+i)), b.Block(id)); n != b.cfg.KV.BlockBytes() {
				t.Fatalf("a block has %d bytes, want %d", n, b.cfg.KV.BlockBytes())
			}
		}
		for name, run := range map[string]struct {
			b     *Backend
			pages []int32
		}{"copied": {b, []int32{7, 3, 20}}, "moved": {other, []int32{100, 101, 102}}} {
			var batch tensor.Batch
			batch.Reset()
			batch.Add(tokens[43:], 43, run.pages, true)
			got, err := run.b.Run(&batch)
			if err != nil {
				t.Fatal(err)
			}
			if last := want[44*w.vocab:]; !slices.Equal(got, last) {
				t.Errorf("%s %s blocks give other logits", name, dtype)
			}
		}
	}
}

// The bytes of a block are as Packing says.
func TestBlockLayout(t *testing.T) {
	s := shape{layers: 2, hidden: 32, heads: 2, kvHeads: 2, headDim: 16, inter: 16, vocab: 9, dtype: tensor.F32}
	w := newWeights(s, 4)
	tokens := tokensOf(rand.New(rand.NewPCG(1, 1)), 20, s.vocab)
	c := &cache{}
	for _, token := range tokens {
		w.forward(c, token, exact)
	}
	f32 := build(t, w, Config{Threads: 1, MaxRows: 32, KV: tensor.KVShape{Layers: 2, KVHeads: 2, HeadDim: 16, BlockTokens: 16, Blocks: 4, DType: tensor.F32}})
	bf16 := build(t, w, Config{Threads: 1, MaxRows: 32, KV: tensor.KVShape{Layers: 2, KVHeads: 2, HeadDim: 16, BlockTokens: 16, Blocks: 4, DType: tensor.BF16}})
	for _, b := range []*Backend{f32, bf16} {
		alone(t, b, tokens, []int32{2, 1})
	}
	for layer := range 2 {
		for head := range 2 {
			for pos := range tokens {
				for d := range 16 {
					k, v := layer*4+head, layer*4+2+head // tiles of 256 elements
					at := pos % 16
					block := int32(2 - pos/16)
					for _, x := range []struct {
						name      string
						got, want float64
						tol       float64
					}{
						{"f32 key", f32At(f32.Block(block), k*256+d*16+at), c.k[layer][pos][head*16+d], 1e-4},
						{"f32 value", f32At(f32.Block(block), v*256+at*16+d), c.v[layer][pos][head*16+d], 1e-4},
						{"bf16 key", bf16At(bf16.Block(block), k*256+d/2*32+at*2+d%2), c.k[layer][pos][head*16+d], 1e-1},
						{"bf16 value", bf16At(bf16.Block(block), v*256+at/2*32+d*2+at%2), c.v[layer][pos][head*16+d], 1e-1},
					} {
						if math.Abs(x.got-x.want) > x.tol {
							t.Fatalf("%s: layer %d head %d position %d dimension %d is %g, want %g", x.name, layer, head, pos, d, x.got, x.want)
						}
					}
				}
			}
		}
	}
}
