package disagg

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"tandem/serve/conversation"
	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

const affinityKey = "0123456789abcdef"

// family is a cluster of two ctx and two gen workers that all keep conversations.
func family(t *testing.T, scope conversation.Scope) *rig {
	t.Helper()
	var ctx, gen []*stub
	for range 2 {
		ctx = append(ctx, newStub(t, discovery.Context, ctxReply{}.script))
		gen = append(gen, newStub(t, discovery.Generation, genReply{}.script))
	}
	keep := router.Config{Type: router.KindConversation}
	return newRig(t, ctx, gen, withRouters(router.NewConversation(keep), router.NewConversation(keep)), withConfig(func(c *Config) {
		c.Conversations = conversation.Rules{ParentHeader: "X-Parent", Scope: scope}
		c.AuthKey = []byte(affinityKey)
	}))
}

// check proves that a leg carries a child's own id and, if want, a key that is signed for exactly this leg.
func check(t *testing.T, role discovery.Role, q seen, want string) {
	t.Helper()
	var conv struct {
		ID string `json:"conversation_id"`
	}
	if err := json.Unmarshal(q.body["conversation_params"], &conv); err != nil || !strings.HasPrefix(conv.ID, "k") {
		t.Errorf("%s leg: conversation %q, %v", role, q.body["conversation_params"], err)
	}
	got := q.header.Get(openai.HeaderAffinityKey)
	if got != want {
		t.Errorf("%s leg of %s: affinity key %q, want %q", role, conv.ID, got, want)
	}
	if want == "" {
		return
	}
	a := openai.Affinity{Role: string(role), ConversationID: &conv.ID, AffinityKey: &want, DisaggID: &q.params.DisaggRequestID}
	_ = json.Unmarshal(q.body["model"], &a.Model)
	a.RequestType = q.params.RequestType
	if !openai.Key(affinityKey).VerifyAffinity(a, q.header.Get(openai.HeaderAffinityAuth)) {
		t.Errorf("%s leg of %s: the signature does not verify", role, conv.ID)
	}
}

func TestSubAgentsFollowTheirParent(t *testing.T) {
	for _, scope := range []conversation.Scope{"", conversation.ScopeContext, conversation.ScopeBoth} {
		t.Run("scope "+string(scope), func(t *testing.T) {
			r := family(t, scope)
			body := `{"model":"tiny","prompt":"hello","max_tokens":3}`
			r.post(completions, body, "X-Session-ID", "other").wantOK(t, "ABC")
			main := r.post(completions, body, "X-Session-ID", "M")
			main.wantOK(t, "ABC")
			var wg sync.WaitGroup
			var mu sync.Mutex
			var ctxAt, genAt []string
			for i := range 4 {
				wg.Go(func() {
					a := r.post(completions, body, "X-Session-ID", fmt.Sprintf("k%d", i), "X-Parent", "M")
					a.wantOK(t, "ABC")
					mu.Lock()
					defer mu.Unlock()
					ctxAt, genAt = append(ctxAt, a.header.Get("X-Disagg-Ctx-Server")), append(genAt, a.header.Get("X-Disagg-Gen-Server"))
				})
			}
			wg.Wait()
			home := func(list []string, leg string) bool {
				return !slices.ContainsFunc(list, func(at string) bool { return at != main.header.Get("X-Disagg-"+leg+"-Server") })
			}
			if !home(ctxAt, "Ctx") {
				t.Errorf("ctx legs ran at %v, the parent at %v", ctxAt, main.header)
			}
			if both := scope == conversation.ScopeBoth; home(genAt, "Gen") != both {
				t.Errorf("gen legs ran at %v, the parent at %v", genAt, main.header)
			}
			key := map[bool]string{true: "M"}
			for _, st := range slices.Concat(r.ctx, r.gen) {
				for _, q := range st.requests() {
					if strings.Contains(string(q.body["conversation_params"]), `"k`) {
						check(t, st.info.Role, q, key[st.info.Role == discovery.Context || scope == conversation.ScopeBoth])
					} else if q.header.Get(openai.HeaderAffinityKey) != "" {
						t.Errorf("the main agent has an affinity key: %v", q.header)
					}
				}
			}
		})
	}
}

// No client can make or see a key of its own.
func TestAffinityIsServerPrivate(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	r.post(completions, hello, openai.HeaderAffinityKey, "M", "X-Parent", "M", "X-Session-ID", "s").wantOK(t, "ABC")
	for _, st := range []*stub{r.ctx[0], r.gen[0]} {
		if h := st.requests()[0].header; h.Get(openai.HeaderAffinityKey) != "" || h.Get("X-Parent") != "" {
			t.Errorf("forwarded: %v", h)
		}
	}
	a := r.post(completions, `{"model":"tiny","prompt":"x","conversation_params":{"conversation_id":"x","subagent_affinity_id":"M"}}`)
	if a.status != 400 || !strings.Contains(a.raw, "subagent_affinity_id") {
		t.Errorf("%d %s", a.status, a.raw)
	}
}

func TestAffinityWarnings(t *testing.T) {
	parent := conversation.Rules{ParentHeader: "X-Parent"}
	both := conversation.Rules{Agents: []string{"opencode"}, Scope: conversation.ScopeBoth}
	keep := func() router.Router { return router.NewConversation(router.Config{Type: router.KindConversation}) }
	turns := func() router.Router { return router.NewRoundRobin() }
	for _, tc := range []struct {
		name     string
		rules    conversation.Rules
		ctx, gen func() router.Router
		ranks    int
		want     []string
	}{
		{"off", conversation.Rules{}, turns, turns, 4, nil},
		{"scope alone", conversation.Rules{Scope: conversation.ScopeBoth}, turns, turns, 4, []string{WarnScope}},
		{"a preset without parents", conversation.Rules{Agents: []string{"sglang"}, Scope: "context"}, turns, turns, 1, []string{WarnScope}},
		{"context", parent, turns, turns, 1, []string{WarnAffinityCtx}},
		{"both", both, turns, turns, 1, []string{WarnAffinityCtx, WarnAffinityGen}},
		{"both, one kept", both, keep, turns, 1, []string{WarnAffinityGen}},
		{"ranks", parent, keep, turns, 4, []string{WarnAffinityRank}},
		{"ranks of both", both, keep, keep, 4, []string{WarnAffinityRank, WarnAffinityRank}},
		{"all well", both, keep, keep, 1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, gen := newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Generation, genReply{}.script)
			ctx.info.ADPSize, gen.info.ADPSize = tc.ranks, tc.ranks
			r := newRig(t, []*stub{ctx}, []*stub{gen}, withRouters(tc.ctx(), tc.gen()), withConfig(func(c *Config) { c.Conversations = tc.rules }))
			st := r.reg.Status()
			var got []string
			for _, w := range r.s.inert(&st) {
				got = append(got, w.Code)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("warnings %v, want %v", got, tc.want)
			}
		})
	}
}
