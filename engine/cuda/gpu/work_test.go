//go:build cuda

package gpu

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestArgumentsArrive(t *testing.T) {
	on(t, func(b *bench) {
		out := b.alloc(7 * 8)
		rapid.Check(b, func(r *rapid.T) {
			p := rapid.Uint64().Draw(r, "p")
			x, y := rapid.Int32().Draw(r, "a"), rapid.Int32().Draw(r, "c")
			z := rapid.Int64().Draw(r, "b")
			f := rapid.Float32().Draw(r, "f")
			shape := Shape{
				Grid:  Dim{rapid.IntRange(0, 3).Draw(r, "gx"), rapid.IntRange(0, 3).Draw(r, "gy"), rapid.IntRange(0, 3).Draw(r, "gz")},
				Block: Dim{rapid.IntRange(0, 8).Draw(r, "bx"), rapid.IntRange(0, 4).Draw(r, "by"), rapid.IntRange(0, 4).Draw(r, "bz")},
			}
			var a Args
			a.I32(1).Reset().Ptr(out).Ptr(Ptr(p)).I32(int(x)).I64(z).F32(f).I32(int(y))
			b.must(b.s.Launch(b.kernel("td_probe_cells"), shape, &a))
			b.must(b.s.Sync())
			got := read[int64](b, out, 7)
			size := func(d Dim) int64 {
				return int64(max(d.X, 1) + 1000*max(d.Y, 1) + 1000000*max(d.Z, 1))
			}
			want := []int64{int64(p), int64(x), z, int64(int32(bits(f))), int64(y), size(shape.Grid), size(shape.Block)}
			if !slices.Equal(got, want) {
				r.Fatalf("%v, want %v", got, want)
			}
		})
	})
}

func TestLaunchRefusals(t *testing.T) {
	on(t, func(b *bench) {
		x := b.alloc(4096)
		var a Args
		a.Ptr(x)
		for name, shape := range map[string]Shape{
			"too many threads": {Block: Dim{X: 64}},
			"too much memory":  {Block: Dim{X: 1}, Shared: 49 << 10},
		} {
			err := b.s.Launch(b.kernel("td_probe_count"), shape, &a)
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), "td_probe_count") || e.Name == "" {
				b.Errorf("%s: %v", name, err)
			}
			if errors.Is(err, ErrBroken) || errors.Is(err, ErrOutOfMemory) {
				b.Errorf("%s is taken for something worse: %v", name, err)
			}
		}
		b.must(b.s.Launch(b.kernel("td_probe_count"), Shape{Block: Dim{X: 32}}, &a)) // the context still works
	})
}

func TestSizesThatDoNotFitPanic(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("1<<31 passed as int32")
		}
	}()
	var a Args
	a.I32(1 << 31)
}

func TestDynamicSharedMemory(t *testing.T) {
	on(t, func(b *bench) {
		k := b.kernel("td_probe_turn")
		b.must(k.AllowShared(64 << 10))
		x := b.floats(1, 2, 3, 4, 5)
		var a Args
		b.must(b.s.Launch(k, Shape{Block: Dim{X: 5}, Shared: 60 << 10}, a.Ptr(x).I32(5)))
		b.must(b.s.Sync())
		b.equal("turned", read[float32](b, x, 5), []float32{5, 4, 3, 2, 1})
		u, err := k.Usage()
		b.must(err)
		if u.MaxThreads != 1024 {
			b.Errorf("usage: %+v", u)
		}
		n, err := k.Occupancy(256, 1024)
		b.must(err)
		if n < 1 {
			b.Errorf("occupancy %d", n)
		}
	})
}

func TestModuleErrors(t *testing.T) {
	on(t, func(b *bench) {
		if _, err := b.d.Load([]byte("this is no PTX")); err == nil || !strings.Contains(err.Error(), "load a module of 14 bytes") {
			b.Errorf("Load: %v", err)
		}
		if _, err := b.m.Kernel("td_missing"); err == nil || !strings.Contains(err.Error(), "td_missing") {
			b.Errorf("Kernel: %v", err)
		}
		if _, _, err := b.m.Global("td_missing"); err == nil {
			b.Error("Global found what is not there")
		}
	})
}

