package workload

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// AgenticOptions are coding agents: long conversations with tool calls that run between turns, and sub-agents.
type AgenticOptions struct {
	Conversations int
	Systems       int  // different shared system prompts
	System        Dist // their tokens
	First         Dist // tokens of a first prompt, the system prompt included
	Growth        Dist // tokens that tools and users add each turn
	Output        Dist
	Turns         Dist
	Sigma         float64 // of the logarithm of a conversation's turn rate, which divides its tool waits

	// Tool waits, in seconds: most are short.
	ShortTool, LongTool Dist
	LongShare           float64

	Fanout      float64 // probability that a turn of a root conversation spawns sub-agents
	Children    Dist    // how many
	ChildTurns  Dist
	ChildFirst  Dist // tokens of a sub-agent's own first prompt
	ShareParent bool // sub-agents begin with the parent's context, not with its system prompt only
	Reset       float64
	Keep        float64 // share of the context that is left after a reset

	Seed uint64
}

// C4 are the options of the preset that reaches about 95 % block reuse with a thousand live conversations.
func C4(conversations int, seed uint64) AgenticOptions {
	return AgenticOptions{
		Conversations: conversations, Systems: 4, System: Uniform(8000, 12000), First: LogNormal(12000, 0.25), Growth: LogNormal(600, 0.8),
		Output: LogNormal(220, 0.7), Turns: Geometric(30), Sigma: 1, ShortTool: Uniform(0.2, 3), LongTool: Uniform(5, 60), LongShare: 0.2,
		Reset: 0.017, Keep: 0.3, Seed: seed,
		Children: Geometric(2), ChildTurns: Geometric(6), ChildFirst: LogNormal(1500, 0.5),
	}
}

// Agentic makes conversations, each followed by its sub-agents' where they are spawned.
func Agentic(o AgenticOptions) *Workload {
	rng := rngOf(o.Seed, "agentic")
	w := &Workload{
		Name: "agentic-synthetic", Seed: o.Seed,
		Source: fmt.Sprintf("%d system prompts of %v, first %v, growth %v, output %v, turns %v, sigma %g, tools %v and %.0f %% %v, fan-out %g of %v, resets %.1f %%",
			o.Systems, o.System, o.First, o.Growth, o.Output, o.Turns, o.Sigma, o.ShortTool, 100*o.LongShare, o.LongTool, o.Fanout, o.Children, 100*o.Reset),
	}
	systems := make([]Segment, max(1, o.Systems))
	for i := range systems {
		systems[i] = Segment{ID(o.Seed, Name(fmt.Sprint("system", i))), o.System.Int(rng, 1)}
	}
	for c := range o.Conversations {
		a := agent{rng: rng, o: &o, pace: LogNormal(1, o.Sigma).Sample(rng)}
		a.Talk = NewTalk(w, o.Seed, fmt.Sprintf("c%d", c))
		a.Kind = "root"
		a.Add(systems[rng.IntN(len(systems))])
		a.Say(max(16, o.First.Int(rng, 1)-a.input))
		a.run(o.Turns.Int(rng, 1), o.Fanout)
	}
	return w
}

// agent is one conversation with what it spawns.
type agent struct {
	*Talk
	rng  *rand.Rand
	o    *AgenticOptions
	pace float64
}

func (a *agent) tool() time.Duration {
	d := a.o.ShortTool
	if a.rng.Float64() < a.o.LongShare {
		d = a.o.LongTool
	}
	return time.Duration(d.Sample(a.rng) / a.pace * 1e9)
}

// run makes the turns. The last one of each sub-agent ends before the next turn of its parent begins.
func (a *agent) run(turns int, fanout float64) {
	var joins []int
	for k := range turns {
		var wait time.Duration
		if k > 0 {
			wait = a.tool()
			if a.rng.Float64() < a.o.Reset {
				keep := 1 + int(a.o.Keep*float64(len(a.prompt)-1))
				a.reset(min(keep, len(a.prompt)))
			}
			a.Say(a.o.Growth.Int(a.rng, 1))
		}
		at := a.Turn(a.o.Output.Int(a.rng, 1), 0, wait, joins)
		joins = nil
		if k+1 < turns && fanout > 0 && a.rng.Float64() < fanout {
			joins = a.spawn(at)
		}
	}
	a.w.Requests[a.Last].Final = true
}

// spawn makes sub-agents that begin when a turn has ended, and returns their last requests.
func (a *agent) spawn(at int) (ends []int) {
	for i := range a.o.Children.Int(a.rng, 1) {
		b := agent{rng: a.rng, o: a.o, pace: a.pace}
		b.Talk = NewTalk(a.w, a.seed, fmt.Sprintf("%s.t%d.s%d", a.name, a.turns-1, i))
		b.Parent, b.Kind = a.name, "subagent"
		b.Add(a.prompt[0])
		if a.o.ShareParent {
			for _, s := range a.prompt[1:] {
				b.Add(s)
			}
		}
		b.Say(a.o.ChildFirst.Int(a.rng, 1))
		first := len(a.w.Requests)
		b.run(a.o.ChildTurns.Int(a.rng, 1), 0)
		a.w.Requests[first].After = []int{at}
		ends = append(ends, b.Last)
	}
	return ends
}
