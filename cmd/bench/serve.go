package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"tandem/test/bench/load"
	"tandem/test/bench/result"
	"tandem/test/bench/workload"
)

// serveFlags are those of bench serve.
type serveFlags struct {
	target   targetFlags
	workload workloadFlags
	load     loadFlags
	agentx   agentxFlags
	out      outFlags
}

const defaultURL = "http://127.0.0.1:8000"

func serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve [URL]",
		Short: "Measure a server that speaks the OpenAI API, under a load of your choice",
		Long: "Sends generated requests to a server (" + defaultURL + " unless named), streamed, and reports what its users would see.\n" +
			"Without a load flag 8 requests are in flight. Lists of loads are run one after the other.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), args)
		},
	}
	fs := cmd.Flags()
	f.target.add(fs)
	f.workload.add(fs)
	f.load.add(fs)
	f.agentx.add(fs)
	f.out.add(fs)
	return cmd
}

func (f *serveFlags) run(ctx context.Context, log, out io.Writer, args []string) error {
	url := defaultURL
	if len(args) > 0 {
		url = args[0]
	}
	a, err := f.axis()
	if err != nil {
		return err
	}
	w, err := f.workload.make(0)
	if err != nil {
		return err
	}
	shapes, err := f.workload.shapes()
	if err != nil {
		return err
	}
	if len(shapes) > 1 {
		w.Name, w.Source = f.workload.name, "prompts and answers of "+names(shapes)+" tokens, a fifth more or less"
		if f.load.bisect {
			return errors.New("--bisect: the grid has several shapes; take one with --workload random")
		}
	}
	quickGC()
	m, err := f.out.begin("bench serve", f.workload.seed, f.target.stream, log, out)
	if err != nil {
		return err
	}
	m.grace = f.load.grace
	if err = f.load.searchable(m); err == nil {
		err = f.measure(ctx, m, a, w, shapes, url)
	}
	f.agentx.stamp(m, err != nil)
	return m.end(err)
}

// axis is the load: what the flags say, else what goes with the workload or preset.
func (f *serveFlags) axis() (*axis, error) {
	f.workload.gridOK = true
	known := f.workload.name == "c4" || f.workload.name == "agentic"
	if err := f.agentx.begin(&f.target, &f.load, &f.out, rule{!known, "the workload is c4 or agentic, or a recorded one of bench replay"}); err != nil {
		return nil, err
	}
	if f.agentx.on() {
		return f.load.axis("trees", f.workload.seed)
	}
	if f.workload.defaults(&f.load) {
		return byItself(f.workload.seed), nil
	}
	return f.load.axis("concurrency", f.workload.seed)
}

// measure runs warm-up, which has the first of the shapes, and the steps of all.
func (f *serveFlags) measure(ctx context.Context, m *measurement, a *axis, w *workload.Workload, shapes []shape, url string) error {
	s, err := f.target.open(ctx, "server", url, m.log)
	if err != nil {
		return err
	}
	m.run.Targets = []result.Target{s.info}
	first := a.make(a.values[0])
	m.describe(w, words(&first))
	_, _ = fmt.Fprintf(m.words, "%s, %s at %s; %s: %s\n", s.info.Model, f.target.api, s.info.URL, w.Name, w.Source)
	if err := m.warm(ctx, s, w); err != nil {
		return err
	}
	for _, sh := range shapes {
		if err := f.steps(ctx, m, a, s, sh); err != nil {
			return err
		}
	}
	return nil
}

// steps runs all loads with prompts of one shape.
func (f *serveFlags) steps(ctx context.Context, m *measurement, a *axis, s *server, sh shape) error {
	f.workload.isl, f.workload.osl = sh.in, sh.out
	asked := f.workload.requests
	next := func(x float64) (*result.Step, error) {
		if sh.name != "" {
			f.workload.requests = max(asked, gridPerSlot*int(min(x, 1e6)))
		}
		w, err := f.workload.make(len(m.steps))
		if err != nil {
			return nil, err
		}
		name := stepName(a, x)
		if sh.name != "" {
			name = sh.name + ", " + name
		}
		st, err := m.step(ctx, s, f.agentx.apply(w, int(min(x, 1e6)), w.Seed), a.make(x), name)
		if st != nil && (len(a.values) > 1 || f.load.bisect) {
			st.X, st.XName = x, a.name
		}
		return st, err
	}
	defer func() { f.workload.requests = asked }()
	if f.load.bisect {
		return f.load.search(m, a, next)
	}
	for _, x := range a.values {
		st, err := next(x)
		if err != nil {
			return err
		}
		if f.load.stopSaturated && slices.Contains(st.Summary.Flags, "oversaturated") {
			_, _ = fmt.Fprintln(m.words, "the server cannot keep up: no higher load is tried")
			break
		}
	}
	return nil
}

// stepName is empty for the only step of a run.
func stepName(a *axis, x float64) string {
	if len(a.values) == 1 && a.end > 0 || math.IsInf(x, 1) {
		return "run"
	}
	return a.name + " " + number(x)
}

// number writes a load: slots as they are, rates to four digits.
func number(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e9 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}

// searchable tells whether a capacity can be searched.
func (f *loadFlags) searchable(m *measurement) error {
	if f.bisect && len(m.limits) == 0 {
		return errors.New("--bisect needs --goodput: limits that most requests shall meet")
	}
	return nil
}

// search finds the capacity at the limits.
func (f *loadFlags) search(m *measurement, a *axis, next func(float64) (*result.Step, error)) error {
	least := 0.01
	if a.name != "request_rate" {
		least = 1
	}
	s, err := load.NewSearch(a.values[0], min(least, a.values[0]), mostLoad, f.tolerance)
	if err != nil {
		return err
	}
	tried := map[float64]bool{}
	for x, ok := s.Next(); ok; x, ok = s.Next() {
		if least == 1 { // only whole slots exist: when a number would be tried again, the bracket is as narrow as can be
			if x = math.Round(x); tried[x] {
				break
			}
		}
		tried[x] = true
		st, err := next(x)
		if err != nil {
			return err
		}
		good := st.Summary.GoodOfOffered >= f.good && !slices.Contains(st.Summary.Flags, "oversaturated")
		_, _ = fmt.Fprintf(m.words, "%s %s: %.1f %% of offered requests are good\n", a.name, number(x), 100*st.Summary.GoodOfOffered)
		if good && burst(st.Summary) {
			return f.tooFew(m, s, a, x, st.Summary.Offered)
		}
		s.Add(good)
	}
	low, high := s.Bracket()
	_, err = fmt.Fprintf(m.words, "\ncapacity_at_slo (%s for %.0f %% of requests): %s %s, and not %s\n", m.limits, 100*f.good, a.name, number(low), number(high))
	return err
}

// burst tells whether a step was over before its load was reached: all that it sent was in flight at once.
func burst(s *result.Summary) bool {
	return slices.Contains(s.Flags, underloaded) || s.Offered > 1 && s.ConcurrencyMax >= s.Offered
}

// tooFew ends a search whose steps say nothing of the loads they have in their names.
func (f *loadFlags) tooFew(m *measurement, s *load.Search, a *axis, x float64, sent int) error {
	m.run.AddFlags(underloaded)
	low, _ := s.Bracket()
	_, err := fmt.Fprintf(m.words, "\ncapacity_at_slo (%s for %.0f %% of requests): at least %s %s; the %d requests of a step are too few to hold %s: send more with --requests, or for a --duration\n",
		m.limits, 100*f.good, a.name, number(low), sent, number(x))
	return err
}
