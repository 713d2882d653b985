package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tandem/test/bench/result"
	"tandem/test/bench/workload"
)

// agentxFlags are a benchmark of coding agents with rules of its own: so many trees of conversations live, which are joined
// midway, idle times are cut, and what breaks the rules makes a run invalid.
type agentxFlags struct {
	preset string
	gap    time.Duration
}

// agentxRules are what its versions differ in.
type agentxRules struct {
	gap      time.Duration // between the starts of two requests of a tree, at most
	from, to float64       // parts of a conversation's time between which it is joined
	duration time.Duration
}

var agentxVersions = map[string]agentxRules{
	"agentx":    {gap: 300 * time.Second, from: 0.25, to: 0.75, duration: time.Hour},
	"agentx-v1": {gap: 10 * time.Second, from: 0, to: 1, duration: 30 * time.Minute},
}

// agentxLeast is the shortest run that counts.
const agentxLeast = 15 * time.Minute

// agentxOverflow is the part of requests whose prompts may be too long for the server.
const agentxOverflow = 0.01

func (f *agentxFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.preset, "preset", "", "rules of a public benchmark: agentx (conversations of coding agents, joined midway, for an hour) or agentx-v1 (its first version)")
	fs.DurationVar(&f.gap, "gap-cap", 0, "with --preset: longest time between two requests of a conversation and its sub-agents, 0 = as the preset has it")
}

func (f *agentxFlags) on() bool { return f.preset != "" }

// rule is something that the preset does not allow.
type rule struct {
	broken bool
	text   string
}

// begin fills in what the preset says, and refuses what goes against it.
func (f *agentxFlags) begin(target *targetFlags, load *loadFlags, out *outFlags, more ...rule) error {
	if !f.on() {
		if f.gap != 0 {
			return errors.New("--gap-cap: needs --preset")
		}
		return nil
	}
	r, ok := agentxVersions[f.preset]
	if !ok {
		return fmt.Errorf("--preset %q: want agentx or agentx-v1", f.preset)
	}
	if f.gap == 0 {
		f.gap = r.gap
	}
	if load.duration == 0 {
		load.duration = r.duration
	}
	for _, x := range append(more,
		rule{f.gap < 0, "--gap-cap must be above 0"},
		rule{load.duration < agentxLeast, "--duration must be 15m at least"},
		rule{load.rate+load.constant+load.concurrency+load.sessions != "", "the load is --trees"},
		rule{load.thinkScale != 1, "--think-scale must be 1"},
		rule{load.rampUp != 0, "--ramp-up: conversations are joined midway instead"},
		rule{load.bisect, "--bisect has other rules"},
		rule{!target.stream, "--stream=false: first tokens are measured"},
		rule{!target.ignoreEOS, "--ignore-eos=false: answers have the recorded lengths"},
		rule{out.actual, "--actual-replies: prompts are as recorded"},
		rule{out.salt == 0, "--salt 0: the cache would know the texts of the last run"},
	) {
		if x.broken {
			return fmt.Errorf("--preset %s: %s", f.preset, x.text)
		}
	}
	return nil
}

// apply makes the workload of a run with so many lanes.
func (f *agentxFlags) apply(w *workload.Workload, lanes int, seed uint64) *workload.Workload {
	if !f.on() {
		return w
	}
	r := agentxVersions[f.preset]
	out := w.Compress(f.gap).JoinMidway(lanes, r.from, r.to, seed)
	out.Source = fmt.Sprintf("%s; %s: gaps of %v at most, %d lanes that begin between %g and %g of a conversation", w.Source, f.preset, f.gap, lanes, r.from, r.to)
	return out
}

// stamp says whether a run counts, and if not why.
func (f *agentxFlags) stamp(m *measurement, interrupted bool) {
	if !f.on() {
		return
	}
	var why []string
	if interrupted {
		why = append(why, "interrupted")
	}
	for i := range m.steps {
		if part := overflows(m.steps[i].Records); part > agentxOverflow {
			why = append(why, fmt.Sprintf("context_overflow: %.1f %% of the requests of step %s", 100*part, m.steps[i].Name))
		}
	}
	m.run.Scenario, m.run.Invalid = f.preset, why
	if len(why) == 0 {
		_, _ = fmt.Fprintf(m.words, "\n%s: valid, seed %d\n", f.preset, m.run.Seed)
		return
	}
	_, _ = fmt.Fprintf(m.words, "\n%s: not valid: %s\n", f.preset, strings.Join(why, "; "))
}

// overflows is the part of requests that a server refused since it has no room for so long a prompt.
func overflows(records []*result.Record) float64 {
	n, all := 0, 0
	for _, r := range records {
		if r.Phase != result.Measured {
			continue
		}
		all++
		text := strings.ToLower(r.Error)
		if r.Status >= 400 && r.Status < 500 && slices.ContainsFunc([]string{"context length", "context_length", "max_model_len", "max_seq_len", "too long"}, func(s string) bool {
			return strings.Contains(text, s)
		}) {
			n++
		}
	}
	return float64(n) / float64(max(all, 1))
}
