//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"tandem/engine/blockhash"
)

// served asks for tokens and names the ctx stub that worked for it.
func (r *rig) served(t *testing.T, body string, headers ...string) string {
	t.Helper()
	a := r.ask(t, textPath, body, headers...)
	a.wantOK(t, "ABC")
	return nameOf(r.ctx, a.header.Get("X-Disagg-Ctx-Server"))
}

func nameOf(stubs []*stub, id string) string {
	for _, s := range stubs {
		if s.id == id {
			return s.name
		}
	}
	return id
}

func promptBody(prompt string) string {
	return fmt.Sprintf(`{"model":"tiny","max_tokens":3,"prompt":%q}`, prompt)
}

func TestScenario36(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{ctx: 2})
	var got []string
	for range 4 {
		got = append(got, r.served(t, helloText))
	}
	if want := []string{"ctx0", "ctx1", "ctx0", "ctx1"}; !slices.Equal(got, want) {
		t.Errorf("round robin went to %s", got)
	}

	r = newRig(t, rigOf{ctx: 2, ctxRouter: "{type: load_balancing}"})
	release := make(chan struct{})
	for _, s := range r.ctx {
		s.setScript(func(c *call) {
			if strings.Contains(c.raw, "slow") && !c.until(release) {
				return
			}
			ctxReply{}.script(c)
		})
	}
	// Two slow ones on ctx0: what goes to ctx1 between them ends at once.
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(release)
	for range 2 {
		n := len(r.ctx[0].legs())
		wg.Go(func() { r.ask(t, textPath, promptBody("slow")) })
		if !eventually(settleLimit, func() bool { return len(r.ctx[0].legs())+len(r.ctx[1].legs()) > n }) {
			t.Fatal("the slow request did not arrive")
		}
	}
	busy, idle := r.ctx[0], r.ctx[1]
	if len(busy.legs()) == 1 { // one each: the load is even, so make it two and one
		n := len(busy.legs()) + len(idle.legs())
		wg.Go(func() { r.ask(t, textPath, promptBody("slow")) })
		eventually(settleLimit, func() bool { return len(busy.legs())+len(idle.legs()) > n })
		if len(idle.legs()) > len(busy.legs()) {
			busy, idle = idle, busy
		}
	}
	if got := r.served(t, helloText); got != idle.name {
		t.Errorf("a request went to %s, which has more to do", got)
	}
	if got := r.served(t, helloText); got != idle.name {
		t.Errorf("the next went to %s, which has more to do", got)
	}
}

// promptIDs are n ids of a prompt of its own.
func promptIDs(n, base int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(base + i)
	}
	return ids
}

// blocksOf are the hashes of the full blocks of 32 ids.
func blocksOf(ids []int32) (hashes []uint64) {
	h := blockhash.Root("tiny", "", "")
	for i := 0; i+32 < len(ids); i += 32 {
		h = blockhash.Next(h, ids[i:i+32])
		hashes = append(hashes, h.Wire())
	}
	return hashes
}

// holds tells the frontend that a stub has the blocks.
func (s *stub) holds(hashes []uint64) {
	var blocks []object
	for _, h := range hashes {
		blocks = append(blocks, object{"block_hash": h, "cache_level": 0, "priority": 35})
	}
	s.cacheEvent(object{"type": "stored", "parent_hash": nil, "blocks": blocks})
}

// A wide bound lets the scenario load its workers by what they hold.
func TestScenario37(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{ctx: 4, ctxRouter: "{type: kv_cache_aware, tokens_per_block: 32, backfill_block_hashes_on_finish: false, max_imbalance: 1000}", before: func(r *rig) {
		for i, s := range r.ctx {
			s.name = []string{"A", "C", "D", "E"}[i]
			s.cacheEvent(object{"type": "created", "hash_algo": "tandem-kv1", "num_blocks_per_cache_level": []int{1000}})
			s.holds(blocksOf(promptIDs(97, 1000*(i+1)))) // a prompt of its own, so that requests can be sent to it
		}
	}})
	ask := func(ids []int32) answer {
		return r.ask(t, textPath, fmt.Sprintf(`{"model":"tiny","max_tokens":3,"prompt":%s}`, strings.ReplaceAll(fmt.Sprint(ids), " ", ",")))
	}
	choose := func(ids []int32, want string) {
		t.Helper()
		got := ""
		if !eventually(settleLimit, func() bool {
			a := ask(ids)
			a.wantOK(t, "ABC")
			got = nameOf(r.ctx, a.header.Get("X-Disagg-Ctx-Server"))
			return got == want
		}) {
			t.Fatalf("%d … went to %s, want %s", ids[0], got, want)
		}
	}
	for i, s := range r.ctx { // what the workers have is told to the frontend when it likes
		choose(promptIDs(97, 1000*(i+1)), s.name)
	}
	release := make(chan struct{})
	for _, s := range r.ctx {
		s.setScript(func(c *call) {
			// The prompts of their own begin with 1000 … 4000. Only the prompt is looked at: ids of requests may be anything.
			if prompt := string(c.body["prompt"]); strings.Index(prompt, "000,") == 2 && !c.until(release) {
				return
			}
			ctxReply{}.script(c)
		})
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(release)
	for i, open := range []int{8, 44, 0, 1} {
		for n := range open {
			before := len(r.ctx[i].legs())
			wg.Go(func() { ask(promptIDs(97, 1000*(i+1))) })
			if !eventually(settleLimit, func() bool { return len(r.ctx[i].legs()) > before }) {
				t.Fatalf("request %d for %s went elsewhere", n, r.ctx[i].name)
			}
		}
	}
	p := promptIDs(97, 9)
	blocks := blocksOf(p)
	for i, n := range []int{2, 3, 1, 0} {
		r.ctx[i].holds(blocks[:n])
	}
	choose(p, "A")
	r.ctx[0].cacheEvent(object{"type": "removed", "block_hashes": blocks[:1]})
	choose(p, "D")
}

