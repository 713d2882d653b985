package router

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
	"tandem/serve/discovery"
)

// kvServers are instances with blocks of 32 tokens and 64 requests at once.
func kvServers(names ...string) func() []discovery.Instance {
	return func() []discovery.Instance {
		out := make([]discovery.Instance, len(names))
		for i, n := range names {
			out[i] = discovery.Instance{ID: n, Info: &discovery.ServerInfo{
				Incarnation: "1", Namespace: "m@1", TokensPerBlock: 32, MaxBatchSize: 64, ADPSize: 1, KVEvents: true,
			}}
		}
		return out
	}
}

// ids makes n token ids that begin at from, and their full blocks of 32.
func ids(from, n int) (tokens []int32, blocks []uint64) {
	h := blockhash.Root("m@1", "", "")
	for i := range n {
		tokens = append(tokens, int32(from+i))
	}
	for b := tokens; len(b) >= 32; b = b[32:] {
		h = blockhash.Next(h, b[:32])
		blocks = append(blocks, h.Wire())
	}
	return tokens, blocks
}

func hold(t *testing.T, r Router, req Request, n int) (held []*Reservation) {
	t.Helper()
	for range n {
		sel, err := r.Select(req)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, sel.Reservation)
	}
	return held
}

// newIndex begins the index of rank 0.
func newIndex(id uint64, blocks ...uint64) []Event {
	return []Event{{ID: id, Kind: EventCreated}, {ID: id + 1, Kind: EventStored, Blocks: blocks}}
}

func TestKVAwareWeighsMatchAgainstLoad(t *testing.T) {
	r := NewKVAware(Config{})
	tokens, blocks := ids(0, 97)
	// Open requests with prompts that nobody has.
	foreign, _ := ids(5000, 97)
	for name, n := range map[string]int{"A": 8, "C": 44, "E": 1} {
		hold(t, r, Request{Tokens: foreign, Candidates: kvServers(name)}, n)
	}
	r.Observe("A", "1", newIndex(1, blocks[:2]...))
	r.Observe("C", "1", newIndex(1, blocks...))
	r.Observe("D", "1", newIndex(1, blocks[:1]...))
	all := Request{Tokens: tokens, Candidates: kvServers("A", "C", "D", "E")}
	sel, err := r.Select(all)
	if err != nil || sel.Instance.ID != "A" || sel.Outcome != Cached || sel.Matched != 64 || sel.Prompt != 97 {
		t.Fatalf("%+v, %v: want A with 64 of 97", sel, err)
	}
	sel.Reservation.Release(false)
	if !r.Observe("A", "1", []Event{{ID: 3, Kind: EventRemoved, Blocks: blocks[:1]}}) {
		t.Fatal("the event was refused")
	}
	if sel, _ = r.Select(all); sel.Instance.ID != "D" || sel.Matched != 32 {
		t.Errorf("without its first block A has none of the prompt: %+v", sel)
	}
	excluded := all
	excluded.Exclude = []string{"D"}
	if sel, _ = r.Select(excluded); sel.Instance.ID != "E" {
		t.Errorf("D is excluded, C has more than its share: %+v", sel)
	}
	r.imbalance = 1000
	if sel, _ = r.Select(excluded); sel.Instance.ID != "C" {
		t.Errorf("D is excluded, and nothing bounds C: %+v", sel)
	}
}

// A beginning that all prompts share draws them to the instance that had it first, until that has its share; the next one
// then gets it too, and new prompts go to both.
func TestKVAwareSpreadsWhatAllShare(t *testing.T) {
	for _, tc := range []struct {
		imbalance float64
		want      [2]int // requests of A and B
	}{{1000, [2]int{40, 0}}, {1.5, [2]int{20, 20}}} {
		r := NewKVAware(Config{MaxImbalance: &tc.imbalance})
		_, shared := ids(0, 64)
		r.Observe("A", "1", newIndex(1, shared...))
		r.Observe("B", "1", []Event{{ID: 1, Kind: EventCreated}})
		var got [2]int
		var open []*Reservation
		for i := range 40 {
			prompt, _ := ids(0, 65)
			other, _ := ids(1000+100*i, 31)
			sel, err := r.Select(Request{Tokens: append(prompt, other...), Candidates: kvServers("A", "B")})
			if err != nil {
				t.Fatal(err)
			}
			got[sel.Instance.ID[0]-'A']++
			if sel.Instance.ID == "B" && got[1] == 1 {
				r.Observe("B", "1", []Event{{ID: 2, Kind: EventStored, Blocks: shared}})
			}
			if open = append(open, sel.Reservation); len(open) > 6 { // some six at a time
				open[0].Release(true)
				open = open[1:]
			}
		}
		if d := got[0] - tc.want[0]; d < -4 || d > 4 {
			t.Errorf("max_imbalance %v: %v requests, want about %v", tc.imbalance, got, tc.want)
		}
	}
}

