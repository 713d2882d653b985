package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"text/tabwriter"

	"tandem/test/bench/plot"
	"tandem/test/bench/result"
)

// Metric is what is compared: one value of a slice's summary.
type Metric struct {
	Key, Text string
	By        float64 // to the unit of Text
	More      bool    // more is better
	Of        func(*result.Summary) float64
}

// dist is a value of a distribution.
func dist(key string, of func(result.Stats) float64) func(*result.Summary) float64 {
	return func(s *result.Summary) float64 { return of(s.Dist[key]) }
}

// Metrics are those that are compared.
var Metrics = []Metric{
	{"ttft_p50", "TTFT p50 (ms)", 1000, false, dist("ttft", func(s result.Stats) float64 { return s.P50 })},
	{"ttft_p95", "TTFT p95 (ms)", 1000, false, dist("ttft", func(s result.Stats) float64 { return s.P95 })},
	{"tpot_mean", "TPOT mean (ms)", 1000, false, dist("tpot", func(s result.Stats) float64 { return s.Mean })},
	{"itl_p99", "ITL p99 (ms)", 1000, false, dist("itl", func(s result.Stats) float64 { return s.P99 })},
	{"e2el_p50", "end to end p50 (ms)", 1000, false, dist("e2el", func(s result.Stats) float64 { return s.P50 })},
	{"output_throughput", "output tokens/s", 1, true, func(s *result.Summary) float64 { return s.OutputTPS }},
	{"request_throughput", "requests/s", 1, true, func(s *result.Summary) float64 { return s.Throughput }},
}

// Line is one metric of both servers.
type Line struct {
	Key   string    `json:"key"`
	Text  string    `json:"text"`
	More  bool      `json:"more_is_better"`
	A     float64   `json:"a"` // geometric mean over slices, in the unit of Text
	B     float64   `json:"b"`
	Ratio float64   `json:"b_over_a"`
	Low   float64   `json:"low"` // 95 % confidence interval of the ratio
	High  float64   `json:"high"`
	P     float64   `json:"p"` // of a ratio at least so far from 1 if the servers were the same
	Pairs []float64 `json:"pairs"`
}

// MarshalJSON leaves bounds that one pair does not have null: JSON has no infinity.
func (l Line) MarshalJSON() ([]byte, error) {
	type plain Line
	out := struct {
		plain
		Low  *float64 `json:"low"`
		High *float64 `json:"high"`
	}{plain: plain(l)}
	if l.bounded() {
		out.Low, out.High = &l.Low, &l.High
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.Key, err)
	}
	return data, nil
}

// bounded tells whether there were pairs enough for an interval.
func (l *Line) bounded() bool { return l.Low > 0 && !math.IsInf(l.High, 0) && !math.IsNaN(l.High) }

// Verdict says what is sure at 95 %.
func (l *Line) Verdict() string {
	switch {
	case math.IsNaN(l.Low) || l.Low <= 1 && l.High >= 1:
		return "no difference that is sure"
	case l.Ratio > 1 == l.More:
		return "B is better"
	}
	return "A is better"
}

// Compare makes the lines of two servers' slices, which go together in pairs. Metrics that some slice lacks are left out.
func Compare(a, b []*result.Summary) []Line {
	var out []Line
	for _, m := range Metrics {
		l := Line{Key: m.Key, Text: m.Text, More: m.More}
		var logs []float64
		var sumA, sumB float64
		for i := range min(len(a), len(b)) {
			va, vb := m.Of(a[i]), m.Of(b[i])
			if !(va > 0) || !(vb > 0) {
				logs = nil
				break
			}
			logs = append(logs, math.Log(vb/va))
			l.Pairs = append(l.Pairs, vb/va)
			sumA, sumB = sumA+math.Log(va), sumB+math.Log(vb)
		}
		if len(logs) == 0 {
			continue
		}
		n := float64(len(logs))
		l.A, l.B = m.By*math.Exp(sumA/n), m.By*math.Exp(sumB/n)
		mean, half := result.Interval(logs)
		l.Ratio, l.Low, l.High, l.P = math.Exp(mean), math.Exp(mean-half), math.Exp(mean+half), signFlips(logs)
		out = append(out, l)
	}
	return out
}

// signFlips is the share of all choices of signs whose mean is at least as far from 0: if the servers were the same, each
// pair's difference could as well be the other way round. Of many pairs some choices are drawn.
func signFlips(v []float64) float64 {
	const exact, drawn = 14, 1 << 14
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	limit := math.Abs(sum) * (1 - 1e-12)
	total := drawn
	if len(v) <= exact {
		total = 1 << len(v)
	}
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // statistics, no secret
	far := 0
	for k := range total {
		bits := uint64(k)
		s := 0.0
		for i, x := range v {
			if len(v) > exact && i%64 == 0 {
				bits = rng.Uint64()
			}
			if bits>>(i%64)&1 == 1 {
				x = -x
			}
			s += x
		}
		if math.Abs(s) >= limit {
			far++
		}
	}
	return float64(far) / float64(total)
}

// Print writes the table.
func Print(out io.Writer, nameA, nameB string, lines []Line) error {
	var b strings.Builder
	fmt.Fprintf(&b, "A is %s, B is %s; ratios are B/A with their 95 %% confidence interval\n", nameA, nameB)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(w, "\tA\tB\tB/A\tlow\thigh\tp\t\t\n")
	for i := range lines {
		l := &lines[i]
		_, _ = fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.3f\t%.3f\t%.3f\t%.3f\t  %s\t\n", l.Text, l.A, l.B, l.Ratio, l.Low, l.High, l.P, l.Verdict())
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("comparison: %w", err)
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("comparison: %w", err)
	}
	return nil
}

// Chart draws the ratios of all slices by metric.
func Chart(lines []Line) *plot.Chart {
	c := &plot.Chart{Title: "B/A of each slice", X: "slice", Y: "ratio"}
	for _, l := range lines {
		s := plot.Series{Name: l.Text}
		for i, p := range l.Pairs {
			s.Points = append(s.Points, plot.Point{X: float64(i + 1), Y: p})
			s.Labels = append(s.Labels, fmt.Sprintf("%s, slice %d: %.3f", l.Key, i+1, p))
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// Intervals draws each metric's ratio with its confidence interval, numbered as in the table.
func Intervals(lines []Line) *plot.Chart {
	c := &plot.Chart{Title: "B/A with 95 % confidence", X: "metric, as numbered in the legend", Y: "ratio"}
	for i, l := range lines {
		s := plot.Series{
			Name: fmt.Sprintf("%d %s", i+1, l.Text), Dots: true, Points: []plot.Point{{X: float64(i + 1), Y: l.Ratio}},
			Labels: []string{fmt.Sprintf("%.3f (%.3f to %.3f)", l.Ratio, l.Low, l.High)},
		}
		if l.bounded() {
			s.Low, s.High = []float64{l.Low}, []float64{l.High}
		}
		c.Series = append(c.Series, s)
	}
	one := plot.Series{Points: []plot.Point{{X: 0.5, Y: 1}, {X: float64(len(lines)) + 0.5, Y: 1}}}
	c.Series = append(c.Series, one)
	return c
}
