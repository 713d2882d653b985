package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tandem/serve/router"
	"tandem/test/bench/load"
	"tandem/test/bench/page"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// affinityFlags are those of bench affinity.
type affinityFlags struct {
	local         localFlags
	conversations int
	turns, prompt int
	next, osl     int
	seed          uint64
}

func affinityCommand() *cobra.Command {
	var f affinityFlags
	cmd := &cobra.Command{
		Use:   "affinity [MODEL]",
		Short: "Measure what keeping conversations on their workers is worth, on this machine",
		Long: "Experiment E7, for real: starts three workers behind two frontends, one that keeps conversations on their workers and\n" +
			"one that takes workers in turn. Conversations with long prompts go through both in turns, one request at a time.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), args)
		},
	}
	fs := cmd.Flags()
	f.local.add(fs, 3)
	fs.IntVar(&f.conversations, "conversations", 4, "conversations through each frontend")
	fs.IntVar(&f.turns, "turns", 3, "turns of a conversation, the first one included; no more than there are workers, else a turn can come back to one that knows it")
	fs.IntVar(&f.prompt, "prompt", 2600, "tokens of the prompt of the first turn after the first")
	fs.IntVar(&f.next, "next", 64, "tokens that a later turn adds")
	fs.IntVar(&f.osl, "osl", 16, "answer tokens")
	fs.Uint64Var(&f.seed, "seed", 1, "of content")
	return cmd
}

// affinityArm is a frontend with what was measured behind it.
type affinityArm struct {
	name, router, published string
	server                  *server
	records                 []*result.Record
}

func (f *affinityFlags) run(ctx context.Context, log, out io.Writer, args []string) error {
	if f.turns < 2 || f.conversations < 1 || f.next < 1 || f.osl < 1 || f.prompt <= f.next+f.osl {
		return errors.New("--turns must be at least 2, --conversations, --next and --osl at least 1, and --prompt more than --next and --osl")
	}
	longest := f.prompt + f.turns*(f.next+f.osl)
	c, model, err := f.local.start(ctx, args, map[string]any{
		"kv_cache_config": map[string]any{"max_tokens": (2*f.conversations + 1) * longest}, // all of them stay
	}, log)
	if err != nil {
		return err
	}
	defer c.Down()
	arms := []*affinityArm{
		{name: "on", router: router.KindConversation, published: "≈ 360 ms"},
		{name: "off", router: router.KindRoundRobin, published: "3550 ms"},
	}
	for _, a := range arms {
		url, err := c.Frontend(ctx, a.router)
		if err != nil {
			return err
		}
		if a.server, err = exact(model).open(ctx, "affinity "+a.name, url, log); err != nil {
			return err
		}
	}
	for i := range f.conversations {
		for k := range arms {
			if err := f.talk(ctx, arms[(i+k)%len(arms)], i, log); err != nil {
				return err
			}
		}
	}
	_, _ = fmt.Fprintf(log, "load average %s\n", result.Machine().Load)
	_, _ = fmt.Fprintf(out, "%s, %d workers of %d thread(s), %d conversations of %d turns each way, one request at a time.\n\n",
		filepath.Base(model), f.local.workers, f.local.threads, f.conversations, f.turns)
	return printAffinity(out, arms)
}

// talk leads one conversation.
func (f *affinityFlags) talk(ctx context.Context, a *affinityArm, number int, log io.Writer) error {
	w := workload.MultiTurn(workload.MultiTurnOptions{
		Conversations: 1, Turns: workload.Fixed(float64(f.turns)), First: workload.Fixed(float64(f.prompt - f.next - f.osl)),
		Next: workload.Fixed(float64(f.next)), Output: workload.Fixed(float64(f.osl)), Seed: f.seed + uint64(number)<<32,
	})
	name := fmt.Sprintf("%s-%d", a.name, number)
	for i := range w.Requests {
		w.Requests[i].Conversation = name
	}
	p := *a.server.prompts
	p.Salt = workload.Mix(uint64(time.Now().UnixNano()), uint64(number))
	records, err := load.Run(ctx, load.Options{
		Client: a.server.client, Prompts: &p, Workload: w, Schedule: schedule.Options{Mode: schedule.Sessions, Concurrency: 1, Seed: f.seed},
	})
	if err != nil {
		return err
	}
	for i, r := range records {
		if r.Outcome != result.OK {
			return fmt.Errorf("affinity %s: a request failed: %s", a.name, r.Error)
		}
		r.Turn = i
		_, _ = fmt.Fprintf(log, "affinity %s, conversation %d, turn %d: %d of %d prompt tokens cached, TTFT %.0f ms\n", a.name, number+1, i+1, r.Cached, r.Input, 1000*r.TTFT())
	}
	a.records = append(a.records, records...)
	return nil
}

// later describes the turns after the first.
func (a *affinityArm) later() (ttft result.Stats, tokens, share float64) {
	var v []float64
	var in, hit int
	for _, r := range a.records {
		if r.Turn > 0 {
			v = append(v, r.TTFT())
			in, hit = in+r.Input, hit+r.Cached
		}
	}
	return result.Describe(v), float64(in) / float64(max(len(v), 1)), float64(hit) / float64(max(in, 1))
}

// leastGain is what affinity must divide the time of a follow-up turn by.
const leastGain = 5

func printAffinity(out io.Writer, arms []*affinityArm) error {
	rows := [][]string{{"affinity", "router", "follow-up turns", "prompt tokens", "prefix hits", "TTFT p50", "p95", "published p50"}}
	var ttft [2]result.Stats
	for i, a := range arms {
		v, tokens, share := a.later()
		ttft[i] = v
		rows = append(rows, []string{
			a.name, "`" + a.router + "`", fmt.Sprint(v.Count), fmt.Sprintf("%.0f", tokens), fmt.Sprintf("%.1f %%", 100*share),
			fmt.Sprintf("%.0f ms", 1000*v.P50), fmt.Sprintf("%.0f ms", 1000*v.P95), a.published,
		})
	}
	gain := ttft[1].P50 / ttft[0].P50
	rows = append(rows, []string{"off / on", "", "", "", "", fmt.Sprintf("%.1f", gain), fmt.Sprintf("%.1f", ttft[1].P95/ttft[0].P95), "9.9"})
	_, err := fmt.Fprintf(out, "%s\nPublished for another model on three llama.cpp backends; a ratio of at least %d is wanted.\n", page.Table(rows...), leastGain)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if gain < leastGain {
		return fmt.Errorf("affinity divides the time of a follow-up turn by %.1f only, at least %d is wanted", gain, leastGain)
	}
	return nil
}
