package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tandem/engine/executor"
	"tandem/test/bench/plan"
	"tandem/test/bench/plot"
)

// planFlags are those of bench plan.
type planFlags struct {
	cluster                  clusterFlags
	isl, osl                 dist
	ttft, measure            time.Duration
	budget, ctxGPUs, genGPUs int
	ladder                   []int
	mixed                    bool
	seed                     uint64
	dir                      string
}

func planCommand() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Size a cluster: match the rates of ctx and gen instances within a number of accelerators",
		Long: "Simulates one ctx instance within a limit on TTFT and one gen instance at several loads, finds the whole numbers of\n" +
			"them that give most for each accelerator, and simulates each such cluster. All numbers are simulated.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context().Err, cmd.ErrOrStderr(), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	distVar(fs, &f.isl, "isl", "3000", "prompt tokens, as of bench serve")
	distVar(fs, &f.osl, "osl", "150", "answer tokens")
	fs.DurationVar(&f.ttft, "ttft", 2*time.Second, "limit on TTFT at p95")
	fs.IntVar(&f.budget, "budget", 16, "accelerators")
	fs.IntVar(&f.ctxGPUs, "ctx-gpus", 4, "accelerators of a ctx instance")
	fs.IntVar(&f.genGPUs, "gen-gpus", 8, "accelerators of a gen instance")
	fs.IntSliceVar(&f.ladder, "ladder", []int{2, 8, 16, 32, 64, 128}, "requests in flight at a gen instance, one point each")
	fs.BoolVar(&f.mixed, "mixed", false, "also simulate mixed instances with the gen profile")
	fs.DurationVar(&f.measure, "duration", time.Minute, "virtual time that is measured of each run, which is warmed up for as long")
	fs.Uint64Var(&f.seed, "seed", 1, "of lengths and content")
	fs.StringVarP(&f.dir, "output", "o", "", "folder for the plot plan.svg, empty = none")
	fs.StringVar(&f.cluster.profile, "profile", "", "file of bench profile for a ctx instance, empty = built in")
	fs.StringVar(&f.cluster.genProfile, "gen-profile", "", "the same for a gen instance, empty = --profile")
	fs.IntVar(&f.cluster.blocks, "blocks", 20000, "KV blocks of an instance")
	fs.IntVar(&f.cluster.block, "tokens-per-block", 64, "tokens of a block")
	fs.IntVar(&f.cluster.maxBatch, "max-batch-size", 256, "requests of a step")
	fs.IntVar(&f.cluster.maxTokens, "max-num-tokens", 4096, "rows of a step")
	fs.IntVar(&f.cluster.kvBytes, "kv-bytes", 70000, "bytes of K and V of one token")
	fs.Float64Var(&f.cluster.bandwidth, "bandwidth", 40, "GB/s out of an instance")
	fs.DurationVar(&f.cluster.hop, "hop", time.Millisecond, "time of a message between processes")
	return cmd
}

