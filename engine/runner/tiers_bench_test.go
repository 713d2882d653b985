package runner

import (
	"context"
	"errors"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/hub"
	"tandem/engine/request"
)

// BenchmarkTier asks the default model for one token after each of twelve prompts of
// 513 tokens in turn, in a pool that holds one of them: it is computed, brought
// back from host memory, or from files, which the system's own cache may hold.
func BenchmarkTier(b *testing.B) {
	path, err := hub.Locate(hub.DefaultModel)
	if errors.Is(err, hub.ErrNotPulled) {
		b.Skip("the default model is not in the cache")
	}
	if err != nil {
		b.Fatal(err)
	}
	const blockBytes, prompts = 368640, 12
	for _, bench := range []struct {
		name  string
		tiers TierOptions
	}{
		{"computed", TierOptions{}},
		{"host", TierOptions{HostBytes: 480 * blockBytes}},
		{"disk", TierOptions{HostBytes: 300 * blockBytes, DiskBytes: 1 << 30, DiskDir: b.TempDir()}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			core := executor.DefaultConfig()
			core.MaxBatch, core.MaxSeqLen, core.OnboardAlways = 4, 560, true
			l, err := Load(b.Context(), LoadOptions{Path: path, Core: core, PoolTokens: 576, Tiers: bench.tiers, Incarnation: "bench", Backend: "cpu", TokensOnly: true})
			if err != nil {
				b.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- l.Engine.Run(context.Background()) }()
			turn := 0
			one := func() {
				prompt := make([]int32, 513)
				for j := range prompt {
					prompt[j] = int32((j*37 + turn%prompts*1009) % 40000)
				}
				turn++
				s, err := l.Engine.Submit(b.Context(), greedy(l.Engine, 1, prompt...), nil)
				if err != nil {
					b.Fatal(err)
				}
				for o := (Output{}); o.Finish == request.Running; {
					if o, err = s.Next(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			}
			for bench.tiers.HostBytes > 0 && turn < 2*prompts {
				one()
			}
			for b.Loop() {
				one()
			}
			st := l.Engine.Stats(time.Minute)
			b.ReportMetric(float64(st.HostHitTokens)/float64(turn), "host-tokens/op")
			b.ReportMetric(float64(st.DiskHitTokens)/float64(turn), "disk-tokens/op")
			l.Engine.Shutdown(context.Background())
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
			l.Close()
		})
	}
}
