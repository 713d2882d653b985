//go:build !race

package sampler

import (
	"testing"

	"tandem/engine/request"
)

// The race detector lets pools forget a part of what they are given.
func TestNoAllocations(t *testing.T) {
	logits := benchLogits()
	for name, p := range map[string]*request.Sampling{
		"greedy":      sampling(nil),
		"temperature": sampling(func(p *request.Sampling) { p.Temperature = .8 }),
		"top_k":       sampling(func(p *request.Sampling) { p.Temperature, p.TopK = .8, 40 }),
		"penalties":   sampling(func(p *request.Sampling) { p.Temperature, p.FrequencyPenalty = .8, .1 }),
	} {
		s := New(p, []int32{1, 2, 3})
		n := 0
		allocs := testing.AllocsPerRun(20, func() {
			if _, err := s.Sample(logits, n, nil); err != nil {
				t.Fatal(err)
			}
			n++
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations a token", name, allocs)
		}
	}
}
