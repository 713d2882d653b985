package result

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"tandem/test/bench/plot"
)

//go:embed report.html
var reportPage string

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"ms":   func(v float64) string { return fmt.Sprintf("%.2f", 1000*v) },
	"f1":   func(v float64) string { return fmt.Sprintf("%.1f", v) },
	"f3":   func(v float64) string { return fmt.Sprintf("%.3g", v) },
	"pc":   func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) },
	"join": func(words []string) string { return strings.Join(words, " ") },
}).Parse(reportPage))

// Report makes the page of a run: tables and charts in one file, without scripts and without anything from elsewhere.
func Report(run *Run, steps []Step) ([]byte, error) {
	var charts []template.HTML
	for _, c := range append(append([]*plot.Chart(nil), run.Charts...), Charts(steps)...) {
		charts = append(charts, template.HTML(c.SVG())) //nolint:gosec // our own drawing, its texts are escaped
	}
	var b bytes.Buffer
	err := reportTemplate.Execute(&b, map[string]any{"Run": run, "Steps": steps, "Charts": charts, "Metrics": reportMetrics})
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return b.Bytes(), nil
}

// reportMetric is a line of the page's tables.
type reportMetric struct {
	Key, Text string
	By        float64
}

// Scaled is a value in the line's unit.
func (m reportMetric) Scaled(v float64) string { return fmt.Sprintf("%.2f", v*m.By) }

var reportMetrics = []reportMetric{
	{"ttft", "ttft, ms: sent to first chunk", 1000},
	{"ttft_co", "ttft_co, ms: wanted to first chunk", 1000},
	{"tfat", "tfat, ms: sent to first chunk that is no reasoning", 1000},
	{"ttst", "ttst, ms: first to second chunk", 1000},
	{"tpot", "tpot, ms: per token after the first", 1000},
	{"tpot_incl", "tpot_incl, ms: per token, first included", 1000},
	{"itl", "itl, ms: gaps between chunks, pooled", 1000},
	{"e2el", "e2el, ms: sent to last chunk", 1000},
	{"e2el_co", "e2el_co, ms: wanted to last chunk", 1000},
	{"decode_dur", "decode_dur, ms: first to last chunk", 1000},
	{"user_tps_e2e", "user_tps_e2e: out / e2el", 1},
	{"user_tps_decode", "user_tps_decode: 1 / tpot", 1},
	{"prefill_tps", "prefill_tps: in / ttft", 1},
	{"schedule_lag", "schedule_lag, ms: wanted to sent", 1000},
	{"in", "in: prompt tokens", 1},
	{"out", "out: answer tokens", 1},
	{"cached", "cached: prompt tokens the server had", 1},
}

// mostPoints bounds the points of a series, so that pages stay small.
const mostPoints = 1500

// Charts are the plots of a run.
func Charts(steps []Step) []*plot.Chart {
	out := distributions(steps)
	if len(steps) > 1 && steps[0].XName != "" {
		out = append(sweepCharts(steps), out...)
	}
	return append(out, timelines(steps)...)
}

// distributions are one chart a metric with a line a step.
func distributions(steps []Step) (out []*plot.Chart) {
	for _, m := range []struct{ key, title string }{
		{"ttft", "Time to first token (ttft)"}, {"tpot", "Time per output token (tpot)"}, {"itl", "Gaps between chunks (itl)"}, {"e2el", "End to end (e2el)"},
	} {
		c := &plot.Chart{Title: m.title, X: "ms", Y: "share of values at most this", LogX: true, ZeroY: true}
		for _, st := range steps {
			s := plot.CDF(st.Name, scaled(st.Records, m.key, 1000), 400)
			if len(steps) == 1 {
				s.Name = ""
			}
			c.Series = append(c.Series, s)
		}
		if drawn(c) {
			out = append(out, c)
		}
	}
	return out
}

// drawn tells whether a chart has any point: of answers that are no streams some things are not known.
func drawn(c *plot.Chart) bool {
	return slices.ContainsFunc(c.Series, func(s plot.Series) bool { return len(s.Points) > 0 })
}

