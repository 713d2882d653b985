package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"tandem/test/bench/workload"
)

// dist is a flag with a distribution.
type dist struct{ workload.Dist }

func (d *dist) Set(text string) (err error) {
	d.Dist, err = workload.ParseDist(text)
	return err
}

func (d *dist) Type() string { return "distribution" }

// distVar adds a flag with a distribution.
func distVar(fs *pflag.FlagSet, d *dist, name, value, usage string) {
	if err := d.Set(value); err != nil {
		panic(err) // a default of ours
	}
	fs.Var(d, name, usage)
}

// workloadFlags choose and shape a generated workload.
type workloadFlags struct {
	name                      string
	requests                  int
	seed                      uint64
	isl, osl                  dist
	prefix                    int
	groups, perGroup          int
	system, question          dist
	turns, first, next, think dist
	prefixes                  []string
	fanout, reset             float64
	systems                   int
	shareParent               bool
	conversations             int

	given  func(flag string) bool // whether the command line has it
	gridOK bool                   // the command goes through shapes
}

// workloadNames are the generated workloads. Recorded ones are for bench replay.
var workloadNames = []string{
	"random", gridName, "shared-prefix", "multi-turn", "agentic", "c4",
	"pathology-one-sided", "pathology-pinned-groups", "pathology-head-of-line", "pathology-aborts",
}

func (f *workloadFlags) add(fs *pflag.FlagSet) {
	f.given = fs.Changed
	fs.StringVarP(&f.name, "workload", "w", "random", "what to send: "+strings.Join(workloadNames, ", "))
	fs.IntVarP(&f.requests, "requests", "n", 100, "random: how many requests (of each step)")
	fs.Uint64Var(&f.seed, "seed", 1, "of lengths, content and times")
	distVar(fs, &f.isl, "isl", "512", "random: prompt tokens: 512, 512:0.2, 400-600, lognormal(600,0.8), normal(512,64), geometric(30), exponential(2)")
	distVar(fs, &f.osl, "osl", "128", "answer tokens, of every workload")
	fs.IntVar(&f.prefix, "prefix", 0, "random: tokens that all prompts begin with, beside --isl")
	fs.IntVar(&f.groups, "groups", 8, "shared-prefix: groups with a system prompt each")
	fs.IntVar(&f.perGroup, "per-group", 16, "shared-prefix: prompts of a group")
	distVar(fs, &f.system, "system", "1024", "shared-prefix and agentic: tokens of a system prompt")
	distVar(fs, &f.question, "question", "128", "shared-prefix: tokens of a question")
	fs.IntVar(&f.conversations, "conversations", 32, "multi-turn and agentic: conversations")
	distVar(fs, &f.turns, "turns", "geometric(5)", "multi-turn and agentic: turns of a conversation")
	distVar(fs, &f.first, "first", "256", "multi-turn and agentic: tokens of the first prompt")
	distVar(fs, &f.next, "next", "64", "multi-turn and agentic: tokens that a later turn adds")
	distVar(fs, &f.think, "think", "exponential(1)", "multi-turn and agentic: seconds between an answer and the next turn")
	fs.StringSliceVar(&f.prefixes, "prefix-bucket", nil, "multi-turn: WEIGHT:COUNT:TOKENS, a share of the conversations that begin with one of COUNT prefixes (repeat it for more)")
	fs.Float64Var(&f.fanout, "fanout", 0, "agentic: probability that a turn spawns sub-agents")
	fs.Float64Var(&f.reset, "reset", 0.017, "agentic: probability that a turn cuts its context")
	fs.IntVar(&f.systems, "systems", 1, "agentic: different system prompts")
	fs.BoolVar(&f.shareParent, "share-parent", false, "agentic: sub-agents begin with their parent's context")
}

