package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tandem/engine/tokenizer"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/traces"
	"tandem/test/bench/workload"
)

// replayFlags are those of bench replay.
type replayFlags struct {
	target targetFlags
	load   loadFlags
	agentx agentxFlags
	out    outFlags

	url, format, write, writeFormat string
	speed                           float64
	from, to                        time.Duration
	autoOffset, lenient, check      bool
	capacity, blockSize, output     int
	most                            int
	routes                          string
	seed                            uint64
}

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE...",
		Short: "Send a recorded workload to a server, check it, or convert it",
		Long: "Reads a trace (a file, several, or the folder of a frontend's capture), checks it, says what is in it, and replays it:\n" +
			"by its own times if it has any, else with 8 live trees of conversations, or as a load flag says. Prompts are made of\n" +
			"hash ids, so that they share what the recorded ones shared.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), args)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.url, "url", defaultURL, "server")
	fs.StringVar(&f.format, "format", "auto", "of the trace: auto, native, mooncake, weka, applied-compute, azure, burstgpt, sharegpt, prompts")
	fs.BoolVar(&f.lenient, "lenient", false, "leave out what is wrong in the trace, instead of refusing it")
	fs.BoolVar(&f.check, "check", false, "check and describe the trace, and send nothing")
	fs.StringVar(&f.routes, "routes", "", "ask routers again what a frontend captured with trace_capture.routes, and send nothing: recorded, or the type of others")
	fs.IntVar(&f.capacity, "capacity", 0, "tokens of a cache, to say how much of the trace 1/8, 1/4, 1/2 and all of it would reuse")
	fs.StringVar(&f.write, "write", "", "file to write the trace to, in --write-format, and send nothing")
	fs.StringVar(&f.writeFormat, "write-format", "native", "native, mooncake or weka")
	fs.IntVar(&f.blockSize, "block-size", 0, "native: tokens of a hash id that --write writes, 0 = as in the trace")
	fs.IntVar(&f.output, "osl", 128, "answer tokens where the trace tells none")
	fs.IntVarP(&f.most, "requests", "n", 0, "send so many at most, 0 = all")
	fs.Float64Var(&f.speed, "speed", 1, "of the trace's clock: 2 halves all gaps")
	fs.DurationVar(&f.from, "from", 0, "leave out what arrives before this time of the trace")
	fs.DurationVar(&f.to, "to", 0, "leave out what arrives at or after this time of the trace, 0 = nothing")
	fs.BoolVar(&f.autoOffset, "auto-offset", true, "begin with the first arrival that is sent, without the time before it")
	fs.Uint64Var(&f.seed, "seed", 1, "of content and times")
	f.target.add(fs)
	f.load.add(fs)
	f.agentx.add(fs)
	f.out.add(fs)
	return cmd
}

func (f *replayFlags) run(ctx context.Context, log, out io.Writer, args []string) error {
	if f.routes != "" {
		return f.reroute(out, args)
	}
	if err := f.usable(args); err != nil {
		return err
	}
	w, report, err := f.read(args)
	if err != nil {
		return err
	}
	if f.capacity > 0 {
		report.At(w, f.capacity)
	}
	if err := report.Print(out); err != nil {
		return err
	}
	if f.write != "" {
		return f.convert(w, out)
	}
	if f.check {
		return nil
	}
	a, err := f.axis(report)
	if err != nil {
		return err
	}
	quickGC()
	m, err := f.out.begin("bench replay", f.seed, f.target.stream, log, out)
	if err != nil {
		return err
	}
	m.grace = f.load.grace
	err = f.measure(ctx, m, a, w)
	f.agentx.stamp(m, err != nil)
	return m.end(err)
}

// usable refuses flags that cannot be meant, or do not go together.
func (f *replayFlags) usable(args []string) error {
	for _, c := range []struct {
		wrong bool
		text  string
	}{
		{f.load.bisect || f.load.stopSaturated, "--bisect and --stop-saturated are for bench serve: a trace has its own load"},
		{!(f.speed > 0), fmt.Sprintf("--speed %g must be above 0", f.speed)},
		{f.output < 0 || f.output > mostTokens, fmt.Sprintf("--osl %d: want 0 to %d tokens", f.output, mostTokens)},
		{f.most < 0 || f.capacity < 0, fmt.Sprintf("--requests %d and --capacity %d must not be negative", f.most, f.capacity)},
		{f.load.any() && (f.speed != 1 || f.from != 0 || f.to != 0), "--speed, --from and --to go by the trace's clock: leave the load flag out"},
		{f.write != "" && !slices.Contains(traces.Writable, traces.Format(f.writeFormat)), fmt.Sprintf("--write-format %q: want one of %v", f.writeFormat, traces.Writable)},
		{f.write != "" && slices.ContainsFunc(args, func(a string) bool { return same(a, f.write) }), fmt.Sprintf("--write %s: is the trace itself", f.write)},
	} {
		if c.wrong {
			return errors.New(c.text)
		}
	}
	return nil
}

