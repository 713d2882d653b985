package experiment

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"tandem/test/bench/result"
)

// Value is one figure of a report, for files and plots.
type Value struct {
	Arm       string    `json:"arm"`
	Metric    string    `json:"metric"`
	Unit      string    `json:"unit,omitempty"`
	Seeds     []float64 `json:"by_seed"`
	Mean      float64   `json:"mean"`
	Published string    `json:"published,omitempty"`
}

// Verdict is how a check came out.
type Verdict struct {
	Check string `json:"check"`
	Got   string `json:"got"`
	Pass  bool   `json:"pass"`  // the mean lies in the band
	Shape bool   `json:"shape"` // it does not, but the sign is right with 95 % confidence
}

// Word is the verdict for a table.
func (v *Verdict) Word() string {
	switch {
	case v.Pass:
		return "pass"
	case v.Shape:
		return "shape"
	}
	return "MISS"
}

// Values lists all figures, by arm and metric.
func (r *Report) Values() (out []Value) {
	for i := range r.arms {
		a := &r.arms[i]
		for _, m := range r.Experiment.metrics {
			v := r.values[a.name][m.key]
			out = append(out, Value{Arm: a.name, Metric: m.key, Unit: m.unit, Seeds: v, Mean: mean(v), Published: a.published[m.key]})
		}
	}
	return out
}

// Verdicts says how the checks came out, which compare all arms: of some of them there is none.
func (r *Report) Verdicts() (out []Verdict) {
	if r.partial {
		return nil
	}
	for _, c := range r.Experiment.checks {
		got, ok := c.test(r)
		out = append(out, Verdict{Check: c.name, Got: got, Pass: ok, Shape: !ok && c.shape != nil && len(r.Seeds) > 1 && c.shape(r)})
	}
	return out
}

// Print writes the table beside the published numbers, and the verdicts.
func (r *Report) Print(w io.Writer) {
	e := r.Experiment
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	p("%s: %s\n%s\npublished: %s\n\n", strings.ToUpper(e.ID), e.Title, e.Setup, e.Source)
	rows := [][]string{{"simulated, mean of " + fmt.Sprint(len(r.Seeds)) + " seeds (range)"}}
	for i := range r.arms {
		rows[0] = append(rows[0], r.arms[i].name)
	}
	for _, m := range e.metrics {
		row, pub, some := []string{m.title + unit(m.unit)}, []string{"  published"}, false
		for i := range r.arms {
			row = append(row, span(r.values[r.arms[i].name][m.key], m.digits))
			v := r.arms[i].published[m.key]
			pub, some = append(pub, v), some || v != ""
		}
		if rows = append(rows, row); some {
			rows = append(rows, pub)
		}
	}
	align(w, rows)
	p("\n")
	for _, v := range r.Verdicts() {
		p("%-5s %s: %s\n", v.Word(), v.Check, v.Got)
	}
	p("\n")
}

func unit(u string) string {
	if u == "" {
		return ""
	}
	return ", " + u
}

// span writes a mean with the range of the seeds.
func span(v []float64, digits int) string {
	if len(v) == 1 {
		return fmt.Sprintf("%.*f", digits, v[0])
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, mean(v), digits, slices.Min(v), digits, slices.Max(v))
}

func align(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell + strings.Repeat(" ", width[i]-len([]rune(cell))+2))
		}
		_, _ = fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

func mean(v []float64) float64 {
	s := 0.0
	for _, x := range v {
		s += x
	}
	return s / float64(len(v))
}

// interval is the mean of values and a bound of its error at 95 %; of one value
// the bound is 0.
func interval(v []float64) (m, half float64) {
	if m, half = result.Interval(v); len(v) < 2 {
		half = 0
	}
	return m, half
}

// mean of a metric in an arm.
func (r *Report) mean(arm, metric string) float64 { return mean(r.values[arm][metric]) }

// change is the relative change of a metric from one arm to another, seed by
// seed.
func (r *Report) change(from, to, metric string) (m, half float64) {
	a, b := r.values[from][metric], r.values[to][metric]
	rel := make([]float64, len(a))
	for i := range a {
		rel[i] = b[i]/a[i] - 1
	}
	return interval(rel)
}

// within checks that a metric lies in a band.
func within(name, arm, metric string, low, high float64) check {
	return check{name: name, test: func(r *Report) (string, bool) {
		m := r.mean(arm, metric)
		return fmt.Sprintf("%.3g, wanted %.3g to %.3g", m, low, high), m >= low && m <= high
	}}
}

// changes checks that a metric changes from one arm to another by a part in a
// band. A band on one side of 0 has a shape: that side.
func changes(name, from, to, metric string, low, high float64) check {
	c := check{name: name, test: func(r *Report) (string, bool) {
		m, half := r.change(from, to, metric)
		return fmt.Sprintf("%+.1f ± %.1f %%, wanted %s", 100*m, 100*half, band(low, high)), m >= low && m <= high
	}}
	if low >= 0 || high <= 0 {
		c.shape = func(r *Report) bool {
			m, half := r.change(from, to, metric)
			return low >= 0 && m > half || high <= 0 && m < -half
		}
	}
	return c
}

// uneven lets what is beyond a band's upper end count as its shape: more of what
// was published.
func uneven(c check, arm, metric string, low float64) check {
	c.shape = func(r *Report) bool {
		m, half := interval(r.values[arm][metric])
		return m-half >= low
	}
	return c
}

// reaches is a change that we aim at, and that nobody published: it has no shape.
func reaches(name, from, to, metric string, low, high float64) check {
	c := changes(name, from, to, metric, low, high)
	c.shape = nil
	return c
}

func band(low, high float64) string {
	switch {
	case math.IsInf(low, -1):
		return fmt.Sprintf("at most %+.1f %%", 100*high)
	case math.IsInf(high, 1):
		return fmt.Sprintf("at least %+.1f %%", 100*low)
	}
	return fmt.Sprintf("%+.1f to %+.1f %%", 100*low, 100*high)
}

// differs checks that a metric of two arms differs by no more than so much.
func differs(name, a, b, metric string, most float64) check {
	return check{name: name, test: func(r *Report) (string, bool) {
		d := math.Abs(r.mean(a, metric) - r.mean(b, metric))
		return fmt.Sprintf("%.3g apart, wanted at most %.3g", d, most), d <= most
	}}
}

var inf = math.Inf(1)