// make makes the workload with a seed of its own for each step.
func (f *workloadFlags) make(step int) (*workload.Workload, error) {
	seed := f.seed + uint64(step)<<32
	if err := f.check(); err != nil {
		return nil, err
	}
	if f.name == gridName && !f.gridOK {
		return nil, fmt.Errorf("--workload %s: is for bench serve", gridName)
	}
	switch f.name {
	case "random", gridName:
		return workload.Random(workload.RandomOptions{Requests: f.requests, Input: f.isl.Dist, Output: f.osl.Dist, Prefix: f.prefix, Seed: seed}), nil
	case "shared-prefix":
		return workload.SharedPrefix(workload.SharedPrefixOptions{
			Groups: f.groups, PerGroup: f.perGroup, System: f.system.Dist, Question: f.question.Dist, Output: f.osl.Dist, Seed: seed,
		}), nil
	case "multi-turn":
		buckets, err := f.buckets()
		return workload.MultiTurn(workload.MultiTurnOptions{
			Conversations: f.conversations, Turns: f.turns.Dist, First: f.first.Dist, Next: f.next.Dist, Output: f.osl.Dist, Think: f.think.Dist,
			Prefixes: buckets, Seed: seed,
		}), err
	case "agentic":
		o := workload.C4(f.conversations, seed)
		o.Systems, o.System, o.First, o.Growth, o.Output, o.Turns = f.systems, f.system.Dist, f.first.Dist, f.next.Dist, f.osl.Dist, f.turns.Dist
		o.ShortTool, o.LongShare, o.Fanout, o.Reset, o.ShareParent, o.ChildFirst = f.think.Dist, 0, f.fanout, f.reset, f.shareParent, f.first.Dist
		return workload.Agentic(o), nil
	case "c4":
		return workload.Agentic(workload.C4(f.conversations, seed)), nil
	}
	if p, ok := pathologies[f.name]; ok {
		return p.make(f, seed), nil
	}
	return nil, fmt.Errorf("--workload %q: want one of %s", f.name, strings.Join(workloadNames, ", "))
}

// check refuses numbers of which no workload can be made.
func (f *workloadFlags) check() error {
	for _, c := range []struct {
		flag              string
		value, least, top int
	}{
		{"requests", f.requests, 1, mostRequests},
		{"conversations", f.conversations, 1, mostRequests},
		{"groups", f.groups, 1, mostRequests},
		{"per-group", f.perGroup, 1, mostRequests},
		{"prefix", f.prefix, 0, mostTokens},
		{"systems", f.systems, 1, mostRequests},
	} {
		if c.value < c.least || c.value > c.top {
			return fmt.Errorf("--%s %d: want at least %d and %d at most", c.flag, c.value, c.least, c.top)
		}
	}
	if !(f.fanout >= 0 && f.fanout <= 1) || !(f.reset >= 0 && f.reset <= 1) {
		return fmt.Errorf("--fanout %g and --reset %g: want probabilities, 0 to 1", f.fanout, f.reset)
	}
	for _, d := range []struct {
		flag string
		*dist
		top float64
	}{
		{"isl", &f.isl, mostTokens},
		{"osl", &f.osl, mostTokens},
		{"system", &f.system, mostTokens},
		{"question", &f.question, mostTokens},
		{"first", &f.first, mostTokens},
		{"next", &f.next, mostTokens},
		{"turns", &f.turns, mostTurns},
		{"think", &f.think, mostThink},
	} {
		if m := d.Mean(); m > d.top {
			return fmt.Errorf("--%s %s: want %g at most", d.flag, d.dist, d.top)
		}
	}
	return nil
}

// Bounds of workloads: what is above is a mistake that would take all memory, or a day's thought.
const (
	mostRequests = 10_000_000
	mostTokens   = 1 << 24 // of one prompt, or a part of it
	mostTurns    = 100_000
	mostThink    = 1e7 // seconds
)

func (f *workloadFlags) buckets() (out []workload.PrefixBucket, err error) {
	for _, text := range f.prefixes {
		var b workload.PrefixBucket
		if n, err := fmt.Sscanf(text, "%g:%d:%d", &b.Weight, &b.Count, &b.Tokens); err != nil || n != 3 || !(b.Weight > 0 && b.Weight < 1e9) || b.Count < 1 || b.Tokens < 1 || b.Tokens > mostTokens {
			return nil, fmt.Errorf("--prefix-bucket %q: want WEIGHT:COUNT:TOKENS", text)
		}
		out = append(out, b)
	}
	return out, nil
}
