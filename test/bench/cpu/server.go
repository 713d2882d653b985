package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tandem/engine/hub"
	"tandem/test/bench/cluster"
	"tandem/test/bench/load"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/speed"
	"tandem/test/bench/workload"
)

const (
	answerTokens = 64
	slotTokens   = 2048 // context of each of the peer's slots
	leastSlices  = 2
)

// Each client sends a request when its last one has ended.
var clientCounts = []int{1, 8, 32}

// promptKinds are in tokens: a beginning that all prompts have, and what is a prompt's own.
var promptKinds = []struct {
	name        string
	system, own int
}{{"256 own", 0, 256}, {"512 shared, 64 own", 512, 64}}

// peerArgs are the configurations of llama-server, beside its slots. The one with the higher rate in the first slice counts.
var peerArgs = []string{"-fa on -ctk q8_0 -ctv q8_0", ""}

// measures are the rows of a load; must is the least ratio to the peer, or the greatest where less is better.
var measures = []struct {
	name string
	of   func(*result.Summary) float64
	must func(clients int) string
}{
	{"output tokens/s", func(s *result.Summary) float64 { return s.OutputTPS }, func(n int) string { return map[bool]string{true: "3", false: "–"}[n == 32] }},
	{"TTFT p50, ms", func(s *result.Summary) float64 { return 1000 * s.Dist["ttft"].P50 }, half},
	{"TTFT p95, ms", func(s *result.Summary) float64 { return 1000 * s.Dist["ttft"].P95 }, half},
	{"ITL p95, ms", func(s *result.Summary) float64 { return 1000 * s.Dist["itl"].P95 }, half},
}

func half(int) string { return "at most 0.5" }

// served is a server under load, and what its slices gave.
type served struct {
	name    string
	client  *load.Client
	prompts load.Prompts
	perWord float64 // tokens of a word of the prompts
	slices  []*result.Summary
}

// open prepares the client of a server that was started.
func open(ctx context.Context, name string, p *cluster.Process) (*served, error) {
	c := &load.Client{URL: p.URL, API: load.Completions, Timeout: 10 * time.Minute}
	models, err := c.Models(ctx)
	if err != nil || len(models) == 0 {
		return nil, fmt.Errorf("%s lists no model: %w", name, err)
	}
	c.Model = models[0]
	s := &served{name: name, client: c, prompts: load.Prompts{API: c.API, Model: c.Model, Vocabulary: load.PlainVocabulary(), IgnoreEOS: true}}
	cal, err := load.Calibrate(ctx, c, &s.prompts)
	if err == nil && !cal.Known {
		err = errors.New("it does not count tokens")
	}
	s.perWord = cal.PerWord
	return s, err
}

// words is how many make so many tokens.
func (s *served) words(tokens int) int { return int(math.Round(float64(tokens) / s.perWord)) }

