package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tandem/test/bench/compare"
	"tandem/test/bench/result"
)

// compareFlags are those of bench compare.
type compareFlags struct {
	target   targetFlags
	workload workloadFlags
	load     loadFlags
	out      outFlags
	peers    peerFlags
	slices   int
}

func compareCommand() *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Measure two servers in turns under the same load, and say how they differ",
		Long: "A and B are URLs of running servers, or NAME:MODEL to start one: tandem:MODEL (a mixed worker), llama-server:MODEL\n" +
			"(llama.cpp's) or llama-cpp-python:MODEL (its Python binding's). test/bench/llama-server and test/bench/llama-cpp-python\n" +
			"install them. Both sides get the same requests, in slices, of which each has one in turn; the pairs of slices are what\n" +
			"the statistics count.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), args)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&f.slices, "slices", 6, "slices of each side; --requests and the like are of one slice")
	fs.StringVar(&f.peers.python, "python", ".cache/peer/bin/python3", "Python with llama-cpp-python")
	fs.StringVar(&f.peers.server, "llama-server", ".cache/llama-server/bin/llama-server", "program of llama-server")
	fs.StringVar(&f.peers.serverArgs, "llama-args", "-np 32 -c 65536 -fa on -ctk q8_0 -ctv q8_0", "arguments of llama-server beside model, address and threads")
	fs.IntVar(&f.peers.threads, "threads", 0, "compute threads of servers that are started, 0 = their own choice")
	fs.DurationVar(&f.peers.wait, "start-timeout", 3*time.Minute, "how long a server may take to start")
	f.target.add(fs)
	f.workload.add(fs)
	f.load.add(fs)
	f.out.add(fs)
	return cmd
}

// arm is one side.
type arm struct {
	*server
	label  string
	slices []*result.Step
}

func (f *compareFlags) run(ctx context.Context, log, out io.Writer, args []string) (err error) {
	if f.slices < 1 {
		return errors.New("--slices must be at least 1")
	}
	a, err := f.load.axis("concurrency", f.workload.seed)
	if err != nil {
		return err
	}
	if len(a.values) > 1 || f.load.bisect {
		return errors.New("bench compare has one load: give no list and no --bisect")
	}
	quickGC()
	m, err := f.out.begin("bench compare", f.workload.seed, f.target.stream, log, out)
	if err != nil {
		return err
	}
	m.grace = f.load.grace
	var peers [2]*peer
	for i, arg := range args {
		p, err := f.peers.start(ctx, arg, log)
		if err != nil {
			return err
		}
		defer p.stop()
		peers[i] = p
	}
	arms, err := f.arms(ctx, m, peers)
	if err != nil {
		return err
	}
	err = f.measure(ctx, m, a, arms)
	return f.end(m, arms, err)
}

// arms opens both servers and makes sure that they are sent the same texts.
func (f *compareFlags) arms(ctx context.Context, m *measurement, peers [2]*peer) ([2]*arm, error) {
	var arms [2]*arm
	overhead := 0
	t := f.target
	for _, p := range peers {
		if t.tokenizer == "" {
			t.tokenizer = p.model
		}
	}
	for i, p := range peers {
		label := string(rune('A' + i))
		s, err := t.open(ctx, label+" "+p.name, p.url, m.log)
		if err != nil {
			return arms, err
		}
		if err := p.noEnd(s); err != nil {
			return arms, err
		}
		arms[i] = &arm{server: s, label: label}
		m.run.Targets = append(m.run.Targets, s.info)
		overhead = max(overhead, s.prompts.Overhead)
	}
	for _, a := range arms {
		a.prompts.Overhead = overhead
	}
	return arms, nil
}

// measure gives the sides their slices in turn: A B, B A, A B, ... so that what drifts meets both alike.
func (f *compareFlags) measure(ctx context.Context, m *measurement, a *axis, arms [2]*arm) error {
	so := a.make(a.values[0])
	w, err := f.workload.make(0)
	if err != nil {
		return err
	}
	m.describe(w, words(&so))
	for _, x := range arms {
		if err := m.warm(ctx, x.server, w); err != nil {
			return err
		}
	}
	for i := range f.slices {
		if w, err = f.workload.make(i); err != nil {
			return err
		}
		for k := range arms {
			x := arms[(i+k)%2]
			st, err := m.one(ctx, x.server, w, so, fmt.Sprintf("%s slice %d", x.label, i+1), i)
			if err != nil {
				return err
			}
			x.slices = append(x.slices, st)
			s := st.Summary
			_, _ = fmt.Fprintf(m.words, "%s slice %d: %d of %d completed, TTFT p50 %.1f ms, TPOT %.2f ms, %.1f output tok/s\n",
				x.label, i+1, s.Completed, s.Offered, 1000*s.Dist["ttft"].P50, 1000*s.Dist["tpot"].Mean, s.OutputTPS)
		}
	}
	return nil
}

// end prints both sides and the comparison.
func (f *compareFlags) end(m *measurement, arms [2]*arm, err error) error {
	pairs := min(len(arms[0].slices), len(arms[1].slices))
	if pairs == 0 {
		return errors.Join(err, m.records.Close())
	}
	var sums [2][]*result.Summary
	for i, x := range arms {
		st := x.pool(m, pairs)
		m.steps = append(m.steps, *st)
		if err := result.Print(m.words, st, m.colour); err != nil {
			return err
		}
		for _, s := range x.slices[:pairs] {
			sums[i] = append(sums[i], s.Summary)
		}
	}
	lines := compare.Compare(sums[0], sums[1])
	var table strings.Builder
	if err := compare.Print(&table, arms[0].info.Name, arms[1].info.Name, lines); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(m.words, "\n%s", table.String())
	m.run.Text, m.run.Charts = table.String(), append(m.run.Charts, compare.Intervals(lines), compare.Chart(lines))
	if m.out.dir != "" {
		doc := map[string]any{"schema": "tandem-bench-compare/1", "a": arms[0].info, "b": arms[1].info, "slices": pairs, "metrics": lines}
		if err := result.SaveJSON(m.out.dir, "compare.json", doc); err != nil {
			return err
		}
	}
	return m.end(err)
}

// pool puts a side's slices together. The time between them is not measured.
func (x *arm) pool(m *measurement, pairs int) *result.Step {
	var records []*result.Record
	var window, busy float64
	for _, s := range x.slices[:pairs] {
		records = append(records, s.Records...)
		window += s.Summary.Duration
		busy += s.Summary.Duration * s.Summary.ConcurrencyAvg
	}
	sum := result.Summarize(records, result.SummaryOptions{Window: window, Accelerators: m.out.accelerators, Limits: m.limits})
	if window > 0 {
		sum.ConcurrencyAvg = busy / window
	}
	return &result.Step{Name: x.info.Name, Load: x.slices[0].Load, Records: records, Summary: sum}
}
