package router

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tandem/serve/discovery"
)

func servers(names ...string) func() []discovery.Instance {
	return func() []discovery.Instance {
		out := make([]discovery.Instance, len(names))
		for i, n := range names {
			out[i] = discovery.Instance{ID: n, Info: &discovery.ServerInfo{}}
		}
		return out
	}
}

// pick selects, and releases at once unless held.
func pick(t *testing.T, r Router, req Request) string {
	t.Helper()
	sel, err := r.Select(req)
	if err != nil {
		t.Fatal(err)
	}
	sel.Reservation.Release(true)
	return sel.Instance.ID
}

func TestRoundRobin(t *testing.T) {
	r := NewRoundRobin()
	abc := servers("A", "B", "C")
	var got []string
	for range 4 {
		got = append(got, pick(t, r, Request{Candidates: abc}))
	}
	if strings.Join(got, "") != "ABCA" {
		t.Errorf("order %v", got)
	}
	r = NewRoundRobin()
	if in := pick(t, r, Request{Candidates: abc, Exclude: []string{"A"}}); in != "B" || r.next != 2 {
		t.Errorf("excluded first pick: %s, index %d", in, r.next)
	}
	if _, err := r.Select(Request{Candidates: servers("A"), Exclude: []string{"A"}}); !errors.Is(err, ErrNoServers) {
		t.Errorf("only the excluded one: %v", err)
	}
	if _, err := r.Select(Request{Candidates: servers()}); !errors.Is(err, ErrNoServers) {
		t.Errorf("no candidates: %v", err)
	}
}

func TestLoadBalancing(t *testing.T) {
	r := NewLoadBalancing(false)
	two := servers("ctx0", "ctx1")
	if in := pick(t, r, Request{Candidates: two}); in != "ctx0" {
		t.Errorf("tie at counter 0: %s", in)
	}
	var held []*Reservation
	for range 2 {
		sel, err := r.Select(Request{Candidates: servers("ctx0")})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, sel.Reservation)
	}
	for i := range 2 {
		sel, err := r.Select(Request{Candidates: two})
		if err != nil || sel.Instance.ID != "ctx1" {
			t.Errorf("pick %d: %v %v", i, sel.Instance.ID, err)
		}
		held = append(held, sel.Reservation)
	}
	for _, h := range held {
		h.Release(false)
		h.Release(true)
	}
	if st := r.Stats(); st.Open != 0 || len(r.load) != 0 {
		t.Errorf("after release: %+v, load %v", st, r.load)
	}
}

func TestTokenWeight(t *testing.T) {
	cases := []struct {
		req  Request
		want int64
	}{
		{Request{Tokens: []int32{1, 2, 3}}, 3},
		{Request{Text: "abcde"}, 2},
		{Request{Text: "éé"}, 1},
		{Request{Text: "abcd", MaxTokens: 10}, 1},
		{Request{Text: "abcd", MaxTokens: 10, Generation: true}, 11},
		{Request{Generation: true, MaxTokens: -5}, 0},
	}
	for _, c := range cases {
		if got := tokenWeight(&c.req); got != c.want {
			t.Errorf("%+v: %d, want %d", c.req, got, c.want)
		}
	}
}

func TestConfig(t *testing.T) {
	bad, low, negative := 1.5, 0.5, -1.0
	cases := []struct {
		cfg  Config
		want string
	}{
		{Config{Type: "foo"}, "round_robin, load_balancing, conversation"},
		{Config{Type: KindConversation, MaxImbalance: &bad}, "max_imbalance"},
		{Config{Type: KindHybrid, MaxImbalance: &low}, "max_imbalance"},
		{Config{Type: KindHybrid, AffinityWeight: &negative}, "affinity_weight"},
		{Config{Type: KindKVAware, MaxBatchSize: -1}, "max_batch_size"},
		{Config{Type: KindLoad, CustomTokenizer: "x"}, "custom_tokenizer"},
		{Config{Type: KindConversation, CustomTokenizer: "x"}, "custom_tokenizer"},
		{Config{UseTokens: true}, "use_tokens"},
		{Config{MaxSessions: 3}, "max_sessions"},
		{Config{Type: KindConversation, MatchThreshold: &bad}, "match_threshold"},
		{Config{Type: KindConversation, MatchBasis: "x"}, "match_basis"},
		{Config{Type: KindHybrid, UseTokenIDs: true}, "use_token_ids"},
		{Config{Type: KindConversation, MaxSessions: -1}, "max_sessions"},
		{Config{Type: KindConversation, TokensPerBlock: -1}, "tokens_per_block"},
		{Config{Type: KindConversation, HashSkipCount: -1}, "hash_skip_count"},
	}
	for _, c := range cases {
		if _, err := NewRouter(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	for _, kind := range append(Kinds(), "") {
		r, err := NewRouter(Config{Type: kind})
		if err != nil || (kind != "" && r.Kind() != kind) {
			t.Errorf("%q: %v %v", kind, r, err)
		}
	}
}

// TestAccountingProperty drives every kind with random requests and releases: only usable candidates are chosen, and when
// all reservations are released, in any order and more than once, nothing stays charged.
func TestAccountingProperty(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(kind, rapid.MakeCheck(func(t *rapid.T) {
			r, err := NewRouter(Config{Type: kind})
			if err != nil {
				t.Fatal(err)
			}
			var held []*Reservation
			for range rapid.IntRange(1, 60).Draw(t, "steps") {
				names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 4, rapid.ID).Draw(t, "live")
				ex := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "x"}), 0, 2).Draw(t, "exclude")
				req := Request{Candidates: servers(names...), Exclude: ex, Text: strings.Repeat("x", rapid.IntRange(0, 700).Draw(t, "len"))}
				req.ConversationID = rapid.SampledFrom([]string{"", "s1", "s2", "s3"}).Draw(t, "id")
				req.RoutingID = rapid.SampledFrom([]string{req.ConversationID, "parent"}).Draw(t, "routing")
				usable := len(req.usable())
				sel, err := r.Select(req)
				if (err != nil) != (usable == 0) {
					t.Fatalf("usable %d, error %v", usable, err)
				}
				if err == nil {
					if req.excluded(sel.Instance.ID) || !strings.Contains(fmt.Sprint(names), sel.Instance.ID) {
						t.Fatalf("chose %s of %v without %v", sel.Instance.ID, names, ex)
					}
					held = append(held, sel.Reservation)
				}
				if len(held) > 0 && rapid.Bool().Draw(t, "release") {
					held[rapid.IntRange(0, len(held)-1).Draw(t, "which")].Release(true)
				}
			}
			for _, h := range held {
				h.Release(false)
			}
			if st := r.Stats(); st.Open != 0 {
				t.Fatalf("%d reservations stay open", st.Open)
			}
		}))
	}
}
