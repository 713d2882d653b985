package adprouter

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/request"
)

func TestTieRule(t *testing.T) {
	if got := mix(mix(1) + 0); got != 0x5e41ab087439611e {
		t.Errorf("mix(mix(1)+0) = %#x", got)
	}
	for _, tc := range []struct {
		id    uint64
		ranks []int
	}{
		{1, []int{0, 1, 3, 2}},
		{2, []int{0, 2, 3, 1}},
		{3, []int{3, 2, 1, 0}},
		{7, []int{1, 0, 2, 3}},
		{3, []int{3, 6, 2, 4, 5, 1, 0, 7}},
	} {
		got := slices.Sorted(slices.Values(tc.ranks))
		slices.SortFunc(got, func(a, b int) int { return cmp.Compare(mix(mix(tc.id)+uint64(a)), mix(mix(tc.id)+uint64(b))) })
		if !slices.Equal(got, tc.ranks) {
			t.Errorf("id %d prefers %v, want %v", tc.id, got, tc.ranks)
		}
	}
}

// TestHashKeySeesEveryByte also fixes one value: ranks of different builds must
// agree on it.
func TestHashKeySeesEveryByte(t *testing.T) {
	const key = "tenant\x00conversation-1"
	seen := map[uint64]string{hashKey(key): key}
	for i := range key {
		for _, k := range []string{key[:i], key[:i] + "x" + key[i+1:], key + "\x00"[:i%2]} {
			if old, ok := seen[hashKey(k)]; ok && old != k {
				t.Errorf("%q and %q have one hash", old, k)
			}
			seen[hashKey(k)] = k
		}
	}
	if h := hashKey(key); h != 0x3c5ebffd2ea23e55 {
		t.Errorf("%#x", h)
	}
}

// TestProductIsExact compares the 128-bit arithmetic with big integers, up to
// the bounds that Validate and States set.
func TestProductIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string, limit uint64) uint64 { return rapid.Uint64Range(0, limit).Draw(t, name) }
		tokens, total, n := draw("tokens", maxTokens), draw("total", maxRanks*maxTokens), draw("prompt", math.MaxInt32)
		weight := draw("weight", maxMilli)
		got := product(n, total, 1000).plus(product(tokens, n, weight))
		b := func(x uint64) *big.Int { return new(big.Int).SetUint64(x) }
		mul := func(x, y, z uint64) *big.Int { return new(big.Int).Mul(b(x), new(big.Int).Mul(b(y), b(z))) }
		want := new(big.Int).Add(mul(n, total, 1000), mul(tokens, n, weight))
		if have := new(big.Int).Add(new(big.Int).Lsh(b(got.hi), 64), b(got.lo)); have.Cmp(want) != 0 {
			t.Fatalf("%v, want %v", have, want)
		}
	})
}

func TestTargetIsExact(t *testing.T) {
	c := Defaults(1, 100)
	c.Kind, c.Multiplier = ConversationAware, 1100
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	// In binary floating point 1.1 times 10 is a little more than 11.
	if res := r.Route([]RankState{{Active: 10}}, nil); res.Target != 11 {
		t.Errorf("target %d, want 11", res.Target)
	}
}

func TestKey(t *testing.T) {
	for _, tc := range []struct{ affinity, conversation, want string }{
		{"", "", ""},
		{"", "c", "c"},
		{"a", "c", "a"},
		{"  ", "c", "c"},
		{"", " \t", ""},
	} {
		r := &request.Request{AffinityKey: tc.affinity, ConversationID: tc.conversation}
		if got := Key(r); got != tc.want {
			t.Errorf("%+v gives %q", tc, got)
		}
	}
	if CheckWeight(4, 4) != nil || CheckWeight(5, 4) == nil || CheckWeight(5, 4).Code != request.CapacityNever {
		t.Error("a weight of 4 must fit a cap of 4, 5 must not")
	}
	r := &request.Request{ID: 7, Prompt: make([]int32, 100), ConversationID: "c", DPRank: 2, DPRelax: true}
	if it := NewItem(r, 3); it.ID != 7 || it.Key != "c" || it.Rank != 2 || it.strict() || it.weight() != 4 || it.Tokens != 100 || len(it.Head) != HeadTokens {
		t.Errorf("%+v", it)
	}
}

