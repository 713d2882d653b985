package parallel

import (
	"sync"
	"testing"

	"tandem/engine/adprouter"
	"tandem/engine/hub"
	"tandem/engine/request"
)

// What a division of the default model over ranks of one process yields with two
// compute threads in all: 8 requests of 128 prompt tokens that decode 64 each.
func BenchmarkDivisions(b *testing.B) {
	path, err := hub.Locate(hub.DefaultModel)
	if err != nil {
		b.Skip(err)
	}
	talk := func(s *adprouter.Settings) { s.Conversations = true }
	for _, d := range []division{
		{name: "alone", ranks: 1},
		{name: "TP=2", ranks: 2},
		{name: "ADP=2", ranks: 2, attentionDP: true, adp: talk},
		{name: "ADP=2,split", ranks: 2, attentionDP: true, splitMLP: true, adp: talk},
	} {
		b.Run(d.name, func(b *testing.B) {
			d.threads, d.batch = 2, 512
			e := d.start(b, path)
			const n, prompt, tokens = 8, 128, 64
			salt := 0
			for b.Loop() {
				salt++
				var wg sync.WaitGroup
				for i := range n {
					r := &request.Request{ID: e.NewID(), MaxTokens: tokens, Sampling: request.DefaultSampling(), DPRank: -1}
					for j := range prompt {
						r.Prompt = append(r.Prompt, int32(1000+(salt*7919+i*104729+j*31)%40000))
					}
					r.Sampling.Temperature, r.Sampling.IgnoreEOS = 0, true
					wg.Add(1)
					go func() {
						defer wg.Done()
						if _, err := answer(b.Context(), e, r); err != nil {
							b.Error(err)
						}
					}()
				}
				wg.Wait()
			}
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(float64(b.N*n*tokens)/seconds, "tok/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
