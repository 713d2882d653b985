package transfer

// Reshape copies tokens between blocks of two layouts that differ in nothing but
// BlockTokens.
type Reshape struct {
	layers, heads int
	keys, values  []lines // of a head
	from, to      int     // tokens of a block
}

// lines are bytes of a head that lie alike: each token has `bytes` in each of count
// lines. Lines have `most` tokens at most, 0 = all of a block, and those of the
// tokens behind follow.
type lines struct{ count, bytes, most int }

// Reshapes returns what copies from blocks of one layout to blocks of the other,
// and false where that cannot be: one size must divide the other, and where the
// tokens lie in a block must be known.
func Reshapes(from, to Layout) (Reshape, bool) {
	r := Reshape{layers: from.Layers, heads: from.KVHeads, from: from.BlockTokens, to: to.BlockTokens}
	small, large := min(r.from, r.to), max(r.from, r.to)
	head, scaled := from.headBytes(), from.DType == "I8"
	if scaled {
		head -= 2
	}
	// Two tokens may be interleaved, so no block may end within a pair.
	if !from.sameBut(to) || from.KeyLines < 1 || head%from.KeyLines != 0 || small < 2 || small%2 != 0 || large%small != 0 {
		return Reshape{}, false
	}
	r.keys, r.values = []lines{{from.KeyLines, head / from.KeyLines, 0}}, []lines{{1, head, 0}}
	if scaled {
		r.keys[0].most = 16
		r.keys, r.values = append(r.keys, lines{1, 2, 0}), append(r.values, lines{1, 2, 0})
	}
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
		for _, kv := range [...][]lines{r.keys, r.values} {
			for range r.heads {
				for i := range kv {
					l := &kv[i]
					l.copy(dst, after, r.to, src, at, r.from, n)
					dst, src = dst[l.count*l.bytes*r.to:], src[l.count*l.bytes*r.from:]
				}
			}
		}
	}
}

// copy copies n tokens of lines that begin at src, of blocks of `from` tokens, to
// those at dst.
func (l *lines) copy(dst []byte, after, to int, src []byte, at, from, n int) {
	if l.most > 0 {
		to, from = min(to, l.most), min(from, l.most)
	}
	step := min(n, to, from)
	for ; n > 0; after, at, n = after+step, at+step, n-step {
		d := dst[(after/to*to*l.count+after%to)*l.bytes:]
		s := src[(at/from*from*l.count+at%from)*l.bytes:]
		for i := range l.count {
			copy(d[i*to*l.bytes:][:step*l.bytes], s[i*from*l.bytes:])
		}
	}
}
