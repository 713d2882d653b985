package cpu

// #include "amx.h"
import "C"

import (
	"math"
	"slices"
	"sync"
	"time"
)

// TileRows is the fewest rows of a product for which tiles are used.
const TileRows = C.TM_AMX_LEAST

// best is the level that this machine has. Tiles must show that they are right first:
// they are used only where they give the bits of AVX-512.
var best = sync.OnceValue(func() Level {
	if l := Level(C.tm_isa_best()); l != AMX || tilesAgree(l) {
		return l
	}
	return AVX512
})

// tilesAgree compares products in tiles with those without: of each kind of scales,
// with a full tile of rows and a ragged one.
func tilesAgree(level Level) bool {
	const n, k, rows = 24, 256, TileRows + 5
	x := make([]float32, rows*k)
	for i := range x {
		x[i] = float32(i*i%201-100) * float32(1+i/k)
	}
	for _, dtype := range []int{C.TM_Q4_0, C.TM_Q8_0, C.TM_Q4_K, C.TM_Q6_K} {
		file := make([]byte, RowBytes(dtype, k)*n)
		for i := range file {
			file[i] = byte(i*i>>3) % 0x79 // no exponent of a half is all ones
		}
		p, err := newProbe([]int{dtype}, []int{n}, k, false, [][]byte{file}, n)
		if err != nil {
			return false
		}
		same := true
		for _, acts := range []Activations{Activations16, Activations8} {
			p.acts = acts
			var out [2][]float32
			for i, l := range []Level{level, AVX512} {
				run := p.newRun(int(l), rows)
				run.fill(x, 0, rows)
				run.multiply(0, p.panels(), false)
				out[i] = slices.Clone(run.out)
				run.close()
			}
			same = same && slices.Equal(out[0], out[1])
		}
		p.close()
		if !same {
			return false
		}
	}
	return true
}

// TileGain is how many times as fast a product of rows with a Q4_0 matrix is in
// tiles as without, on one thread; level is AMX, or AMXModel to try it.
func TileGain(level Level, rows int) float64 {
	const n, k = 512, 2048 // a matrix that stays in the level 2 cache
	p, err := newProbe([]int{C.TM_Q4_0}, []int{n}, k, false, [][]byte{make([]byte, RowBytes(C.TM_Q4_0, k)*n)}, n)
	if err != nil {
		return 0
	}
	defer p.close()
	x := make([]float32, rows*k)
	for i := range x {
		x[i] = float32(i%7 - 3)
	}
	var runs [2]*probeRun
	for i := range runs {
		runs[i] = p.newRun(int(level), rows)
		defer runs[i].close()
		runs[i].tile(i == 1)
		runs[i].fill(x, 0, rows)
	}
	best := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for range 20 { // in turns, so that a busy machine slows both
		for i, run := range runs {
			start := time.Now()
			run.multiply(0, p.panels(), false)
			best[i] = min(best[i], time.Since(start))
		}
	}
	return best[0].Seconds() / best[1].Seconds()
}