// sweepCharts show how a sweep's values depend on its load, and speed for one against speed for all.
func sweepCharts(steps []Step) []*plot.Chart {
	x := steps[0].XName
	ttft := &plot.Chart{Title: "Time to first token", X: x, Y: "ms", LogY: true}
	tpot := &plot.Chart{Title: "Time per output token", X: x, Y: "ms", ZeroY: true}
	rate := &plot.Chart{Title: "Throughput", X: x, Y: "output tokens/s", ZeroY: true}
	pareto := &plot.Chart{Title: "Speed for all against speed for one", X: "tokens/s of a user (median, decode)", Y: "output tokens/s of all", ZeroY: true}
	line := func(c *plot.Chart, name string, of func(*Summary) plot.Point, at bool) {
		s := plot.Series{Name: name}
		for _, st := range steps {
			p := of(st.Summary)
			if at {
				p.X = st.X
			}
			s.Points = append(s.Points, p)
			s.Labels = append(s.Labels, st.Name)
		}
		c.Series = append(c.Series, s)
	}
	y := func(v float64) plot.Point { return plot.Point{Y: v} }
	line(ttft, "p50", func(s *Summary) plot.Point { return y(1000 * s.Dist["ttft"].P50) }, true)
	line(ttft, "p99", func(s *Summary) plot.Point { return y(1000 * s.Dist["ttft"].P99) }, true)
	line(ttft, "p99 from schedule", func(s *Summary) plot.Point { return y(1000 * s.Dist["ttft_co"].P99) }, true)
	line(tpot, "p50", func(s *Summary) plot.Point { return y(1000 * s.Dist["tpot"].P50) }, true)
	line(tpot, "p99", func(s *Summary) plot.Point { return y(1000 * s.Dist["tpot"].P99) }, true)
	line(rate, "output", func(s *Summary) plot.Point { return y(s.OutputTPS) }, true)
	line(pareto, "", func(s *Summary) plot.Point { return plot.Point{X: s.Dist["user_tps_decode"].P50, Y: s.OutputTPS} }, false)
	return []*plot.Chart{ttft, tpot, rate, pareto}
}

// bins is how many pieces a timeline is cut into.
const bins = 120

// timelines show a run over time: each request's TTFT, tokens a second, requests in flight.
func timelines(steps []Step) []*plot.Chart {
	ttft := &plot.Chart{Title: "ttft over time", X: "s since the start", Y: "ms", ZeroY: true}
	tokens := &plot.Chart{Title: "Chunks over time", X: "s since the start", Y: "chunks/s", ZeroY: true}
	flying := &plot.Chart{Title: "Requests in flight", X: "s since the start", Y: "requests", ZeroY: true}
	for _, st := range steps {
		name := st.Name
		if len(steps) == 1 {
			name = ""
		}
		var cloud []plot.Point
		first, last := int64(math.MaxInt64), int64(0)
		for _, r := range st.Records {
			if r.Send < 0 {
				continue
			}
			first, last = min(first, r.Send), max(last, r.End)
			if r.Phase == Measured && r.Outcome == OK && r.First >= 0 && !r.Whole {
				cloud = append(cloud, plot.Point{X: float64(r.Send) / 1e9, Y: 1000 * r.TTFT()})
			}
		}
		if last <= first {
			continue
		}
		ttft.Series = append(ttft.Series, plot.Series{Name: name, Dots: true, Points: plot.Thin(cloud, mostPoints)})
		chunks, flight := binned(st.Records, first, last)
		tokens.Series = append(tokens.Series, plot.Series{Name: name, Points: chunks})
		flying.Series = append(flying.Series, plot.Series{Name: name, Points: flight})
	}
	if !drawn(ttft) {
		return []*plot.Chart{tokens, flying}
	}
	return []*plot.Chart{ttft, tokens, flying}
}

// binned counts chunks a second and requests in flight in equal pieces of the time.
func binned(records []*Record, first, last int64) (chunks, flight []plot.Point) {
	width := (last-first)/bins + 1
	var n, busy [bins]float64
	count := func(at int64) {
		if k := (at - first) / width; k >= 0 && k < bins {
			n[k]++
		}
	}
	for _, r := range records {
		if r.Send < 0 {
			continue
		}
		for k := max(0, (r.Send-first)/width); k < bins && first+k*width < r.End; k++ {
			from, to := max(r.Send, first+k*width), min(r.End, first+(k+1)*width)
			busy[k] += float64(to-from) / float64(width)
		}
		if r.First < 0 {
			continue
		}
		at := r.First
		count(at)
		for _, g := range r.Gaps {
			at += g
			count(at)
		}
	}
	for k := range bins {
		x := (float64(first) + (float64(k)+0.5)*float64(width)) / 1e9
		chunks = append(chunks, plot.Point{X: x, Y: n[k] / (float64(width) / 1e9)})
		flight = append(flight, plot.Point{X: x, Y: busy[k]})
	}
	return chunks, flight
}
