// Command local measures prefill and decode of one model on this machine beside
// llama.cpp on the same file: interleaved repetitions, medians, ratio of medians.
//
//	go run ./test/bench/local -model FILE.gguf -python VENV/bin/python3
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"tandem/engine/executor"
	"tandem/engine/hub"
	"tandem/engine/runner"
	"tandem/engine/tensor"
)

// row is one line of the table. Prefill has steps 0.
type row struct {
	batch, depth, steps int
}

func (r row) String() string {
	if r.steps == 0 {
		return fmt.Sprintf("prefill %d", r.depth)
	}
	return fmt.Sprintf("decode batch %d depth %d", r.batch, r.depth)
}

var rows = []row{
	{1, 128, 0},
	{1, 512, 0},
	{1, 2048, 0},
	{1, 128, 48},
	{1, 2048, 48},
	{8, 128, 24},
	{8, 2048, 24},
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
	ours, err := load(path, threads)
	if err != nil {
		return err
	}
	defer ours.close()
	// llama.cpp is measured with and without flash attention; the better counts.
	var peers []*peer
	for _, mode := range []string{"fa", "nofa"} {
		if python == "" {
			break
		}
		p, err := startPeer(python, script, path, threads, mode)
		if err != nil {
			return err
		}
		defer p.close()
		peers = append(peers, p)
	}
	fmt.Printf("%s, %d threads, %s, load average %s\n", filepath.Base(path), threads, ours.b.Info(), loadAverage())
	if len(peers) > 0 {
		fmt.Printf("peer: llama.cpp through llama-cpp-python %s\n", peers[0].version)
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
	fmt.Printf("\nload average afterwards %s\n", loadAverage())
	return nil
}

// measure interleaves repetitions of all sides and prints medians.
func measure(r row, ours *engine, peers []*peer, reps int) error {
	mine := make([]float64, 0, reps)
	theirs := make([][]float64, len(peers))
	for range reps {
		v, err := ours.measure(r)
		if err != nil {
			return err
		}
		mine = append(mine, v)
		for i, p := range peers {
			v, err := p.measure(r)
			if err != nil {
				return err
			}
			theirs[i] = append(theirs[i], v)
		}
	}
	best := 0.0
	for _, t := range theirs {
		best = max(best, median(t))
	}
	if best == 0 {
		fmt.Printf("| %s | %.1f (%.1f–%.1f) | – | – |\n", r, median(mine), slices.Min(mine), slices.Max(mine))
		return nil
	}
	fmt.Printf("| %s | %.1f (%.1f–%.1f) | %.1f | %.2f |\n", r, median(mine), slices.Min(mine), slices.Max(mine), best, median(mine)/best)
	return nil
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// engine is our side: the CPU backend without scheduler, as the peer is
// measured without its server.
type engine struct {
	loaded *runner.Loaded
	b      runner.Backend
	batch  tensor.Batch
}

const blockTokens = 16

func load(path string, threads int) (*engine, error) {
	core := executor.DefaultConfig()
	l, err := runner.Load(context.Background(), runner.LoadOptions{Path: path, Core: core, Threads: threads, PoolTokens: 8*(2048+64) + 4096})
	if err != nil {
		return nil, err
	}
	return &engine{loaded: l, b: l.Backends[0]}, nil
}

func (e *engine) close() { e.loaded.Close() }

func (e *engine) token(i int) int32 { return int32(1000 + (i*7919)%(e.loaded.Config.Vocab-2000)) }

// pages gives sequence s its own blocks for n tokens.
func pages(s, n int) []int32 {
	per := (n + blockTokens - 1) / blockTokens
	out := make([]int32, per)
	for i := range out {
		out[i] = int32(s*per + i)
	}
	return out
}

func (e *engine) measure(r row) (float64, error) {
	if r.steps == 0 {
		took, err := e.prefill(0, r.depth, r.depth, true)
		return float64(r.depth) / took.Seconds(), err
	}
	cells := r.depth + r.steps
	for s := range r.batch {
		if _, err := e.prefill(s, r.depth, cells, false); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	for k := range r.steps {
		e.batch.Reset()
		for s := range r.batch {
			e.batch.Add([]int32{e.token(k + s)}, r.depth+k, pages(s, cells), true)
		}
		if _, err := e.b.Run(&e.batch); err != nil {
			return 0, err
		}
	}
	return float64(r.batch*r.steps) / time.Since(start).Seconds(), nil
}

// prefill runs n tokens of sequence s in chunks of 512.
func (e *engine) prefill(s, n, cells int, logits bool) (time.Duration, error) {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = e.token(i)
	}
	table := pages(s, cells)
	start := time.Now()
	for at := 0; at < n; at += 512 {
		end := min(n, at+512)
		e.batch.Reset()
		e.batch.Add(tokens[at:end], at, table, logits && end == n)
		if _, err := e.b.Run(&e.batch); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// peer is a running peer.py.
type peer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	version string
}

func startPeer(python, script, path string, threads int, mode string) (*peer, error) {
	cmd := exec.Command(python, script, path, strconv.Itoa(threads), mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &peer{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	line, err := p.line()
	if err != nil {
		return nil, err
	}
	p.version = strings.TrimPrefix(line, "ready ")
	return p, nil
}

func (p *peer) close() {
	p.in.Close()
	_ = p.cmd.Wait() // it ends with its input
}

func (p *peer) line() (string, error) {
	if !p.out.Scan() {
		return "", errors.Join(errors.New("the peer ended"), p.out.Err())
	}
	return p.out.Text(), nil
}

func (p *peer) measure(r row) (float64, error) {
	cmd := fmt.Sprintf("prefill %d\n", r.depth)
	if r.steps > 0 {
		cmd = fmt.Sprintf("decode %d %d %d\n", r.batch, r.depth, r.steps)
	}
	if _, err := io.WriteString(p.in, cmd); err != nil {
		return 0, err
	}
	line, err := p.line()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(line, 64)
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
