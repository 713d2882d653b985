package cases

import (
	"fmt"

	"tandem/kernels/cuda"
)

// scramble is the number that the fills make of an index.
func scramble(i, seed int64) int32 {
	x := uint64(i)*0x9e3779b97f4a7c15 + uint64(seed)
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return int32(x >> 32)
}

func fillCases() []Case {
	const n, seed, scale = 2051, 77, 0.125
	spread := make([]float64, n)
	moved := make([]float64, n)
	for i := range spread {
		spread[i] = scale * float64(scramble(int64(i), seed)) / (1 << 31)
		moved[i] = 1 + spread[i]
	}
	all := []Case{
		{
			Name: "fill bf16", Kernel: "td_fill_bf16", Launch: cuda.Each(n, 4),
			Args:  []Arg{blank(BF16, n), i64(n), i64(seed), f32(scale)},
			Wants: []Want{{0, BF16, spread, 1.0 / 256, 0}},
		},
		{
			Name: "fill f32", Kernel: "td_fill_f32", Launch: cuda.Each(n, 4),
			Args:  []Arg{blank(F32, n), i64(n), i64(seed), f32(scale), f32(1)},
			Wants: []Want{{0, F32, moved, 1e-6, 1e-7}},
		},
	}
	for _, f := range []cuda.Format{cuda.FormatQ4, cuda.FormatQ6} {
		const tiles = 3
		tile, codes := f.TileBytes()
		want := make([]float64, tiles*tile)
		half := encode(F16, []float64{scale}).Data
		for i := range want {
			word := uint32(scramble(int64(i/4*4), seed))
			want[i] = float64(byte(word >> (8 * (i % 4))))
			if i%tile >= codes {
				want[i] = float64(half[i%2])
			}
		}
		all = append(all, Case{
			Name: fmt.Sprintf("fill %s", f), Kernel: "td_fill_packed", Launch: cuda.FillPacked(tiles),
			Args:  []Arg{blank(Bytes, len(want)), i32(tile), i32(codes), i64(seed), f32(scale)},
			Wants: []Want{{0, Bytes, want, 0, 0}},
		})
	}
	return all
}