func TestConfigErrorsNameTheKey(t *testing.T) {
	for key, break1 := range map[string]func(*Config){
		"router":                  func(c *Config) { c.Kind = "x" },
		"tp_size":                 func(c *Config) { c.Ranks = 0 },
		"max_num_active_requests": func(c *Config) { c.Cap = 0 },
		"sticky_cap":              func(c *Config) { c.StickyCap = "" },
		"fair_share_multiplier":   func(c *Config) { c.Multiplier = maxMilli + 1 },
		"load_balance_weight":     func(c *Config) { c.LoadWeight = -1 },
		"match_rate_threshold":    func(c *Config) { c.MatchThreshold = 1001 },
		"decode_cost":             func(c *Config) { c.DecodeCost = -1 },
		"rehome_max_moves":        func(c *Config) { c.Rehome.MaxMoves = 0 },
		"rehome_gain":             func(c *Config) { c.Rehome.Gain = 1001 },
		"rehome_min_gain":         func(c *Config) { c.Rehome.MinGain = -1 },
		"rehome_copy_cost":        func(c *Config) { c.Rehome.CopyCost = -1 },
		"rehome_cooldown":         func(c *Config) { c.Rehome.Cooldown = -1 },
	} {
		c := Defaults(2, 2)
		break1(&c)
		if _, err := New(c); err == nil || !strings.HasPrefix(err.Error(), key+": ") {
			t.Errorf("%s: %v", key, err)
		}
	}
	c := Defaults(2, 2)
	c.Placement = "banana"
	if r, err := New(c); err != nil || !r.FellBack() || r.Config().Placement != RoundRobin {
		t.Errorf("unknown placement: %v", err)
	}
}

func TestSettings(t *testing.T) {
	for key, break1 := range map[string]func(*Settings){
		"timeout_iters":       func(s *Settings) { s.TimeoutIters = -1 },
		"batching_wait_iters": func(s *Settings) { s.BatchingWaitIters = -1 },
		"kv_cache_routing_conversation_affinity": func(s *Settings) {
			s.Conversations, s.KVCacheAware = true, true
		},
		"kv_cache_routing_load_balance_weight":   func(s *Settings) { s.LoadWeight = math.NaN() },
		"kv_cache_routing_match_rate_threshold":  func(s *Settings) { s.MatchThreshold = 1.5 },
		"kv_cache_routing_fair_share_multiplier": func(s *Settings) { s.Multiplier = math.Inf(1) },
		"kv_cache_routing_max_sessions":          func(s *Settings) { s.MaxSessions = 0 },
		"kv_cache_routing_sticky_cap":            func(s *Settings) { s.StickyCap = "x" },
		"kv_cache_routing_new_conv_placement":    func(s *Settings) { s.Placement = "banana" },
		"kv_cache_routing_rehome_max_moves":      func(s *Settings) { s.RehomeMaxMoves = 0 },
		"kv_cache_routing_rehome_gain":           func(s *Settings) { s.RehomeGain = 2 },
		"kv_cache_routing_rehome_min_gain":       func(s *Settings) { s.RehomeMinGain = -1 },
		"kv_cache_routing_rehome_copy_cost":      func(s *Settings) { s.RehomeCopyCost = math.NaN() },
		"kv_cache_routing_rehome_cooldown":       func(s *Settings) { s.RehomeCooldown = -1 },
	} {
		s := DefaultSettings()
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		break1(&s)
		if err := s.Validate(); err == nil || !strings.HasPrefix(err.Error(), key+": ") {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, tc := range []struct {
		conversations, kv, reuse bool
		want                     Kind
		lost                     bool
	}{
		{false, false, true, Default, false},
		{false, true, true, KVCacheAware, false},
		{false, true, false, Default, true},
		{true, false, false, ConversationAware, false},
		{true, true, true, ConversationAware, false},
	} {
		s := DefaultSettings()
		s.Conversations, s.KVCacheAware, s.AllowPrecedence = tc.conversations, tc.kv, true
		cfg, lost := s.Router(2, 3, tc.reuse)
		want := Defaults(2, 3)
		want.Rehome.On = true
		if want.Kind = tc.want; cfg != want || lost != tc.lost || s.Validate() != nil {
			t.Errorf("%+v: %+v, lost %v", tc, cfg, lost)
		}
	}
	s := DefaultSettings()
	if s.NewBalance(4) != nil {
		t.Error("balance is on by default")
	}
	if s.EnableBalance = true; *s.NewBalance(4) != (Balance{TimeoutIters: 50, BatchingWaitIters: 10, MaxBatch: 4}) {
		t.Errorf("%+v", s.NewBalance(4))
	}
}

func TestQueueAgainstASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ranks, limit = 3, 3000
		q := NewQueue(ranks, limit)
		var model []request.ID
		id := request.ID(0)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 7, 900}).Draw(t, "n") {
					id++
					it := Item{ID: id, Rank: -1}
					if id%5 == 0 {
						it.Rank = int(id % ranks)
					}
					if err := q.Push(it); err != nil {
						t.Fatal(err)
					}
					model = append(model, id)
				}
			},
			"remove": func(t *rapid.T) {
				if len(model) > 0 {
					i := rapid.IntRange(0, len(model)-1).Draw(t, "i")
					if !q.Remove(model[i]) {
						t.Fatalf("%d does not wait", model[i])
					}
					model = slices.Delete(model, i, i+1)
				}
			},
			"admit": func(t *rapid.T) {
				states := []RankState{{Active: limit}, {Active: limit - 1}, {Active: rapid.IntRange(0, limit).Draw(t, "active")}}
				admitted := q.Admit(states, false)
				var back []int
				for i := range admitted {
					if rapid.IntRange(0, 9).Draw(t, "back") == 0 {
						back = append(back, i)
						continue
					}
					model = slices.DeleteFunc(model, func(id request.ID) bool { return id == admitted[i].ID })
					if len(admitted) > 20 && i > 10 {
						for _, it := range admitted[i+1:] {
							model = slices.DeleteFunc(model, func(id request.ID) bool { return id == it.ID })
						}
						break
					}
				}
				q.Return(back)
			},
			"": func(t *rapid.T) {
				if err := q.check(); err != nil {
					t.Fatal(err)
				}
				got := []request.ID{}
				for i := range q.Len() {
					got = append(got, q.At(i).ID)
				}
				if !slices.Equal(got, model) {
					t.Fatalf("queue %v, want %v", got, model)
				}
			},
		})
	})
}

