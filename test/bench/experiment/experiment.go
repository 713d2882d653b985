package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tandem/test/bench/des"
	"tandem/test/bench/plot"
)

// Experiment is one published result and the runs that should show it again.
type Experiment struct {
	ID, Title string
	Source    string // of the published numbers
	Setup     string // what is simulated
	arms      func(Options) []arm
	metrics   []metric
	checks    []check
	chart     func(*Report) *plot.Chart // nil = none
}

// arm is one of the things compared.
type arm struct {
	name      string
	published map[string]string // by key of the metric
	config    func(seed uint64) des.Config
	// probe replaces a run of config: several runs, summed up by the metrics' keys.
	probe func(seed uint64) (map[string]float64, error)
}

// metric is one figure of a run.
type metric struct {
	key, title, unit string
	digits           int
	of               func(*des.Result) float64 // nil: a probe gives it
}

// check is one thing that must come out.
type check struct {
	name string
	test func(*Report) (got string, ok bool)
	// shape, which may be nil, reports what is left of the check outside of its
	// band: that the sign is right, with all that the seeds leave open.
	shape func(*Report) bool
}

// Options say how much is run.
type Options struct {
	Seeds int      // 0 = 5
	Time  float64  // factor on all times, 0 = 1
	Jobs  int      // runs at a time, 0 = 1
	Arms  []string // names of those to run, nil = all; of some nothing is checked
	// Traces is a folder of recorded traces, which those arms take that can; empty = what generators make.
	Traces string
	// Stop, which may be nil, says by an error that no further run shall begin, and those under way shall end.
	Stop func() error
	// Progress, which may be nil, is called after each run, by one goroutine at a
	// time.
	Progress func(arm string, seed uint64, took time.Duration)
}

func (o Options) time(d time.Duration) time.Duration {
	if o.Time == 0 {
		return d
	}
	return time.Duration(float64(d) * o.Time)
}

// wanted keeps the arms that are to run.
func (o Options) wanted(all []arm) (some []arm, err error) {
	if len(o.Arms) == 0 {
		return all, nil
	}
	var names []string
	for _, a := range all {
		names = append(names, a.name)
		if slices.Contains(o.Arms, a.name) {
			some = append(some, a)
		}
	}
	for _, name := range o.Arms {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%w: %q: there are %q", ErrUnknown, name, names)
		}
	}
	return some, nil
}

// Report is what the runs gave.
type Report struct {
	Experiment *Experiment
	Seeds      []uint64
	values     map[string]map[string][]float64 // arm, metric, by seed
	arms       []arm
	partial    bool // not all arms ran
}

// ErrUnknown says that there is no such experiment, or arm.
var ErrUnknown = errors.New("no such experiment or arm")

// List returns all experiments in their order.
func List() []*Experiment {
	return slices.Concat(routing(), cluster(), guards(), sweeps(), []*Experiment{study()})
}

// Find returns the experiment of an id.
func Find(id string) (*Experiment, error) {
	for _, e := range List() {
		if e.ID == id {
			return e, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknown, id)
}

// Run simulates all arms with all seeds.
func (e *Experiment) Run(o Options) (*Report, error) {
	arms, err := o.wanted(e.arms(o))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	r := &Report{Experiment: e, arms: arms, partial: len(o.Arms) > 0, values: map[string]map[string][]float64{}}
	for i := range max(cmp.Or(o.Seeds, 5), 1) {
		r.Seeds = append(r.Seeds, uint64(i)+1)
	}
	for _, a := range r.arms {
		r.values[a.name] = map[string][]float64{}
		for _, m := range e.metrics {
			r.values[a.name][m.key] = make([]float64, len(r.Seeds))
		}
	}
	type job struct{ arm, seed int }
	var jobs []job
	for s := range r.Seeds {
		for a := range r.arms {
			jobs = append(jobs, job{a, s})
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	gate := make(chan struct{}, max(o.Jobs, 1))
	for _, j := range jobs {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			began := time.Now()
			if o.Stop != nil && o.Stop() != nil {
				return
			}
			got, err := e.once(&r.arms[j.arm], r.Seeds[j.seed], o.Stop)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && o.Stop != nil && o.Stop() != nil {
				return // it is told once, below
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s, %s, seed %d: %w", e.ID, r.arms[j.arm].name, r.Seeds[j.seed], err))
				return
			}
			for key, v := range got {
				r.values[r.arms[j.arm].name][key][j.seed] = v
			}
			if o.Progress != nil {
				o.Progress(r.arms[j.arm].name, r.Seeds[j.seed], time.Since(began))
			}
		})
	}
	wg.Wait()
	if o.Stop != nil {
		errs = append(errs, o.Stop())
	}
	return r, errors.Join(errs...)
}

// once runs an arm with a seed.
func (e *Experiment) once(a *arm, seed uint64, stop func() error) (map[string]float64, error) {
	if a.probe != nil {
		return a.probe(seed)
	}
	s, err := des.New(a.config(seed))
	if err != nil {
		return nil, err
	}
	res, err := s.Until(stop)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, m := range e.metrics {
		out[m.key] = m.of(res)
	}
	return out, nil
}
