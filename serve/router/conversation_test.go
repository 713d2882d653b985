package router

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
)

// text makes n code points whose first `shared` are the same for every seed.
func text(shared, n int, seed rune) string {
	var b strings.Builder
	for i := range n {
		if i < shared {
			b.WriteRune(rune('a' + i%26))
			continue
		}
		b.WriteRune(seed + rune(i%20))
	}
	return b.String()
}

func newConversation(c Config) *Conversation {
	c.Type = KindConversation
	return NewConversation(c)
}

func TestBlockCounts(t *testing.T) {
	r := newConversation(Config{})
	for n, want := range map[int]int{0: 0, 1: 0, 2: 1, 129: 1, 130: 2, 513: 4, 641: 5} {
		if got := len(r.hash(&Request{Text: text(0, n, 'é')})); got != want {
			t.Errorf("%d code points: %d blocks, want %d", n, got, want)
		}
	}
	skip := newConversation(Config{HashSkipCount: 10})
	if got := len(skip.hash(&Request{Text: text(0, 179, 'x')})); got != 1 {
		t.Errorf("50 skipped code points: %d blocks", got)
	}
	if got := len(skip.hash(&Request{Tokens: make([]int32, 140)})); got != 2 {
		t.Errorf("10 skipped tokens: %d blocks", got)
	}
}

func TestImplicitLineage(t *testing.T) {
	r := newConversation(Config{})
	two := servers("ctx0", "ctx1")
	step := func(name, content, want string, why Outcome) {
		t.Helper()
		sel, err := r.Select(Request{Text: content, Candidates: two})
		if err != nil || sel.Instance.ID != want || sel.Outcome != why {
			t.Errorf("%s: %s %s %v, want %s %s", name, sel.Instance.ID, sel.Outcome, err, want, why)
		}
		sel.Reservation.Release(true)
	}
	t1 := text(641, 641, 'A')
	step("T1", t1, "ctx0", New)
	step("T2", t1[:512]+text(0, 129, 'A'), "ctx0", Implicit)
	step("T3", t1[:384]+text(0, 257, 'K'), "ctx1", New)
	step("empty content never matches", "x", "ctx0", New)
	salted, err := r.Select(Request{Text: t1, Salt: "s", Candidates: two})
	if err != nil || salted.Outcome != New {
		t.Errorf("the same text under a salt: %s %v", salted.Outcome, err)
	}
}

func TestExplicitSessions(t *testing.T) {
	r := newConversation(Config{})
	live := []string{"ctx0", "ctx1"}
	turn := func(id string) (string, Outcome) {
		t.Helper()
		sel, err := r.Select(Request{RoutingID: id, ConversationID: id, Text: "hello", Candidates: servers(live...)})
		if err != nil {
			t.Fatal(err)
		}
		sel.Reservation.Release(true)
		return sel.Instance.ID, sel.Outcome
	}
	for i := range 3 {
		a, _ := turn("s1")
		b, _ := turn("s2")
		if a != "ctx0" || b != "ctx1" {
			t.Errorf("turn %d: s1 on %s, s2 on %s", i, a, b)
		}
	}
	live = []string{"ctx1"}
	if in, why := turn("s1"); in != "ctx1" || why != Fallback {
		t.Errorf("dead instance: %s %s", in, why)
	}
	live = []string{"ctx0", "ctx1"}
	if in, why := turn("s1"); in != "ctx1" || why != Sticky {
		t.Errorf("moves once and stays: %s %s", in, why)
	}
}

// A turn counts as what it adds to the turns before it: work decides where a new conversation goes, not length.
func TestLoadIsWhatTheWorkerLacks(t *testing.T) {
	for _, gen := range []bool{false, true} {
		r := newConversation(Config{})
		open := func(id string, n int, seed rune) Selection {
			t.Helper()
			sel, err := r.Select(Request{RoutingID: id, ConversationID: id, Text: text(0, n, seed), Generation: gen, Candidates: servers("ctx0", "ctx1")})
			if err != nil {
				t.Fatal(err)
			}
			return sel
		}
		open("long", 128*20+1, 'a').Reservation.Release(true) // on ctx0
		open("long", 128*22+1, 'a')
		open("short", 128*4+1, 'A') // on ctx1
		want := map[string]int64{"ctx0": 2 * 128, "ctx1": 4 * 128}
		if gen {
			want["ctx0"] = 22 * 128
		}
		if r.load["ctx0"] != want["ctx0"] || r.load["ctx1"] != want["ctx1"] {
			t.Errorf("generation %v: loads %v, want %v", gen, r.load, want)
		}
		if at := open("new", 300, 'K').Instance.ID; at == "ctx0" == gen {
			t.Errorf("generation %v: a new conversation goes to %s", gen, at)
		}
		open("long", 128*22+1, 'a') // again: all of it is known
		if n := r.load["ctx0"] - want["ctx0"]; !gen && n != 3*128+128 {
			t.Errorf("a prompt that is known counts %d", n)
		}
	}
}

func TestMaxSessionsAndForget(t *testing.T) {
	r := newConversation(Config{MaxSessions: 2})
	turn := func(id string) Outcome {
		sel, err := r.Select(Request{RoutingID: id, ConversationID: id, Text: text(300, 300, 'a'), Candidates: servers("a", "b")})
		if err != nil {
			t.Fatal(err)
		}
		sel.Reservation.Release(true)
		return sel.Outcome
	}
	for _, id := range []string{"s1", "s2", "s3", "s1"} {
		if why := turn(id); why != New {
			t.Errorf("%s: %s", id, why)
		}
	}
	r.Forget("a")
	r.Forget("b")
	if st := r.Stats(); st.Sessions != 0 || len(r.trie.nodes) != 0 || r.trie.links != 0 {
		t.Errorf("after Forget: %+v, %d nodes, %d links", st, len(r.trie.nodes), r.trie.links)
	}
}

