package cpu

import "testing"

// The rates are measurements: here only that there are some.
func TestLimits(t *testing.T) {
	pool, err := NewPool(2, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if r := pool.ReadRate(make([]byte, 1<<20)); r <= 0 {
		t.Errorf("reads %g bytes a second", r)
	}
	for _, kind := range []Arithmetic{Float32, Int16} {
		if r := pool.ComputeRate(kind); r <= 0 && ISA() != "portable" {
			t.Errorf("arithmetic %d: %g a second", kind, r)
		}
	}
}

// BenchmarkLimits shows the rates of one thread and of two.
func BenchmarkLimits(b *testing.B) {
	mem, err := NewRegion(512 << 20)
	if err != nil {
		b.Fatal(err)
	}
	defer mem.Close()
	for i := 0; i < len(mem.Bytes); i += 4096 {
		mem.Bytes[i] = 1
	}
	for threads := 1; threads <= 2; threads++ {
		pool, err := NewPool(threads, nil)
		if err != nil {
			b.Fatal(err)
		}
		best := [6]float64{}
		for range 15 {
			for i, n := range []int{256 << 10, 32 << 20, 512 << 20} {
				best[i] = max(best[i], pool.ReadRate(mem.Bytes[:n]))
			}
			for i, kind := range []Arithmetic{Float32, Int16, Int8} {
				best[3+i] = max(best[3+i], pool.ComputeRate(kind))
			}
		}
		pool.Close()
		b.Logf("%d threads: read 256 KiB %.0f, 32 MiB %.1f, 512 MiB %.1f GB/s; float32 %.0f, int16 %.0f, int8 %.0f G/s",
			threads, best[0]/1e9, best[1]/1e9, best[2]/1e9, best[3]/1e9, best[4]/1e9, best[5]/1e9)
	}
}
