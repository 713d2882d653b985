package compare

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"tandem/test/bench/result"
)

func summary(ttft, tps float64) *result.Summary {
	return &result.Summary{OutputTPS: tps, Throughput: tps / 10, Dist: map[string]result.Stats{"ttft": {Count: 1, P50: ttft, P95: 2 * ttft}}}
}

func TestCompare(t *testing.T) {
	var a, b []*result.Summary
	for i := range 6 {
		mood := 1 + float64(i)/3 // both meet the same machine
		a = append(a, summary(0.1*mood, 100/mood))
		b = append(b, summary(0.08*mood*(1+0.01*float64(i%2)), 100/mood*(1+0.02*float64(i%3-1))))
	}
	lines := Compare(a, b)
	if len(lines) != 4 { // no tpot, itl, e2el
		t.Fatalf("%d lines", len(lines))
	}
	l := lines[0]
	if math.Abs(l.Ratio-0.804) > 0.001 || l.Low < 0.79 || l.High > 0.82 || math.Abs(l.P-2.0/64) > 1e-9 || l.Verdict() != "B is better" {
		t.Errorf("%+v %s", l, l.Verdict())
	}
	if v := lines[2]; v.Key != "output_throughput" || v.Verdict() != "no difference that is sure" {
		t.Errorf("%+v %s", v, v.Verdict())
	}
	if back := Compare(b, a)[0]; back.Verdict() != "A is better" || math.Abs(back.Ratio*l.Ratio-1) > 1e-9 {
		t.Errorf("%+v", back)
	}
	if one := Compare(a[:1], b[:1])[0]; one.Verdict() != "no difference that is sure" || one.P != 1 {
		t.Errorf("%+v", one)
	}
	var out bytes.Buffer
	if err := Print(&out, "x", "y", lines); err != nil || !strings.Contains(out.String(), "B is better") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if svg := Chart(lines).SVG(); !bytes.Contains(svg, []byte("slice 6")) {
		t.Error("the chart lacks a slice")
	}
	if svg := Intervals(lines).SVG(); !bytes.Contains(svg, []byte("1 TTFT p50")) {
		t.Error("the chart lacks a metric")
	}
}

// Servers that are the same are found different about once in twenty times.
func TestTheIntervalHasItsConfidence(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{3, 8, 40} {
		wrong, flips := 0, 0
		const runs = 1000
		for range runs {
			v := make([]float64, n)
			for i := range v {
				v[i] = rng.NormFloat64()
			}
			mean, half := result.Interval(v)
			if math.Abs(mean) > half {
				wrong++
			}
			if n == 8 && signFlips(v) <= 0.05 {
				flips++
			}
		}
		if wrong < runs/40 || wrong > runs/12 {
			t.Errorf("%d pairs: wrong in %d of %d runs, want about 50", n, wrong, runs)
		}
		if n == 8 && (flips < runs/40 || flips > runs/12) {
			t.Errorf("sign flips are wrong in %d of %d runs", flips, runs)
		}
	}
}
