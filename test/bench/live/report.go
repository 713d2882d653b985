package live

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"tandem/test/bench/result"
)

// Side is one run of a workload: times to a first token in seconds, and what prompts met in caches.
type Side struct {
	ttft     []float64
	in, hits int
}

// Add takes the good requests of a run.
func (s *Side) Add(records []*result.Record) {
	for _, r := range records {
		if r.Outcome == result.OK && r.Phase == result.Measured {
			s.ttft = append(s.ttft, r.TTFT())
			s.in, s.hits = s.in+r.Input, s.hits+r.Cached
		}
	}
}

// Quantile of the times to a first token, in seconds.
func (s *Side) Quantile(q float64) float64 {
	slices.Sort(s.ttft)
	return result.Quantile(s.ttft, q)
}

func (s *Side) reuse() float64 { return float64(s.hits) / float64(max(s.in, 1)) }

// Arm is a policy, live and simulated.
type Arm struct {
	Name      string
	Live, Sim Side
	Residual  float64 // p95 of single steps, of the last round
}

// quantiles are what is compared.
var quantiles = []float64{0.5, 0.95}

// tie is how far two live medians must lie apart to be in an order.
const tie = 0.1

// Report prints both sides and says what is further apart than tolerance, a share of the live value, or in another order.
func Report(w io.Writer, arms []*Arm, tolerance float64) (misses []string, err error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(t, "router\trequests\tTTFT p50 live\tsimulated\tratio\tp95 live\tsimulated\tratio\treuse live\tsimulated\tstep residual p95\t\n")
	for _, a := range arms {
		if n, m := len(a.Live.ttft), len(a.Sim.ttft); n != m {
			misses = append(misses, fmt.Sprintf("%s has %d requests live and %d simulated", a.Name, n, m))
		}
		_, _ = fmt.Fprintf(t, "%s\t%d", a.Name, len(a.Live.ttft))
		for _, q := range quantiles {
			live, sim := a.Live.Quantile(q), a.Sim.Quantile(q)
			_, _ = fmt.Fprintf(t, "\t%.1f ms\t%.1f ms\t%.2f", 1000*live, 1000*sim, sim/live)
			if !(sim >= live*(1-tolerance) && sim <= live*(1+tolerance)) {
				misses = append(misses, fmt.Sprintf("TTFT p%.0f of %s is %.2f of the live one", 100*q, a.Name, sim/live))
			}
		}
		_, _ = fmt.Fprintf(t, "\t%.1f %%\t%.1f %%\t%.1f %%\t\n", 100*a.Live.reuse(), 100*a.Sim.reuse(), 100*a.Residual)
	}
	if err := t.Flush(); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	live, sim := order(arms, func(a *Arm) *Side { return &a.Live }), order(arms, func(a *Arm) *Side { return &a.Sim })
	_, err = fmt.Fprintf(w, "order by TTFT p50: live %s; simulated %s\n", strings.Join(live, " < "), strings.Join(sim, " < "))
	return append(misses, swapped(arms)...), err
}

func order(arms []*Arm, of func(*Arm) *Side) (names []string) {
	sorted := slices.Clone(arms)
	slices.SortStableFunc(sorted, func(a, b *Arm) int { return cmp.Compare(of(a).Quantile(0.5), of(b).Quantile(0.5)) })
	for _, a := range sorted {
		names = append(names, a.Name)
	}
	return names
}

// swapped are the pairs that are in another order, but for those that are as good as equal live.
func swapped(arms []*Arm) (misses []string) {
	for i, a := range arms {
		for _, b := range arms[i+1:] {
			x, y := a.Live.Quantile(0.5), b.Live.Quantile(0.5)
			if min(x, y)*(1+tie) < max(x, y) && (x < y) != (a.Sim.Quantile(0.5) < b.Sim.Quantile(0.5)) {
				misses = append(misses, fmt.Sprintf("%s and %s are in another order", a.Name, b.Name))
			}
		}
	}
	return misses
}
