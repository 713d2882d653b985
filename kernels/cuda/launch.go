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

// Gemm launches td_gemm_bf16.
func Gemm(rows, n int) Launch { return gemmTiles(ceil(rows, GemmRows), n) }

// MoEGemm launches td_moe_gemm_bf16; runs is the most that there can be.
func MoEGemm(n, runs int) Launch { return gemmTiles(runs, n) }

// GemmRows is the rows of a tile of td_gemm_bf16, and the most slots of a run of
// td_moe_gemm_bf16.
const GemmRows = 128

func gemmTiles(tiles, n int) Launch {
	return Launch{Grid: [3]int{tiles, ceil(n, 128), 1}, Block: 256, Shared: 96 << 10}
}

// Router launches the router of that name, which is the faster for so many rows.
func Router(rows, experts int) (string, Launch) {
	if rows <= 16 {
		return "td_router_few", grid(128, ceil(experts, 4), ceil(rows, 4))
	}
	return RouterAny(rows, experts)
}

// RouterAny launches the router that takes any number of rows.
func RouterAny(rows, experts int) (string, Launch) {
	return "td_router", grid(256, ceil(rows, 64), ceil(experts, 64))
}

// The most experts of a layer, and of a row, that the kernels take.
const (
	MaxExperts = 4096
	MaxUsed    = 64
)

// MoERoute launches td_moe_route.
func MoERoute(rows int) Launch { return grid(128, ceil(rows, 4), 1) }

// MoESort launches td_moe_sort.
func MoESort() Launch { return grid(1024, 1, 1) }

// MoECombine launches td_moe_combine_f32 and td_moe_combine_bf16.
func MoECombine(rows, hidden int) Launch { return grid(128, ceil(hidden, 8*128), rows) }
