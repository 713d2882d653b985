// Command cpu measures the CPU backend: what the machine can do, each kernel as a
// share of that, and whole models and servers beside llama.cpp on the same files,
// in interleaved repetitions. With -o it writes the tables into a page.
//
//	go run ./test/bench/cpu -parts limits,kernels
//	go run ./test/bench/cpu -python VENV/bin/python3 -o docs/performance-cpu.md
//	go run ./test/bench/cpu -parts server -server VENV/bin/llama-server
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"tandem/engine/cpu"
	"tandem/test/bench/page"
	"tandem/test/bench/result"
)

// options are the flags, and what parts have found out for later ones.
type options struct {
	python, ik, script, server, bin, keys, dir, models, rows, command, activations string
	threads, pairs                                                                 int
	each                                                                           time.Duration
	limits                                                                         cpu.Limits // of all threads, the best so far
}

// part is a section of the page.
type part struct {
	name string
	run  func(*options, *bytes.Buffer) error
}

// The limits come last: the parts before measure them, too, and the best counts.
var parts = []part{{"kernels", kernels}, {"models", models}, {"limits", limits}, {"server", server}}

// unlessAsked are the parts that run by themselves: the server's takes ten minutes and another peer.
const unlessAsked = "kernels,models,limits"

func main() {
	var o options
	only := flag.String("parts", unlessAsked, "what to measure: these, and server")
	path := flag.String("o", "", "page whose tables are replaced, empty = print only")
	flag.StringVar(&o.command, "command", strings.Join(append([]string{"go run ./test/bench/cpu"}, os.Args[1:]...), " "), "what the tables tell readers to run")
	flag.StringVar(&o.python, "python", "", "python3 with llama-cpp-python; empty = ours alone")
	flag.StringVar(&o.ik, "ik", "", "python3 with ik-llama-cpp-python; empty = without that peer")
	flag.StringVar(&o.script, "peer", "test/bench/local/peer.py", "the peer's program")
	flag.StringVar(&o.server, "server", "", "server: program of llama-server; empty = ours alone")
	flag.StringVar(&o.bin, "bin", "bin", "server: folder with our programs")
	flag.StringVar(&o.keys, "keys", "{}", "server: JSON object with keys of our worker's configuration")
	flag.StringVar(&o.dir, "dir", ".cache/shapes", "folder for files of random weights, up to 2.5 GB each")
	flag.StringVar(&o.models, "models", "", "models whose name contains this, empty = all; server: the default model")
	flag.StringVar(&o.rows, "rows", "", "rows of models whose name contains this, empty = all; server: like \"clients 8.\"")
	flag.StringVar(&o.activations, "activations", "auto", "models: activations on our side: auto, int16 or int8")
	flag.IntVar(&o.threads, "threads", runtime.NumCPU(), "compute threads of both sides")
	flag.IntVar(&o.pairs, "pairs", 5, "most repetitions of each row, at most 10")
	flag.DurationVar(&o.each, "each", 10*time.Second, "time of a row, after which it gets no further repetition")
	flag.Parse()
	if err := run(&o, strings.Split(*only, ","), *path); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cpu:", err)
		os.Exit(1)
	}
}

func run(o *options, only []string, path string) error {
	if o.pairs < 1 || o.pairs > 10 { // the peer's contexts have room for so many
		return fmt.Errorf("-pairs %d is not 1 to 10", o.pairs)
	}
	for _, name := range only {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("-parts: there is no part %q", name)
		}
	}
	for _, p := range parts {
		if !slices.Contains(only, p.name) {
			continue
		}
		var out bytes.Buffer
		before := result.Machine()
		if err := p.run(o, &out); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(&out, "\n`%s`. %s\n", o.command, page.Machine(before, o.threads))
		fmt.Print("\n", out.String())
		if path == "" {
			continue
		}
		if err := page.Write(path, p.name, out.String()); err != nil {
			return err
		}
	}
	return nil
}

// Sizes of memory that are read: of one core's cache, of the last level, and of
// weights that are in neither.
var readSizes = []int{1 << 20, 32 << 20, 140 << 20, 700 << 20}

// measureLimits measures the limits of all threads and returns the best of all measurements so far. A guest's processors are
// slower in some minutes than in others, and a limit is what the machine can do.
func (o *options) measureLimits() (cpu.Limits, error) {
	l, err := cpu.MeasureLimits(o.threads, readSizes, 12)
	if err != nil {
		return l, err
	}
	o.limits = better(o.limits, l)
	return o.limits, nil
}

// better takes the higher of each limit. a may be empty.
func better(a, b cpu.Limits) cpu.Limits {
	b.Read = slices.Clone(b.Read)
	for i := range a.Read {
		b.Read[i] = max(a.Read[i], b.Read[i])
	}
	b.Float32, b.Int16, b.Int8 = max(a.Float32, b.Float32), max(a.Int16, b.Int16), max(a.Int8, b.Int8)
	return b
}

// readLimit is the read rate of memory of about this size.
func readLimit(l cpu.Limits, bytes int) float64 {
	for i, n := range readSizes {
		if bytes <= n*2 {
			return l.Read[i]
		}
	}
	return l.Read[len(readSizes)-1]
}

func limits(o *options, out *bytes.Buffer) error {
	var one cpu.Limits
	for range 3 {
		l, err := cpu.MeasureLimits(1, readSizes, 12)
		if err != nil {
			return err
		}
		one = better(one, l)
		if _, err := o.measureLimits(); err != nil {
			return err
		}
	}
	all := o.limits
	fmt.Fprintf(out, "| | 1 thread | %d threads |\n|---|---|---|\n", o.threads)
	for i, n := range readSizes {
		fmt.Fprintf(out, "| read %d MiB, GB/s | %.1f | %.1f |\n", n>>20, one.Read[i]/1e9, all.Read[i]/1e9)
	}
	fmt.Fprintf(out, "| float32 multiply-adds, GFLOP/s | %.0f | %.0f |\n", one.Float32/1e9, all.Float32/1e9)
	fmt.Fprintf(out, "| 16-bit integer dots, GOP/s | %.0f | %.0f |\n", one.Int16/1e9, all.Int16/1e9)
	fmt.Fprintf(out, "| 8-bit integer dots, GOP/s | %.0f | %.0f |\n", one.Int8/1e9, all.Int8/1e9)
	return nil
}