// An idle cluster does not spread what one instance has.
func TestKVAwareKeepsAFewTogether(t *testing.T) {
	r := NewKVAware(Config{})
	tokens, blocks := ids(0, 97)
	r.Observe("A", "1", newIndex(1, blocks...))
	for i := range uncrowded + 1 {
		sel, err := r.Select(Request{Tokens: tokens, Candidates: kvServers("A", "B", "C", "D")})
		if err != nil || (sel.Instance.ID == "A") != (i < uncrowded) {
			t.Errorf("request %d: %s, %v", i, sel.Instance.ID, err)
		}
	}
}

func TestPromptBlocks(t *testing.T) {
	for n, want := range map[int][3]int{0: {0, 0, 1}, 1: {0, 0, 1}, 2: {0, 1, 32}, 97: {3, 3, 96}, 98: {3, 4, 128}} {
		tokens, blocks := ids(0, n)
		if tokens == nil {
			tokens = []int32{}
		}
		p := hashPrompt(&Request{Tokens: tokens}, hashing{"m@1", 32})
		if len(p.ids) != want[0] || p.total != want[1] || p.padded() != want[2] || !slices.Equal(p.ids, blocks[:len(p.ids)]) {
			t.Errorf("%d ids: %d full blocks of %d, padded %d; want %v", n, len(p.ids), p.total, p.padded(), want)
		}
	}
	tokens, _ := ids(0, 97)
	plain, salted := hashPrompt(&Request{Tokens: tokens}, hashing{"m@1", 32}), hashPrompt(&Request{Tokens: tokens, Salt: "s"}, hashing{"m@1", 32})
	if slices.Equal(plain.ids, salted.ids) {
		t.Error("the salt does not count")
	}
}

// Lost, foreign and nonsensical events empty the index and are refused until it begins anew.
func TestResidencyNeedsEveryEvent(t *testing.T) {
	tokens, blocks := ids(0, 97)
	start := newIndex(7, blocks...)
	stored := Event{ID: 9, Kind: EventStored, Blocks: []uint64{1}}
	for _, tc := range []struct {
		name        string
		incarnation string
		events      []Event
		ok          bool
		matched     int
	}{
		{"next", "1", []Event{stored}, true, 96},
		{"unknown kind", "1", []Event{{ID: 9, Kind: "updated"}, {ID: 10, Kind: EventStored}}, true, 96},
		{"gap in ids", "1", []Event{{ID: 10, Kind: EventStored}}, false, 0},
		{"repeated id", "1", []Event{{ID: 8, Kind: EventStored}}, false, 0},
		{"told gap", "1", []Event{{ID: 9, Gap: true, Kind: EventStored}}, false, 0},
		{"cleared", "1", []Event{{ID: 9, Kind: EventCleared}}, true, 0},
		{"another process", "2", []Event{stored}, false, 0},
		{"another rank", "1", []Event{{ID: 9, Rank: 1, Kind: EventStored}}, false, 96},
		{"no such rank", "1", []Event{{ID: 9, Rank: -1, Kind: EventStored}}, false, 96},
		{"removed", "1", []Event{{ID: 9, Kind: EventRemoved, Blocks: blocks[1:2]}}, true, 32},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewKVAware(Config{})
			if !r.Observe("A", "1", start) {
				t.Fatal("the index was refused")
			}
			if ok := r.Observe("A", tc.incarnation, tc.events); ok != tc.ok {
				t.Errorf("accepted: %t", ok)
			}
			sel, _ := r.Select(Request{Tokens: tokens, Candidates: kvServers("A")})
			if sel.Matched != tc.matched {
				t.Errorf("matched %d, want %d", sel.Matched, tc.matched)
			}
			if !tc.ok && r.Observe("A", "1", []Event{{ID: 11, Rank: max(tc.events[0].Rank, 0), Kind: EventStored}}) {
				t.Error("it goes on without the index")
			}
			if !r.Observe("A", "1", newIndex(20, blocks...)) {
				t.Error("it does not begin anew")
			}
		})
	}
}

