package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tandem/serve/router"
	"tandem/test/bench/cluster"
	"tandem/test/bench/live"
	"tandem/test/bench/load"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// verifyFlags are those of bench verify.
type verifyFlags struct {
	local                                 localFlags
	routers                               []string
	sessions, rounds, conversations, pool int
	rows                                  int
	turns, first, next, think, osl        dist
	tolerance                             float64
	seed                                  uint64
}

func verifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify [MODEL]",
		Short: "Run a workload on workers of this machine and in the simulator, and compare",
		Long: "Starts mixed workers and a frontend for each router, and sends them conversations. What the workers' steps cost is\n" +
			"taken from their flight recorders meanwhile, so that other load on the machine counts on both sides. Then the same\n" +
			"workload runs in the simulator with those costs. Printed is each round, and the median of the rounds. It fails if by\n" +
			"that TTFT is further apart than the tolerance, or routers are in another order.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), args)
		},
	}
	fs := cmd.Flags()
	f.local.add(fs, 2)
	fs.StringSliceVar(&f.routers, "routers", []string{router.KindRoundRobin, router.KindLoad, router.KindConversation}, "types of the frontend's router to compare")
	fs.IntVar(&f.rounds, "rounds", 9, "rounds; in each, all routers take turns, and what counts is the median of the rounds")
	fs.IntVar(&f.sessions, "sessions", 6, "conversations that are live at a time")
	fs.IntVar(&f.conversations, "conversations", 12, "conversations of each turn")
	fs.IntVar(&f.pool, "pool-tokens", 3072, "tokens of a worker's KV pool")
	fs.IntVar(&f.rows, "max-num-tokens", 512, "rows of a step")
	distVar(fs, &f.turns, "turns", "5", "turns of a conversation")
	distVar(fs, &f.first, "first", "300-500", "tokens of the first prompt")
	distVar(fs, &f.next, "next", "40-80", "tokens that a later turn adds")
	distVar(fs, &f.think, "think", "exponential(0.3)", "seconds between an answer and the next turn")
	distVar(fs, &f.osl, "osl", "8", "answer tokens")
	fs.Float64Var(&f.tolerance, "tolerance", 0.15, "how far simulated TTFT may lie from the live one, as a share of it")
	fs.Uint64Var(&f.seed, "seed", 1, "of lengths, content and times")
	return cmd
}

func (f *verifyFlags) run(ctx context.Context, log, out io.Writer, args []string) error {
	for _, kind := range f.routers {
		if !slices.Contains(router.Kinds(), kind) {
			return fmt.Errorf("--routers: %q is none of %s", kind, strings.Join(router.Kinds(), ", "))
		}
	}
	if f.rounds < 1 || f.conversations < 1 || f.sessions < 1 {
		return errors.New("--rounds, --conversations and --sessions must be at least 1")
	}
	if !(f.tolerance > 0) {
		return fmt.Errorf("--tolerance %g must be above 0", f.tolerance)
	}
	const block = 16
	setup := live.Setup{Workers: f.local.workers, MaxBatch: 32, MaxTokens: f.rows, Blocks: f.pool / block, Block: block}
	c, model, err := f.local.start(ctx, args, setup.Keys(), log)
	if err != nil {
		return err
	}
	defer c.Down()
	quickGC()
	var arms []*live.Arm
	var urls []string
	for _, kind := range f.routers {
		url, err := c.Frontend(ctx, kind)
		if err != nil {
			return err
		}
		arms, urls = append(arms, &live.Arm{Name: kind}), append(urls, url)
	}
	for round := range f.rounds {
		for i := range arms {
			k := (i + round) % len(arms)
			setup.Router = arms[k].Name
			if err := f.turn(ctx, c, urls[k], model, &setup, arms[k], round, log); err != nil {
				return fmt.Errorf("%s: %w", arms[k].Name, err)
			}
		}
	}
	_, _ = fmt.Fprintf(log, "load average %s\n", result.Machine().Load)
	_, _ = fmt.Fprintf(out, "%s, %d workers of %d thread(s), %d conversations, %d at a time.\n\n", filepath.Base(model), f.local.workers, f.local.threads, f.conversations, f.sessions)
	misses, err := live.Report(out, arms, f.tolerance)
	if err == nil && len(misses) > 0 {
		err = fmt.Errorf("live and simulated differ: %s", strings.Join(misses, "; "))
	}
	return err
}

// workload is that of a round, the same for all routers.
func (f *verifyFlags) workload(round int) (*workload.Workload, schedule.Options) {
	seed := f.seed + uint64(round)<<32
	w := workload.MultiTurn(workload.MultiTurnOptions{
		Conversations: f.conversations, Turns: f.turns.Dist, First: f.first.Dist, Next: f.next.Dist, Output: f.osl.Dist, Think: f.think.Dist, Seed: seed,
	})
	for i := range w.Requests {
		w.Requests[i].Reply = 0 // what is answered is not what later prompts hold, on either side
	}
	return w, schedule.Options{Mode: schedule.Sessions, Concurrency: f.sessions, RampUp: time.Duration(f.sessions) * 300 * time.Millisecond, Seed: seed}
}

// turn runs a round's workload on one side and then on the other.
func (f *verifyFlags) turn(ctx context.Context, c *cluster.Cluster, url, model string, setup *live.Setup, arm *live.Arm, round int, log io.Writer) error {
	w, so := f.workload(round)
	s, err := exact(model).open(ctx, "server", url, log)
	if err != nil {
		return err
	}
	s.prompts.Salt = workload.Mix(uint64(time.Now().UnixNano()), uint64(round))
	begin := time.Now()
	var flights live.Flights
	polling, stop := context.WithCancel(ctx)
	polled := make(chan error, 1)
	go func() {
		polled <- flights.Poll(polling, c.Admins(), 200*time.Millisecond, func() time.Duration { return time.Since(begin) })
	}()
	records, err := load.Run(ctx, load.Options{Client: s.client, Prompts: s.prompts, Workload: w, Schedule: so, Origin: begin})
	stop()
	if err = errors.Join(err, <-polled); err != nil {
		return err
	}
	for _, r := range records {
		if r.Outcome != result.OK {
			return fmt.Errorf("a request failed: %s", r.Error)
		}
	}
	m, err := live.NewModel(flights.Steps())
	if err != nil {
		return err
	}
	hop := live.Hop(records)
	sim, err := setup.Simulate(m, hop, w, so, 10*time.Since(begin))
	if err != nil {
		return err
	}
	r := live.Round{Live: live.NewSide(records), Sim: live.NewSide(sim.Export()), Residual: m.Fit.ResidualP95}
	arm.Rounds = append(arm.Rounds, r)
	_, _ = fmt.Fprintf(log, "round %d, %s: %d requests in %v, %d steps, message %v; simulated by live: TTFT p50 %.2f, p95 %.2f\n",
		round+1, arm.Name, len(records), time.Since(begin).Round(time.Second), m.Fit.Points, hop.Round(10*time.Microsecond),
		r.Sim.Quantile(0.5)/r.Live.Quantile(0.5), r.Sim.Quantile(0.95)/r.Live.Quantile(0.95))
	return nil
}
