package profile

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"tandem/engine/tensor"
)

// clock is a device that costs what coefficients say; it tells through the batch.
type fakeDevice struct{ runs int }

func (f *fakeDevice) Run(b *tensor.Batch) ([]float32, error) {
	f.runs++
	return make([]float32, len(b.LogitRows)), nil
}

func someGrid() Grid { return DefaultGrid(1000, 16, 40000, 8192) }

// pointsOf makes what a perfect engine would measure, times noise.
func pointsOf(c Coefficients, noise func() float64) []Point {
	g := someGrid()
	var points []Point
	for _, it := range g.iterations() {
		p := Point{CtxTokens: it.ctx, CtxPrior: it.ctx * it.prior, GenRequests: it.gen, GenContext: it.gen * it.context}
		p.Seconds = c.Seconds(p) * noise()
		points = append(points, p)
	}
	return points
}

func TestSolveFindsTheCoefficients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := func(name string, most float64) float64 {
			return most * math.Pow(10, -rapid.Float64Range(0, 2).Draw(t, name))
		}
		want := Coefficients{of("a", 5e-3), of("b", 2e-4), of("c", 1e-4), of("d", 1e-7), of("e", 1e-8)}
		got, fit, err := Solve(pointsOf(want, func() float64 { return 1 }))
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want.list() {
			if g := got.list()[i]; math.Abs(g-w) > 1e-6*w {
				t.Errorf("coefficient %d is %g, want %g", i, g, w)
			}
		}
		if fit.R2 < 0.999999 || fit.ResidualP95 > 1e-6 || fit.Check() != nil {
			t.Errorf("fit %+v", fit)
		}
	})
}

// Noise moves coefficients a little, and makes none negative.
func TestSolveIsNotNegative(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	want := Coefficients{Iteration: 1e-3, CtxToken: 1e-4} // the rest costs nothing
	got, fit, err := Solve(pointsOf(want, func() float64 { return 1 + 0.05*(2*random.Float64()-1) }))
	if err != nil || fit.Check() != nil {
		t.Fatalf("%v %v", err, fit.Check())
	}
	for i, c := range got.list() {
		if c < 0 {
			t.Errorf("coefficient %d is %g", i, c)
		}
	}
	if math.Abs(got.CtxToken/want.CtxToken-1) > 0.03 || math.Abs(got.Iteration/want.Iteration-1) > 0.05 {
		t.Errorf("got %+v", got)
	}
}

func TestPoorFitsAreRefused(t *testing.T) {
	odd := false
	_, fit, err := Solve(pointsOf(Coefficients{Iteration: 1e-3, CtxToken: 1e-4}, func() float64 {
		odd = !odd
		if odd {
			return 2
		}
		return 1
	}))
	if err != nil || !errors.Is(fit.Check(), ErrPoor) {
		t.Errorf("%v, fit %+v is %v", err, fit, fit.Check())
	}
	if !errors.Is(Fit{ResidualP95: math.NaN()}.Check(), ErrPoor) {
		t.Error("NaN is no fit")
	}
}

func TestSolveRefusesWhatTellsNothing(t *testing.T) {
	alike := make([]Point, 20)
	for i := range alike {
		alike[i] = Point{CtxTokens: 16, Seconds: 1}
	}
	if c, _, err := Solve(alike); err != nil || math.Abs(c.Seconds(alike[0])-1) > 1e-9 {
		t.Errorf("one kind of iteration: %+v, %v", c, err)
	}
	for name, points := range map[string][]Point{
		"few": alike[:3], "no time": append([]Point{{}}, alike...), "negative": append([]Point{{CtxTokens: -1, Seconds: 1}}, alike...),
		"infinite": append([]Point{{Seconds: math.Inf(1)}}, alike...),
	} {
		if _, _, err := Solve(points); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFiles(t *testing.T) {
	p, err := Make("m", "d", pointsOf(Coefficients{1e-3, 1e-4, 1e-5, 1e-8, 1e-9}, func() float64 { return 1 }))
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	if err := p.Write(&written); err != nil {
		t.Fatal(err)
	}
	if back, err := Read(&written); err != nil || *back != *p {
		t.Errorf("%+v, %v; want %+v", back, err, p)
	}
	file := func(first, more string) string {
		return `{"kind":"tandem-profile","version":1,"coefficients":{` + first + more + `}}`
	}
	const rest = `,"gen_request_s":0,"gen_context_token_s":0,"ctx_attention_s":0`
	for want, text := range map[string]string{
		"version 2": `{"kind":"tandem-profile","version":2}`, "unknown": `{"kind":"tandem-profile","version":1,"more":1}`,
		"no ctx_token_s":    file(`"iteration_s":1`, ""),
		"ctx_token_s is -1": file(`"iteration_s":1,"ctx_token_s":-1`, rest),
		"want 0 to 3600":    file(`"iteration_s":1e300,"ctx_token_s":1`, rest),
		"all coefficients":  file(`"iteration_s":0,"ctx_token_s":0`, rest),
		"ends before":       "",
		"ends before the":   file(`"iteration_s":1`, rest)[:60],
		"follows":           file(`"iteration_s":1,"ctx_token_s":1`, rest) + "{}",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A profile of prompts only would say that decoding is free, and one of absurd times is none.
func TestMakeRefusesWhatDoesNotVary(t *testing.T) {
	all := pointsOf(Coefficients{1e-3, 1e-4, 1e-5, 1e-8, 1e-9}, func() float64 { return 1 })
	var prompts, slow []Point
	for _, p := range all {
		if p.GenRequests == 0 {
			prompts = append(prompts, p)
		}
		p.Seconds *= 1e12
		slow = append(slow, p)
	}
	for want, points := range map[string][]Point{"gen_requests is 0 in all": prompts, "want 0 to 3600": slow} {
		if _, err := Make("m", "d", points); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestReadPoints(t *testing.T) {
	var lines bytes.Buffer
	lines.WriteString("a heading\n{\"step\":\"device\",\"name\":\"x\"}\n\n")
	want := Point{CtxTokens: 1, CtxPrior: 2, GenRequests: 3, GenContext: 4, Seconds: 5}
	if err := want.WriteLine(&lines, "m", "d"); err != nil {
		t.Fatal(err)
	}
	points, model, device, err := ReadPoints(&lines)
	if err != nil || len(points) != 1 || points[0] != want || model != "m" || device != "d" {
		t.Errorf("%v %q %q %v", points, model, device, err)
	}
	for name, text := range map[string]string{"none": "{}\n", "broken": "{\n"} {
		if _, _, _, err := ReadPoints(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestMeasureStaysWithinLimits(t *testing.T) {
	g := DefaultGrid(100, 16, 64, 200)
	g.Repeats = 1
	d, seen := &fakeDevice{}, 0
	points, err := g.Measure(d, func(done, all int, _ Point) { seen = all - done })
	if err != nil || seen != 0 || d.runs != 2*len(points) || len(points) == 0 {
		t.Fatalf("%d points, %d runs, %d left, %v", len(points), d.runs, seen, err)
	}
	for _, it := range g.iterations() {
		b := g.batch(it)
		if b.Rows() > 200 || b.Rows() != it.ctx+it.gen || len(b.Pages) > 64 {
			t.Errorf("%+v: %d rows, %d pages", it, b.Rows(), len(b.Pages))
		}
		for _, id := range b.Pages {
			if id >= 64 {
				t.Errorf("%+v: block %d", it, id)
			}
		}
	}
}
