package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tandem/engine/cpu"
	"tandem/engine/model"
	"tandem/test/bench/shapes"
	"tandem/test/bench/speed"
)

// subject is a model that is measured, and how many times the peer's speed it
// must reach.
type subject struct {
	shape, kind                      string
	prefill, decode, deep, b16, many float64
}

var subjects = []subject{
	{"smollm2-135m", "q8_0", 1.5, 1.5, 2, 2.5, 3},
	{"smollm2-135m", "q4_0", 1.5, 1.5, 2, 2.5, 3},
	{"qwen3-0.6b", "q8_0", 1.5, 1.15, 1.8, 2.5, 3},
	{"qwen3-0.6b", "q4_0", 1.5, 1.5, 1.8, 2.5, 3},
	{"llama-3.2-1b", "q8_0", 1.5, 1.15, 1.3, 2, 3},
	{"llama-3.2-1b", "q4_0", 1.5, 1.5, 1.3, 2.5, 3},
	{"llama-3.2-1b", "q4_k", 1.5, 1.5, 1.3, 2.5, 3},
	{"llama-3.2-1b", "bf16", 1.5, 1.5, 1.3, 2.5, 3},
	{"qwen3-moe", "q4_0", 1.5, 1.5, 1.5, 1.5, 1.5},
}

func (s subject) String() string { return s.shape + " " + s.kind }

// rows are measured in this order. A peer takes half a minute for 2,048 tokens of
// the largest shape: its long prompts are left out, since the cache must be filled
// once for the deep row anyway.
func (s subject) rows() []target {
	list := []target{{speed.Row{Batch: 1, Depth: 128}, s.prefill}, {speed.Row{Batch: 1, Depth: 512}, s.prefill}}
	if s.shape != "llama-3.2-1b" {
		list = append(list, target{speed.Row{Batch: 1, Depth: 2048}, s.prefill})
	}
	return append(list,
		target{speed.Row{Batch: 1, Depth: 128, Steps: 24}, s.decode}, target{speed.Row{Batch: 1, Depth: 2048, Steps: 16}, s.deep},
		target{speed.Row{Batch: 8, Depth: 128, Steps: 8}, 0}, target{speed.Row{Batch: 16, Depth: 128, Steps: 8}, s.b16},
		target{speed.Row{Batch: 32, Depth: 128, Steps: 6}, s.many})
}

// target is a row and the ratio that it must reach, 0 = none.
type target struct {
	speed.Row
	must float64
}

// sides are the programs that are compared on one file.
type sides struct {
	ours  *speed.Engine
	peers []*speed.Peer // llama.cpp with and without flash attention, whose better one counts, and the fork
}

func (s *sides) close() {
	if s.ours != nil {
		s.ours.Close()
	}
	for _, p := range s.peers {
		p.Close()
	}
}

func models(o *options, out *bytes.Buffer) error {
	fmt.Fprintf(out, "Tokens per second, medians; ratios are medians of those of interleaved pairs, with the least and the greatest. The must is that beside llama.cpp.\n")
	fmt.Fprintf(out, "\n| model | row | tandem | llama.cpp | ratio | ik_llama.cpp | ratio | must |\n|---|---|---|---|---|---|---|---|\n")
	var shares string
	for _, s := range subjects {
		if !strings.Contains(s.String(), o.models) {
			continue
		}
		lines, err := o.subject(s, out)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		shares += lines
	}
	if shares == "" {
		return nil
	}
	fmt.Fprintf(out, "\nOurs alone. Reading: bytes of weights and cache of a step over the time of a step, as a share of the read limit, which is that of the best minute. In turns: bytes of weights alone, as a share of what plain reading of as many gets in the same seconds. Arithmetic: that of prefill 512 as a share of the integer or float limit. Steps: time with 8 sequences over that with one. Turn: first token of 256 tokens behind 2,000 cached ones over that of 256 alone. Loop: the engine's rate with scheduler and sampler over that of its steps alone.\n")
	fmt.Fprintf(out, "\n| model | load, s | reading (D1, D2: 85, 60 %%) | in turns | arithmetic | steps 8/1 (D6: 1.25, 4 bits 1.6) | turn (S4: 1.6, SmolLM2 2.5) | loop (S5: 0.95) |\n|---|---|---|---|---|---|---|---|\n%s", shares)
	return nil
}

// file makes the model's file if it is not there.
func (o *options) file(s subject) (string, error) {
	path := filepath.Join(o.dir, s.shape+"-"+s.kind+".gguf")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	shape, err := shapes.Find(s.shape)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return "", err
	}
	return path, shapes.Write(path, shape, s.kind)
}

