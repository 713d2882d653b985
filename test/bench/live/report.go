package live

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"tandem/test/bench/page"
	"tandem/test/bench/result"
)

// Side is one run of a workload: times to a first token in seconds, sorted, and what prompts met in caches.
type Side struct {
	ttft     []float64
	in, hits int
}

// NewSide takes the good requests of a run.
func NewSide(records []*result.Record) (s Side) {
	for _, r := range records {
		if r.Outcome == result.OK && r.Phase == result.Measured {
			s.ttft = append(s.ttft, r.TTFT())
			s.in, s.hits = s.in+r.Input, s.hits+r.Cached
		}
	}
	slices.Sort(s.ttft)
	return s
}

// Quantile of the times to a first token, in seconds.
func (s *Side) Quantile(q float64) float64 { return result.Quantile(s.ttft, q) }

func (s *Side) reuse() float64 { return float64(s.hits) / float64(max(s.in, 1)) }

// Round is a workload that ran live, and then simulated with what its steps took.
type Round struct {
	Live, Sim Side
	Residual  float64 // p95 of how far single steps were off the coefficients
}

// Arm is a policy. All arms have the same rounds.
type Arm struct {
	Name   string
	Rounds []Round
}

// ratio of simulated to live in each round.
func (a *Arm) ratios(q float64) (v []float64) {
	for i := range a.Rounds {
		r := &a.Rounds[i]
		v = append(v, r.Sim.Quantile(q)/r.Live.Quantile(q))
	}
	return v
}

// quantiles are what is compared.
var quantiles = []float64{0.5, 0.95}

// tie is how far two live medians must lie apart to be in an order.
const tie = 0.1

// Report prints each round and then, of each policy and quantile, the median over the rounds of simulated by live: what a
// disturbance does to single rounds goes both ways, and what the simulator does wrong goes one way in all. misses are the medians
// further from 1 than tolerance, policies in another order, and requests that one side lacks.
func Report(w io.Writer, arms []*Arm, tolerance float64) (misses []string, err error) {
	rows := [][]string{{"round", "router", "requests", "TTFT p50 live", "simulated", "ratio", "p95 live", "simulated", "ratio", "reuse live", "simulated", "steps off, p95"}}
	for n := range len(arms[0].Rounds) {
		for _, a := range arms {
			r := &a.Rounds[n]
			if x, y := len(r.Live.ttft), len(r.Sim.ttft); x != y {
				misses = append(misses, fmt.Sprintf("%s has %d requests live and %d simulated", a.Name, x, y))
			}
			row := []string{fmt.Sprint(n + 1), a.Name, fmt.Sprint(len(r.Live.ttft))}
			for _, q := range quantiles {
				live, sim := r.Live.Quantile(q), r.Sim.Quantile(q)
				row = append(row, fmt.Sprintf("%.1f ms", 1000*live), fmt.Sprintf("%.1f ms", 1000*sim), fmt.Sprintf("%.2f", sim/live))
			}
			rows = append(rows, append(row, fmt.Sprintf("%.1f %%", 100*r.Live.reuse()), fmt.Sprintf("%.1f %%", 100*r.Sim.reuse()), fmt.Sprintf("%.0f %%", 100*r.Residual)))
		}
	}
	verdicts, apart := judge(arms, tolerance)
	live, sim := order(arms, func(r *Round) *Side { return &r.Live }), order(arms, func(r *Round) *Side { return &r.Sim })
	_, err = fmt.Fprintf(w, "%s\nSimulated by live, over the rounds:\n\n%s\nOrder by TTFT p50: live %s; simulated %s.\n",
		page.Table(rows...), page.Table(verdicts...), strings.Join(live, " < "), strings.Join(sim, " < "))
	return append(append(misses, apart...), swapped(arms)...), err
}

// judge makes the table of verdicts.
func judge(arms []*Arm, tolerance float64) (rows [][]string, misses []string) {
	rows = [][]string{{"router", "TTFT", "median", "least", "greatest", fmt.Sprintf("median within %.0f %%", 100*tolerance)}}
	for _, a := range arms {
		for _, q := range quantiles {
			v := a.ratios(q)
			m, verdict := median(v), "yes"
			if !(m >= 1-tolerance && m <= 1+tolerance) {
				verdict = "MISS"
				misses = append(misses, fmt.Sprintf("TTFT p%.0f of %s is %.2f of the live one", 100*q, a.Name, m))
			}
			rows = append(rows, []string{a.Name, fmt.Sprintf("p%.0f", 100*q), fmt.Sprintf("%.2f", m), fmt.Sprintf("%.2f", slices.Min(v)), fmt.Sprintf("%.2f", slices.Max(v)), verdict})
		}
	}
	return rows, misses
}

func median(v []float64) float64 { return result.Quantile(slices.Sorted(slices.Values(v)), 0.5) }

// order sorts by the median of the rounds' medians.
func order(arms []*Arm, of func(*Round) *Side) (names []string) {
	typical := func(a *Arm) float64 {
		var v []float64
		for i := range a.Rounds {
			v = append(v, of(&a.Rounds[i]).Quantile(0.5))
		}
		return median(v)
	}
	sorted := slices.Clone(arms)
	slices.SortStableFunc(sorted, func(a, b *Arm) int { return cmp.Compare(typical(a), typical(b)) })
	for _, a := range sorted {
		names = append(names, a.Name)
	}
	return names
}

// swapped are the pairs that are in another order, but for those that are as good as equal live. A pair is compared round by
// round, since its two sides meet the same requests and about the same machine there.
func swapped(arms []*Arm) (misses []string) {
	for i, a := range arms {
		for _, b := range arms[i+1:] {
			var live, sim []float64
			for n := range a.Rounds {
				x, y := &a.Rounds[n], &b.Rounds[n]
				live, sim = append(live, x.Live.Quantile(0.5)/y.Live.Quantile(0.5)), append(sim, x.Sim.Quantile(0.5)/y.Sim.Quantile(0.5))
			}
			l, s := median(live), median(sim)
			if max(l, 1/l) > 1+tie && (l < 1) != (s < 1) {
				misses = append(misses, fmt.Sprintf("%s and %s are in another order", a.Name, b.Name))
			}
		}
	}
	return misses
}
