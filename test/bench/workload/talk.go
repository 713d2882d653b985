package workload

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// PrefixBucket is a share of the conversations that begin with one of Count prefixes.
type PrefixBucket struct {
	Weight        float64
	Count, Tokens int
}

// MultiTurnOptions are conversations without sub-agents.
type MultiTurnOptions struct {
	Conversations       int
	Turns               Dist
	First, Next, Output Dist // tokens of the first and later user turns and of answers
	Think               Dist // seconds between an answer and the next turn
	Prefixes            []PrefixBucket
	Seed                uint64
}

// MultiTurn makes conversations in which each prompt holds all turns before it.
func MultiTurn(o MultiTurnOptions) *Workload {
	rng := rngOf(o.Seed, "multi-turn")
	w := &Workload{
		Name: "multi-turn", Seed: o.Seed,
		Source: fmt.Sprintf("turns %v, first %v, next %v, output %v, think %v s", o.Turns, o.First, o.Next, o.Output, o.Think),
	}
	for c := range o.Conversations {
		t := NewTalk(w, o.Seed, fmt.Sprintf("c%d", c))
		if s, ok := pickPrefix(rng, o); ok {
			t.Add(s)
		}
		n := o.Turns.Int(rng, 1)
		for k := range n {
			user := o.Next
			if k == 0 {
				user = o.First
			}
			var wait time.Duration
			if k > 0 {
				wait = time.Duration(o.Think.Sample(rng) * 1e9)
			}
			t.Say(user.Int(rng, 1))
			t.Turn(o.Output.Int(rng, 1), wait, 0, nil)
		}
		w.Requests[t.Last].Final = true
	}
	return w
}

// pickPrefix draws a bucket by weight, and a prefix in it. What the weights leave of 1 has no prefix.
func pickPrefix(rng *rand.Rand, o MultiTurnOptions) (Segment, bool) {
	sum := 0.0
	for _, b := range o.Prefixes {
		sum += b.Weight
	}
	x := rng.Float64() * max(1, sum)
	for i, b := range o.Prefixes {
		if x -= b.Weight; x < 0 && b.Tokens > 0 {
			return Segment{ID(o.Seed, Name(fmt.Sprint("bucket", i, ".", rng.IntN(max(1, b.Count))))), b.Tokens}, true
		}
	}
	return Segment{}, false
}

// Talk is a conversation as it is made: what is said is appended to its prompt, and each turn sends all of it.
type Talk struct {
	Parent, Kind string
	Last         int // request of the latest turn, -1 before the first

	w        *Workload
	seed     uint64
	name     string
	prompt   []Segment // shared by the turns: it only grows
	input    int
	turns    int
	segments int
}

// NewTalk begins a conversation in a workload.
func NewTalk(w *Workload, seed uint64, name string) *Talk {
	return &Talk{w: w, seed: seed, name: name, Last: -1}
}

// Add appends a segment to the prompt.
func (t *Talk) Add(s Segment) {
	t.prompt = append(t.prompt, s)
	t.input += s.Tokens
}

// Say appends tokens of the conversation's own.
func (t *Talk) Say(tokens int) {
	t.segments++
	t.Add(Segment{ID(t.seed, Name(fmt.Sprint(t.name, ".", t.segments))), tokens})
}

// reset cuts the prompt to its first keep segments.
func (t *Talk) reset(keep int) {
	t.prompt = append([]Segment(nil), t.prompt[:keep]...)
	t.input = 0
	for _, s := range t.prompt {
		t.input += s.Tokens
	}
}

// Turn sends the prompt as it is and appends the answer to it. It waits for the turn before and for all of also. It returns
// the request's index.
func (t *Talk) Turn(output int, delay, tool time.Duration, also []int) int {
	r := Request{
		ID: fmt.Sprintf("%s.t%d", t.name, t.turns), Arrival: NoArrival, Conversation: t.name, Parent: t.Parent, Kind: t.Kind,
		Input: t.input, Output: output, Prompt: t.prompt[:len(t.prompt):len(t.prompt)], Delay: delay, ToolWait: tool,
		Reply: ID(t.seed, Name(fmt.Sprint(t.name, ".reply", t.turns))),
	}
	if t.Last >= 0 {
		r.After = append(r.After, t.Last)
	}
	r.After = append(r.After, also...)
	t.turns++
	t.Last = len(t.w.Requests)
	t.w.Requests = append(t.w.Requests, r)
	if output > 0 {
		t.Add(Segment{r.Reply, output})
	}
	return t.Last
}
