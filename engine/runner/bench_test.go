package runner

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/tensor"
)

// free is a device that costs nothing.
type free struct{ logits []float32 }

func (*free) Check(*tensor.Batch) error               { return nil }
func (*free) CopyBlockPrefix(int32, int32, int) error { return nil }
func (*free) Progress() uint64                        { return 0 }
func (d *free) Run(b *tensor.Batch) ([]float32, error) {
	return d.logits[:len(b.LogitRows)*vocab], nil
}

// What the lockstep costs: an iteration in which every rank decodes one token on
// a device that takes no time.
func BenchmarkGroupIteration(b *testing.B) {
	for _, size := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("ranks=%d", size), func(b *testing.B) {
			core := testCore()
			core.Blocks, core.MaxSeqLen = 1<<18, 1<<22
			info := Info{Vocab: vocab, Ranks: size, Leader: true, Role: executor.Mixed}
			var members []Member
			for range size {
				members = append(members, Member{Device: &free{logits: make([]float32, 8*vocab)}})
			}
			e, err := NewGroup(GroupConfig{
				Config: Config{Core: core, Info: info}, Ranks: comm.Span{Last: size - 1}, Comm: comm.Config{Size: size, Timeout: time.Minute},
				Step: lockstep.Config{Router: adprouter.Defaults(size, 8), MaxQueued: 64},
			}, members)
			if err == nil {
				err = e.Connect(b.Context())
			}
			if err != nil {
				b.Fatal(err)
			}
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			go func() { ended <- e.Run(ctx) }()
			n := min(b.N, 1<<21)
			b.ReportAllocs()
			b.ResetTimer()
			var streams []*Stream
			for rank := range size {
				r := greedy(e, n, 1)
				r.DPRank, r.Sampling.IgnoreEOS = rank, true
				s, err := e.Submit(b.Context(), r, nil)
				if err != nil {
					b.Fatal(err)
				}
				streams = append(streams, s)
			}
			for _, s := range streams { // nobody reads meanwhile
				for s.ready = nil; ; {
					if o, ok := s.pop(); ok && o.Finish != request.Running {
						break
					} else if !ok {
						time.Sleep(10 * time.Millisecond)
					}
				}
			}
			b.StopTimer()
			cancel()
			<-ended
		})
	}
}

// paced is a device whose steps take a time of their own, beside the host.
type paced struct {
	launching
	step time.Duration
	ends []time.Time
	free time.Time
}

func (d *paced) begin() {
	at := time.Now()
	if d.free.After(at) {
		at = d.free
	}
	d.free = at.Add(d.step)
	d.ends = append(d.ends, d.free)
}

func (d *paced) Launch(b *tensor.Batch, picks []tensor.Pick) error {
	d.begin()
	return d.launching.Launch(b, picks)
}

func (d *paced) Wait() ([]tensor.Picked, []float32, error) {
	at := d.ends[0]
	d.ends = d.ends[1:]
	for time.Now().Before(at) { // a sleep is too coarse
	}
	return d.launching.Wait()
}

func (d *paced) RunPick(b *tensor.Batch, picks []tensor.Pick) ([]tensor.Picked, []float32, error) {
	if err := d.Launch(b, picks); err != nil {
		return nil, nil, err
	}
	return d.Wait()
}

// slowText takes some time for each token, as the matching of stop strings does.
type slowText struct{ each time.Duration }

func (s slowText) Push(int32) (string, bool) {
	for at := time.Now(); time.Since(at) < s.each; { // as above
	}
	return "x", false
}

func (slowText) Flush() string { return "" }

// BenchmarkOverlap tells how much of the host's work on 32 requests hides behind
// steps of 4 ms on a device.
func BenchmarkOverlap(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprint(on), func(b *testing.B) {
			core := executor.DefaultConfig()
			core.Vocab, core.Blocks, core.MaxSeqLen, core.Namespace = vocab, 4096, 1<<20, "test@0"
			d := &paced{launching: launching{Device: &free{logits: make([]float32, 64*vocab)}}, step: 4 * time.Millisecond}
			e, err := New(Config{Core: core, Info: Info{Vocab: vocab}, Overlap: on}, d, nil)
			if err != nil {
				b.Fatal(err)
			}
			died := make(chan error, 1)
			go func() { died <- e.Run(context.WithoutCancel(b.Context())) }()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range 32 {
				r := greedy(e, b.N, int32(i))
				r.Text = slowText{30 * time.Microsecond}
				s, err := e.Submit(b.Context(), r, nil)
				if err != nil {
					b.Fatal(err)
				}
				wg.Go(func() {
					for {
						if o, err := s.Next(b.Context()); err != nil || o.Finish != request.Running {
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			e.Shutdown(b.Context())
			<-died
		})
	}
}