// subject measures a model and returns its line of the second table.
func (o *options) subject(s subject, out *bytes.Buffer) (string, error) {
	path, err := o.file(s)
	if err != nil {
		return "", err
	}
	var all sides
	defer all.close()
	start := time.Now()
	if all.ours, err = speed.Load(path, o.threads, 32*(128+64)+2*2304, o.activations); err != nil {
		return "", err
	}
	loaded := time.Since(start)
	for _, mode := range []string{"fa", "nofa"} {
		if o.python == "" {
			break
		}
		p, err := speed.StartPeer(o.python, o.script, path, o.threads, mode)
		if err != nil {
			return "", err
		}
		all.peers = append(all.peers, p)
	}
	if o.ik != "" {
		p, err := speed.StartPeer(o.ik, o.script, path, o.threads, "fa")
		if err == nil {
			all.peers = append(all.peers, p)
		} else {
			fmt.Fprintf(os.Stderr, "%s without ik_llama.cpp: %v\n", s, err)
		}
	}
	rates := map[string]float64{}
	for _, t := range s.rows() {
		if !strings.Contains(t.String(), o.rows) {
			continue
		}
		rate, err := o.compare(s, t, &all, out)
		if err != nil {
			return "", fmt.Errorf("%s: %w", t, err)
		}
		rates[t.String()] = rate
	}
	if o.rows != "" {
		return "", nil // the shares are of all rows
	}
	return o.shares(s, all.ours, rates, loaded)
}

// compare measures one row in turns and returns our median.
func (o *options) compare(s subject, t target, all *sides, out *bytes.Buffer) (float64, error) {
	var mine []float64
	theirs := make([][]float64, len(all.peers))
	for end, i := time.Now().Add(o.each), 0; i < o.pairs && (i == 0 || time.Now().Before(end)); i++ {
		v, err := all.ours.Measure(t.Row)
		if err != nil {
			return 0, err
		}
		mine = append(mine, v)
		for i, p := range all.peers {
			v, err := p.Measure(t.Row)
			if err != nil && p.Version == "ik" { // the last one, which some models are too much for
				fmt.Fprintf(os.Stderr, "%s, %s and on without ik_llama.cpp: %v\n", s, t, err)
				p.Close()
				all.peers, theirs = all.peers[:i], theirs[:i]
				break
			}
			if err != nil {
				return 0, err
			}
			theirs[i] = append(theirs[i], v)
		}
	}
	line := fmt.Sprintf("| %s%s | %s | %.1f (%.1f–%.1f) |", s, strings.TrimSuffix(", "+o.activations, ", auto"), t, speed.Median(mine), slices.Min(mine), slices.Max(mine))
	for _, ik := range []bool{false, true} {
		line += beside(mine, all.peers, theirs, ik)
	}
	if t.must > 0 {
		line += fmt.Sprintf(" %.2f |\n", t.must)
	} else {
		line += " – |\n"
	}
	out.WriteString(line)
	fmt.Fprint(os.Stderr, line)
	return speed.Median(mine), nil
}

// beside are two columns for the better of the peers of a kind.
func beside(mine []float64, peers []*speed.Peer, theirs [][]float64, ik bool) string {
	var kind [][]float64
	for i, list := range theirs {
		if (peers[i].Version == "ik") == ik && len(list) > 0 {
			kind = append(kind, list)
		}
	}
	return speed.Beside(mine, kind)
}

// shares measures what needs no peer.
func (o *options) shares(s subject, e *speed.Engine, rates map[string]float64, loaded time.Duration) (string, error) {
	c := &e.Loaded.Config
	weights, err := e.StepBytes()
	if err != nil {
		return "", err
	}
	read := weights + c.Layers*2*c.KVHeads*c.HeadDim*2*140 // the cache at the mean depth
	l, err := o.measureLimits()
	if err != nil {
		return "", err
	}
	beside, err := o.besideReading(e, weights)
	if err != nil {
		return "", err
	}
	turn, err := e.Turn(2000, 256)
	if err != nil {
		return "", err
	}
	alone, err := e.Turn(0, 256)
	if err != nil {
		return "", err
	}
	loop, err := e.Loop(128, 128, 9)
	if err != nil {
		return "", err
	}
	one := rates["decode batch 1 depth 128"]
	return fmt.Sprintf("| %s | %.1f | %.0f %% | %.0f %% | %.0f %% | %.2f | %.2f | %.2f |\n", s, loaded.Seconds(),
		100*float64(read)*one/readLimit(l, read), 100*beside,
		100*2*float64(linear(c))*rates["prefill 512"]/o.peak(l, s.kind), 8*one/rates["decode batch 8 depth 128"], turn/alone, speed.Median(loop)), nil
}

// besideReading is the rate at which steps of one sequence read their weights, as a share
// of that of plain reading of as many bytes, in turns of the same length: a median.
func (o *options) besideReading(e *speed.Engine, weights int) (float64, error) {
	r, err := cpu.NewReader(o.threads, weights)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	var shares []float64
	for range 9 {
		const steps = 8
		rate, err := e.Measure(speed.Row{Batch: 1, Depth: 128, Steps: steps})
		if err != nil {
			return 0, err
		}
		seconds, times := 0.0, 0
		for ; seconds < steps/rate; times++ {
			seconds += float64(weights) / r.Rate()
		}
		shares = append(shares, rate*seconds/float64(times))
	}
	return speed.Median(shares), nil
}

// linear is the weights that a token of a prompt is multiplied with.
func linear(c *model.Config) int {
	mlp := 3 * c.Hidden * c.Inter
	if c.MoE.Experts > 0 {
		mlp = 3 * c.Hidden * c.MoE.Inter * c.MoE.Used
	}
	return c.Layers * (2*c.Hidden*c.HeadDim*(c.Heads+c.KVHeads) + mlp)
}
