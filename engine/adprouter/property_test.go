package adprouter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/request"
)

func drawConfig(t *rapid.T, ranks int) Config {
	c := Defaults(ranks, rapid.IntRange(1, 12).Draw(t, "cap"))
	c.Kind = rapid.SampledFrom([]Kind{Default, KVCacheAware, ConversationAware, ConversationAware}).Draw(t, "kind")
	c.Placement = rapid.SampledFrom(append(Placements(), "banana")).Draw(t, "placement")
	c.StickyCap = rapid.SampledFrom([]StickyCap{Hard, Soft}).Draw(t, "sticky")
	c.MaxSessions = rapid.IntRange(-1, 6).Draw(t, "sessions")
	c.Multiplier = Milli(rapid.IntRange(0, 4000).Draw(t, "multiplier"))
	c.LoadWeight = Milli(rapid.IntRange(0, 3000).Draw(t, "weight"))
	c.MatchThreshold = Milli(rapid.IntRange(0, 1000).Draw(t, "threshold"))
	c.Warmup = rapid.Bool().Draw(t, "warmup")
	c.Compat = rapid.Bool().Draw(t, "compat")
	c.Rehome = Rehome{
		On: rapid.IntRange(0, 2).Draw(t, "rehome") > 0, MaxMoves: rapid.IntRange(1, 3).Draw(t, "moves"),
		Gain: Milli(rapid.IntRange(0, 1000).Draw(t, "gain")), MinGain: rapid.IntRange(0, 300).Draw(t, "least gain"),
		CopyCost: Milli(rapid.IntRange(0, 300).Draw(t, "copy cost")), Cooldown: rapid.IntRange(0, 8).Draw(t, "cooldown"),
	}
	return c
}

func drawItem(t *rapid.T, id int, c Config) Item {
	it := Item{ID: request.ID(id), Rank: -1, Tokens: rapid.IntRange(0, 200).Draw(t, "tokens")}
	if n := rapid.IntRange(0, 9).Draw(t, "key"); n > 1 {
		it.Key = fmt.Sprint("c", n)
		it.Guest = rapid.IntRange(0, 3).Draw(t, "guest") == 0
	}
	if rapid.IntRange(0, 3).Draw(t, "hinted") == 0 {
		it.Rank, it.Relax = rapid.IntRange(0, c.Ranks-1).Draw(t, "rank"), rapid.Bool().Draw(t, "relax")
	}
	it.Weight = min(rapid.SampledFrom([]int{1, 1, 1, 1, 2, 3}).Draw(t, "weight"), c.Cap)
	fill := int32(rapid.IntRange(0, 2).Draw(t, "fill"))
	for range min(it.Tokens, HeadTokens) {
		it.Head = append(it.Head, fill)
	}
	if c.Kind == KVCacheAware {
		for range rapid.IntRange(0, c.Ranks).Draw(t, "matches") {
			it.Match = append(it.Match, int32(rapid.IntRange(0, 200).Draw(t, "match")))
		}
	}
	return it
}

func drawStates(t *rapid.T, c Config) []RankState {
	out := make([]RankState, c.Ranks)
	for i := range out {
		out[i] = RankState{
			Active: rapid.IntRange(0, c.Cap+1).Draw(t, "active"), Tokens: int64(rapid.IntRange(0, 3000).Draw(t, "load")),
			QueuedPrefill: int64(rapid.IntRange(0, 2000).Draw(t, "queued")), Decoding: rapid.IntRange(0, c.Cap).Draw(t, "decoding"),
		}
	}
	return out
}

// replica is what one rank keeps.
type replica struct {
	router  *Router
	queue   *Queue
	balance Balance
	plan    Plan
}

func newReplica(t *rapid.T, c Config) *replica {
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &replica{router: r, queue: NewQueue(c.Ranks, c.Cap), balance: Balance{TimeoutIters: 3, BatchingWaitIters: 2, MaxBatch: c.Cap}}
}

// iteration is what all ranks are given in one iteration.
type iteration struct {
	states []RankState
	rows   []Row
	arrive []Item
	cancel request.ID
	mixed  bool
	move   string
	moveTo int
	ends   string // for each key in order whose copy ends: o well, x not, - not yet
}

// end tells the router how the copies ended.
func (p *replica) end(ends string) (trace string) {
	for _, key := range p.router.Keys() {
		to, moving := p.router.Moving(key)
		if !moving || ends == "" {
			continue
		}
		switch ends[0] {
		case 'o':
			trace += fmt.Sprintln(key, "has moved", p.router.Move(key, to))
		case 'x':
			trace += fmt.Sprintln(key, "has not moved", p.router.MoveFailed(key))
		}
		ends = ends[1:]
	}
	return trace
}

