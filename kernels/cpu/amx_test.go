package cpu

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// tileLevels are the levels with tiles that this machine can run.
func tileLevels(t *testing.T) []int {
	t.Helper()
	if bestISA() < int(AVX512) {
		t.Skip("tile kernels need AVX-512 beside the tiles")
	}
	if bestISA() == int(AMX) {
		return []int{int(AMXModel), int(AMX)}
	}
	return []int{int(AMXModel)}
}

// Products in tiles have the bits of portable C, for whole tiles and ragged ones,
// odd and even numbers of groups, and panels that are not full.
func TestTilesGiveThePortableBits(t *testing.T) {
	levels := tileLevels(t)
	r := rand.New(rand.NewPCG(7, 8))
	for _, f := range formats {
		for _, s := range [][3]int{{1, 1, 16}, {15, 1, 31}, {17, 2, 17}, {33, 3, 48}, {16, 5, 33}, {48, 2, 95}} {
			n, k, rows := s[0], s[1]*max(f.elems, 32), s[2]
			p := mustProbe(t, []int{f.dtype}, []int{n}, k, false, [][]byte{randomFile(r, f.dtype, n, k)}, 2)
			x := randomRows(r, rows, k)
			eachForm(p, f, k, func(name string, _ taken) {
				want := product(p, int(Portable), x, rows)
				for _, isa := range levels {
					sameBits(t, fmt.Sprintf("%s %dx%d rows %d %s", name, n, k, rows, isaName(isa)), product(p, isa, x, rows), want)
				}
			})
		}
	}
}

// Rows that need more than one pass, and parts of formats that change tile shapes
// from panel to panel, floats among them.
func TestTilesOfMixedParts(t *testing.T) {
	levels := tileLevels(t)
	r := rand.New(rand.NewPCG(8, 9))
	for _, c := range []struct {
		dtypes, rows []int
		k, batch     int
		interleaved  bool
	}{
		{[]int{q8_0}, []int{16}, 8192, 70, false},
		{[]int{q6K, q4K, f32, q4_0}, []int{40, 17, 20, 16}, 256, 39, false},
		{[]int{q6K, q4_1}, []int{40, 40}, 512, 50, true},
		{[]int{bf16Float, q8_0}, []int{33, 33}, 64, 16, true},
		{[]int{bf16, q8_0}, []int{33, 33}, 64, 16, true},
	} {
		var files [][]byte
		for i, d := range c.dtypes {
			files = append(files, randomFile(r, d, c.rows[i], c.k))
		}
		p := mustProbe(t, c.dtypes, c.rows, c.k, c.interleaved, files, 3)
		x := randomRows(r, c.batch, c.k)
		for _, acts := range []Activations{Activations16, Activations8} {
			p.acts = acts
			want := product(p, int(Portable), x, c.batch)
			for _, isa := range levels {
				run := p.newRun(isa, c.batch)
				what := fmt.Sprintf("%v %s activations %d", c.dtypes, isaName(isa), acts.bits())
				if want := !slices.Contains(c.dtypes, bf16); run.tiled() != want { // whose levels are no bytes
					t.Errorf("%s: %d rows are tiled: %v, want %v", what, c.batch, !want, want)
				}
				checkMixed(t, what, run, x, want)
				run.close()
			}
		}
	}
}

// checkMixed fills rows and multiplies panels one by one, then all in one call.
func checkMixed(t *testing.T, what string, run *probeRun, x, want []float32) {
	t.Helper()
	for i := range run.rows {
		run.fill(x, run.rows-1-i, run.rows-i)
	}
	for i := range run.p.panels() {
		run.multiply(i, i+1, false)
	}
	sameBits(t, what, run.out, want)
	run.multiply(0, run.p.panels(), true)
	double := make([]float32, len(want))
	for i, v := range want {
		double[i] = v + v
	}
	sameBits(t, what+" accumulated", run.out, double)
}

