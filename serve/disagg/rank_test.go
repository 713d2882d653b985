package disagg

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

// ranked is a router that chooses a rank with each worker.
type ranked struct {
	router.Router
	rank int
}

func (r ranked) Select(q router.Request) (router.Selection, error) {
	sel, err := r.Router.Select(q)
	sel.Rank = &r.rank
	return sel, err
}

// adpRig has one ctx and one gen worker of four ranks each, whose routers choose rank 2, except -1 for none.
func adpRig(t *testing.T, engineOK bool, rank int, edit func(*Config)) *rig {
	t.Helper()
	ctx, gen := newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Generation, genReply{}.script)
	for _, s := range []*stub{ctx, gen} {
		s.info.ADPSize, s.info.ADPConversation = 4, engineOK
	}
	a, b := router.NewRoundRobin(), router.NewRoundRobin()
	opts := []rigOption{withConfig(edit)}
	if rank >= 0 {
		opts = append(opts, withRouters(ranked{a, rank}, ranked{b, rank}))
	}
	return newRig(t, []*stub{ctx}, []*stub{gen}, opts...)
}

// TestForcedRankAgainstConversation has every row of the rule, for both legs and for requests with and without an id.
func TestForcedRankAgainstConversation(t *testing.T) {
	for _, tc := range []struct {
		affinity, hints  bool // engine_conv_affinity, conv_affinity_dp_rank_source: router
		attached, engine bool
		rank             int // chosen by the router, -1 = none
		want, row        string
	}{
		{false, false, false, false, 2, "2", "forced"},
		{false, false, true, true, 2, "2", "forced"},
		{false, true, true, true, 2, "2", "forced"},
		{true, false, false, false, 2, "2", "no_id"},
		{true, false, false, true, 2, "2", "no_id"},
		{true, true, false, true, 2, "2", "no_id"},
		{true, false, true, false, 2, "2", "unable"},
		{true, true, true, false, 2, "2", "unable"},
		{true, false, true, true, 2, "", "engine"},
		{true, true, true, true, 2, "2;relax", "hint"},
		{true, true, true, true, 0, "0;relax", "hint"},
		{true, true, true, true, -1, "", ""},
		{false, false, false, false, -1, "", ""},
		{true, false, true, true, 4, "", "invalid"},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			r := adpRig(t, tc.engine, tc.rank, func(c *Config) { c.EngineConvAffinity, c.RankHints = tc.affinity, tc.hints })
			var headers []string
			if tc.attached {
				headers = []string{"X-Session-ID", "s1"}
			}
			r.post(completions, hello, headers...).wantOK(t, "ABC")
			for leg, st := range map[string]*stub{RoleContext: r.ctx[0], RoleGeneration: r.gen[0]} {
				q := st.requests()[0]
				if got, sent := q.header.Get(openai.HeaderDPRank), q.header.Values(openai.HeaderDPRank); got != tc.want || tc.want == "" && len(sent) > 0 {
					t.Errorf("%s leg: rank %q, want %q", leg, sent, tc.want)
				}
				if attached := q.body["conversation_params"] != nil; attached != tc.attached {
					t.Errorf("%s leg: conversation_params %s", leg, q.body["conversation_params"])
				}
				if n := r.obs.count(string(EventForcedRank) + " " + leg + " " + tc.row); tc.row != "" && tc.row != "invalid" && n != 1 {
					t.Errorf("%s leg counted %d times as %s: %v", leg, n, tc.row, r.obs.seen)
				}
			}
			if n := r.obs.count(string(EventRankInvalid) + " "); (tc.row == "invalid") != (n == 2) {
				t.Errorf("%d invalid ranks", n)
			}
		})
	}
}

// The legs of one request may fall under different rows.
func TestForcedRankIsDecidedPerLeg(t *testing.T) {
	ctx, gen := newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Generation, genReply{}.script)
	ctx.info.ADPSize, ctx.info.ADPConversation, gen.info.ADPSize = 4, true, 4
	r := newRig(t, []*stub{ctx}, []*stub{gen}, withConfig(func(c *Config) { c.EngineConvAffinity = true }),
		withRouters(ranked{router.NewRoundRobin(), 3}, ranked{router.NewRoundRobin(), 3}))
	r.post(completions, hello, "X-Session-ID", "s").wantOK(t, "ABC")
	if a, b := ctx.requests()[0].header.Get(openai.HeaderDPRank), gen.requests()[0].header.Get(openai.HeaderDPRank); a != "" || b != "3" {
		t.Errorf("ctx got %q and gen %q", a, b)
	}
}