// server measures whole servers in turns, for each number of clients and kind of prompts.
func server(o *options, out *bytes.Buffer) error {
	fmt.Fprintf(out, "Answers of %d tokens, streamed, greedy; so many clients, each with one request in flight. Medians of slices; ratios are medians of those of interleaved pairs, with the least and the greatest.", answerTokens)
	if o.server != "" {
		fmt.Fprintf(out, " The peer, `%s`, has a slot of %d tokens for each client, and the better cache: `%s` or its default.", relative(o.server), slotTokens, peerArgs[0])
	}
	fmt.Fprintln(out)
	fmt.Fprintf(out, "\n| model | prompts, tokens | clients | | tandem | llama-server | ratio | must |\n|---|---|---|---|---|---|---|---|\n")
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // servers end with it
	defer cancel()
	list, err := o.servedModels()
	if err != nil {
		return err
	}
	for _, path := range list {
		if err := o.serve(ctx, path, out); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// relative is a path as seen from here, where it is below.
func relative(path string) string {
	if here, err := os.Getwd(); err == nil {
		path = strings.TrimPrefix(path, here+"/")
	}
	return path
}

// servedModels are the default model, or the files of the shapes that -models names.
func (o *options) servedModels() (list []string, err error) {
	for _, s := range subjects {
		if o.models == "" || !strings.Contains(s.String(), o.models) {
			continue
		}
		path, err := o.file(s)
		if err != nil {
			return nil, err
		}
		list = append(list, path)
	}
	if len(list) > 0 {
		return list, nil
	}
	path, err := hub.Locate(hub.DefaultModel)
	if err != nil {
		return nil, fmt.Errorf("%w: bin/engine model pull %s", err, hub.DefaultModel)
	}
	return []string{path}, nil
}

// serve measures one model.
func (o *options) serve(ctx context.Context, path string, out *bytes.Buffer) error {
	var keys map[string]any
	if err := json.Unmarshal([]byte(o.keys), &keys); err != nil {
		return fmt.Errorf("-keys: %w: want a JSON object", err)
	}
	p, err := cluster.Worker(ctx, cluster.Options{Bin: o.bin, Model: path, Threads: o.threads, Keys: keys, Wait: 5 * time.Minute})
	if err != nil {
		return err
	}
	defer p.Stop()
	ours, err := open(ctx, "tandem", p)
	if err != nil {
		return err
	}
	for _, n := range clientCounts {
		if !strings.Contains(fmt.Sprintf("clients %d.", n), o.rows) {
			continue
		}
		if err := o.clients(ctx, ours, path, n, out); err != nil {
			return fmt.Errorf("%d clients: %w", n, err)
		}
	}
	return nil
}

// clients measures one number of clients, with peers that have as many slots.
func (o *options) clients(ctx context.Context, ours *served, path string, n int, out *bytes.Buffer) error {
	all := []*served{ours}
	for _, args := range peerArgs {
		if o.server == "" {
			break
		}
		args = fmt.Sprintf("-np %d -c %d %s", n, n*slotTokens, args)
		p, err := cluster.LlamaServer{Program: o.server, Model: path, Threads: o.threads, Args: strings.Fields(args), Wait: 5 * time.Minute}.Start(ctx)
		if err != nil {
			return fmt.Errorf("%s %s: %w", o.server, args, err)
		}
		defer p.Stop()
		s, err := open(ctx, "llama-server "+args, p)
		if err != nil {
			return err
		}
		s.perWord = ours.perWord // the probes were different texts
		all = append(all, s)
	}
	for kind := range promptKinds {
		if err := o.turns(ctx, slices.Clone(all), n, kind); err != nil {
			return fmt.Errorf("%s: %w", promptKinds[kind].name, err)
		}
		rows(out, all, path, n, promptKinds[kind].name)
	}
	return nil
}

// turns gives the sides their slices: ours first in one pair, last in the next.
func (o *options) turns(ctx context.Context, all []*served, n, kind int) error {
	for _, s := range all {
		s.slices = nil
	}
	for start, i := time.Now(), 0; i < max(leastSlices, o.pairs) && (i < leastSlices || time.Since(start) < 3*o.each); i++ {
		for _, s := range all {
			sum, err := s.slice(ctx, n, kind, i)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			s.slices = append(s.slices, sum)
			fmt.Fprintf(os.Stderr, "%s, %d clients, slice %d, %s: %.0f tokens/s, TTFT p50 %.0f p95 %.0f ms, ITL p95 %.0f ms\n", promptKinds[kind].name, n, i+1, s.name,
				sum.OutputTPS, 1000*sum.Dist["ttft"].P50, 1000*sum.Dist["ttft"].P95, 1000*sum.Dist["itl"].P95)
		}
		if i == 0 && len(all) > 1 { // the better peer goes on
			all = []*served{all[0], slices.MaxFunc(all[1:], func(a, b *served) int { return int(a.slices[0].OutputTPS - b.slices[0].OutputTPS) })}
		}
		slices.Reverse(all[:min(len(all), 2)])
	}
	return nil
}

// slice sends two requests for each client, four for one alone. Texts are new in each slice, but for the shared beginning.
func (s *served) slice(ctx context.Context, clients, kind, slice int) (*result.Summary, error) {
	k := promptKinds[kind]
	w := &workload.Workload{Name: k.name, Seed: 1}
	count := max(4, 2*clients)
	for i := range count {
		r := workload.Request{ID: fmt.Sprintf("%d clients, slice %d, request %d", clients, slice, i), Arrival: workload.NoArrival, Input: s.words(k.system + k.own), Output: answerTokens}
		if k.system > 0 {
			r.Prompt = []workload.Segment{{ID: workload.ID(1, workload.Name("system "+strconv.Itoa(clients))), Tokens: s.words(k.system)}}
		}
		w.Requests = append(w.Requests, r)
	}
	records, err := load.Run(ctx, load.Options{Client: s.client, Prompts: &s.prompts, Workload: w, Schedule: schedule.Options{Mode: schedule.Concurrency, Concurrency: clients}})
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if r.Outcome != result.OK {
			return nil, errors.New(r.Error)
		}
	}
	sum := result.Summarize(records, result.SummaryOptions{})
	if want := count * answerTokens; sum.TotalOut != want {
		return nil, fmt.Errorf("answers have %d tokens, not %d", sum.TotalOut, want)
	}
	return sum, nil
}

// rows writes the lines of one load.
func rows(out *bytes.Buffer, all []*served, path string, clients int, prompts string) {
	ours, peer := all[0].slices, []*result.Summary(nil)
	for _, s := range all[1:] {
		if len(s.slices) == len(ours) {
			peer = s.slices
		}
	}
	model := strings.TrimSuffix(filepath.Base(path), ".gguf")
	for _, m := range measures {
		var a, b, ratios []float64
		for i, s := range ours {
			a = append(a, m.of(s))
			if peer != nil {
				b = append(b, m.of(peer[i]))
				ratios = append(ratios, a[i]/b[i])
			}
		}
		theirs, ratio := "–", "–"
		if peer != nil {
			theirs = fmt.Sprintf("%.1f", speed.Median(b))
			ratio = fmt.Sprintf("%.2f (%.2f–%.2f)", speed.Median(ratios), slices.Min(ratios), slices.Max(ratios))
		}
		fmt.Fprintf(out, "| %s | %s | %d | %s | %.1f | %s | %s | %s |\n", model, prompts, clients, m.name, speed.Median(a), theirs, ratio, m.must(clients))
	}
}
