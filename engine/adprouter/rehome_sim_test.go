package adprouter

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/engine/request"
)

// town simulates ranks that serve a fixed number of clients, each with one
// conversation at a time. Few clients ask again at once and most take long, by
// Zipf; how much a turn adds differs by client too. Times are in iterations, work
// is in prefill tokens.
type town struct {
	budget int     // tokens a rank computes in an iteration
	memory int     // tokens a rank keeps
	decode int     // tokens of an answer
	copies int     // thousandths of a prefill token that a copied one takes
	adds   float64 // median of the tokens that a turn adds

	rnd     *rand.Rand
	router  *Router
	ranks   []townRank
	clients []townClient
	due     map[int][]townTurn // [iteration]
	ends    map[int][]townMove // [iteration] copies that end
	turns   int
	talks   int
	now     int
	result  townResult
}

type townClient struct {
	think, adds  float64
	talk, tokens int
	left         int // turns of this talk
}

type townTurn struct {
	client, talk int
	prompt       int
	fresh        int // what its rank expects to compute
	came, ready  int // iterations: of arrival, then of the last token; when its copy is there
}

type townMove struct{ talk, from, to, tokens int }

// townTalk is what a rank remembers of a talk, and when it was used.
type townTalk struct{ used, tokens int }

type townRank struct {
	queue    []townTurn
	runs     bool // queue[0]
	left     int  // of it
	decoding []townTurn
	cache    map[int]townTalk
	used     int // of the memory
	tokens   int64
	debt     int // work of copies
	linked   int // iteration from which its link is free
}

// townResult has what is measured once all clients have come.
type townResult struct {
	waits             []int // for the first token, ascending in the end
	prompts, computed int
	busy              int     // budget used
	skew              float64 // of queued work, worst to mean; summed up
	samples           int
}

func newTown(t *testing.T, c Config, adds float64, seed uint64) *town {
	c.Kind = ConversationAware
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s := &town{
		budget: 512, memory: 5_000_000, copies: 20, decode: 60, adds: adds, router: r,
		rnd: rand.New(rand.NewPCG(seed, 7)), ranks: make([]townRank, c.Ranks),
		due: map[int][]townTurn{}, ends: map[int][]townMove{},
	}
	for i := range s.ranks {
		s.ranks[i].cache = map[int]townTalk{}
	}
	s.clients = make([]townClient, 128*c.Ranks)
	for i := range s.clients {
		s.clients[i].think = 10 * math.Sqrt(float64(i+1))
		s.ask(i, s.rnd.IntN(800))
	}
	return s
}

// ask lets a client ask after the given time, in a new talk if the last one is
// over.
func (s *town) ask(client, after int) {
	c := &s.clients[client]
	if c.left--; c.left < 0 {
		s.talks++
		c.talk, c.tokens, c.left = s.talks, int(math.Exp(7+s.rnd.NormFloat64())), int(40*s.rnd.ExpFloat64())
		c.adds = s.adds * math.Exp(s.rnd.NormFloat64())
	}
	c.tokens += 20 + int(c.adds*s.rnd.ExpFloat64())
	when := s.now + 1 + after
	s.due[when] = append(s.due[when], townTurn{client: client, talk: c.talk, prompt: c.tokens, came: when})
	c.tokens += s.decode
}

func (s *town) run(iterations int) *townResult {
	for s.now = range iterations {
		if s.now == 1500 {
			s.result = townResult{}
		}
		for _, m := range s.ends[s.now] {
			s.ranks[m.from].forget(m.talk)
			s.ranks[m.to].keep(m.talk, m.tokens, s.now, s.memory)
			s.router.Move(fmt.Sprint(m.talk), m.to)
		}
		delete(s.ends, s.now)
		s.route()
		for i := range s.ranks {
			s.step(&s.ranks[i])
		}
	}
	slices.Sort(s.result.waits)
	return &s.result
}

func (s *town) states() []RankState {
	states, worst, sum := make([]RankState, len(s.ranks)), 0, 0
	for i := range s.ranks {
		p := &s.ranks[i]
		queued := 0
		for j, turn := range p.queue {
			if j == 0 && p.runs {
				queued += p.left
			} else {
				queued += turn.fresh
			}
		}
		states[i] = RankState{Active: len(p.queue) + len(p.decoding), Tokens: p.tokens, QueuedPrefill: int64(queued), Decoding: len(p.decoding)}
		worst, sum = max(worst, queued), sum+queued
	}
	if sum > 0 {
		s.result.skew += float64(worst*len(s.ranks)) / float64(sum)
		s.result.samples++
	}
	return states
}

func (s *town) route() {
	turns := s.due[s.now]
	delete(s.due, s.now)
	var batch []Item
	for _, turn := range turns {
		s.turns++
		batch = append(batch, Item{ID: request.ID(s.turns), Key: fmt.Sprint(turn.talk), Rank: -1, Tokens: turn.prompt})
	}
	res := s.router.Route(s.states(), batch)
	for _, pl := range res.Placed {
		turn, p := turns[pl.Index], &s.ranks[pl.Rank]
		turn.fresh = turn.prompt - p.has(turn)
		if pl.From >= 0 {
			s.copy(&turn, pl)
		}
		p.queue, p.tokens = append(p.queue, turn), p.tokens+int64(turn.prompt)
	}
	for _, i := range res.Unplaced {
		s.due[s.now+1] = append(s.due[s.now+1], turns[i])
	}
}