// A request that a mixed worker runs alone follows the same table.
func TestForcedRankOfAWholeRequest(t *testing.T) {
	mixed := newStub(t, discovery.Mixed, genReply{}.script)
	mixed.info.ADPSize, mixed.info.ADPConversation, mixed.info.Layout = 4, true, discovery.KVLayout{Layers: 1}
	dead := newStub(t, discovery.Context, ctxReply{}.script)
	dead.info.Fingerprint = "other" // pairs with nobody
	r := newRig(t, []*stub{dead, mixed}, []*stub{mixed}, withConfig(func(c *Config) { c.EngineConvAffinity = true }),
		withRouters(ranked{router.NewRoundRobin(), 1}, ranked{router.NewRoundRobin(), 1}))
	r.post(completions, hello).wantOK(t, "ABC")
	r.post(completions, hello, "X-Session-ID", "s").wantOK(t, "ABC")
	q := mixed.requests()
	if len(q) < 2 || q[0].header.Get(openai.HeaderDPRank) != "1" || q[len(q)-1].header.Get(openai.HeaderDPRank) != "" {
		t.Errorf("%d requests, ranks %q and %q", len(q), q[0].header.Get(openai.HeaderDPRank), q[len(q)-1].header.Get(openai.HeaderDPRank))
	}
}

// With a key a worker obeys a rank only from whoever signs the request, so the signature must fit what is sent.
func TestForcedRankIsSigned(t *testing.T) {
	key := openai.Key("0123456789abcdef")
	for _, conv := range []string{"", "s1"} {
		r := adpRig(t, false, 2, func(c *Config) { c.AuthKey = key })
		var headers []string
		if conv != "" {
			headers = []string{"X-Session-ID", conv}
		}
		r.post(completions, hello, headers...).wantOK(t, "ABC")
		for role, st := range map[string]*stub{"context": r.ctx[0], "generation": r.gen[0]} {
			q := st.requests()[0]
			a := openai.Affinity{Role: role, Model: "tiny", RequestType: q.params.RequestType, DisaggID: &q.params.DisaggRequestID}
			if conv != "" {
				a.ConversationID = &conv
			}
			if got := q.header.Get(openai.HeaderAffinityAuth); !key.VerifyAffinity(a, got) {
				t.Errorf("%s leg, conversation %q: %q does not fit", role, conv, got)
			}
		}
	}
	// Nothing to protect, nothing signed.
	r := adpRig(t, false, -1, func(c *Config) { c.AuthKey = key })
	r.post(completions, hello).wantOK(t, "ABC")
	if h := r.ctx[0].requests()[0].header.Get(openai.HeaderAffinityAuth); h != "" {
		t.Errorf("signed %q", h)
	}
}

// What a client sends of internal headers and ranks goes nowhere.
func TestClientsChooseNoRank(t *testing.T) {
	r := adpRig(t, true, -1, func(*Config) {})
	r.post(completions, hello, "X-Disagg-DP-Rank", "1", "X-Disagg-Affinity-Key", "k", "X-Disagg-Tenant", "t").wantOK(t, "ABC")
	for _, name := range []string{"X-Disagg-DP-Rank", "X-Disagg-Affinity-Key", "X-Disagg-Tenant"} {
		if got := r.ctx[0].requests()[0].header.Get(name) + r.gen[0].requests()[0].header.Get(name); got != "" {
			t.Errorf("%s: %q reached a worker", name, got)
		}
	}
	for _, field := range []string{`"attention_dp_rank":1`, `"attention_dp_relax":false`} {
		r.post(completions, strings.Replace(hello, "{", "{"+field+",", 1)).wantError(t, http.StatusBadRequest, "attention_dp_r")
	}
}

func TestInertConversationAffinity(t *testing.T) {
	for _, tc := range []struct{ on, engine, want bool }{{true, false, true}, {true, true, false}, {false, false, false}} {
		r := adpRig(t, tc.engine, -1, func(c *Config) { c.EngineConvAffinity = tc.on })
		resp, err := http.Get(r.front.URL + "/cluster_info")
		if err != nil {
			t.Fatal(err)
		}
		var body struct {
			Workers struct {
				Context []discovery.WorkerStatus `json:"context_servers"`
			} `json:"current_workers"`
			Warnings []discovery.Warning `json:"warnings"`
		}
		err = json.NewDecoder(resp.Body).Decode(&body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := len(body.Warnings) == 1 && body.Warnings[0].Code == WarnConvAffinity; got != tc.want {
			t.Errorf("%+v: warnings %+v", tc, body.Warnings)
		}
		if w := body.Workers.Context[0]; w.ADPSize != 4 || w.ADPConversation != tc.engine {
			t.Errorf("%+v", w)
		}
	}
}