// Any number of rows may be tiled: fewer than the threshold are not for speed only.
func TestFewRowsInTiles(t *testing.T) {
	levels := tileLevels(t)
	r := rand.New(rand.NewPCG(9, 1))
	const n, k = 37, 256
	for _, f := range formats[3:] {
		p := mustProbe(t, []int{f.dtype}, []int{n}, k, false, [][]byte{randomFile(r, f.dtype, n, k)}, 2)
		x := randomRows(r, 15, k)
		eachForm(p, f, k, func(name string, _ taken) {
			want := product(p, int(Portable), x, 15)
			for _, isa := range levels {
				for _, rows := range []int{0, 1, 2, 7, 15} {
					run := p.newRun(isa, rows)
					if run.tiled() {
						t.Errorf("%d rows are tiled", rows)
					}
					run.tile(true)
					if rows > 0 {
						run.fill(x, 0, rows)
					}
					run.multiply(0, p.panels(), false)
					sameBits(t, fmt.Sprintf("%s %s rows %d", name, isaName(isa), rows), run.out, want[:rows*n])
					run.close()
				}
			}
		})
	}
}

// The kernel that machines with AMX run is what it says: the model alone proves the
// results, and would not notice if both were it.
func TestTileInstructionsAreCompiled(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("tiles are of amd64")
	}
	for _, tool := range []string{"cc", "objdump"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	for file, want := range map[string]bool{"amx_tiles.c": true, "amx_model.c": false} {
		object := filepath.Join(t.TempDir(), "kernel.o")
		if out, err := exec.Command("cc", "-O1", "-std=gnu11", "-c", file, "-o", object).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		code, err := exec.Command("objdump", "-d", object).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored", "tdpbssd", "tdpbusd"} {
			if got := strings.Contains(string(code), name); got != want {
				t.Errorf("%s: contains %s: %v, want %v", file, name, got, want)
			}
		}
	}
}

// BenchmarkTiles measures on one thread of a machine with AMX from how many rows on
// tiles pay: the same product in tiles and without, GOP/s.
func BenchmarkTiles(b *testing.B) {
	if bestISA() < int(AMX) {
		b.Skip("no AMX here")
	}
	r := rand.New(rand.NewPCG(1, 1))
	for _, s := range benchShapes {
		if s.n > 20000 || s.dtype == bf16 || s.dtype == bf16Float || s.dtype == f32 {
			continue
		}
		p := mustProbe(b, []int{s.dtype}, []int{s.n}, s.k, false, [][]byte{randomFile(r, s.dtype, s.n, s.k)}, 64)
		for _, rows := range []int{4, 8, 12, 16, 24, 32, 64, 512} {
			x := randomRows(r, rows, s.k)
			for _, on := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%s/%dx%d/rows=%d/tiles=%v", s.name, formatOf(s.dtype).name, s.n, s.k, rows, on), func(b *testing.B) {
					run := p.newRun(int(AMX), rows)
					defer run.close()
					run.tile(on)
					run.fill(x, 0, rows)
					for b.Loop() {
						run.multiply(0, p.panels(), false)
					}
					b.ReportMetric(2*float64(rows)*float64(s.n)*float64(s.k)/(b.Elapsed().Seconds()/float64(b.N))/1e9, "GOP/s")
				})
			}
		}
	}
}

// What a start on a machine with AMX checks. Its own reference must not have values
// that are not numbers, which are never equal.
func TestTilesAgree(t *testing.T) {
	for _, level := range append(tileLevels(t), int(AVX512)) {
		if !tilesAgree(Level(level)) {
			t.Errorf("%s differs", isaName(level))
		}
	}
}

func TestTileGain(t *testing.T) {
	levels := tileLevels(t)
	if testing.Short() {
		t.Skip("the model is slow")
	}
	if gain := TileGain(Level(levels[len(levels)-1]), 2); !(gain > 0) {
		t.Errorf("tiles are %g times as fast", gain)
	}
}
