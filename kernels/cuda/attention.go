package cuda

import (
	"fmt"
	"sort"
)

// KV is an element type of the KV cache; the value is the parameter kv_type.
type KV int

// The element types of the KV cache.
const (
	KVBF16 KV = iota
	KVF16
	KVE4M3
)

// String is the type's name in kernel names.
func (k KV) String() string { return [...]string{"bf16", "f16", "e4m3"}[k] }

// Bytes is the size of an element.
func (k KV) Bytes() int { return [...]int{2, 2, 1}[k] }

// Decode is a choice of td_attn_decode_KV_HD_gN.
type Decode struct {
	Name   string
	dim    int // HD
	heads  int // N
	blocks int // that fit a multiprocessor
}

// DecodeKernel chooses the kernel for heads of headDim elements of which group
// share a KV head.
func DecodeKernel(kv KV, headDim, group int) (Decode, error) {
	if headDim < 8 || headDim%8 != 0 || headDim > 256 || group < 1 {
		return Decode{}, fmt.Errorf("attention: head dimension %d and %d heads a KV head; the former must be a multiple of 8 up to 256", headDim, group)
	}
	d := Decode{dim: 64, heads: 8, blocks: 3}
	switch {
	case headDim > 128:
		d.dim, d.blocks = 256, 2
	case headDim > 64:
		d.dim = 128
	}
	if group > 8 && d.dim < 256 {
		d.heads = 16
		if d.dim == 128 {
			d.blocks = 2
		}
	}
	d.Name = fmt.Sprintf("td_attn_decode_%s_%d_g%d", kv, d.dim, d.heads)
	return d, nil
}

// Launch fills a device of sms multiprocessors.
func (d Decode) Launch(sms int) Launch { return grid(128, d.blocks*sms, 1) }

// Partial is the bytes of the scratch that the kernel needs as partial, for a
// launch of that grid. Launches in one stream may share it.
func (d Decode) Partial(l Launch) int { return l.Grid[0] * 2 * d.heads * (d.dim + 2) * 4 }

// Counters is the number of int32 counters that seqs sequences need.
func (d Decode) Counters(seqs, heads, kvHeads int) int {
	return seqs * kvHeads * ceil(heads/kvHeads, d.heads)
}

// DecodeTileTokens is the number of tokens of a tile of decode attention.
const DecodeTileTokens = 64

// DecodeTiles appends the parameter tiles for sequences of the given lengths to dst.
func DecodeTiles(dst []int32, lengths []int32) []int32 {
	sum := int32(0)
	dst = append(dst, 0)
	for _, n := range lengths {
		sum += (n + DecodeTileTokens - 1) / DecodeTileTokens
		dst = append(dst, sum)
	}
	return dst
}

// Prefill is a choice of td_attn_prefill_KV_HD.
type Prefill struct {
	Name  string
	rows  int // query rows of a tile: tokens times heads of a group
	dim   int // HD
	group int
}

// PrefillKernel chooses the kernel for heads of headDim elements of which group
// share a KV head.
func PrefillKernel(kv KV, headDim, group int) (Prefill, error) {
	p := Prefill{rows: 128, dim: 64, group: group}
	switch {
	case headDim > 128:
		p.dim, p.rows = 256, 64
	case headDim > 64:
		p.dim = 128
	}
	if headDim < 8 || headDim%8 != 0 || headDim > 256 || group < 1 || group > p.rows {
		return Prefill{}, fmt.Errorf("attention: head dimension %d and %d heads a KV head; the former must be a multiple of 8 up to 256, the latter at most %d", headDim, group, p.rows)
	}
	p.Name = fmt.Sprintf("td_attn_prefill_%s_%d", kv, p.dim)
	return p, nil
}

// Tokens is the number of tokens of a chunk that one tile takes.
func (p Prefill) Tokens() int { return p.rows / p.group }

// Launch is for that many tiles.
func (p Prefill) Launch(tiles, kvHeads int) Launch {
	l := grid(128, kvHeads, tiles)
	l.Shared = p.rows*p.dim*2 + 4*64*p.dim*2
	return l
}

// Tiles appends the parameter tiles to dst: pairs (sequence, first token of its
// chunk), those with the longest context first, so that none starts last.
// seqs are the sequences to take, rows and positions [sequence] the rows of each
// chunk and the position of its first.
func (p Prefill) Tiles(dst []int32, seqs, rows, positions []int32) []int32 {
	start, per := len(dst)/2, int32(p.Tokens())
	for _, s := range seqs {
		for first := int32(0); first < rows[s]; first += per {
			dst = append(dst, s, first)
		}
	}
	sort.Stable(&tileOrder{dst[2*start:], positions})
	return dst
}

// tileOrder sorts pairs by descending position of their first token.
type tileOrder struct{ pairs, positions []int32 }

func (o *tileOrder) Len() int { return len(o.pairs) / 2 }

func (o *tileOrder) at(i int) int32 { return o.positions[o.pairs[2*i]] + o.pairs[2*i+1] }

func (o *tileOrder) Less(i, j int) bool { return o.at(i) > o.at(j) }

func (o *tileOrder) Swap(i, j int) {
	p := o.pairs
	p[2*i], p[2*j] = p[2*j], p[2*i]
	p[2*i+1], p[2*j+1] = p[2*j+1], p[2*i+1]
}
