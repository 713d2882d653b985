package sim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
)

// TestScenario20BusyRank sends 2,000 requests with one affinity key to four ranks.
// They all run on rank 0; the others pad every step, one of them with not a single
// free block. Clients see no token but their own.
func TestScenario20BusyRank(t *testing.T) {
	const requests, tokens, busy, full = 2000, 5, 0, 1
	core := pairConfig(executor.Mixed, 16, 256)
	core.MaxLeasedFraction, core.Lease = 1, time.Hour
	router := adprouter.Defaults(4, core.MaxBatch)
	router.Kind = adprouter.ConversationAware
	in, err := NewInstance(InstanceConfig{Core: core, Step: lockstep.Config{Router: router, MaxQueued: 2 * core.MaxBatch}}, 20)
	if err != nil {
		t.Fatal(err)
	}
	in.CheckEvery = 16
	lease := &request.Request{
		ID: 1 << 20, Kind: request.ContextOnly, Prompt: prompt(9, 16*256), MaxTokens: 2, TransferID: 1, DPRank: full, Sampling: request.DefaultSampling(),
	}
	in.Submit(lease, nil)
	for in.Ranks[full].Core.Stats().BlocksLeased < 256 {
		step(t, in)
	}
	var tracks []*Track
	send := func() { // as many as the rank has places, or their key would move
		for len(tracks) < requests && in.Live() < core.MaxBatch {
			i := len(tracks)
			r := &request.Request{
				ID: request.ID(i + 1), Prompt: prompt(i%50, 1+i%40), MaxTokens: tokens, DPRank: -1, AffinityKey: "parent", Sampling: request.DefaultSampling(),
			}
			tracks = append(tracks, in.Submit(r, nil))
		}
	}
	before, rows, steps := make([]lockstep.Stats, 4), 0, uint64(0)
	for i, m := range in.Ranks {
		before[i] = m.Lock.Stats(in.Now)
	}
	for send(); in.Live() > 0; send() {
		if !step(t, in) {
			continue // only words went round
		}
		steps++
		for rank, m := range in.Ranks {
			if m.step.Pad != (rank != busy) || rank != busy && m.step.Batch != nil {
				t.Fatalf("rank %d pads: %v, with the rows %v", rank, m.step.Pad, m.step.RankRows)
			}
			rows += m.rows
		}
		if free := in.Ranks[full].row.FreeBlocks; free != 0 {
			t.Fatalf("rank %d has %d free blocks", full, free)
		}
	}
	for i, m := range in.Ranks { // every step of every rank was an exchange of all
		st := m.Lock.Stats(in.Now)
		padded := steps
		if i == busy {
			padded = 0
		}
		if st.Steps-before[i].Steps != steps || st.Padded-before[i].Padded != padded {
			t.Errorf("rank %d has run %d steps and padded %d, want %d and %d", i, st.Steps-before[i].Steps, st.Padded-before[i].Padded, steps, padded)
		}
	}
	want := 0
	for i, tr := range tracks {
		u := tr.Usage
		want += u.PromptTokens - u.CachedTokens + tokens - 1
		if len(tr.Tokens) != tokens || u.CompletionTokens != tokens || u.PromptTokens != 1+i%40 || tr.Finish != request.FinishLength {
			t.Fatalf("request %d: %d tokens, usage %+v, %s", i, len(tr.Tokens), u, tr.Finish)
		}
	}
	if rows != want {
		t.Errorf("%d rows ran, the clients were told of %d", rows, want)
	}
	in.Abort(1)
	in.Drain()
	if err := errors.Join(in.Settle(1000), in.Left()); err != nil {
		t.Fatal(err)
	}
}

// step runs an iteration and reports whether a forward was part of it.
func step(t *testing.T, in *Instance) bool {
	t.Helper()
	if in.Quiet() {
		in.Rest()
	}
	if _, err := in.Step(); err != nil {
		t.Fatal(err)
	}
	return in.Ranks[0].step.Forward
}

// TestScenario21OneEntry flips where one conversation is on rank 1. Both sides see
// it within two iterations, and say in which.
func TestScenario21OneEntry(t *testing.T) {
	tr := randomInstance(t, 21, func(c *InstanceConfig) {
		c.Step.Router.Kind, c.Step.Router.Ranks = adprouter.ConversationAware, 4
	})
	flipped := uint64(0)
	err := tr.diverge(60, func() bool {
		r := tr.In.Ranks[1].Lock.Router()
		keys := r.Keys()
		if len(keys) == 0 {
			return false
		}
		home, _ := r.Home(keys[0])
		flipped = tr.In.Log.Iterations
		return r.Move(keys[0], (home+1)%4)
	})
	checkDivergence(t, "one entry", err, 1)
	if at := tr.In.Log.Iterations; at > flipped+2 || !strings.Contains(err.Error(), "iteration") {
		t.Errorf("flipped before iteration %d, told in %d: %v", flipped+1, at, err)
	}
}
