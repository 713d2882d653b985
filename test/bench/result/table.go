package result

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"tandem/test/bench/plot"
)

// shownMetric is a line of the table.
type shownMetric struct {
	key, text string
	by        float64
}

var shownMetrics = []shownMetric{
	{"ttft", "TTFT (ms)", 1000},
	{"ttft_co", "TTFT from schedule (ms)", 1000},
	{"ttst", "first to second chunk (ms)", 1000},
	{"tpot", "TPOT, first token excluded (ms)", 1000},
	{"itl", "ITL, pooled gaps (ms)", 1000},
	{"e2el", "end to end (ms)", 1000},
	{"user_tps_decode", "tokens/s per user, decode", 1},
	{"schedule_lag", "client's schedule lag (ms)", 1000},
}

// Print writes the summary of a step for a person to read. colour uses escape codes of terminals.
func Print(out io.Writer, step *Step, colour bool) error {
	s := step.Summary
	bold := func(t string) string {
		if colour {
			return "\x1b[1m" + t + "\x1b[0m"
		}
		return t
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", bold(strings.TrimSpace(step.Name+"  "+step.Load)))
	fmt.Fprintf(&b, "  %d requests in %.2f s: %d completed, %d failed", s.Offered, s.Duration, s.Completed, s.Failed)
	if s.Failed > 0 {
		fmt.Fprintf(&b, " (errors %.1f %%, shed %.1f %% of offered)", 100*s.ErrorRate, 100*s.ShedRate)
	}
	if n := s.Outcomes[string(Cancelled)]; n > 0 {
		fmt.Fprintf(&b, ", %d cancelled", n)
	}
	fmt.Fprintf(&b, "\n  %s req/s, output %.1f tok/s, total %.1f tok/s, in flight %.1f (peak %d)\n", rate(s.Throughput), s.OutputTPS, s.TotalTPS, s.ConcurrencyAvg, s.ConcurrencyMax)
	fmt.Fprintf(&b, "  tokens: %d in (%.1f %% cached by the server), %d out\n", s.TotalIn, 100*s.CacheHit, s.TotalOut)
	if s.OutputTPSPerGPU > 0 {
		fmt.Fprintf(&b, "  per accelerator: output %.1f tok/s, total %.1f tok/s\n", s.OutputTPSPerGPU, s.TotalTPSPerGPU)
	}
	if s.Limits != "" {
		fmt.Fprintf(&b, "  goodput (%s): %s req/s, %.1f %% good, %.1f %% of offered\n", s.Limits, rate(s.Goodput), 100*s.GoodFraction, 100*s.GoodOfOffered)
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(w, "\tmean\tstd\tp50\tp90\tp95\tp99\tmax\t\n")
	for _, m := range shownMetrics {
		d := s.Dist[m.key]
		if d.Count == 0 || m.key == "ttft_co" && d.P99-s.Dist["ttft"].P99 < 1e-4 || m.key == "schedule_lag" && d.P99 < 1e-3 {
			continue
		}
		_, _ = fmt.Fprintf(w, "  %s", m.text)
		for _, v := range []float64{d.Mean, d.Std, d.P50, d.P90, d.P95, d.P99, d.Max} {
			_, _ = fmt.Fprintf(w, "\t%.2f", v*m.by)
		}
		_, _ = fmt.Fprintf(w, "\t\n")
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	if len(s.Flags) > 0 {
		fmt.Fprintf(&b, "  %s\n", bold("flags: "+strings.Join(s.Flags, ", ")))
	}
	for text, n := range errorTexts(step.Records) {
		fmt.Fprintf(&b, "  %d x %s\n", n, text)
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	return nil
}

// maxErrorTexts bounds the different errors that are shown.
const maxErrorTexts = 5

// errorTexts yields different errors with their numbers, in the order of their first appearance.
func errorTexts(records []*Record) func(yield func(string, int) bool) {
	count := map[string]int{}
	var order []string
	for _, r := range records {
		if r.Error == "" {
			continue
		}
		if count[r.Error]++; count[r.Error] == 1 {
			order = append(order, r.Error)
		}
	}
	return func(yield func(string, int) bool) {
		for i, text := range order {
			if i == maxErrorTexts || !yield(text, count[text]) {
				return
			}
		}
	}
}

// Chart draws what a terminal shows of a run: how latencies are distributed, or of several steps how they grow.
func Chart(steps []Step) *plot.Chart {
	if len(steps) > 1 && steps[0].XName != "" {
		c := &plot.Chart{Title: "latency", X: steps[0].XName, Y: "ms", LogY: true}
		for _, m := range []struct{ key, name string }{{"ttft", "TTFT p50"}, {"ttft", "TTFT p99"}, {"tpot", "TPOT p50"}} {
			s := plot.Series{Name: m.name}
			for _, st := range steps {
				d := st.Summary.Dist[m.key]
				v := d.P50
				if m.name == "TTFT p99" {
					v = d.P99
				}
				s.Points = append(s.Points, plot.Point{X: st.X, Y: 1000 * v})
			}
			c.Series = append(c.Series, s)
		}
		return c
	}
	c := &plot.Chart{Title: "share of requests that were at least so fast", X: "ms", Y: "share", LogX: true}
	for _, st := range steps {
		for _, m := range []struct{ key, name string }{{"ttft", "TTFT"}, {"tpot", "TPOT"}, {"e2el", "end to end"}} {
			name := m.name
			if len(steps) > 1 {
				name = st.Name + " " + name
			}
			if v := scaled(st.Records, m.key, 1000); len(v) > 0 {
				c.Series = append(c.Series, plot.CDF(name, v, 200))
			}
		}
	}
	return c
}

// scaled are the values of a metric over completed, measured records.
func scaled(records []*Record, key string, by float64) []float64 {
	d := newSamples()
	for _, r := range records {
		if r.Phase == Measured && r.Outcome == OK {
			d.record(r)
		}
	}
	out := d.values[key]
	for i := range out {
		out[i] *= by
	}
	return out
}

// rate writes requests a second: three digits, but none of those before the point less.
func rate(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