func (f *planFlags) run(stop func() error, log, out io.Writer) error {
	if f.budget < f.ctxGPUs+f.genGPUs || f.ctxGPUs < 1 || f.genGPUs < 1 {
		return fmt.Errorf("--budget %d has no room for a ctx instance of %d and a gen instance of %d", f.budget, f.ctxGPUs, f.genGPUs)
	}
	slices.Sort(f.ladder)
	if len(f.ladder) == 0 || f.ladder[0] < 1 || f.ladder[len(f.ladder)-1] > 100_000 {
		return errors.New("--ladder: numbers must be at least 1, and 100000 at most")
	}
	if f.ttft <= 0 || f.measure < time.Second || f.measure > 24*time.Hour || f.budget > 100_000 {
		return fmt.Errorf("--ttft %v must be above 0, --duration %v 1s to 24h, and --budget %d at most 100000", f.ttft, f.measure, f.budget)
	}
	if m := max(f.isl.Mean(), f.osl.Mean()); m > mostTokens {
		return fmt.Errorf("--isl %s and --osl %s: want %d at most", f.isl, f.osl, mostTokens)
	}
	if need, have := f.isl.Mean()+f.osl.Mean(), float64(f.cluster.blocks)*float64(f.cluster.block); need > have {
		return fmt.Errorf("--blocks %d of %d tokens have no room for a request of %.0f", f.cluster.blocks, f.cluster.block, need)
	}
	if f.dir != "" {
		if err := os.MkdirAll(f.dir, 0o755); err != nil {
			return err
		}
	}
	f.cluster.adpRouter, f.cluster.router, f.cluster.genRouter, f.cluster.placement, f.cluster.frontends = "default", "load_balancing", "load_balancing", "round_robin", 1
	f.cluster.genMaxBatch = f.cluster.maxBatch
	q, ctx, gen, mixed, err := f.question()
	if err != nil {
		return err
	}
	q.Stop, q.Progress = stop, func(text string) { _, _ = fmt.Fprintln(log, text) }
	_, _ = fmt.Fprintln(log, "measuring instances on the simulator")
	a, err := plan.Make(q, ctx, gen)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "simulated, profile %s\none ctx instance: %.3g requests/s with %d in flight, within TTFT p95 %v\n\n", f.cluster.named(), a.CtxRate, a.CtxOpen, f.ttft)
	chart := &plot.Chart{Title: "simulated: tokens for each accelerator and for users", X: "tok/s for a user", Y: "tok/s for an accelerator", ZeroY: true}
	series := make([]plot.Series, 3)
	series[0].Name, series[1].Name, series[2].Name = "ideal", "simulated", "mixed"
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "in flight\tuser tok/s\tideal tok/s/acc\tctx\tgen\twhole\tsimulated\tuser\tTTFT p95\tctx busy\tgen busy\tbelow ideal\t")
	for _, p := range a.Points {
		series[0].Points = append(series[0].Points, plot.Point{X: p.UserTPS, Y: p.Ideal})
		m, err := plan.Check(q, ctx, gen, a, p, p.Keeps)
		if err != nil {
			return errors.Join(err, t.Flush()) // what was measured before is of use
		}
		q.Progress(fmt.Sprintf("cluster of %d ctx and %d gen: %.1f tokens/s for an accelerator", p.Ctx, p.Gen, m.TPSPerGPU))
		series[1].Points = append(series[1].Points, plot.Point{X: m.UserTPS, Y: m.TPSPerGPU})
		_, _ = fmt.Fprintf(t, "%d\t%.1f\t%.1f\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.2f s\t%.0f %%\t%.0f %%\t%.0f %%\t\n",
			p.Flight, p.UserTPS, p.Ideal, p.Ctx, p.Gen, p.Whole, m.TPSPerGPU, m.UserTPS, m.TTFTp95, 100*m.CtxBusy, 100*m.GenBusy, 100*(1-m.TPSPerGPU/p.Ideal))
		if f.mixed {
			x, err := plan.Mixed(q, mixed, 1, p.Flight)
			if err != nil {
				return err
			}
			series[2].Points = append(series[2].Points, plot.Point{X: x.UserTPS, Y: x.TPSPerGPU})
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !f.mixed {
		series = series[:2]
	}
	chart.Series = series
	_, _ = fmt.Fprintf(out, "\n%s", chart.Text(78, 14, isTerminal(out)))
	if f.dir == "" {
		return nil
	}
	path := filepath.Join(f.dir, "plan.svg")
	if err := os.WriteFile(path, chart.SVG(), 0o644); err != nil { //nolint:gosec // a plot to show around
		return err
	}
	_, _ = fmt.Fprintf(out, "\nwritten to %s\n", path)
	return nil
}

// question turns the flags into what the planner asks.
func (f *planFlags) question() (q plan.Question, ctx, gen, mixed plan.Spec, err error) {
	cfg := &f.cluster
	ctx.GPUs, gen.GPUs, mixed.GPUs = f.ctxGPUs, f.genGPUs, f.genGPUs
	genProfile := cmp.Or(cfg.genProfile, cfg.profile)
	cfg.shape = "1xCTX|1xGEN"
	net, err := cfg.config(f.seed) // reads all files, and checks all numbers
	if err != nil {
		return q, ctx, gen, mixed, err
	}
	var errs [3]error
	ctx.Group, errs[0] = cfg.group(role{executor.Ctx, 1, 1}, cfg.router, cfg.profile, cfg.maxBatch)
	gen.Group, errs[1] = cfg.group(role{executor.Gen, 1, 1}, cfg.router, genProfile, cfg.maxBatch)
	mixed.Group, errs[2] = cfg.group(role{executor.Mixed, 1, 1}, cfg.router, genProfile, cfg.maxBatch)
	q = plan.Question{
		Input: f.isl.Dist, Output: f.osl.Dist, TTFT: f.ttft, Ladder: f.ladder, Budget: f.budget, Net: net.Net, Seed: f.seed, Measure: f.measure,
	}
	return q, ctx, gen, mixed, errors.Join(errs[:]...)
}
