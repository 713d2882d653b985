package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// benchShapes are the matrices of SmolLM2-135M (as n x k) and one that does not
// fit a level 2 cache many times over.
var benchShapes = []struct {
	name        string
	dtype, n, k int
}{
	{"qkv", q4_1, 960, 576},
	{"gateup", q4_1, 3072, 576},
	{"down", q4_1, 576, 1536},
	{"head", q8_0, 49152, 576},
	{"big", q4_0, 8192, 2048},
	{"big", q4_1, 8192, 2048},
	{"big", q8_0, 8192, 2048},
	{"big", q4K, 8192, 2048},
	{"big", q6K, 8192, 2048},
	{"big", bf16, 8192, 2048},
	{"big", bf16Float, 8192, 2048},
	{"big", f32, 8192, 2048},
}

// BenchmarkMatMul measures one thread: GB/s of packed weights, which bounds few
// rows, and GOP/s, which bounds many; with activations of 16 bits, and of 8.
func BenchmarkMatMul(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, s := range benchShapes {
		p := mustProbe(b, []int{s.dtype}, []int{s.n}, s.k, false, [][]byte{randomFile(r, s.dtype, s.n, s.k)}, 64)
		for _, rows := range []int{1, 2, 4, 8, 16, 32, 128, 512} {
			if s.n > 20000 && rows > 16 {
				continue
			}
			x := randomRows(r, rows, s.k)
			for _, acts := range []Activations{Activations16, Activations8} {
				if acts == Activations8 && formatOf(s.dtype).elems == 1 {
					continue
				}
				p.acts = acts
				name := fmt.Sprintf("%s/%s/%dx%d/rows=%d/bits=%d", s.name, formatOf(s.dtype).name, s.n, s.k, rows, acts.bits())
				b.Run(name, func(b *testing.B) { benchProduct(b, p, x, rows, s.n, s.k) })
			}
		}
	}
}

func benchProduct(b *testing.B, p *probe, x []float32, rows, n, k int) {
	run := p.newRun(bestISA(), rows)
	defer run.close()
	run.fill(x, 0, rows)
	for b.Loop() {
		run.multiply(0, p.panels(), false)
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(float64(p.bytes())/seconds/1e9, "GB/s")
	b.ReportMetric(2*float64(rows)*float64(n)*float64(k)/seconds/1e9, "GOP/s")
}

// BenchmarkFill measures the conversion of activations, in values.
func BenchmarkFill(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const k = 2048
	p := mustProbe(b, []int{q8_0}, []int{16}, k, false, [][]byte{randomFile(r, q8_0, 16, k)}, 1)
	for _, rows := range []int{1, 128} {
		x := randomRows(r, rows, k)
		for _, acts := range []Activations{Activations16, Activations8} {
			p.acts = acts
			b.Run(fmt.Sprintf("rows=%d/bits=%d", rows, acts.bits()), func(b *testing.B) {
				run := p.newRun(bestISA(), rows)
				defer run.close()
				for b.Loop() {
					run.fill(x, 0, rows)
				}
				b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*1e9/float64(rows*k), "ns/value")
			})
		}
	}
}

// BenchmarkPack measures packing on one thread, in bytes of the file.
func BenchmarkPack(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const n, k = 1024, 2048
	for _, f := range formats {
		file := randomFile(r, f.dtype, n, k)
		b.Run(f.name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			for b.Loop() {
				mustProbe(b, []int{f.dtype}, []int{n}, k, false, [][]byte{file}, 64)
			}
		})
	}
}
