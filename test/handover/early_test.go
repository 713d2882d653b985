package handover

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
)

func received(w *worker) (n uint64) {
	for _, t := range w.Stats(time.Minute).Traffic {
		n += t.Received
	}
	return n
}

// TestPipelinedPull lets the ctx worker begin the last chunk of a prompt only when
// gen has four fifths of the blocks.
func TestPipelinedPull(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		one := start(t, executor.Mixed, wc, nil)
		ctx := start(t, executor.Ctx, wc, func(c *executor.Config) { c.MaxNumTokens = 64 })
		gen := start(t, executor.Gen, wc, nil)
		p := prompt(3, 400)
		want, _ := one.ask(t, &request.Request{Prompt: p, MaxTokens: 6}, nil)
		had := uint64(0)
		ctx.dev.before = func(b *tensor.Batch) {
			if len(b.LogitRows) == 0 {
				return
			}
			limit := time.Now().Add(time.Minute)
			for had = received(gen); had < 80*1024 && time.Now().Before(limit); had = received(gen) {
				time.Sleep(time.Millisecond)
			}
		}
		got, _, _ := legs(t, ctx, gen, 1, p, 6)
		same(t, "tokens", got, want)
		if all := received(gen); had < 80*1024 || all != 100*1024 {
			t.Errorf("%d bytes were at gen before the last chunk, %d in the end", had, all)
		}
		if gen.dev.prefill != 0 {
			t.Errorf("gen computed %d prompt rows", gen.dev.prefill)
		}
		settled(t, ctx, "idle", idle)
		settled(t, gen, "idle", idle)
	})
}

// A client that goes away while its blocks move leaves nothing, at either worker.
func TestCancelOfAPipelinedPull(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		ctx := start(t, executor.Ctx, wc, func(c *executor.Config) { c.MaxNumTokens = 64 })
		gen := start(t, executor.Gen, wc, nil)
		for i, first := range []*worker{ctx, gen} {
			half, gone := make(chan struct{}), make(chan struct{})
			before := received(gen)
			ctx.dev.before = func(b *tensor.Batch) {
				if len(b.LogitRows) == 0 {
					return
				}
				for limit := time.Now().Add(time.Minute); received(gen) == before && time.Now().Before(limit); {
					time.Sleep(time.Millisecond)
				}
				if received(gen) > before {
					close(half)
				}
				<-gone
			}
			id := int64(i + 1)
			submit := func(w *worker, k request.Kind, opaque []byte) *runner.Stream {
				r := &request.Request{ID: w.NewID(), DPRank: -1, Kind: k, GenFirst: true, Prompt: prompt(i, 480), MaxTokens: 9, TransferID: id, Sampling: request.DefaultSampling()}
				s, err := w.Submit(t.Context(), r, opaque)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			g := submit(gen, request.GenerationOnly, ctx.template())
			c := submit(ctx, request.ContextOnly, nil)
			select {
			case <-half:
			case <-time.After(time.Minute):
				t.Error("nothing moved before the end of the prompt")
			}
			if first == ctx {
				c.Cancel()
			}
			g.Cancel()
			close(gone)
			c.Cancel()
			settled(t, gen, "idle", idle)
			settled(t, ctx, "idle", idle)
		}
	})
}

// slow is a device with large blocks that takes its time for a prompt without
// using the processor, as a GPU does.
type slow struct {
	mem  []byte
	fd   int
	size int
	each time.Duration // for a thousand tokens
}

