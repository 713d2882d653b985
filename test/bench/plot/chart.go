package plot

import (
	"math"
	"slices"
	"strconv"
)

// Point is one value.
type Point struct{ X, Y float64 }

// Series is a line or a cloud of dots, in the order given.
type Series struct {
	Name   string
	Points []Point
	Dots   bool      // dots instead of a line
	Steps  bool      // a line that keeps its value until the next point
	Labels []string  // of single points, shown when pointed at; empty = none
	Low    []float64 // with High: error bars, as many as points
	High   []float64
}

// Chart is one plot. Points that a logarithmic axis cannot show are left out.
type Chart struct {
	Title, X, Y string // with units
	Series      []Series
	LogX, LogY  bool
	ZeroY       bool // the vertical axis begins at 0
}

// axis maps values to the range 0 to 1.
type axis struct {
	low, high float64 // logarithms if log is set
	log       bool
}

// of returns the place of a value, and false if the axis cannot show it.
func (a axis) of(v float64) (float64, bool) {
	if a.log {
		if v <= 0 {
			return 0, false
		}
		v = math.Log10(v)
	}
	if !shown(v) {
		return 0, false
	}
	return (v - a.low) / (a.high - a.low), true
}

// shown tells whether an axis can show a value: no NaN, and nothing so large that differences overflow.
func shown(v float64) bool { return math.Abs(v) < 1e300 }

// fit makes the axis that shows all values.
func fit(values []float64, log, zero bool) axis {
	a := axis{low: math.Inf(1), high: math.Inf(-1), log: log}
	for _, v := range values {
		if log {
			v = math.Log10(v)
		}
		if shown(v) {
			a.low, a.high = min(a.low, v), max(a.high, v)
		}
	}
	if a.low > a.high {
		a.low, a.high = 0, 1
	}
	if zero && !log {
		a.low = min(a.low, 0)
	}
	if a.high-a.low < 1e-12*max(1, math.Abs(a.high)) {
		pad := 0.5
		if !log && a.high != 0 {
			pad = math.Abs(a.high) / 2
		}
		a.low, a.high = a.low-pad, a.high+pad
		if zero && !log {
			a.low = min(0, a.low)
		}
	}
	return a
}

// tick is a mark of an axis.
type tick struct {
	at   float64 // 0 to 1
	text string
}

// ticks are round values within the axis, about n of them.
func (a axis) ticks(n int) (out []tick) {
	if a.log {
		if out = a.logTicks(n); len(out) < 2 { // the values are too close for round powers
			out = []tick{{0, number(math.Pow(10, a.low))}, {1, number(math.Pow(10, a.high))}}
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (a.high-a.low)/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	first := math.Ceil(a.low / step)
	for k := range 2 * n { // never endless, however little the values differ
		v := (first + float64(k)) * step
		if v > a.high+step*1e-9 {
			break
		}
		at, _ := a.of(v)
		out = append(out, tick{at, number(v)})
	}
	return out
}

func (a axis) logTicks(n int) (out []tick) {
	marks := []float64{1}
	if a.high-a.low < float64(n)/3 {
		marks = []float64{1, 2, 5}
	}
	every := max(1, math.Ceil((a.high-a.low)/float64(n)))
	for e := math.Floor(a.low); e <= a.high; e += every {
		for _, m := range marks {
			v := m * math.Pow(10, e)
			if at, _ := a.of(v); at >= -1e-9 && at <= 1+1e-9 {
				out = append(out, tick{at, number(v)})
			}
		}
	}
	return out
}

// number writes a value shortly.
func number(v float64) string {
	abs := math.Abs(v)
	switch {
	case abs < 1e-12:
		return "0"
	case abs >= 1e9 || abs < 1e-4:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case abs >= 1e6:
		return trim(v/1e6) + "M"
	case abs >= 1e4:
		return trim(v/1e3) + "k"
	}
	return trim(v)
}

func trim(v float64) string {
	return strconv.FormatFloat(math.Round(v*1e5)/1e5, 'g', 4, 64)
}

// axes makes both axes of the chart.
func (c *Chart) axes() (x, y axis) {
	var xs, ys []float64
	for _, s := range c.Series {
		for i, p := range s.Points {
			if c.LogX && p.X <= 0 || c.LogY && p.Y <= 0 {
				continue
			}
			xs, ys = append(xs, p.X), append(ys, p.Y)
			if i < len(s.Low) && i < len(s.High) {
				ys = append(ys, s.Low[i], s.High[i])
			}
		}
	}
	return fit(xs, c.LogX, false), fit(ys, c.LogY, c.ZeroY)
}

// CDF makes the distribution of values as a line of at most points points: y is the share that is at most x. It sorts values.
func CDF(name string, values []float64, points int) Series {
	slices.Sort(values)
	s := Series{Name: name}
	n := len(values)
	for i := range min(n, points) {
		k := i
		if n > points {
			k = int(float64(i) / float64(points-1) * float64(n-1))
		}
		s.Points = append(s.Points, Point{values[k], float64(k+1) / float64(n)})
	}
	return s
}

// Thin keeps every n-th point so that at most most are left.
func Thin(points []Point, most int) []Point {
	if len(points) <= most {
		return points
	}
	out := make([]Point, 0, most)
	for i := range most {
		out = append(out, points[i*len(points)/most])
	}
	return out
}
