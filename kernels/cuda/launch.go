package cuda

import "fmt"

// Launch is how a kernel is launched: blocks, threads of a block, bytes of
// dynamic shared memory.
type Launch struct {
	Grid   [3]int
	Block  int
	Shared int
}

func ceil(n, by int) int { return (n + by - 1) / by }

func grid(block int, x, y int) Launch { return Launch{Grid: [3]int{x, y, 1}, Block: block} }

// Embed launches td_embed for rows of tokens.
func Embed(rows int) Launch { return grid(256, rows, 1) }

// EmbedPacked launches td_embed_FORMAT.
func EmbedPacked(rows int) Launch { return grid(128, rows, 1) }

// MergeTokens launches td_merge_tokens, and td_count over n tokens.
func MergeTokens(n int) Launch { return grid(256, ceil(n, 256), 1) }

// Norm launches td_rmsnorm and td_norm_rows for rows of the output.
func Norm(rows int) Launch { return grid(256, rows, 1) }

// ActMul launches td_act_mul_f32 and td_act_mul_bf16.
func ActMul(rows, inter int) Launch { return grid(128, ceil(inter, 8*128), rows) }

// Each launches kernels over n elements, per of them in a thread: 4 for td_add
// and the fills, 8 for td_to_bf16.
func Each(n int64, per int) Launch { return grid(256, int((n+int64(256*per)-1)/int64(256*per)), 1) }

// FillPacked launches td_fill_packed over tiles.
func FillPacked(tiles int) Launch { return grid(128, tiles, 1) }

// RopeTable launches td_rope_table; half is the number of rotating pairs.
func RopeTable(rows, half int) Launch { return grid(256, ceil(rows*half, 256), 1) }

// QKV launches td_qkv.
func QKV(rows, heads, kvHeads int) Launch { return grid(128, rows, ceil(heads+2*kvHeads, 4)) }

// Gemv launches td_gemv_FORMAT_rN for a weight of n rows.
func Gemv(n int) Launch { return grid(256, ceil(n, 16), 1) }

// MoEGemv launches td_moe_gemv_FORMAT_rN; runs is the most that there can be,
// see [MaxRuns].
func MoEGemv(n, runs int) Launch { return grid(256, ceil(n, 16), runs) }

// Dequant launches td_dequant_FORMAT for a weight [n, k].
func Dequant(n, k int) Launch { return grid(256, ceil(n, 16), ceil(k, 64*8)) }

// PerRow launches td_shape_logits, td_argmax and td_sample.
func PerRow(rows int) Launch { return grid(512, rows, 1) }

// GemvRows returns N of the smallest td_gemv_FORMAT_rN that takes the rows.
func GemvRows(rows int) (int, error) {
	for _, n := range []int{8, 16, 32} {
		if rows <= n {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%d rows are more than the 32 that one pass over a weight serves", rows)
}

// MaxRuns is the most runs of at most per slots that slots of the given number
// of experts make.
func MaxRuns(slots, experts, per int) int { return min(slots, experts+slots/per) }

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