func TestStreamsMeetAtEvents(t *testing.T) {
	on(t, func(b *bench) {
		s2 := b.stream()
		start, end := b.event(Timing), b.event(Timing|Sleeping)
		if done, err := end.Done(); err != nil || !done {
			b.Errorf("an event that was never recorded: done %v, %v", done, err)
		}
		x, y, z := b.floats(1, 2, 3), b.floats(0, 0, 0), b.floats(0, 0, 0)
		for range 5 {
			b.must(b.s.Record(start))
			b.scale(b.s, y, x, 3, 2)
			b.must(b.s.Record(end))
			b.must(s2.Wait(end))
			b.scale(s2, z, y, 3, 3)
			b.must(s2.Sync())
			b.equal("after both", read[float32](b, z, 3), []float32{6, 12, 18})
			b.must(s2.Fill(z, 0, 12))
		}
		b.must(end.Sync())
		d, err := end.Since(start)
		b.must(err)
		if d < 0 {
			b.Errorf("the time is %v", d)
		}
		for done := false; !done; {
			done, err = s2.Done()
			b.must(err)
		}
		b.must(s2.Free())
		b.must(errors.Join(start.Free(), end.Free()))
	})
}

func TestGraphs(t *testing.T) {
	on(t, func(b *bench) {
		x, y, n := b.floats(1, 2, 3, 4), b.floats(0, 0, 0, 0), b.floats(0)
		side := b.stream()
		fork, join := b.event(0), b.event(0)
		g, err := b.s.Capture(func() error {
			on, err := b.s.Capturing()
			if err != nil || !on {
				b.Errorf("capturing %v, %v", on, err)
			}
			b.must(b.s.Record(fork))
			b.must(side.Wait(fork))
			b.count(side, n)
			b.must(side.Record(join))
			b.scale(b.s, y, x, 4, 10)
			return b.s.Wait(join)
		})
		b.must(err)
		if g.Nodes() != 2 {
			b.Errorf("the graph has %d nodes", g.Nodes())
		}
		b.must(b.s.Sync())
		b.equal("before a run", read[int32](b, n, 1), []int32{0})
		b.must(b.s.Upload(g))
		for range 3 {
			b.must(b.s.Run(g))
		}
		b.must(b.s.Sync())
		b.equal("runs", read[int32](b, n, 1), []int32{3})
		b.equal("scaled", read[float32](b, y, 4), []float32{10, 20, 30, 40})
		b.must(g.Free())
		b.must(g.Free())
		b.must(side.Free())
	})
}

func TestCaptureThatFails(t *testing.T) {
	on(t, func(b *bench) {
		n := b.floats(0)
		mine := errors.New("mine")
		if _, err := b.s.Capture(func() error { b.count(b.s, n); return mine }); !errors.Is(err, mine) {
			b.Errorf("Capture: %v", err)
		}
		if _, err := b.s.Capture(func() error { return b.s.Sync() }); err == nil {
			b.Error("a wait was captured")
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = b.s.Capture(func() error { panic("boom") })
		}()
		if on, err := b.s.Capturing(); on || err != nil {
			b.Errorf("still capturing: %v, %v", on, err)
		}
		b.count(b.s, n) // the stream is usable again
		b.must(b.s.Sync())
		b.equal("count", read[int32](b, n, 1), []int32{1})
	})
}

func TestHostFunctions(t *testing.T) {
	on(t, func(b *bench) {
		n := b.floats(0)
		pinned, err := b.d.AllocPinned(4)
		b.must(err)
		seen := make(chan byte, 8)
		b.count(b.s, n)
		b.must(b.s.Read(pinned.All(), n))
		b.must(b.s.Then(func() { seen <- pinned.Bytes()[0] }))
		b.must(b.s.Sync())
		b.equal("the host saw", <-seen, 1)

		f := NewHostFunc(func() { seen <- pinned.Bytes()[0] })
		g, err := b.s.Capture(func() error {
			b.count(b.s, n)
			b.must(b.s.Read(pinned.All(), n))
			return b.s.Call(f)
		})
		b.must(err)
		for want := 2; want < 5; want++ {
			b.must(b.s.Run(g))
			b.must(b.s.Sync())
			b.equal("the host saw", <-seen, want)
		}
		b.must(g.Free())
		f.Free()
		b.must(pinned.Free())
	})
}

// TestLaunchAllocatesNothing keeps the collector out of the decode loop.
func TestLaunchAllocatesNothing(t *testing.T) {
	on(t, func(b *bench) {
		x, k := b.floats(0), b.kernel("td_probe_count")
		var a Args
		n := testing.AllocsPerRun(50, func() {
			b.must(b.s.Launch(k, Shape{Block: Dim{X: 1}}, a.Reset().Ptr(x)))
		})
		if n != 0 {
			b.Errorf("%v allocations a launch", n)
		}
		b.must(b.s.Sync())
		b.equal("launches", read[int32](b, x, 1), []int32{51})
	})
}
