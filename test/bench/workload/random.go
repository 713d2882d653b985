package workload

import (
	"fmt"
	"math/rand/v2"
)

// rngOf makes the source of randomness of a generator.
func rngOf(seed uint64, what string) *rand.Rand {
	return rand.New(rand.NewPCG(seed, Name(what))) //nolint:gosec // a workload, no secret
}

// RandomOptions are requests that share nothing but, if wanted, a prefix.
type RandomOptions struct {
	Requests      int
	Input, Output Dist // tokens
	Prefix        int  // tokens that all prompts begin with, beside Input
	Seed          uint64
}

// Random makes single requests of random lengths.
func Random(o RandomOptions) *Workload {
	rng := rngOf(o.Seed, "random")
	w := &Workload{Name: "random", Source: fmt.Sprintf("input %v, output %v, prefix %d", o.Input, o.Output, o.Prefix), Seed: o.Seed}
	for i := range o.Requests {
		r := Request{ID: fmt.Sprintf("r%d", i), Arrival: NoArrival, Input: o.Prefix + o.Input.Int(rng, 1), Output: o.Output.Int(rng, 1)}
		if o.Prefix > 0 {
			r.Prompt = []Segment{{ID(o.Seed, Name("prefix")), o.Prefix}}
		}
		w.Requests = append(w.Requests, r)
	}
	return w
}

// SharedPrefixOptions are groups of requests with a system prompt for each group.
type SharedPrefixOptions struct {
	Groups, PerGroup         int
	System, Question, Output Dist // tokens
	Seed                     uint64
}

// SharedPrefix makes the groups' requests in random order.
func SharedPrefix(o SharedPrefixOptions) *Workload {
	rng := rngOf(o.Seed, "shared-prefix")
	w := &Workload{
		Name: "shared-prefix", Seed: o.Seed,
		Source: fmt.Sprintf("%d groups of %d, system %v, question %v, output %v", o.Groups, o.PerGroup, o.System, o.Question, o.Output),
	}
	for g := range o.Groups {
		system := Segment{ID(o.Seed, Name(fmt.Sprint("system", g))), o.System.Int(rng, 1)}
		for p := range o.PerGroup {
			w.Requests = append(w.Requests, Request{
				ID: fmt.Sprintf("g%d.p%d", g, p), Arrival: NoArrival, Prompt: []Segment{system},
				Input: system.Tokens + o.Question.Int(rng, 1), Output: o.Output.Int(rng, 1),
			})
		}
	}
	rng.Shuffle(len(w.Requests), func(i, j int) { w.Requests[i], w.Requests[j] = w.Requests[j], w.Requests[i] })
	return w
}