func TestScenario38(t *testing.T) {
	scenario(t)
	const conv = "{type: conversation}"
	t.Run("ids", func(t *testing.T) {
		r := newRig(t, rigOf{ctx: 2, gen: 2, ctxRouter: conv, genRouter: conv})
		turn := func(id string) string { return r.served(t, helloText, "X-Session-ID", id) }
		home := map[string]string{}
		for range 3 {
			for _, id := range []string{"s1", "s2"} {
				got := turn(id)
				if home[id] == "" {
					home[id] = got
				}
				if got != home[id] {
					t.Errorf("%s went to %s, its home is %s", id, got, home[id])
				}
			}
		}
		if home["s1"] == home["s2"] {
			t.Errorf("both conversations are on %s", home["s1"])
		}
		for _, s := range r.ctx {
			if s.name == home["s1"] {
				s.kill()
			}
		}
		first := turn("s1")
		if first == home["s1"] {
			t.Errorf("s1 stayed on the dead %s", first)
		}
		for range 3 {
			if got := turn("s1"); got != first {
				t.Errorf("s1 moved again, from %s to %s", first, got)
			}
		}
	})
	t.Run("beginnings", func(t *testing.T) {
		r := newRig(t, rigOf{ctx: 2, ctxRouter: conv})
		runes := func(seed rune, n int) string {
			var b strings.Builder
			for i := range n {
				b.WriteRune('a' + (rune(i)*7+seed)%26)
			}
			return b.String()
		}
		t1 := runes(1, 641)
		for i, c := range []struct{ prompt, want string }{
			{t1, "ctx0"},
			{t1[:512] + runes(5, 129), "ctx0"},
			{t1[:384] + runes(9, 257), "ctx1"},
		} {
			if got := r.served(t, promptBody(c.prompt)); got != c.want {
				t.Errorf("T%d went to %s, want %s", i+1, got, c.want)
			}
		}
	})
	t.Run("max_sessions", func(t *testing.T) {
		r := newRig(t, rigOf{ctx: 2, ctxRouter: "{type: conversation, max_sessions: 2}"})
		for _, id := range []string{"s1", "s2", "s3", "s1"} {
			r.served(t, helloText, "X-Session-ID", id)
		}
		if n := r.count(t, `tandem_router_decisions_total{kind="conversation",outcome="new",role="context"}`); n != 4 {
			t.Errorf("%v conversations were placed as new, want 4", n)
		}
	})
}

func TestScenario39(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	last := func(s *stub) string {
		legs := s.legs()
		return legs[len(legs)-1].conversation
	}
	withBody := strings.Replace(helloText, "}", `,"conversation_params":{"conversation_id":"b1"}}`, 1)
	r.ask(t, textPath, withBody, "X-Session-ID", "h1").wantOK(t, "ABC")
	if c, g := last(r.ctx[0]), last(r.gen[0]); c != "b1" || g != "b1" {
		t.Errorf("workers got %q and %q, want b1", c, g)
	}
	r.ask(t, textPath, helloText, "X-Correlation-ID", "c1", "X-Session-ID", "  ").wantOK(t, "ABC")
	if c, g := last(r.ctx[0]), last(r.gen[0]); c != "c1" || g != "c1" {
		t.Errorf("workers got %q and %q, want c1", c, g)
	}
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
	if c, g := last(r.ctx[0]), last(r.gen[0]); c != "" || g != "" {
		t.Errorf("workers got %q and %q of nobody", c, g)
	}
	blank := strings.Replace(helloText, "}", `,"conversation_params":{"conversation_id":"  "}}`, 1)
	r.ask(t, textPath, blank).wantError(t, http.StatusBadRequest, "conversation_id")
}