func newSlow(b *testing.B, layout transfer.Layout, blocks int, each time.Duration) *slow {
	d := &slow{size: layout.BlockBytes(), each: each}
	var err error
	if d.fd, err = unix.MemfdCreate("bench", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err == nil {
		if err = unix.Ftruncate(d.fd, int64(d.size*blocks)); err == nil {
			if d.mem, err = unix.Mmap(d.fd, 0, d.size*blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				_, err = unix.FcntlInt(uintptr(d.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			}
		}
	}
	if err != nil {
		b.Skip(err)
	}
	for i := range d.mem {
		if i%os.Getpagesize() == 0 {
			d.mem[i] = byte(i >> 12)
		}
	}
	b.Cleanup(func() { _ = unix.Munmap(d.mem); _ = unix.Close(d.fd) })
	return d
}

func (d *slow) Block(id int32) []byte { return d.mem[int(id)*d.size : (int(id)+1)*d.size] }

func (d *slow) File() (uintptr, int64, bool) { return uintptr(d.fd), int64(len(d.mem)), true }

func (d *slow) Run(b *tensor.Batch) ([]float32, error) {
	if n := len(b.Tokens); n > 1 {
		time.Sleep(time.Duration(n) * d.each / 1000)
	}
	out := make([]float32, vocab*len(b.LogitRows))
	for i := range b.LogitRows {
		out[i*vocab+7] = 1
	}
	return out, nil
}

func (d *slow) Progress() uint64 { return 0 }

func (d *slow) Check(*tensor.Batch) error { return nil }

func (d *slow) CopyBlockPrefix(int32, int32, int) error { return nil }

// BenchmarkPipelinedPull hands 8,192 tokens over, 256 MiB, in chunks of 1,024 that
// take 60 ms each, and shows for how long gen waits after the end of the prefill.
func BenchmarkPipelinedPull(b *testing.B) {
	big := transfer.Layout{Layers: 16, KVHeads: 4, HeadDim: 128, DType: "BF16", BlockTokens: 32, Packing: "bench"}
	for _, path := range []struct {
		name string
		wc   wire.Config
	}{{"shm", wire.Config{NoLocal: true}}, {"tcp", wire.Config{NoLocal: true, NoShared: true}}} {
		b.Run(path.name, func(b *testing.B) {
			late := path.wc
			late.NoEarly = true
			var rest, whole time.Duration
			for b.Loop() {
				rest += handOver8k(b, big, path.wc)
				whole += handOver8k(b, big, late)
			}
			b.ReportMetric(float64(rest.Milliseconds())/float64(b.N), "rest-ms")
			b.ReportMetric(float64(whole.Milliseconds())/float64(b.N), "whole-ms")
			b.ReportMetric(100*(1-rest.Seconds()/whole.Seconds()), "hidden-%")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// handOver8k returns how long the gen leg took after the ctx leg.
func handOver8k(b *testing.B, big transfer.Layout, wc wire.Config) time.Duration {
	var engines [2]*runner.Engine
	var servers [2]*wire.Server
	for i, role := range []executor.Role{executor.Ctx, executor.Gen} {
		dev := newSlow(b, big, 260, 60*time.Millisecond)
		wc.Incarnation = fmt.Sprint(role, "-1")
		srv, err := wire.Listen(wc)
		if err != nil {
			b.Fatal(err)
		}
		core := executor.DefaultConfig()
		core.Role, core.Namespace, core.Incarnation, core.Endpoint = role, "m@1", wc.Incarnation, srv.Endpoint()
		core.Layout, core.Vocab, core.Blocks, core.BlockTokens, core.MaxSeqLen, core.MaxNumTokens = big, vocab, 260, 32, 8300, 1024
		var e *runner.Engine
		tr := srv.Rank(0, dev, func(m any) { e.TransferEvent(0, m) })
		if e, err = runner.New(runner.Config{Core: core, Info: runner.Info{Role: role, Vocab: vocab, Layout: big}}, dev, tr); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = e.Run(ctx) }()
		defer func() { cancel(); <-ended; srv.Close() }()
		engines[i], servers[i] = e, srv
	}
	template := wire.EncodeHandle(&transfer.Handle{
		Incarnation: servers[0].Incarnation(), Endpoint: servers[0].Endpoint(), Lease: time.Minute, Layout: big, GenFirst: true,
	})
	var ends [2]time.Time
	var wg sync.WaitGroup
	for i, opaque := range [][]byte{nil, template} {
		wg.Go(func() {
			kind := []request.Kind{request.ContextOnly, request.GenerationOnly}[i]
			r := &request.Request{ID: engines[i].NewID(), DPRank: -1, Kind: kind, GenFirst: true, Prompt: make([]int32, 8192), MaxTokens: 2, TransferID: 9, Sampling: request.DefaultSampling()}
			s, err := engines[i].Submit(b.Context(), r, opaque)
			for err == nil {
				var o runner.Output
				if o, err = s.Next(b.Context()); len(o.Tokens) > 0 && ends[i].IsZero() {
					ends[i] = time.Now()
				}
				if o.Finish != request.Running {
					return
				}
			}
			b.Error(err)
		})
	}
	wg.Wait()
	return max(0, ends[1].Sub(ends[0]))
}
