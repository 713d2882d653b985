package transfer

// Reshape copies tokens between blocks of two layouts that differ in nothing but
// BlockTokens.
type Reshape struct {
	layers, heads int
	lines         int // of a head's keys
	key, value    int // bytes of a token in a line
	from, to      int // tokens of a block
}

// Reshapes returns what copies from blocks of one layout to blocks of the other,
// and false where that cannot be: one size must divide the other, and where the
// tokens lie in a block must be known.
func Reshapes(from, to Layout) (Reshape, bool) {
	r := Reshape{layers: from.Layers, heads: from.KVHeads, lines: from.KeyLines, value: from.headBytes(), from: from.BlockTokens, to: to.BlockTokens}
	small, large := min(r.from, r.to), max(r.from, r.to)
	// Two tokens may be interleaved, so no block may end within a pair.
	if !from.sameBut(to) || r.lines < 1 || r.value%r.lines != 0 || small < 2 || small%2 != 0 || large%small != 0 {
		return Reshape{}, false
	}
	r.key = r.value / r.lines
	return r, true
}

// sameBut reports whether layouts differ in BlockTokens at most.
func (l Layout) sameBut(o Layout) bool {
	l.BlockTokens = o.BlockTokens
	return l == o
}

// Copy copies n tokens of block src, from the one at on, to those of block dst
// from after on. All three are multiples of the smaller block's tokens.
func (r *Reshape) Copy(dst []byte, after int, src []byte, at, n int) {
	for range r.layers {
		for _, kv := range [...]struct{ lines, token int }{{r.lines, r.key}, {1, r.value}} {
			for range r.heads * kv.lines {
				copy(dst[after*kv.token:(after+n)*kv.token], src[at*kv.token:])
				dst, src = dst[r.to*kv.token:], src[r.from*kv.token:]
			}
		}
	}
}
