// Command local measures prefill and decode of one model on this machine beside
// llama.cpp on the same file: interleaved repetitions, medians, median ratio.
//
//	go run ./test/bench/local -model FILE.gguf -python VENV/bin/python3
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"tandem/engine/hub"
	"tandem/test/bench/speed"
)

var rows = []speed.Row{
	{Batch: 1, Depth: 128},
	{Batch: 1, Depth: 512},
	{Batch: 1, Depth: 2048},
	{Batch: 1, Depth: 128, Steps: 48},
	{Batch: 1, Depth: 2048, Steps: 48},
	{Batch: 8, Depth: 128, Steps: 24},
	{Batch: 8, Depth: 2048, Steps: 24},
}

// options are the flags.
type options struct {
	name, python, script, only string
	reps, threads              int
	each                       time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.name, "model", hub.DefaultModel, "model file or alias")
	flag.StringVar(&o.python, "python", "", "python3 with llama-cpp-python; empty = ours alone")
	flag.StringVar(&o.script, "peer", "test/bench/local/peer.py", "the peer's program")
	flag.IntVar(&o.reps, "n", 5, "repetitions of each row, at most 10")
	flag.DurationVar(&o.each, "each", time.Minute, "time of a row, after which it gets no further repetition")
	flag.IntVar(&o.threads, "threads", runtime.NumCPU(), "compute threads of both sides")
	flag.StringVar(&o.only, "rows", "", "rows whose name contains this, empty = all")
	flag.Parse()
	if err := run(&o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures all rows and prints them; progress goes to log.
func run(o *options, out, log io.Writer) error {
	if o.reps < 1 || o.reps > 10 { // the peer's contexts have room for so many
		return fmt.Errorf("-n %d is not 1 to 10", o.reps)
	}
	path, err := hub.Locate(o.name)
	if err != nil {
		return err
	}
	ours, err := speed.Load(path, o.threads, 8*(2048+64)+4096, "")
	if err != nil {
		return err
	}
	defer ours.Close()
	peers, err := o.peers(path)
	for _, p := range peers {
		defer p.Close()
	}
	if err != nil {
		return err
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%s, %d threads, tokens per second: medians of interleaved repetitions and of their ratios, with least and greatest. Tandem: %s.",
		filepath.Base(path), o.threads, ours.Info())
	if len(peers) > 0 {
		fmt.Fprintf(&table, " llama.cpp: llama-cpp-python %s, the better of flash attention on and off.\n\n| | repetitions | tandem | llama.cpp | ratio |\n|---|---|---|---|---|\n", peers[0].Version)
	} else {
		table.WriteString(" llama.cpp is left out: there was no Python with llama-cpp-python.\n\n| | repetitions | tandem |\n|---|---|---|\n")
	}
	for _, r := range rows {
		if !strings.Contains(r.String(), o.only) {
			continue
		}
		line, err := o.measure(r, ours, peers)
		if err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		_, _ = fmt.Fprintln(log, line)
		fmt.Fprintln(&table, line)
	}
	_, err = io.WriteString(out, table.String())
	return err
}

// peers starts llama.cpp with and without flash attention; the better counts.
func (o *options) peers(path string) (list []*speed.Peer, err error) {
	for _, mode := range []string{"fa", "nofa"} {
		if o.python == "" {
			break
		}
		p, err := speed.StartPeer(o.python, o.script, path, o.threads, mode)
		if err != nil {
			return list, err
		}
		list = append(list, p)
	}
	return list, nil
}

// measure interleaves repetitions of all sides and returns the row of the table.
func (o *options) measure(r speed.Row, ours *speed.Engine, peers []*speed.Peer) (string, error) {
	var mine []float64
	theirs := make([][]float64, len(peers))
	for end := time.Now().Add(o.each); len(mine) < o.reps && (len(mine) == 0 || time.Now().Before(end)); {
		v, err := ours.Measure(r)
		if err != nil {
			return "", err
		}
		mine = append(mine, v)
		for i, p := range peers {
			v, err := p.Measure(r)
			if err != nil {
				return "", err
			}
			theirs[i] = append(theirs[i], v)
		}
	}
	line := fmt.Sprintf("| %s | %d | %.1f (%.1f–%.1f) |", r, len(mine), speed.Median(mine), slices.Min(mine), slices.Max(mine))
	if len(peers) > 0 {
		line += speed.Beside(mine, theirs)
	}
	return line, nil
}
