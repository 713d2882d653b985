package adprouter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/engine/request"
)

// simTurn is one turn of a simulated conversation.
type simTurn struct {
	talk   int
	prompt int // tokens, with all that was said before
	fresh  int // of them not cached at home
	start  int // iteration of arrival
}

// simRank computes prompts in order of arrival and decodes what it has computed.
type simRank struct {
	queue    []simTurn
	left     int       // of queue[0]
	decoding []simTurn // start is the iteration of the last token
	tokens   int64     // of all it holds
}

// chat simulates conversations of very different length, almost all cached from
// the second turn on, on 8 ranks that compute 512 prompt tokens an iteration. It
// returns the wait of each turn for its first token, in iterations, ascending,
// and the mean over time of the fullest rank's queued tokens over the average.
func chat(t *testing.T, placement Placement, seed uint64) (waits []int, skew float64) {
	const ranks, budget, iterations = 8, 512, 6000
	c := Defaults(ranks, 256)
	c.Kind, c.Placement = ConversationAware, placement
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	pool, at := make([]simRank, ranks), map[int][]simTurn{}
	states, id, talks := make([]RankState, ranks), 0, 0
	samples := 0
	for now := range iterations {
		if rnd.Float64() < 0.7 {
			n := 200 + int(6000*rnd.ExpFloat64()*rnd.Float64())
			talks++
			at[now] = append(at[now], simTurn{talk: talks, prompt: n, fresh: n})
		}
		batch := []Item{}
		for _, turn := range at[now] {
			id++
			batch = append(batch, Item{ID: request.ID(id), Key: fmt.Sprint(turn.talk), Rank: -1, Tokens: turn.prompt})
		}
		worst, sum := 0, 0
		for i := range pool {
			p := &pool[i]
			queued := p.left
			for _, q := range p.queue[min(1, len(p.queue)):] {
				queued += q.fresh
			}
			states[i] = RankState{Active: len(p.queue) + len(p.decoding), Tokens: p.tokens, QueuedPrefill: int64(queued), Decoding: len(p.decoding)}
			worst, sum = max(worst, queued), sum+queued
		}
		if sum > 0 {
			skew += float64(worst*ranks) / float64(sum)
			samples++
		}
		for _, pl := range r.Route(states, batch).Placed {
			turn, p := at[now][pl.Index], &pool[pl.Rank]
			turn.start = now
			p.queue, p.tokens = append(p.queue, turn), p.tokens+int64(turn.prompt)
			if len(p.queue) == 1 {
				p.left = turn.fresh
			}
		}
		delete(at, now)
		for i := range pool {
			for _, done := range pool[i].step(now, budget) {
				waits = append(waits, now-done.start)
				if rnd.Float64() < 0.85 { // the client answers
					fresh := 50 + int(float64(done.fresh)*0.6*rnd.Float64())
					next := simTurn{talk: done.talk, prompt: done.prompt + fresh, fresh: fresh}
					when := now + 100 + rnd.IntN(300)
					at[when] = append(at[when], next)
				}
			}
		}
	}
	slices.Sort(waits)
	return waits, skew / float64(samples)
}

// step computes budget prompt tokens and returns the turns whose first token is there.
func (p *simRank) step(now, budget int) (done []simTurn) {
	p.decoding = slices.DeleteFunc(p.decoding, func(turn simTurn) bool {
		if turn.start <= now {
			p.tokens -= int64(turn.prompt)
		}
		return turn.start <= now
	})
	for budget > 0 && len(p.queue) > 0 {
		n := min(budget, p.left)
		budget, p.left = budget-n, p.left-n
		if p.left > 0 {
			break
		}
		turn := p.queue[0]
		p.queue, done = p.queue[1:], append(done, turn)
		turn.start = now + 60
		p.decoding = append(p.decoding, turn)
		if len(p.queue) > 0 {
			p.left = p.queue[0].fresh
		}
	}
	return done
}

// TestLeastWorkLevels compares the placements on chats drawn alike. Times are in
// iterations.
func TestLeastWorkLevels(t *testing.T) {
	if checked {
		t.Skip("every result is verified in this build, which takes long")
	}
	worst := map[Placement]int{}
	for _, p := range Placements() {
		for seed := range uint64(3) {
			waits, skew := chat(t, p, seed)
			p50, p90, p99 := waits[len(waits)/2], waits[len(waits)*9/10], waits[len(waits)*99/100]
			t.Logf("%-22s seed %d: %d turns, wait p50 %d p90 %d p99 %d, queue skew %.2f", p, seed, len(waits), p50, p90, p99, skew)
			worst[p] += p90
		}
	}
	for _, p := range []Placement{RoundRobin, LeastQueued, LeastTokens, LeastQueuedRotating} {
		if 2*worst[LeastWork] > worst[p] {
			t.Errorf("sum of p90 waits: least_work %d, which is more than half of %s, %d", worst[LeastWork], p, worst[p])
		}
	}
}