// same tells whether two paths are one file.
func same(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// axis is the load: the trace's own times unless a flag says otherwise.
func (f *replayFlags) axis(report *traces.Report) (*axis, error) {
	if err := f.agentx.begin(&f.target, &f.load, &f.out,
		rule{f.most != 0, "--requests: the run lasts as long as --duration says"},
		rule{f.speed != 1, "--speed must be 1"},
		rule{f.from != 0 || f.to != 0, "--from and --to: conversations are whole"},
	); err != nil {
		return nil, err
	}
	fallback := "trees"
	if report.Timed > 0 && !f.agentx.on() {
		fallback = ""
	}
	a, err := f.load.axis(fallback, f.seed)
	if err != nil {
		return nil, err
	}
	if a == nil {
		a = &axis{name: "speed", values: []float64{f.speed}, make: func(v float64) schedule.Options {
			return schedule.Options{
				Mode: schedule.Fixed, Seed: f.seed, Speed: v, From: f.from, To: f.to, AutoOffset: f.autoOffset, MaxConcurrency: f.load.maxConcurrency,
				Duration: f.load.duration, ThinkScale: f.load.thinkScale, NoThink: f.load.thinkScale == 0,
			}
		}}
	}
	if err := f.load.check(a); err != nil {
		return nil, err
	}
	if f.most > 0 {
		inner := a.make
		a.make = func(v float64) schedule.Options {
			o := inner(v)
			o.Requests = f.most
			return o
		}
	}
	return a, nil
}

func (f *replayFlags) measure(ctx context.Context, m *measurement, a *axis, w *workload.Workload) error {
	s, err := f.target.open(ctx, "server", f.url, m.log)
	if err != nil {
		return err
	}
	m.run.Targets = []result.Target{s.info}
	first := a.make(a.values[0])
	m.describe(w, words(&first))
	if err := m.warm(ctx, s, w); err != nil {
		return err
	}
	for _, x := range a.values {
		st, err := m.step(ctx, s, f.agentx.apply(w, int(min(x, 1e6)), f.seed+uint64(len(m.steps))), a.make(x), stepName(a, x))
		if st != nil && len(a.values) > 1 {
			st.X, st.XName = x, a.name
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads all files of the trace.
func (f *replayFlags) read(args []string) (*workload.Workload, *traces.Report, error) {
	parts, shut, err := openParts(args)
	defer shut()
	if err != nil {
		return nil, nil, err
	}
	o := traces.Options{Name: strings.Join(args, " "), Format: traces.Format(f.format), Lenient: f.lenient, Output: f.output, Seed: f.seed}
	if f.target.tokenizer != "" {
		tok, err := openTokenizer(f.target.tokenizer)
		if err != nil {
			return nil, nil, fmt.Errorf("--tokenizer: %w", err)
		}
		o.Count = func(text string) int {
			ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
			if err != nil {
				return 0 // too long for the tokenizer: such texts are left out by their length
			}
			return len(ids)
		}
	}
	return traces.ReadParts(parts, o)
}

// openParts opens all files of a trace. Call shut at the end, also after an error.
func openParts(args []string) (list []traces.Part, shut func(), err error) {
	var files []*os.File
	shut = func() {
		for _, file := range files {
			_ = file.Close() // it was read
		}
	}
	names, err := expand(args)
	if err != nil {
		return nil, shut, err
	}
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, shut, err
		}
		files = append(files, file)
		list = append(list, traces.Part{Name: name, In: file})
	}
	return list, shut, nil
}

// expand lists the files of folders, in the order of their names.
func expand(args []string) (out []string, err error) {
	for _, a := range args {
		st, err := os.Stat(a)
		if err != nil {
			return nil, err
		}
		if !st.IsDir() {
			out = append(out, a)
			continue
		}
		entries, err := os.ReadDir(a) // sorted
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				out = append(out, filepath.Join(a, e.Name()))
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: the folder has no files", strings.Join(args, " "))
	}
	return out, nil
}

// convert writes the trace in another format.
func (f *replayFlags) convert(w *workload.Workload, out io.Writer) error {
	var written bytes.Buffer
	if err := traces.Write(&written, w, traces.Format(f.writeFormat), f.blockSize); err != nil {
		return err
	}
	if err := replace(f.write, func(out io.Writer) error { _, err := out.Write(written.Bytes()); return err }); err != nil {
		return err
	}
	// Blocks of another size, and ids of each conversation alone, tell less of what prompts share.
	back, report, err := traces.Read(&written, traces.Options{Name: f.write, Format: traces.Format(f.writeFormat), Lenient: true, Seed: f.seed})
	if err != nil {
		return fmt.Errorf("written, but not readable: %w", err)
	}
	_, err = fmt.Fprintf(out, "written to %s: %d requests, reuse of blocks of %d tokens with an endless cache: %.1f %%\n", f.write, len(back.Requests), report.Block, 100*report.Reuse)
	return err
}