// loaded returns a router of 8 ranks with 65,536 bound conversations, if it binds
// any, and a function that returns batches of 256 requests: of conversations that
// are bound, or that are not.
func loaded(tb testing.TB, kind Kind, placement Placement, fresh, rehome bool) (*Router, []RankState, func() []Item) {
	const ranks, bound, size = 8, 65536, 256
	c := Defaults(ranks, 1<<20)
	c.Kind, c.Placement, c.Rehome.On = kind, placement, rehome
	r, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	states := make([]RankState, ranks)
	item := func(n, key int) Item {
		it := Item{ID: request.ID(n), Key: fmt.Sprintf("conversation-%08d", key), Rank: -1, Tokens: 100 + n%900}
		if kind == KVCacheAware {
			it.Match, it.Head = make([]int32, ranks), make([]int32, HeadTokens)
			it.Match[n%ranks] = int32(n % 100)
			it.Head[HeadTokens-1] = int32(n % 7)
		}
		return it
	}
	// Twice as many conversations as can be bound: when the batches begin anew,
	// the first ones have been dropped.
	batches := make([][]Item, 2*bound/size)
	for i := range batches {
		for j := range size {
			n := i*size + j
			key := n * 7919 % bound
			if fresh {
				key = bound + n
			}
			batches[i] = append(batches[i], item(n, key))
		}
	}
	if kind == ConversationAware {
		for n := range bound {
			r.Route(states, []Item{item(n, n)})
		}
	}
	next := 0
	return r, states, func() []Item {
		next = (next + 1) % len(batches)
		return batches[next]
	}
}

func TestNothingIsAllocatedWhenNothingArrives(t *testing.T) {
	if checked {
		t.Skip("results are verified in this build, which allocates")
	}
	rows := make([]Row, 8)
	var plan Plan
	states := make([]RankState, 8)
	q := NewQueue(8, 64)
	for _, kind := range []Kind{Default, KVCacheAware, ConversationAware} {
		c := Defaults(8, 64)
		c.Kind, c.Rehome.On = kind, true
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		bal := &Balance{TimeoutIters: 5, MaxBatch: 4}
		var sum uint64
		if n := testing.AllocsPerRun(100, func() {
			Decide(rows, PadOptions{Balance: bal}, &plan)
			states = States(rows, states)
			q.Return(r.Route(states, q.Admit(states, false)).Unplaced)
			sum += r.Digest() + q.Digest() + bal.Digest()
		}); n != 0 {
			t.Errorf("%s: %v allocations", kind, n)
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	for _, tc := range []struct {
		name      string
		kind      Kind
		placement Placement
		fresh     bool
		rehome    bool
		skewed    bool // one rank has all the load, so that conversations move
	}{
		{"conversation/sticky", ConversationAware, RoundRobin, false, false, false},
		{"conversation/sticky, may move", ConversationAware, RoundRobin, false, true, false},
		{"conversation/some move", ConversationAware, RoundRobin, false, true, true},
		{"conversation/new round_robin", ConversationAware, RoundRobin, true, true, false},
		{"conversation/new least_queued", ConversationAware, LeastQueued, true, true, false},
		{"conversation/new least_work", ConversationAware, LeastWork, true, true, false},
		{"default", Default, RoundRobin, true, false, false},
		{"kv_cache_aware", KVCacheAware, RoundRobin, true, false, false},
	} {
		b.Run(tc.name, func(b *testing.B) {
			r, states, next := loaded(b, tc.kind, tc.placement, tc.fresh, tc.rehome)
			b.ReportAllocs()
			for b.Loop() {
				if tc.skewed {
					states[3].QueuedPrefill = 100000 - states[3].QueuedPrefill
				}
				batch := next()
				for _, p := range r.Route(states, batch).Placed {
					if p.From >= 0 {
						r.Move(batch[p.Index].Key, p.Rank)
					}
				}
				r.Digest()
			}
			if tc.kind == ConversationAware {
				b.ReportMetric(float64(r.Moves().Committed)/float64(b.N), "moves/op")
			}
		})
	}
	b.Run("nothing arrives", func(b *testing.B) {
		r, states, _ := loaded(b, ConversationAware, RoundRobin, true, true)
		b.ReportAllocs()
		for b.Loop() {
			r.Route(states, nil)
			r.Digest()
		}
	})
}