func TestAffinityKeepsParentsPath(t *testing.T) {
	r := newConversation(Config{})
	sel := func(routing, own, content string, live ...string) Selection {
		t.Helper()
		s, err := r.Select(Request{RoutingID: routing, ConversationID: own, Text: content, Candidates: servers(live...)})
		if err != nil {
			t.Fatal(err)
		}
		s.Reservation.Release(true)
		return s
	}
	parent := text(641, 641, 'A')
	sel("M", "M", parent, "a", "b")
	m, _ := r.sessions.Peek(sessionKey{id: "M"})
	before := slices.Clone(m.path)
	if s := sel("M", "k1", text(0, 700, 'K'), "a", "b"); s.Instance.ID != "a" || s.Outcome != Sticky {
		t.Errorf("child: %s %s", s.Instance.ID, s.Outcome)
	}
	if !slices.Equal(m.path, before) {
		t.Error("a child overwrote its parent's path")
	}
	if s := sel("k1", "k1", "x", "a", "b"); s.Instance.ID != "a" || s.Outcome != Sticky {
		t.Errorf("the child's own id was recorded: %s %s", s.Instance.ID, s.Outcome)
	}
	sel("M", "k2", "y", "b")
	if !slices.Equal(m.path, before) || m.instance != "b" {
		t.Error("a move by affinity keeps the parent's content")
	}
}

func TestSessionBasis(t *testing.T) {
	r := newConversation(Config{MatchBasis: BasisSession})
	base := text(513, 513, 'A') // 4 blocks
	for _, c := range []struct {
		content string
		why     Outcome
	}{
		{base, New},
		{base[:512] + text(0, 1000, 'K'), Implicit}, // all 4 stored blocks, though only 4 of 12 of the request
	} {
		sel, err := r.Select(Request{Text: c.content, Candidates: servers("a", "b")})
		if err != nil || sel.Outcome != c.why {
			t.Errorf("%d runes: %s %v, want %s", len(c.content), sel.Outcome, err, c.why)
		}
		sel.Reservation.Release(true)
	}
}

// check compares trie and session table: every session is indexed under each hash of its path, in recency order, and
// nothing else is.
func (r *Conversation) check() error {
	want := map[blockhash.Hash]int{}
	total := 0
	for _, key := range r.sessions.Keys() {
		s, _ := r.sessions.Peek(key)
		total += len(s.path)
		for _, h := range s.path {
			want[h]++
		}
	}
	if total != r.trie.links || len(want) != len(r.trie.nodes) {
		return fmt.Errorf("%d links and %d nodes, want %d and %d", r.trie.links, len(r.trie.nodes), total, len(want))
	}
	for h, n := range r.trie.nodes {
		count := 0
		for i := range n.heads {
			last := ^uint64(0)
			for l := n.heads[i].first; l != nil; l = l.next {
				if l.s.instance != n.heads[i].instance || l.s.used >= last || !slices.Contains(l.s.path, h) {
					return fmt.Errorf("session %v is misplaced", l.s.key)
				}
				last = l.s.used
				count++
			}
		}
		if count != want[h] {
			return fmt.Errorf("a node lists %d sessions, want %d", count, want[h])
		}
	}
	return nil
}

// dumbMatch finds what match must find by trying every session.
func (r *Conversation) dumbMatch(live []string, path []blockhash.Hash) *session {
	var best *session
	bestDepth := 0
	for _, key := range r.sessions.Keys() {
		s, _ := r.sessions.Peek(key)
		depth := 0
		for depth < min(len(path), len(s.path)) && path[depth] == s.path[depth] {
			depth++
		}
		if !slices.Contains(live, s.instance) || depth == 0 {
			continue
		}
		if depth > bestDepth || depth == bestDepth && s.used > best.used {
			best, bestDepth = s, depth
		}
	}
	if best == nil || float64(bestDepth) < r.threshold*float64(len(path)) {
		return nil
	}
	return best
}

func TestConversationProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newConversation(Config{TokensPerBlock: 2, MaxSessions: rapid.IntRange(1, 6).Draw(t, "max")})
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			live := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3, rapid.ID).Draw(t, "live")
			content := rapid.StringOfN(rapid.RuneFrom([]rune("xy")), 0, 12, -1).Draw(t, "content")
			req := Request{Text: content, Candidates: servers(live...)}
			req.ConversationID = rapid.SampledFrom([]string{"", "", "s1", "s2", "p", "conv_id:1"}).Draw(t, "own")
			req.RoutingID = rapid.SampledFrom([]string{req.ConversationID, req.ConversationID, "p"}).Draw(t, "routing")
			var want *session
			if req.RoutingID == "" {
				want = r.dumbMatch(live, r.hash(&req))
			}
			var instance string
			if want != nil {
				instance = want.instance
			} else if s, ok := r.sessions.Peek(sessionKey{id: req.RoutingID}); ok && req.RoutingID != "" && slices.Contains(live, s.instance) {
				instance = s.instance
			}
			sel, err := r.Select(req)
			if err != nil {
				t.Fatal(err)
			}
			if instance != "" && sel.Instance.ID != instance {
				t.Fatalf("chose %s (%s), want %s", sel.Instance.ID, sel.Outcome, instance)
			}
			if (want != nil) != (sel.Outcome == Implicit) {
				t.Fatalf("outcome %s, lineage match %v", sel.Outcome, want != nil)
			}
			if rapid.IntRange(0, 9).Draw(t, "forget") == 0 {
				r.Forget("a")
			}
			if err := r.check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
