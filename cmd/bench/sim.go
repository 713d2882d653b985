package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tandem/test/bench/des"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
)

// simFlags are those of bench sim.
type simFlags struct {
	cluster  clusterFlags
	workload workloadFlags
	load     loadFlags

	warmup     time.Duration
	watch      bool
	dir        string
	goodput    []string
	experiment experimentFlags
}

// simulated is the measured time when --duration does not say another.
const simulated = 2 * time.Minute

func simCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a cluster: production's routers and schedulers, modelled devices, virtual time",
		Long: "Runs frontends, ctx and gen instances and their clients in virtual time. What decides is the code of production;\n" +
			"devices follow a profile of bench profile, or one of the order of a large model. Equal flags give equal records.\n" +
			"With --experiment, sets up published results again and prints them beside what is simulated.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("experiment") {
				return f.experiment.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), f.dir)
			}
			return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	f.cluster.add(fs)
	f.workload.add(fs)
	f.load.add(fs)
	f.experiment.add(fs)
	fs.DurationVar(&f.warmup, "warm-up", 20*time.Second, "virtual time before the measured time, which is --duration (2m); 0 unless given where all comes at the beginning")
	fs.BoolVar(&f.watch, "watch", false, "show ranks and queues while it runs")
	fs.StringVarP(&f.dir, "output", "o", "", "folder for result files and the report, empty = none")
	fs.StringSliceVar(&f.goodput, "goodput", nil, "limits of a good request, as of bench serve")
	return cmd
}

// run simulates each load in turn.
func (f *simFlags) run(ctx context.Context, log, out io.Writer) error {
	limits, err := result.ParseLimits(f.goodput)
	if err != nil {
		return err
	}
	switch {
	case f.load.bisect || f.load.stopSaturated:
		return errors.New("--bisect and --stop-saturated are for bench serve")
	case len(f.experiment.arms) > 0 || f.experiment.trace != "":
		return errors.New("--arm and --traces need --experiment")
	case f.warmup < 0 || f.load.duration < 0:
		return fmt.Errorf("--warm-up %v and --duration %v must not be negative", f.warmup, f.load.duration)
	}
	f.load.duration = cmp.Or(f.load.duration, simulated)
	a, err := f.axis()
	if err != nil {
		return err
	}
	if atOnce(a) && !f.workload.given("warm-up") {
		f.warmup = 0
	}
	if f.dir != "" {
		if err := result.Folder(f.dir); err != nil {
			return err
		}
	}
	records, err := result.NewRecorder(f.dir)
	if err != nil {
		return err
	}
	m := measurement{words: out, colour: isTerminal(out), records: records, run: result.NewRun("bench sim", os.Args), limits: limits}
	m.out.dir, m.out.accelerators = f.dir, f.cluster.devices()
	m.run.Simulated, m.run.Clock, m.run.Seed, m.run.Topology = true, "virtual", f.workload.seed, f.cluster.shape
	m.run.Started, m.run.Cache, m.run.Profile = "", "empty at the start", f.cluster.named()
	for _, x := range a.values {
		if err = f.step(ctx, &m, a, x, log); err != nil {
			break
		}
	}
	return m.end(err)
}

// axis is the load: what the flags say, else what goes with the workload.
func (f *simFlags) axis() (*axis, error) {
	if f.workload.defaults(&f.load) {
		return byItself(f.workload.seed), nil
	}
	return f.load.axis("sessions", f.workload.seed)
}

// atOnce tells whether all that a load has comes at its beginning, where a warm-up would hide it.
func atOnce(a *axis) bool { return a.name == "speed" || math.IsInf(a.values[0], 1) }

// step simulates one load.
func (f *simFlags) step(ctx context.Context, m *measurement, a *axis, x float64, log io.Writer) error {
	w, err := f.workload.make(len(m.steps))
	if err != nil {
		return err
	}
	o := a.make(x)
	cfg, err := f.cluster.config(f.workload.seed)
	if err != nil {
		return err
	}
	cfg.Workload, cfg.Warmup, cfg.Measure = w, f.warmup, f.load.duration
	o.Duration = cfg.Warmup + cfg.Measure
	o.Recycle = !atOnce(a)
	cfg.Load = o
	if len(m.steps) == 0 {
		m.describe(w, words(&o))
	}
	s, err := des.New(cfg)
	if err != nil {
		return err
	}
	began, before := time.Now(), spent()
	watch := f.watcher(ctx, log)
	res := s.Run(time.Second, watch)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	list := res.Export()
	for _, r := range list {
		r.Step = len(m.steps)
		if err := m.records.Write(r); err != nil {
			return err
		}
	}
	sum := result.Summarize(list, result.SummaryOptions{Window: cfg.Measure.Seconds(), Accelerators: m.out.accelerators, Limits: m.limits})
	st := result.Step{Name: stepName(a, x), Load: words(&o), Records: list, Summary: sum}
	if len(a.values) > 1 {
		st.X, st.XName = x, a.name
	}
	m.steps = append(m.steps, st)
	m.run.AddFlags(sum.Flags...)
	_, _ = fmt.Fprintf(log, "%v of virtual time in %v, %v\n", cfg.Warmup+cfg.Measure, time.Since(began).Round(time.Millisecond), spent().since(before))
	_, _ = fmt.Fprintf(m.words, "simulated, %s, profile %s\n", f.cluster.shape, m.run.Profile)
	if err := result.Print(m.words, &st, m.colour); err != nil {
		return err
	}
	if err := res.PrintBounds(m.words); err != nil {
		return err
	}
	printRanks(m.words, res, o)
	return nil
}

// printRanks adds what only ranks tell.
func printRanks(w io.Writer, r *des.Result, o schedule.Options) {
	_, _ = fmt.Fprintf(w, "reuse %.1f %%, queue skew %.2f, padded on the worst %.1f %%", 100*r.Reuse(), r.QueueSkew(), 100*r.PaddedWorst())
	for _, why := range []string{"sticky", "new", "moved", "overflow", "no_key", "balanced", "cache", "explicit", "alone"} {
		if part := r.Reasons()[why]; part > 0 {
			_, _ = fmt.Fprintf(w, ", %s %.1f %%", why, 100*part)
		}
	}
	_, _ = fmt.Fprintln(w)
	if r.Unfinished > 0 && (o.Mode == schedule.Rate || o.Mode == schedule.Constant) {
		_, _ = fmt.Fprintf(w, "%d requests had no end when the run stopped: the cluster cannot keep up\n", r.Unfinished)
	}
	if len(r.Good()) == 0 {
		_, _ = fmt.Fprintln(w, "no request was answered within the measured time: a longer --duration, a shorter --warm-up or a faster cluster would show more")
	}
	if r.Leaked > 0 {
		_, _ = fmt.Fprintf(w, "%d blocks were lost: a bug\n", r.Leaked)
	}
}

// watcher draws the cluster every so often of real time, and stops the run when
// it is interrupted.
func (f *simFlags) watcher(ctx context.Context, log io.Writer) func(*des.Sim) {
	live, last := isTerminal(log), time.Now()
	lines := 0
	return func(s *des.Sim) {
		if ctx.Err() != nil {
			s.Stop()
			return
		}
		if !f.watch || time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
		text := s.View()
		if live && lines > 0 {
			_, _ = fmt.Fprintf(log, "\x1b[%dA\x1b[J", lines)
		}
		lines = strings.Count(text, "\n")
		_, _ = fmt.Fprint(log, text)
	}
}
