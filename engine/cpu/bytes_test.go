package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"tandem/engine/tensor"
)

// A cache of bytes takes half of one in bfloat16 and 2 bytes more for each key and
// value of a head; backend and shape agree on that.
func TestByteBlocksAreHalfAsLarge(t *testing.T) {
	for _, headDim := range []int{64, 128} {
		shape := tensor.KVShape{Layers: 2, KVHeads: 3, HeadDim: headDim, BlockTokens: 16, Blocks: 2, DType: tensor.BF16}
		wide := shape.BlockBytes()
		shape.DType = tensor.I8
		scales := 2 * shape.Layers * 2 * shape.KVHeads * shape.BlockTokens
		if got := shape.BlockBytes(); got != wide/2+scales || float64(got) > 0.52*float64(wide) {
			t.Errorf("heads of %d: blocks of %d bytes, in bfloat16 %d", headDim, got, wide)
		}
		b, err := New(Config{Threads: 1, MaxRows: 1, KV: shape})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(b.Block(1)); got != shape.BlockBytes() || b.MemoryReport().KVBytes != 2*got {
			t.Errorf("heads of %d: a block has %d bytes, want %d", headDim, got, shape.BlockBytes())
		}
		b.Close()
	}
}

// The bytes of a block are as Packing says, and what they stand for is within half a
// step of each head's keys and values.
func TestByteBlockLayout(t *testing.T) {
	s := shape{layers: 2, hidden: 32, heads: 2, kvHeads: 2, headDim: 16, inter: 16, vocab: 9, dtype: tensor.F32}
	w, c := newWeights(s, 4), &cache{}
	tokens := tokensOf(rand.New(rand.NewPCG(1, 1)), 40, s.vocab)
	for _, token := range tokens {
		w.forward(c, token, exact)
	}
	for _, isa := range levels() {
		for _, size := range []int{8, 32} {
			b := build(t, w, Config{
				Threads: 1, MaxRows: 64, ISA: isa,
				KV: tensor.KVShape{Layers: 2, KVHeads: 2, HeadDim: 16, BlockTokens: size, Blocks: 5, DType: tensor.I8},
			})
			alone(t, b, tokens, []int32{4, 3, 2, 1, 0}[:(len(tokens)+size-1)/size])
			checkByteBlocks(t, b, c)
		}
	}
}

// checkByteBlocks compares layer 0: the next sees keys and values of rounded ones.
func checkByteBlocks(t *testing.T, b *Backend, c *cache) {
	t.Helper()
	size := b.cfg.KV.BlockTokens
	line, tile := min(size, 16), size*(16+2)
	for pos := range c.k[0] {
		block, at := b.Block(int32(4-pos/size)), pos%size
		for head := range 2 {
			keys, values := block[head*tile:][:tile], block[(2+head)*tile:][:tile]
			for d := range 16 {
				for _, x := range []struct {
					tile []byte
					at   int
					want float64
				}{{keys, at/line*line*16 + d*line + at%line, c.k[0][pos][head*16+d]}, {values, at*16 + d, c.v[0][pos][head*16+d]}} {
					scales := x.tile[size*16:]
					scale := float64(math.Float32frombits(uint32(scales[2*at])<<16 | uint32(scales[2*at+1])<<24))
					if diff := math.Abs(float64(int8(x.tile[x.at]))*scale - x.want); diff > 0.51*scale {
						t.Fatalf("blocks of %d: position %d head %d dimension %d is off by %g, scale %g", size, pos, head, d, diff, scale)
					}
				}
			}
		}
	}
}

// What is not a number stays so, in the rows that see it; zeros have no scale.
func TestByteCacheKeepsNaN(t *testing.T) {
	s := bitsShape
	s.layers, s.dtype = 1, tensor.F32
	w := newWeights(s, 2)
	clear(w.embed[:w.hidden])               // token 0 has keys and values of zero
	w.embed[w.hidden] = float32(math.NaN()) // token 1 has none
	for _, isa := range levels() {
		cfg := bitsConfig(1, isa, tensor.I8)
		cfg.KV.Layers = 1
		b := build(t, w, cfg)
		for _, tc := range []struct {
			tokens []int32
			nan    bool
		}{{[]int32{0, 0, 2}, false}, {[]int32{1, 0, 2}, true}} {
			var batch tensor.Batch
			batch.Reset()
			batch.Add(tc.tokens, 0, []int32{5}, true)
			logits, err := b.Run(&batch)
			if err != nil {
				t.Fatal(err)
			}
			// The tied output matrix has the row of token 1, of which nothing is a number.
			if got := math.IsNaN(float64(logits[3])); got != tc.nan {
				t.Errorf("%s, tokens %v: logit %v", isa, tc.tokens, logits[3])
			}
		}
	}
}
