// Command local measures prefill and decode of one model on this machine beside
// llama.cpp on the same file: interleaved repetitions, medians, ratio of medians.
//
//	go run ./test/bench/local -model FILE.gguf -python VENV/bin/python3
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"tandem/engine/hub"
	"tandem/test/bench/result"
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

func main() {
	name := flag.String("model", hub.DefaultModel, "model file or alias")
	python := flag.String("python", "", "python3 with llama-cpp-python; empty = ours alone")
	script := flag.String("peer", "test/bench/local/peer.py", "the peer's program")
	reps := flag.Int("n", 5, "repetitions of each row, at most 10")
	threads := flag.Int("threads", runtime.NumCPU(), "compute threads of both sides")
	only := flag.String("rows", "", "rows whose name contains this, empty = all")
	flag.Parse()
	if err := run(*name, *python, *script, *only, *reps, *threads); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(name, python, script, only string, reps, threads int) error {
	if reps < 1 || reps > 10 { // the peer's contexts have room for so many
		return fmt.Errorf("-n %d is not 1 to 10", reps)
	}
	path, err := hub.Locate(name)
	if err != nil {
		return err
	}
	ours, err := speed.Load(path, threads, 8*(2048+64)+4096)
	if err != nil {
		return err
	}
	defer ours.Close()
	// llama.cpp is measured with and without flash attention; the better counts.
	var peers []*speed.Peer
	for _, mode := range []string{"fa", "nofa"} {
		if python == "" {
			break
		}
		p, err := speed.StartPeer(python, script, path, threads, mode)
		if err != nil {
			return err
		}
		defer p.Close()
		peers = append(peers, p)
	}
	fmt.Printf("%s, %d threads, %s, load average %s\n", filepath.Base(path), threads, ours.Info(), result.Machine().Load)
	if len(peers) > 0 {
		fmt.Printf("peer: llama.cpp through llama-cpp-python %s\n", peers[0].Version)
	}
	fmt.Printf("\n| tokens per second | tandem | llama.cpp | ratio |\n|---|---|---|---|\n")
	for _, r := range rows {
		if !strings.Contains(r.String(), only) {
			continue
		}
		if err := measure(r, ours, peers, reps); err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
	}
	fmt.Printf("\nload average afterwards %s\n", result.Machine().Load)
	return nil
}

// measure interleaves repetitions of all sides and prints medians.
func measure(r speed.Row, ours *speed.Engine, peers []*speed.Peer, reps int) error {
	mine := make([]float64, 0, reps)
	theirs := make([][]float64, len(peers))
	for range reps {
		v, err := ours.Measure(r)
		if err != nil {
			return err
		}
		mine = append(mine, v)
		for i, p := range peers {
			v, err := p.Measure(r)
			if err != nil {
				return err
			}
			theirs[i] = append(theirs[i], v)
		}
	}
	best := 0.0
	for _, t := range theirs {
		best = max(best, speed.Median(t))
	}
	if best == 0 {
		fmt.Printf("| %s | %.1f (%.1f–%.1f) | – | – |\n", r, speed.Median(mine), slices.Min(mine), slices.Max(mine))
		return nil
	}
	fmt.Printf("| %s | %.1f (%.1f–%.1f) | %.1f | %.2f |\n", r, speed.Median(mine), slices.Min(mine), slices.Max(mine), best, speed.Median(mine)/best)
	return nil
}
