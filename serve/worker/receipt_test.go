package worker

import (
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
)

const routeHeader, wantRoute = "X-Tandem-Route", "X-Disagg-Return-Route"

func TestReceipt(t *testing.T) {
	full := `{"prompt":"hello","max_tokens":3}`
	ctx := `{"prompt":"hello","max_tokens":3,"disaggregated_params":{"request_type":"context_only","disagg_request_id":5}}`
	gen := `{"prompt":"hello","prompt_token_ids":[104],"max_tokens":3,"disaggregated_params":{"request_type":"generation_only","disagg_request_id":5,` +
		`"ctx_request_id":5,"first_gen_tokens":[65],"encoded_opaque_state":"b3BhcXVl"}}`
	streamed := func(body string) string { return strings.Replace(body, "{", `{"stream":true,`, 1) }
	for _, tc := range []struct {
		name   string
		ranks  int
		expose bool
		ask    string
		body   string
		want   string
	}{
		{"asked for", 3, false, "1", full, "gen;rank=2;reason=sticky"},
		{"own key", 3, true, "", full, "gen;rank=2;reason=sticky"},
		{"not asked for", 3, false, "", full, ""},
		{"not with another value", 3, false, "0", full, ""},
		{"one rank", 1, true, "1", full, ""},
		{"ctx leg", 3, false, "1", ctx, "ctx;rank=2;reason=sticky"},
		{"gen leg", 3, false, "1", gen, "gen;rank=2;reason=sticky"},
		{"streamed", 3, false, "1", streamed(full), "gen;rank=2;reason=sticky"},
		{"streamed gen leg", 3, false, "1", streamed(gen), "gen;rank=2;reason=sticky"},
		{"streamed, not asked for", 3, false, "", streamed(full), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(executor.Mixed, "ABC")
			if e.info.Ranks = tc.ranks; tc.ranks > 1 {
				e.route = &runner.Route{Rank: 2, Reason: "sticky"}
			}
			srv := serveFake(t, e, func(c *Config) { c.ExposeRouting, c.Trusted = tc.expose, true })
			headers := []string{}
			if tc.ask != "" {
				headers = append(headers, wantRoute, tc.ask)
			}
			status, h, text := post(t, srv.URL+"/v1/completions", tc.body, headers...)
			if status != 200 || h.Get(routeHeader) != tc.want || strings.Contains(text, routeHeader) {
				t.Errorf("%d, header %q, want %q\n%s", status, h.Get(routeHeader), tc.want, text)
			}
		})
	}
}

// A request that fails on its rank still says which.
func TestReceiptOfAnError(t *testing.T) {
	e := newEngine(executor.Mixed, "ABC")
	e.info.Ranks, e.route = 2, &runner.Route{Rank: 1, Reason: "new"}
	e.failAfter, e.err = 1, request.Errorf(request.BadLogits, "NaN")
	srv := serveFake(t, e, nil)
	if status, h, _ := post(t, srv.URL+"/v1/completions", `{"prompt":"hello"}`, wantRoute, "1"); status != 500 || h.Get(routeHeader) != "gen;rank=1;reason=new" {
		t.Errorf("%d, header %q", status, h.Get(routeHeader))
	}
}

func TestForcedRank(t *testing.T) {
	for _, tc := range []struct {
		header string
		status int
		rank   int
		relax  bool
	}{
		{"", 200, -1, false},
		{"0", 200, 0, false},
		{"3", 200, 3, false},
		{"3;relax", 200, 3, true},
		{" 2 ; relax ", 200, 2, true},
		{"4", 400, 0, false},
		{"-1", 400, 0, false},
		{"1;strict", 400, 0, false},
		{"one", 400, 0, false},
	} {
		e := newEngine(executor.Mixed, "A")
		e.info.Ranks = 4
		srv := serveFake(t, e, nil)
		headers := []string{"X-Disagg-DP-Rank", tc.header}
		if tc.header == "" {
			headers = nil
		}
		status, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"hello"}`, headers...)
		if status != tc.status || status == 400 && !strings.Contains(text, "a rank from 0 to 3") {
			t.Errorf("%q: %d %s", tc.header, status, text)
			continue
		}
		if status == 200 {
			if r := e.last(t); r.DPRank != tc.rank || r.DPRelax != tc.relax {
				t.Errorf("%q: rank %d relax %t", tc.header, r.DPRank, r.DPRelax)
			}
		}
	}
}

// The rule travels with the request, so that a rank elsewhere shows the same text.
func TestShownIsTheRuleOfText(t *testing.T) {
	e := newEngine(executor.Mixed, "A")
	srv := serveFake(t, e, nil)
	post(t, srv.URL+"/v1/completions", `{"prompt":"x","stop":["end"],"include_stop_str_in_output":true,"stop_token_ids":[7]}`)
	s := e.last(t).Shown
	if s == nil || len(s.Stop) != 1 || s.Stop[0] != "end" || !s.IncludeStop || len(s.Hidden) != 2 || s.Hidden[0] != 7 || s.Hidden[1] != eosID {
		t.Errorf("%+v", s)
	}
	post(t, srv.URL+"/v1/completions", `{"prompt":"x","ignore_eos":true}`)
	if s := e.last(t).Shown; s == nil || len(s.Hidden) != 0 || s.IncludeStop {
		t.Errorf("%+v", s)
	}
}