// step runs one iteration and returns all that it decided, as text.
func (p *replica) step(in iteration, probed bool) (trace string, err error) {
	Decide(in.rows, PadOptions{Mixed: in.mixed, Balance: &p.balance}, &p.plan)
	trace = fmt.Sprintf("plan %+v idle %v\n", p.plan, Idle(in.rows, p.queue.Len()))
	for _, it := range in.arrive {
		if refused := p.queue.Push(it); refused != nil {
			return "", refused
		}
	}
	trace += p.end(in.ends)
	trace += fmt.Sprintln("cancel", p.queue.Remove(in.cancel), "move", p.router.Move(in.move, in.moveTo))
	if probed {
		p.queue.Probe(nil)
	}
	waiting := p.queue.Len()
	batch := p.queue.Admit(in.states, false)
	res := p.router.Route(in.states, batch)
	trace += fmt.Sprintf("admitted %v\nresult %+v\n", batch, *res)
	if err := p.router.checkResult(in.states, batch); err != nil {
		return trace, err
	}
	p.queue.Return(res.Unplaced)
	if p.queue.Len()+len(res.Placed) != waiting {
		return trace, fmt.Errorf("%d waited, %d were placed, %d wait", waiting, len(res.Placed), p.queue.Len())
	}
	if err := p.router.Check(); err != nil {
		return trace, err
	}
	if err := p.queue.check(); err != nil {
		return trace, err
	}
	return trace + fmt.Sprintf("digests %x %x %x\n", p.router.Digest(), p.queue.Digest(), p.balance.Digest()) +
		fmt.Sprintln(p.router.Counts(), p.router.Moves()) + p.router.Dump(), nil
}

// stepAll runs one iteration on all replicas, each in a goroutine, started in
// the given order.
func stepAll(replicas []*replica, order []int, in iteration, probed bool) ([]string, error) {
	traces, errs := make([]string, len(replicas)), make([]error, len(replicas))
	var wg sync.WaitGroup
	for _, i := range order {
		// The inputs of a rank are its own copies, as if they came by wire.
		mine := in
		mine.states, mine.rows, mine.arrive = slices.Clone(in.states), slices.Clone(in.rows), slices.Clone(in.arrive)
		wg.Go(func() { traces[i], errs[i] = replicas[i].step(mine, probed) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w\n%s", i, err, traces[i])
		}
	}
	return traces, nil
}

// TestReplicasAgree drives copies of queue, router and balance with the same
// input from goroutines in any order; all that they decide must be equal.
func TestReplicasAgree(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprint(ranks, " ranks"), rapid.MakeCheck(func(t *rapid.T) {
			c := drawConfig(t, ranks)
			var replicas []*replica
			order := make([]int, ranks)
			for i := range ranks {
				replicas, order[i] = append(replicas, newReplica(t, c)), i
			}
			id := 0
			for range rapid.IntRange(1, 8).Draw(t, "iterations") {
				in := iteration{
					states: drawStates(t, c), rows: drawRows(t, ranks), mixed: rapid.Bool().Draw(t, "mixed"),
					move: "c3", moveTo: rapid.IntRange(-1, ranks).Draw(t, "move"),
					ends: rapid.StringOfN(rapid.SampledFrom([]rune("ox-")), 0, 4, -1).Draw(t, "ends"),
				}
				for range rapid.IntRange(0, 12).Draw(t, "arrivals") {
					id++
					in.arrive = append(in.arrive, drawItem(t, id, c))
				}
				in.cancel = request.ID(rapid.IntRange(0, id).Draw(t, "cancel"))
				traces, err := stepAll(replicas, rapid.Permutation(order).Draw(t, "order"), in, false)
				if err != nil {
					t.Fatal(err)
				}
				for rank, trace := range traces {
					if trace != traces[0] {
						t.Fatalf("rank %d:\n%s\nrank 0:\n%s", rank, trace, traces[0])
					}
				}
			}
		}))
	}
}

// TestStickiness checks I10 to I12 and the precedence of bindings against a
// plain model of one call.
func TestStickiness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t, rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "ranks"))
		c.Kind, c.StickyCap = ConversationAware, Hard
		c.MaxSessions = 64 // more than there are keys: nothing is forgotten
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		id := 0
		for range rapid.IntRange(1, 6).Draw(t, "calls") {
			states, batch := drawStates(t, c), []Item{}
			for range rapid.IntRange(0, 10).Draw(t, "requests") {
				id++
				batch = append(batch, drawItem(t, id, c))
			}
			home, under := map[string]int{}, map[string]int{}
			for _, key := range r.Keys() {
				home[key], _ = r.Home(key)
				if to, moving := r.Moving(key); moving {
					under[key] = to
				}
			}
			before, started := maps.Clone(home), r.Moves().Started
			res := r.Route(states, batch)
			checkSticky(t, c, states, batch, home, res)
			checkMoved(t, r, batch, under, res)
			if n := r.Moves().Started - started; n > uint64(c.Rehome.MaxMoves) || n > 0 && !c.Rehome.On {
				t.Fatalf("%d moves in one call", n)
			}
			for _, key := range r.Keys() {
				rank, _ := r.Home(key)
				if was, bound := before[key]; bound && was != rank {
					t.Fatalf("%s went from %d to %d", key, was, rank)
				}
			}
			(&replica{router: r}).end(rapid.StringOfN(rapid.SampledFrom([]rune("ox-")), 0, 4, -1).Draw(t, "ends"))
		}
	})
}