// copy lets a turn wait until the blocks of its talk have come over the links of
// both ranks, and charges both with work as if it were computed.
func (s *town) copy(turn *townTurn, pl Placed) {
	from, to := &s.ranks[pl.From], &s.ranks[pl.Rank]
	n := from.has(*turn)
	turn.fresh = turn.prompt - n
	work := n * s.copies / 1000
	start := max(s.now, from.linked, to.linked)
	turn.ready = start + (work+s.budget-1)/s.budget + 1
	from.linked, to.linked = turn.ready-1, turn.ready-1
	from.debt, to.debt = from.debt+work, to.debt+work
	s.ends[turn.ready] = append(s.ends[turn.ready], townMove{turn.talk, pl.From, pl.Rank, n})
}

// step computes on one rank for one iteration: rows that decode first, then
// prompts in order of arrival whose blocks are there.
func (s *town) step(p *townRank) {
	p.decoding = slices.DeleteFunc(p.decoding, func(turn townTurn) bool {
		if turn.came > s.now {
			return false
		}
		p.tokens -= int64(turn.prompt)
		s.ask(turn.client, int(s.clients[turn.client].think*s.rnd.ExpFloat64()))
		return true
	})
	budget := s.budget - len(p.decoding)
	pay := min(p.debt, max(budget, 0))
	p.debt, budget = p.debt-pay, budget-pay
	s.result.busy += s.budget - max(budget, 0)
	for budget > 0 && (p.runs || p.next(s.now)) {
		n := min(budget, p.left)
		budget, p.left = budget-n, p.left-n
		s.result.computed += n
		s.result.busy += n
		if p.left > 0 {
			return
		}
		turn := p.queue[0]
		p.queue, p.runs = p.queue[1:], false
		s.result.waits = append(s.result.waits, s.now-turn.came)
		s.result.prompts += turn.prompt
		turn.came = s.now + s.decode
		p.decoding = append(p.decoding, turn)
		p.keep(turn.talk, turn.prompt+s.decode, s.now, s.memory)
	}
}

// next brings the first turn that is ready to the front.
func (p *townRank) next(now int) bool {
	i := slices.IndexFunc(p.queue, func(turn townTurn) bool { return turn.ready <= now })
	if i < 0 {
		return false
	}
	turn := p.queue[i]
	copy(p.queue[1:i+1], p.queue[:i])
	p.queue[0], p.runs = turn, true
	p.left = max(turn.prompt-p.has(turn), 1)
	return true
}

// has returns how much of a turn's prompt is cached.
func (p *townRank) has(turn townTurn) int { return min(p.cache[turn.talk].tokens, turn.prompt-1) }

// keep remembers a talk, and forgets those used longest ago if there are too many.
func (p *townRank) keep(talk, tokens, now, memory int) {
	p.used += max(tokens-p.cache[talk].tokens, 0)
	p.cache[talk] = townTalk{now, max(tokens, p.cache[talk].tokens)}
	for p.used > memory {
		oldest := talk
		for k, e := range p.cache {
			if o := p.cache[oldest]; cmp.Or(cmp.Compare(e.used, o.used), cmp.Compare(k, oldest)) < 0 {
				oldest = k
			}
		}
		p.forget(oldest)
	}
}

func (p *townRank) forget(talk int) {
	p.used -= p.cache[talk].tokens
	delete(p.cache, talk)
}

// townStats is what a comparison looks at.
type townStats struct{ p50, p90, p99, skew, reuse, busy, moved float64 }

// mean simulates some towns and returns the means.
func mean(t *testing.T, c Config, adds float64) (m townStats) {
	const seeds, iterations = 3, 8000
	for seed := range uint64(seeds) {
		s := newTown(t, c, adds, seed)
		r := s.run(iterations)
		at := func(per int) float64 { return float64(r.waits[len(r.waits)*per/100]) / seeds }
		m.p50, m.p90, m.p99 = m.p50+at(50), m.p90+at(90), m.p99+at(99)
		m.skew += r.skew / float64(r.samples) / seeds
		m.reuse += (1 - float64(r.computed)/float64(r.prompts)) / seeds
		m.busy += float64(r.busy) / float64((iterations-1500)*c.Ranks*s.budget) / seeds
		m.moved += float64(s.router.Moves().Committed) / float64(s.turns) / seeds
	}
	return m
}

// TestRehomingPays compares waits and reuse with conversations that may move and
// with those that may not, at loads from three fifths to more than the ranks can do.
func TestRehomingPays(t *testing.T) {
	if checked {
		t.Skip("every result is verified in this build, which takes long")
	}
	for _, adds := range []float64{300, 450, 600} {
		for _, p := range Placements() {
			c := Defaults(8, 256)
			c.Placement = p
			off := mean(t, c, adds)
			c.Rehome.On = true
			on := mean(t, c, adds)
			for i, m := range []townStats{off, on} {
				t.Logf("adds %.0f %-21s moves %-5v: wait p50 %2.0f p90 %2.0f p99 %3.0f, queue skew %.2f, reuse %.1f%%, busy %.0f%%, %.0f%% of turns move",
					adds, p, i == 1, m.p50, m.p90, m.p99, m.skew, 100*m.reuse, 100*m.busy, 100*m.moved)
			}
			// A load that is too high for all ranks cannot be levelled away: who
			// was lucky waits longer.
			if on.p50 > off.p50+0.5 && adds < 600 || on.p90 > 0.95*off.p90 || on.p99 > off.p99 || on.reuse < off.reuse-0.002 {
				t.Errorf("adds %.0f %s: %+v, without moves %+v", adds, p, on, off)
			}
		}
	}
}
