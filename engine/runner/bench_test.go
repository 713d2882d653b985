package runner

import (
	"context"
	"fmt"
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
