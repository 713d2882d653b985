package workload

import (
	"fmt"
	"time"
)

// OneSided is 112 conversations of four turns that begin with one system prompt: a router that goes by what is cached, and
// by nothing else, sends them all to the worker that had it first.
func OneSided(seed uint64) *Workload {
	w := MultiTurn(MultiTurnOptions{
		Conversations: 112, Turns: Fixed(4), First: LogNormal(2000, 0.5), Next: LogNormal(300, 0.5), Output: Fixed(40),
		Think: Exponential(2), Prefixes: []PrefixBucket{{Weight: 1, Count: 1, Tokens: 1500}}, Seed: seed,
	})
	w.Name = "pathology-one-sided"
	return w
}

// PinnedGroups is two groups of prompts that share most of their tokens: one block that is cached must not pin all of a
// group to one rank.
func PinnedGroups(seed uint64) *Workload {
	w := SharedPrefix(SharedPrefixOptions{Groups: 2, PerGroup: 100, System: Fixed(1024), Question: Fixed(200), Output: Fixed(100), Seed: seed})
	w.Name = "pathology-pinned-groups"
	return w
}

// HeadOfLine is 29 prompts within 191 ms, some 18 of long tokens and the others of short: the short ones must not wait for
// the long ones.
func HeadOfLine(long, short int, seed uint64) *Workload {
	w := &Workload{
		Name: "pathology-head-of-line", Seed: seed,
		Source: fmt.Sprintf("29 prompts of %d or %d tokens within 191 ms", long, short),
	}
	for i := range 29 {
		r := Request{ID: fmt.Sprint("r", i), Arrival: time.Second + time.Duration(i)*191*time.Millisecond/29, Input: long, Output: 20}
		if Mix(seed, uint64(i))%29 < 11 {
			r.Input = short
		}
		w.Requests = append(w.Requests, r)
	}
	return w
}

// Aborts is four rounds of 300 prompts of so many tokens, every 8 s, whose clients go away after 2 s, and then one request
// named probe that must be answered.
func Aborts(tokens int, seed uint64) *Workload {
	w := &Workload{
		Name: "pathology-aborts", Seed: seed,
		Source: fmt.Sprintf("4 rounds of 300 prompts of %d tokens whose clients leave after 2 s, then a probe", tokens),
	}
	for round := range 4 {
		for i := range 300 {
			w.Requests = append(w.Requests, Request{
				ID:      fmt.Sprintf("a%d.%d", round, i),
				Arrival: time.Second + time.Duration(round)*8*time.Second + time.Duration(i)*time.Millisecond,
				Input:   tokens, Output: 50, Leave: 2 * time.Second,
			})
		}
	}
	w.Requests = append(w.Requests, Request{ID: "probe", Arrival: 41 * time.Second, Input: tokens, Output: 2})
	return w
}