// A request runs on one rank, so the ranks' blocks do not add up.
func TestMatchOfRanksIsTheBest(t *testing.T) {
	r := NewKVAware(Config{})
	tokens, blocks := ids(0, 97)
	r.Observe("A", "1", []Event{
		{ID: 1, Kind: EventCreated},
		{ID: 2, Kind: EventStored, Blocks: blocks[:1]},
		{ID: 5, Rank: 3, Kind: EventCreated},
		{ID: 6, Rank: 3, Kind: EventStored, Blocks: blocks[1:]},
	})
	if sel, _ := r.Select(Request{Tokens: tokens, Candidates: kvServers("A")}); sel.Matched != 32 {
		t.Errorf("matched %d", sel.Matched)
	}
}

// Where no events come, what was routed to an instance is taken to be there, by ids or by text.
func TestBackfillGuesses(t *testing.T) {
	tokens, _ := ids(0, 97)
	off := false
	for _, tc := range []struct {
		name string
		c    Config
		req  Request
		want int
	}{
		{"ids", Config{}, Request{Tokens: tokens}, 96},
		{"text", Config{}, Request{Text: text(300, 300, 'a')}, 256},
		{"off", Config{Backfill: &off}, Request{Tokens: tokens}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewKVAware(tc.c)
			tc.req.Candidates = kvServers("A", "B")
			first, _ := r.Select(tc.req)
			first.Reservation.Release(true)
			r.ties++ // so that a tie would go to the other one
			again, _ := r.Select(tc.req)
			if again.Matched != tc.want || tc.want > 0 && again.Instance.ID != first.Instance.ID {
				t.Errorf("first on %s, then on %s with %d; want %d", first.Instance.ID, again.Instance.ID, again.Matched, tc.want)
			}
			failed := tc.req
			failed.Salt = "other"
			sel, _ := r.Select(failed)
			sel.Reservation.Release(false)
			if sel, _ = r.Select(failed); sel.Matched != 0 {
				t.Error("a leg that failed left blocks")
			}
			r.Forget(first.Instance.ID)
			if sel, _ = r.Select(tc.req); sel.Matched != 0 {
				t.Error("a new process has the blocks of the old one")
			}
		})
	}
}

// Where events come nothing is guessed, so that a block which went is not taken to be there when they cease.
func TestEventsLeaveNothingToGuess(t *testing.T) {
	r := NewKVAware(Config{})
	tokens, blocks := ids(0, 97)
	req := Request{Tokens: tokens, Candidates: kvServers("A")}
	r.Observe("A", "1", newIndex(1, blocks...))
	pick(t, r, req)
	r.Observe("A", "1", []Event{{ID: 3, Kind: EventRemoved, Blocks: blocks}})
	r.Unobserved("A", "1")
	if sel, _ := r.Select(req); sel.Matched != 0 {
		t.Errorf("matched %d of blocks that went", sel.Matched)
	}
	r.Unobserved("A", "0") // a process of the past
	pick(t, r, req)
	if sel, _ := r.Select(req); sel.Matched != 96 {
		t.Errorf("without events the prompt is guessed: %d", sel.Matched)
	}
}

func TestKVWarnings(t *testing.T) {
	r := NewKVAware(Config{TokensPerBlock: 64})
	tokens, _ := ids(0, 97)
	for i := range 20 {
		if got := r.Warnings(); len(got) > 1 {
			t.Errorf("after %d requests: %v", i, got)
		}
		pick(t, r, Request{Tokens: tokens, Candidates: kvServers("A")})
	}
	got := r.Warnings()
	if len(got) != 2 || got[0].Code != WarnEventsMissing || got[1].Code != WarnBlockSize || !strings.Contains(got[0].Message, "worker A") {
		t.Errorf("%v", got)
	}
}

