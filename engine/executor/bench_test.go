package executor

import (
	"strconv"
	"testing"
	"time"

	"tandem/engine/request"
)

// bench is a core whose model always says token 7.
type bench struct {
	*Core
	results []Sampled
	id      request.ID
	ran     *Batch
}

func newBench(tb testing.TB, batch, blocks int) *bench {
	tb.Helper()
	cfg := DefaultConfig()
	cfg.Vocab, cfg.MaxSeqLen, cfg.Namespace = 1000, 1<<20, "bench"
	cfg.MaxBatch, cfg.MaxNumTokens, cfg.Blocks = batch, 8192, blocks
	c, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return &bench{Core: c, results: make([]Sampled, batch)}
}

func (b *bench) submit(n, p, g int) {
	for range n {
		b.id++
		prompt := make([]int32, p)
		for i := range prompt {
			prompt[i] = int32((int(b.id)*131 + i*7) % 1000)
		}
		b.Submit(0, &request.Request{ID: b.id, Prompt: prompt, MaxTokens: g, Sampling: request.DefaultSampling()}, nil)
	}
	b.Effects()
}

func (b *bench) step(now time.Duration) bool {
	batch := b.Plan(now)
	b.Effects()
	if batch == nil {
		return false
	}
	for i := range batch.Rows {
		b.results[i].Token.ID = int32(7 + i)
	}
	b.ran = batch
	b.Apply(now, Result{Sampled: b.results[:len(batch.Rows)]})
	b.Effects()
	return true
}

// settle runs until all n requests decode.
func (b *bench) settle(n int) {
	for b.stats.DecodeTokens == 0 || len(b.ran.Rows) < n || b.ran.Rows[n-1].Pos == 0 {
		b.step(0)
	}
	for range 40 {
		b.step(0)
	}
}

// TestSteadyDecodeDoesNotAllocate has the load of BenchmarkDecode256Waiting1000.
func TestSteadyDecodeDoesNotAllocate(t *testing.T) {
	if checked {
		t.Skip("the checks of invariants allocate")
	}
	const n = 256
	for _, waiting := range []int{0, 1000} {
		b := newBench(t, n, 64*n)
		b.submit(n, 100, 900)
		b.settle(n)
		b.submit(waiting, 4096, 900)
		b.step(0)
		if st := b.Stats(); st.Decoding != n || st.Waiting != waiting {
			t.Fatalf("%d decode, %d wait", st.Decoding, st.Waiting)
		}
		// 320 steps cross 20 block ends for each request.
		if n := testing.AllocsPerRun(320, func() { b.step(0) }); n != 0 {
			t.Errorf("%v allocations a step, with %d requests waiting", n, waiting)
		}
	}
}

// BenchmarkDecode256 is the cost of one iteration of Plan, Apply and Effects
// with 256 running requests and nobody waiting.
func BenchmarkDecode256(b *testing.B) { benchDecode(b, 0, 0) }

// BenchmarkDecode256Waiting1000 adds 1,000 waiting prompts of 4,096 tokens that
// the pool has no room for.
func BenchmarkDecode256Waiting1000(b *testing.B) { benchDecode(b, 1000, 4096) }

func benchDecode(b *testing.B, waiting, p int) {
	const n, g = 256, 4000
	start := func() *bench {
		c := newBench(b, n, n*264)
		c.submit(n, 100, g)
		c.settle(n)
		c.submit(waiting, p, g)
		c.step(0)
		return c
	}
	c, left := start(), g-200
	b.ReportAllocs()
	for b.Loop() {
		if left--; left == 0 {
			b.StopTimer()
			c, left = start(), g-200
			b.StartTimer()
		}
		c.step(0)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/request")
}

// BenchmarkLoad is the cost of one Load, with as many requests as its name
// says: an eighth of them decodes, the others wait.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{64, 4096} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c := newBench(b, n/8, n/8*64)
			c.submit(n/8, 100, 900)
			c.settle(n / 8)
			c.submit(n-n/8, 1000, 900)
			b.ReportAllocs()
			active := 0
			for b.Loop() {
				active += c.Load().Active
			}
			if active != n*b.N {
				b.Errorf("%d active in %d calls", active, b.N)
			}
		})
	}
}

// BenchmarkCached is the cost of looking a prompt of 4,096 tokens up, all of
// which is here.
func BenchmarkCached(b *testing.B) {
	c := newBench(b, 1, 300)
	prompt := make([]int32, 4096)
	c.Submit(0, &request.Request{ID: 1, Prompt: prompt, MaxTokens: 1, Sampling: request.DefaultSampling()}, nil)
	for c.step(0) {
	}
	b.ReportAllocs()
	for b.Loop() {
		if c.Cached(prompt, "") != 4080 {
			b.Fatal("not all is here")
		}
	}
}

func TestLoadAndCachedDoNotAllocate(t *testing.T) {
	b := newBench(t, 64, 64*64)
	b.submit(64, 100, 900)
	b.settle(64)
	prompt := make([]int32, 100)
	for i := range prompt {
		prompt[i] = int32((131 + i*7) % 1000)
	}
	n := testing.AllocsPerRun(20, func() {
		if b.Load().Active != 64 || b.Cached(prompt, "") != 96 {
			t.Fatal("wrong load")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
