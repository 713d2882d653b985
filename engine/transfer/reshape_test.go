package transfer

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// block makes the block of a layout that begins with a token: each element tells
// token, layer, key or value, head and dimension, at the place where the packing
// has it.
func block(l Layout, first int) []byte {
	var out []byte
	at := func(token, layer, kv, head, dim int) {
		n := uint16(((((first+token)*5+layer)*2+kv)*7+head)*11 + dim)
		if l.DType == "I8" && dim >= 0 { // a byte of all its bits, as 64 tokens have more elements
			out = append(out, byte(n)^byte(n>>8))
			return
		}
		out = binary.LittleEndian.AppendUint16(out, n)
	}
	for layer := range l.Layers {
		for kv := range 2 {
			for head := range l.KVHeads {
				switch {
				case l.DType == "I8":
					scaled(l, kv == 0, func(t, d int) { at(t, layer, kv, head, d) })
				case l.KeyLines == 1: // [token][dim], as on a GPU
					for t := range l.BlockTokens {
						for d := range l.HeadDim {
							at(t, layer, kv, head, d)
						}
					}
				case kv == 0: // [dim/2][token][2]
					for d := 0; d < l.HeadDim; d += 2 {
						for t := range l.BlockTokens {
							at(t, layer, kv, head, d)
							at(t, layer, kv, head, d+1)
						}
					}
				default: // [token/2][dim][2]
					for t := 0; t < l.BlockTokens; t += 2 {
						for d := range l.HeadDim {
							at(t, layer, kv, head, d)
							at(t+1, layer, kv, head, d)
						}
					}
				}
			}
		}
	}
	return out
}

// scaled gives the order of bytes: keys are [token/16][dim][16], or [dim][8] of 8
// tokens, values [token][dim], and the scales, of dimension -1, are behind.
func scaled(l Layout, keys bool, at func(token, dim int)) {
	tile := min(l.BlockTokens, 16)
	for first := 0; first < l.BlockTokens; first += tile {
		for i := range tile * l.HeadDim {
			if keys {
				at(first+i%tile, i/tile)
			} else {
				at(first+i/l.HeadDim, i%l.HeadDim)
			}
		}
	}
	for t := range l.BlockTokens {
		at(t, -1)
	}
}

// Blocks of one size that are made of blocks of another are those that would have
// been computed, in all packings that exist.
func TestReshapeGivesTheBlocksOfTheOtherSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := Layout{Layers: 2, KVHeads: 3, HeadDim: 8, DType: "BF16", Packing: "p", KeyLines: rapid.SampledFrom([]int{1, 4}).Draw(t, "lines")}
		if rapid.Bool().Draw(t, "bytes") {
			from.DType, from.KeyLines = "I8", from.HeadDim
		}
		to := from
		from.BlockTokens = 1 << rapid.IntRange(1, 5).Draw(t, "from")
		to.BlockTokens = 1 << rapid.IntRange(1, 5).Draw(t, "to")
		r, ok := Reshapes(from, to)
		if !ok {
			t.Fatal("refused")
		}
		n := min(from.BlockTokens, to.BlockTokens)
		for first := 0; first < 64; first += to.BlockTokens {
			got := make([]byte, to.BlockBytes())
			for at := first; at < first+to.BlockTokens; at += n {
				own := at / from.BlockTokens * from.BlockTokens
				r.Copy(got, at-first, block(from, own), at-own, n)
			}
			if !bytes.Equal(got, block(to, first)) {
				t.Fatalf("block of %d tokens from %d on differs, made of blocks of %d", to.BlockTokens, first, from.BlockTokens)
			}
		}
	})
}

func TestReshapesRefuses(t *testing.T) {
	l := Layout{Layers: 2, KVHeads: 3, HeadDim: 8, DType: "BF16", BlockTokens: 16, Packing: "p", KeyLines: 4}
	if _, ok := Reshapes(l, l); !ok {
		t.Error("equal layouts")
	}
	for name, change := range map[string]func(from, to *Layout){
		"unknown place of tokens": func(from, to *Layout) { from.KeyLines, to.KeyLines = 0, 0 },
		"lines that do not fit":   func(from, to *Layout) { from.KeyLines, to.KeyLines = 3, 3 },
		"other lines":             func(_, to *Layout) { to.KeyLines = 1 },
		"no multiple":             func(_, to *Layout) { to.BlockTokens = 24 },
		"half a pair":             func(_, to *Layout) { to.BlockTokens = 1 },
		"other packing":           func(_, to *Layout) { to.Packing = "q" },
		"other type":              func(_, to *Layout) { to.DType = "F16" },
		"other heads":             func(_, to *Layout) { to.KVHeads = 1 },
	} {
		from, to := l, l
		to.BlockTokens = 32
		change(&from, &to)
		if _, ok := Reshapes(from, to); ok {
			t.Errorf("%s: taken", name)
		}
	}
}
