package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// wellFormed reads the SVG as XML.
func wellFormed(data []byte) error {
	dec := xml.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestChartsOfAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, 1, -1, math.NaN(), math.Inf(1), 1e-300, 1e300}), rapid.Float64Range(0, 100))
		series := rapid.Custom(func(t *rapid.T) Series {
			s := Series{Name: rapid.SampledFrom([]string{"", "a<b", "é & ü"}).Draw(t, "name"), Dots: rapid.Bool().Draw(t, "dots"), Steps: rapid.Bool().Draw(t, "steps")}
			for range rapid.IntRange(0, 5).Draw(t, "points") {
				s.Points = append(s.Points, Point{value.Draw(t, "x"), value.Draw(t, "y")})
			}
			if rapid.Bool().Draw(t, "bars") {
				s.Low, s.High, s.Labels = []float64{1}, []float64{2}, []string{"<x>"}
			}
			return s
		})
		c := Chart{
			Title: "t<", X: "x&", Y: "y", Series: rapid.SliceOfN(series, 0, 3).Draw(rt, "series"),
			LogX: rapid.Bool().Draw(rt, "log x"), LogY: rapid.Bool().Draw(rt, "log y"), ZeroY: rapid.Bool().Draw(rt, "zero"),
		}
		svg := c.SVG()
		if err := wellFormed(svg); err != nil {
			rt.Fatalf("%v in %s", err, svg)
		}
		if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			rt.Fatalf("not a number in %s", svg)
		}
		rows := rapid.IntRange(1, 20).Draw(rt, "rows")
		columns := rapid.IntRange(1, 100).Draw(rt, "columns")
		if text := c.Text(columns, rows, false); !utf8.ValidString(text) || strings.Count(text, "\n") != max(2, rows)+4 {
			rt.Fatalf("%q", text)
		}
	})
}

func TestTextChart(t *testing.T) {
	c := Chart{Title: "speed", X: "s", Y: "tok/s", ZeroY: true, Series: []Series{{Name: "a", Points: []Point{{0, 0}, {10, 10}}}}}
	want := strings.Join([]string{
		"speed  ■ a",
		"10 │        ⢀⡠⠔⠊",
		" 5 │    ⢀⡠⠔⠊⠁   ",
		" 0 │⣀⡠⠔⠊⠁       ",
		"   └────────────",
		"    0    5    10",
		"    s (up: tok/s)",
		"",
	}, "\n")
	if got := c.Text(16, 3, false); got != want {
		t.Errorf("\n%s", got)
	}
	if got := c.Text(16, 3, true); !strings.Contains(got, "\x1b[34m") {
		t.Errorf("no colour in %q", got)
	}
}

func TestSpark(t *testing.T) {
	if got := Spark([]float64{9, 0, 1, 2, 4}, 4); got != "▁▃▅█" {
		t.Error(got)
	}
}

func TestCDFAndThin(t *testing.T) {
	values := make([]float64, 1000)
	for i := range values {
		values[i] = float64(1000 - i)
	}
	s := CDF("x", values, 11)
	if len(s.Points) != 11 || s.Points[0] != (Point{1, 0.001}) || s.Points[10] != (Point{1000, 1}) {
		t.Errorf("%v", s.Points)
	}
	if got := Thin(s.Points, 3); len(got) != 3 {
		t.Errorf("%v", got)
	}
}

func TestTicksAreRound(t *testing.T) {
	for _, c := range []struct {
		a    axis
		want string
	}{
		{axis{low: 0, high: 10}, "0 2 4 6 8 10"},
		{axis{low: 0, high: 0.07}, "0 0.02 0.04 0.06"},
		{axis{low: 0, high: 25000}, "0 5000 10k 15k 20k 25k"},
		{axis{low: -2, high: 1, log: true}, "0.01 0.1 1 10"},
		{axis{low: 0, high: 1, log: true}, "1 2 5 10"},
	} {
		var got []string
		for _, t := range c.a.ticks(6) {
			got = append(got, t.text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v: %v, want %s", c.a, got, c.want)
		}
	}
}

// A logarithmic axis has marks also when its values are close together.
func TestNarrowLogAxisHasMarks(t *testing.T) {
	c := Chart{X: "ms", Y: "share", LogX: true, Series: []Series{{Points: []Point{{421, 0}, {428, 1}}}}}
	if text := c.Text(60, 5, false); !strings.Contains(text, "421") || !strings.Contains(text, "428") {
		t.Error(text)
	}
}