func TestHybrid(t *testing.T) {
	r := NewHybrid(Config{})
	tokens, blocks := ids(0, 97)
	turn := func(id string, live ...string) (Selection, string) {
		t.Helper()
		sel, err := r.Select(Request{RoutingID: id, ConversationID: id, Tokens: tokens, Candidates: kvServers(live...)})
		if err != nil {
			t.Fatal(err)
		}
		return sel, fmt.Sprint(sel.Instance.ID, " ", sel.Outcome)
	}
	step := func(name, id, want string, live ...string) {
		t.Helper()
		sel, got := turn(id, live...)
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		sel.Reservation.Release(false)
	}
	step("first turn", "s1", "A new", "A", "B", "C")
	step("its home", "s1", "A sticky", "A", "B", "C")
	r.Observe("C", "1", newIndex(1, blocks...))
	step("blocks draw a new conversation", "s2", "C cache", "A", "B", "C")
	step("the home is worth as much as all blocks, and is first asked", "s1", "A sticky", "A", "B")
	var open []*Reservation
	for range 2 {
		sel, _ := turn("s1", "A", "B")
		open = append(open, sel.Reservation)
	}
	sel, got := turn("s1", "A", "B")
	open = append(open, sel.Reservation)
	if got != "A sticky" {
		t.Errorf("three at once: %s", got)
	}
	step("above its share", "s1", "B overflow", "A", "B")
	for _, o := range open {
		o.Release(true)
	}
	step("the home stays", "s1", "A sticky", "A", "B")
	step("the home is gone", "s1", "B fallback", "B")
	step("and moved", "s1", "B sticky", "A", "B")
	r.Forget("B")
	step("forgotten", "s1", "C cache", "A", "B", "C")
}

// However requests come, no instance has more than its bounded share.
func TestHybridIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := rapid.Float64Range(1, 3).Draw(t, "bound")
		r := NewHybrid(Config{MaxImbalance: &bound})
		names := []string{"A", "B", "C"}
		tokens, blocks := ids(0, 97)
		r.Observe("A", "1", newIndex(1, blocks...))
		load, open := map[string]int{}, 0
		var held []Selection
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if open > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				held[i].Reservation.Release(true)
				load[held[i].Instance.ID]--
				open--
				held = slices.Delete(held, i, i+1)
				continue
			}
			sel, err := r.Select(Request{RoutingID: rapid.SampledFrom([]string{"", "s", "t"}).Draw(t, "id"), Tokens: tokens, Candidates: kvServers(names...)})
			if err != nil {
				t.Fatal(err)
			}
			load[sel.Instance.ID]++
			open++
			held = append(held, sel)
			if limit := bound*float64(open)/3 + 1; float64(load[sel.Instance.ID]) > limit {
				t.Fatalf("%s has %d of %d open, more than %.2f", sel.Instance.ID, load[sel.Instance.ID], open, limit)
			}
		}
	})
}

// The same requests, events and releases give the same places.
func TestDecisionsAreDeterministic(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(kind, rapid.MakeCheck(func(t *rapid.T) {
			var routers [2]Router
			for i := range routers {
				routers[i], _ = NewRouter(Config{Type: kind})
			}
			var held [2][]*Reservation
			for range rapid.IntRange(1, 40).Draw(t, "steps") {
				n := rapid.IntRange(0, 200).Draw(t, "tokens")
				tokens, blocks := ids(rapid.IntRange(0, 1).Draw(t, "from"), n)
				req := Request{Tokens: tokens, Candidates: kvServers("A", "B", "C", "D")}
				req.RoutingID = rapid.SampledFrom([]string{"", "s", "t"}).Draw(t, "id")
				told := rapid.SampledFrom([]string{"", "A", "D"}).Draw(t, "events of")
				ended, ok := rapid.IntRange(0, 60).Draw(t, "ended"), rapid.Bool().Draw(t, "ok")
				var at [2]place
				for i, r := range routers {
					if l, is := r.(Listener); is && told != "" {
						l.Observe(told, "1", newIndex(1, blocks...))
					}
					sel, err := r.Select(req)
					if err != nil {
						t.Fatal(err)
					}
					at[i] = place{sel.Instance.ID, sel.Outcome, sel.Matched}
					held[i] = append(held[i], sel.Reservation)
					held[i][min(ended, len(held[i])-1)].Release(ok)
				}
				if at[0] != at[1] {
					t.Fatalf("%+v and %+v", at[0], at[1])
				}
			}
		}))
	}
}

// place is an instance and its reason.
type place struct {
	id      string
	why     Outcome
	matched int
}

// A share that is a whole number is not one more by rounding: of 14 requests each of two workers with 100 places may have 7.
func TestShareIsExact(t *testing.T) {
	load := map[string]int64{"A": 7, "B": 6}
	list := kvServers("A", "B")()
	list[0].Info.MaxBatchSize, list[1].Info.MaxBatchSize = 100, 100
	s := shareOf(list, 1, 0, func(instance string) int64 { return load[instance] })
	if a, b := s.full(7, 100, 0), s.full(6, 100, 0); !a || b {
		t.Errorf("with %v, full are A %v and B %v", load, a, b)
	}
}