// checkMoved checks that all requests of a conversation that moves go to one rank
// or stay at home, and that the router knows of the move.
func checkMoved(t *rapid.T, r *Router, batch []Item, under map[string]int, res *Result) {
	part := make([]int, r.cfg.Ranks)
	for _, p := range res.Placed {
		key := batch[p.Index].Key
		if p.Reason != Moved {
			continue
		}
		if to, ok := under[key]; ok && to != p.Rank {
			t.Fatalf("%s moves to %d, %d went to %d", key, to, p.ID, p.Rank)
		}
		under[key] = p.Rank
		if to, ok := r.Moving(key); !ok || to != p.Rank {
			t.Fatalf("%d followed %s to %d, which moves to %d %v", p.ID, key, p.Rank, to, ok)
		}
	}
	for key, to := range under {
		home, _ := r.Home(key)
		part[home]++
		part[to]++
	}
	if slices.Max(part) > r.cfg.Rehome.MaxMoves {
		t.Fatalf("ranks take part in %v moves", part)
	}
}

func checkSticky(t *rapid.T, c Config, states []RankState, batch []Item, home map[string]int, res *Result) {
	active := make([]int, len(states))
	for i, s := range states {
		active[i] = s.Active
	}
	for _, p := range res.Placed {
		it := &batch[p.Index]
		was, bound := home[it.Key]
		free := bound && active[was]+it.weight() <= c.Cap
		switch p.Reason {
		case Explicit:
			if p.Rank != it.Rank {
				t.Fatalf("%d asked for %d, got %d", it.ID, it.Rank, p.Rank)
			}
			if bound && it.Key != "" {
				t.Fatalf("%d: the hint beat the binding of %s", it.ID, it.Key)
			}
		case Sticky:
			if it.Key == "" {
				t.Fatalf("%d has no key and is sticky", it.ID)
			}
			if bound && p.Rank != was {
				t.Fatalf("%d: %s is bound to %d, went to %d", it.ID, it.Key, was, p.Rank)
			}
		case Moved:
			if !bound || p.From != was || it.strict() {
				t.Fatalf("%d of %q, bound %v to %d, strict %v, moved from %d", it.ID, it.Key, bound, was, it.strict(), p.From)
			}
		case Overflow, First, NoKey:
			if free && it.Key != "" {
				t.Fatalf("%d: home %d has room, it went to %d as %s", it.ID, was, p.Rank, p.Reason)
			}
			if (p.Reason == NoKey) != (it.Key == "") {
				t.Fatalf("%d with key %q has reason %s", it.ID, it.Key, p.Reason)
			}
			// I12: a strict request leaves its rank for its binding only, or when
			// the rank is full, which admission prevents.
			if it.strict() && active[it.Rank]+it.weight() <= c.Cap && !bound {
				t.Fatalf("%d is strict for %d, which has room, and went to %d", it.ID, it.Rank, p.Rank)
			}
		default:
			t.Fatalf("%d has reason %s", it.ID, p.Reason)
		}
		active[p.Rank] += it.weight()
		if it.Key != "" && !bound {
			home[it.Key] = p.Rank
		}
	}
}

// TestAdmissionKeepsStrictness checks that what admission lets pass finds its
// rank free, and that nobody is lost.
func TestAdmissionKeepsStrictness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t, rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "ranks"))
		if c.Kind == ConversationAware {
			c.Kind = Default
		}
		p := newReplica(t, c)
		for id := range rapid.IntRange(0, 20).Draw(t, "requests") {
			if err := p.queue.Push(drawItem(t, id, c)); err != nil {
				t.Fatal(err)
			}
		}
		states := drawStates(t, c)
		room := Room(c.Cap, states)
		batch := p.queue.Admit(states, false)
		for i := range batch {
			room -= batch[i].weight()
		}
		if room < 0 && len(batch) > 0 {
			t.Fatalf("admitted %d more than there is room", -room)
		}
		for _, pl := range p.router.Route(states, batch).Placed {
			if it := &batch[pl.Index]; it.strict() && pl.Rank != it.Rank {
				t.Fatalf("%d is strict for %d and went to %d", it.ID, it.Rank, pl.Rank)
			}
		}
	})
}

