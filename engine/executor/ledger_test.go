package executor

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
	"tandem/engine/kvcache"
	"tandem/engine/request"
)

func turnConfig() Config {
	c := holdConfig()
	c.Blocks, c.MaxNumTokens, c.MaxSeqLen, c.Reuse = 60, 64, 400, PerConversation
	return c
}

// say runs one turn of a conversation to its end and returns what it answered.
func (r *rank) say(id int, talk string, prompt []int32, g int) *client {
	q := ask(id, g, prompt...)
	q.ConversationID, q.AffinityKey = talk, "parent"
	cl := r.submit(q, nil)
	r.drainQueue(0)
	return cl
}

func (r *rank) priorities(tokens []int32) (out []int) {
	b, h := r.cfg.BlockTokens, r.root("")
	for i := 0; i+b <= len(tokens); i += b {
		h = blockhash.Next(h, tokens[i:i+b])
		if id, ok := r.kv.Find(h); ok {
			out = append(out, r.kv.Priority(id))
		} else {
			out = append(out, -1)
		}
	}
	return out
}

// TestLedgerDemotesReasoning is scenario 27: three turns, each of whose four blocks
// of reasoning are not sent back, and two agents with one affinity key.
func TestLedgerDemotesReasoning(t *testing.T) {
	r := newRank(t, turnConfig())
	say := map[string][]int32{"a": count(0, 8), "b": count(50, 8)}
	var first []int32
	for turn := range 3 {
		for i, talk := range []string{"a", "b"} {
			prompt := say[talk]
			cl := r.say(1+2*turn+i, talk, prompt, 17) // 16 tokens of it get K and V
			full := append(slices.Clone(prompt), cl.tokens...)
			if turn == 0 && talk == "a" {
				first = full
			}
			if turn == 1 && talk == "a" {
				if got, want := r.priorities(first), []int{35, 35, 0, 0, 0, 0}; !slices.Equal(got, want) {
					t.Errorf("after the second turn the first one's blocks have priorities %v, want %v", got, want)
				}
			}
			say[talk] = append(slices.Clone(prompt), count(10*turn+i, 4)...)
		}
	}
	st := r.Stats()
	if st.ConvOverlap != 0 || st.DeadTails != 2*2*4 {
		t.Errorf("%d overlaps, %d dead blocks", st.ConvOverlap, st.DeadTails)
	}
	by := r.Buckets()
	free := r.kv.Free() - r.kv.Reusable()
	r.submit(ask(50, 1, count(60, 4*(free+by[0])-1)...), nil)
	r.drainQueue(0)
	if now := r.Buckets(); now[0] != 0 || r.Cached(append(say["a"], 1), "") < 12 {
		t.Errorf("%d of %d dead blocks are left, %d tokens of the conversation", now[0], by[0], r.Cached(append(say["a"], 1), ""))
	}
	r.verifyEnd(true)
}

func TestLedgerCountsOverlaps(t *testing.T) {
	r := newRank(t, turnConfig())
	for i := range 3 {
		q := ask(i+1, 2, count(20*i, 9)...)
		q.ConversationID = "x"
		r.submit(q, nil)
	}
	r.submit(ask(9, 2, 1, 2), nil) // of no conversation
	r.drainQueue(0)
	if st := r.Stats(); st.ConvOverlap != 2 {
		t.Errorf("%d overlaps", st.ConvOverlap)
	}
	r.verifyEnd(true)
}

// A request that fails or is cancelled leaves the record of the turn before.
func TestLedgerSurvivesACancelledTurn(t *testing.T) {
	r := newRank(t, turnConfig())
	cl := r.say(1, "x", count(0, 8), 9)
	full := append(count(0, 8), cl.tokens...)
	q := ask(2, 9, append(count(0, 8), 90, 91, 92)...)
	q.ConversationID = "x"
	r.submit(q, nil)
	r.Cancel(0, 2)
	r.collect()
	if got := r.priorities(full); slices.Contains(got, 0) {
		t.Errorf("a turn that computed nothing demotes: %v", got)
	}
	r.say(3, "x", append(count(0, 8), 90, 91, 92), 2)
	if got, want := r.priorities(full), []int{35, 35, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	r.verifyEnd(false)
}

// TestReusePolicies looks at what another request finds while the first one
// prefills, decodes, and has ended.
func TestReusePolicies(t *testing.T) {
	for _, tc := range []struct {
		policy ReusePolicy
		want   [4]int // cached tokens: within the prefill, after it, while it decodes, at the end
	}{
		{AllReusable, [4]int{8, 16, 20, 24}},
		{PerRequest, [4]int{0, 16, 16, 24}},
		{PerConversation, [4]int{0, 16, 16, 24}},
	} {
		c := turnConfig()
		c.Reuse, c.MaxNumTokens, c.MaxBatch = tc.policy, 10, 2
		r := newRank(t, c)
		q := ask(1, 10, count(0, 16)...)
		cl := r.submit(q, nil)
		var got [4]int
		look := func(i int) {
			got[i] = r.Cached(append(append(count(0, 16), r.oracle(q, 0, 10)...), 1), "")
		}
		r.step(0)
		look(0)
		for r.step(0) && len(cl.tokens) < 1 {
		}
		look(1)
		for len(cl.tokens) < 6 {
			r.step(0)
		}
		look(2)
		r.drainQueue(0)
		look(3)
		if got != tc.want {
			t.Errorf("%s: %v, want %v", tc.policy, got, tc.want)
		}
		r.verifyEnd(true)
	}
}

// TestConversationsUnderRandomLoad mixes turns that go on, branch, overlap and are
// cancelled, with tiers below.
func TestConversationsUnderRandomLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := turnConfig()
		c.Blocks = rapid.IntRange(16, 40).Draw(t, "blocks")
		c.MaxTurns = rapid.IntRange(1, 3).Draw(t, "turns")
		c.Reuse = rapid.SampledFrom([]ReusePolicy{PerConversation, PerConversation, PerRequest}).Draw(t, "policy")
		c.Tiers = kvcache.Tiers{HostBlocks: rapid.IntRange(0, 20).Draw(t, "host"), MinPriority: 30}
		r := withTiers(t, c)
		says, id := [3][]int32{}, 0
		var last [3]*client
		t.Repeat(map[string]func(*rapid.T){
			"turn": func(t *rapid.T) {
				id++
				i := rapid.IntRange(0, 2).Draw(t, "talk")
				if cl := last[i]; cl != nil && cl.finish == request.FinishLength && rapid.Bool().Draw(t, "send back") {
					says[i] = append(slices.Clone(cl.req.Prompt), cl.tokens...)
				}
				if len(says[i]) > 40 || rapid.IntRange(0, 9).Draw(t, "new") == 0 {
					says[i] = nil
				}
				says[i] = append(slices.Clone(says[i]), rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 9).Draw(t, "more")...)
				q := ask(id, rapid.IntRange(1, 9).Draw(t, "g"), says[i]...)
				q.ConversationID = []string{"a", "b", ""}[i]
				last[i] = r.submit(q, nil)
			},
			"step":   func(*rapid.T) { r.step(0) },
			"finish": func(*rapid.T) { r.finish(0) },
			"cancel": func(t *rapid.T) {
				if id > 0 {
					r.Cancel(0, request.ID(rapid.IntRange(max(1, id-3), id).Draw(t, "which")))
					r.collect()
				}
			},
			"move": func(*rapid.T) {
				if len(r.below.queue) > 0 {
					r.below.next(r, kvcache.Done)
				}
			},
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					r.ResetCache()
					r.collect()
				}
			},
		})
		r.finish(0)
		r.verifyEnd(false)
	})
}
