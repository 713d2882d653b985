package experiment

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// The guards that take no time run for real and come out.
func TestGuardsHold(t *testing.T) {
	for _, id := range []string{"r2", "r3", "r4", "r5"} {
		e, err := Find(id)
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		r, err := e.Run(Options{Seeds: 1, Time: 0.5, Jobs: 2, Progress: func(string, uint64, time.Duration) { runs++ }})
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		r.Print(&text)
		for _, v := range r.Verdicts() {
			if !v.Pass {
				t.Errorf("%s: %s: %s\n%s", id, v.Check, v.Got, text.String())
			}
		}
		if runs != len(r.arms) || !strings.Contains(text.String(), "published: ") || len(r.Values()) != len(r.arms)*len(e.metrics) {
			t.Errorf("%d runs: %s", runs, text.String())
		}
	}
}

// Every preset has arms that can be simulated, and checks of figures that it has.
func TestPresetsAreWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range List() {
		if seen[e.ID] || e.Title == "" || e.Source == "" || e.Setup == "" || len(e.checks) == 0 {
			t.Errorf("%q is there twice, or lacks something", e.ID)
		}
		seen[e.ID] = true
		arms := e.arms(Options{Time: 0.01})
		for i := range arms {
			if a := &arms[i]; a.config != nil && i == len(arms)-1 { // workloads take time to make
				cfg := a.config(1)
				if err := cfg.Validate(); err != nil {
					t.Errorf("%s, %s: %v", e.ID, a.name, err)
				}
			}
		}
		r := &Report{Experiment: e, Seeds: []uint64{1, 2}, arms: arms, values: map[string]map[string][]float64{}}
		for i := range arms {
			r.values[arms[i].name] = map[string][]float64{}
			for _, m := range e.metrics {
				r.values[arms[i].name][m.key] = []float64{1, 1}
			}
			for key := range arms[i].published {
				if r.values[arms[i].name][key] == nil {
					t.Errorf("%s, %s: %s is published and not simulated", e.ID, arms[i].name, key)
				}
			}
		}
		if c := r.Chart(); c != nil && (len(c.Series) == 0 || len(c.Series[0].Points) < 3) {
			t.Errorf("%s: the chart is empty", e.ID)
		}
		for _, v := range r.Verdicts() {
			if strings.Contains(v.Got, "NaN") {
				t.Errorf("%s: %s looks at a figure that is not there", e.ID, v.Check)
			}
		}
	}
	if _, err := Find("e99"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

func TestInterval(t *testing.T) {
	m, half := interval([]float64{1, 2, 3, 4, 5})
	if m != 3 || math.Abs(half-2.776*math.Sqrt(2.5/5)) > 1e-12 {
		t.Errorf("%v ± %v", m, half)
	}
	if m, half := interval([]float64{7}); m != 7 || half != 0 {
		t.Errorf("%v ± %v", m, half)
	}
}

func TestAFailedRunIsAnError(t *testing.T) {
	e := &Experiment{ID: "x", metrics: perGPU, arms: func(Options) []arm {
		return []arm{{name: "a", probe: func(uint64) (map[string]float64, error) { return nil, errors.New("broken") }}}
	}}
	if _, err := e.Run(Options{Seeds: 2}); err == nil || !strings.Contains(err.Error(), "x, a, seed 2: broken") {
		t.Error(err)
	}
	stop := errors.New("stop")
	if _, err := e.Run(Options{Stop: func() error { return stop }}); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// Arms can run alone, and then nothing is checked that the others are needed for.
func TestSomeArms(t *testing.T) {
	e, err := Find("r3")
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Run(Options{Seeds: 1, Time: 0.5, Arms: []string{"EQUAL_PROGRESS"}})
	if err != nil || len(r.arms) != 1 || len(r.Values()) != len(e.metrics) || len(r.Verdicts()) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := e.Run(Options{Arms: []string{"EQUAL_PROGRESS", "LAST"}}); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), `"LAST": there are ["FIRST_COME_FIRST_SERVED"`) {
		t.Error(err)
	}
}

// Outside of its band a change still has its shape if its sign is sure, and what
// we aim at ourselves has none.
func TestVerdictsTellShapesFromMisses(t *testing.T) {
	report := func(to ...float64) *Report {
		r := &Report{values: map[string]map[string][]float64{"a": {"m": {}}, "b": {"m": to}}}
		for i := range to {
			r.Seeds = append(r.Seeds, uint64(i))
			r.values["a"]["m"] = append(r.values["a"]["m"], 10)
		}
		return r
	}
	falls, stays := changes("falls", "a", "b", "m", -0.3, -0.1), changes("stays", "a", "b", "m", -0.1, 0.1)
	aim, skewed := reaches("aim", "a", "b", "m", -inf, -0.9), uneven(within("skewed", "b", "m", 1, 3), "b", "m", 1)
	for _, c := range []struct {
		check check
		to    []float64
		want  string
	}{
		{falls, []float64{8, 8.1, 7.9}, "pass"},
		{falls, []float64{5, 5.1, 4.9}, "shape"},
		{falls, []float64{9.9, 9.8, 10.3}, "MISS"},
		{falls, []float64{12, 12.1, 11.9}, "MISS"},
		{falls, []float64{5}, "MISS"}, // of one seed nothing is sure
		{stays, []float64{5, 5.1, 4.9}, "MISS"},
		{aim, []float64{5, 5.1, 4.9}, "MISS"},
		{skewed, []float64{5, 5.1, 4.9}, "shape"},
		{skewed, []float64{5, 0.1, 9}, "MISS"},
		{skewed, []float64{0.1, 0.1, 0.2}, "MISS"},
	} {
		r := report(c.to...)
		r.Experiment = &Experiment{checks: []check{c.check}}
		if v := r.Verdicts()[0]; v.Word() != c.want {
			t.Errorf("%s of %v: %s (%s), want %s", c.check.name, c.to, v.Word(), v.Got, c.want)
		}
	}
}
