package live

import "tandem/test/bench/profile"

// Model is what the steps of a run cost: coefficients for all workers, and what each step took against them, in order. Threads
// that wait for a processor make single steps longer and others not, so that a mean would not do.
type Model struct {
	Cost    profile.Coefficients
	Fit     profile.Fit // of single steps
	factors map[class][]float64
}

// class is the steps that are alike in what disturbs them.
type class struct {
	worker  int
	prefill bool
}

// NewModel fits a model to steps.
func NewModel(steps []Step) (*Model, error) {
	points := make([]profile.Point, len(steps))
	for i := range steps {
		points[i] = steps[i].Point
	}
	cost, fit, err := profile.Solve(points)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what is wrong
	}
	m := &Model{Cost: cost, Fit: fit, factors: map[class][]float64{}}
	for i := range steps {
		s := &steps[i]
		c := class{s.Worker, s.CtxTokens > 0}
		m.factors[c] = append(m.factors[c], s.Seconds/cost.Seconds(s.Point))
	}
	return m, nil
}

// pace gives the simulated steps of a class the factors of the live ones, in their order, and from the first again.
func (m *Model) pace() func(instance int, p profile.Point) float64 {
	next := map[class]int{}
	return func(instance int, p profile.Point) float64 {
		c := class{instance, p.CtxTokens > 0}
		list := m.factors[c]
		if len(list) == 0 {
			return 1
		}
		i := next[c]
		next[c]++
		return list[i%len(list)]
	}
}