func drawRows(t *rapid.T, ranks int) []Row {
	rows := make([]Row, ranks)
	for i := range rows {
		r := &rows[i]
		r.CtxRequests = uint16(rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "ctx"))
		r.GenRequests = uint16(rapid.SampledFrom([]int{0, 0, 1, 4}).Draw(t, "gen"))
		r.Active = uint32(r.CtxRequests) + uint32(r.GenRequests) + uint32(rapid.IntRange(0, 1).Draw(t, "blocked"))
		r.Retiring = uint32(rapid.IntRange(0, 1).Draw(t, "retiring"))
		r.PayloadBytes = uint32(rapid.SampledFrom([]int{0, 0, 0, 40}).Draw(t, "payload"))
		switch {
		case r.CtxRequests > 0:
			r.Intent = Context
		case r.GenRequests > 0:
			r.Intent = Generation
		}
	}
	return rows
}

// TestPlansAreSound checks I7 to I9 on any table: all ranks take part or none,
// never with pads alone, and held prefill never stops the instance for good.
func TestPlansAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bal := &Balance{TimeoutIters: rapid.IntRange(0, 5).Draw(t, "timeout"), BatchingWaitIters: rapid.IntRange(0, 5).Draw(t, "batching"), MaxBatch: 4}
		mixed, held := rapid.Bool().Draw(t, "mixed"), 0
		var plan Plan
		for range rapid.IntRange(1, 20).Draw(t, "iterations") {
			rows := drawRows(t, rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "ranks"))
			Decide(rows, PadOptions{Mixed: mixed, Balance: bal}, &plan)
			work := false
			for i := range rows {
				own := rows[i].GenRequests > 0 || rows[i].CtxRequests > 0 && !plan.Held
				work = work || own
				if plan.Pad[i] != (plan.Runs() && !own) {
					t.Fatalf("rank %d: rows %v, runs %v, pads %v", i, own, plan.Runs(), plan.Pad[i])
				}
			}
			if plan.Runs() != work {
				t.Fatalf("forward %v, work %v in %+v", plan.Runs(), work, rows)
			}
			if slices.Contains(plan.Pad, true) != (plan.PadKind != None) || mixed && plan.PadKind == Context {
				t.Fatalf("pads %v of kind %s, mixed %v", plan.Pad, plan.PadKind, mixed)
			}
			if held++; !plan.Held {
				held = 0
			}
			if held > bal.TimeoutIters+bal.BatchingWaitIters+1 && held > 12 {
				t.Fatalf("prefill held for %d iterations", held)
			}
		}
	})
}

// TestDigestSeesEveryChange checks that one flipped entry, made through the
// mutator, shows at once.
func TestDigestSeesEveryChange(t *testing.T) {
	make2 := func() *Router {
		c := Defaults(4, 64)
		c.Kind = ConversationAware
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		r.Route(make([]RankState, 4), parseItems(t, "1:10#A, 2:10#B, 3:10#C"))
		return r
	}
	a, b := make2(), make2()
	if a.Digest() != b.Digest() || a.Dump() != b.Dump() {
		t.Fatal("equal routers have different digests")
	}
	b.Move("B", 3)
	if a.Digest() == b.Digest() || a.Dump() == b.Dump() {
		t.Error("a flipped binding does not show")
	}
	for name, change := range map[string]func(*Router){
		"cursor":     func(r *Router) { r.cursor++ },
		"warm-up":    func(r *Router) { r.warm.pending[2] = true },
		"recent":     func(r *Router) { r.recent[1]++ },
		"queue":      func(r *Router) { r.queue[1]++ },
		"computed":   func(r *Router) { r.done[1]++ },
		"calls":      func(r *Router) { r.bind.next() },
		"move":       func(r *Router) { r.bind.start("C", r.bind.peek("C"), 1) },
		"assignment": func(r *Router) { r.assigned++ },
		"order":      func(r *Router) { r.bind.touch("A", r.bind.peek("A")) },
	} {
		c := make2()
		if change(c); c.Digest() == a.Digest() {
			t.Errorf("a change of %s does not show", name)
		}
	}
	moving := func(tokens int, failed bool) *Router {
		r := make2()
		e := r.bind.peek("B")
		r.bind.start("B", e, 2)
		r.bind.arrive(e, tokens, 7)
		if failed {
			r.MoveFailed("B")
		}
		return r
	}
	if a, b, c := moving(5, false), moving(6, false), moving(5, true); a.Digest() == b.Digest() || a.Digest() == c.Digest() || a.Dump() == b.Dump() {
		t.Error("a change of a move does not show")
	}
	if c := moving(5, true); c.Digest() == a.Digest() {
		t.Error("a move that failed is forgotten")
	}
	if !strings.Contains(a.Dump(), "rank 1 touch 2") {
		t.Error(a.Dump())
	}
}
