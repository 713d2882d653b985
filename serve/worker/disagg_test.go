package worker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/serve/openai"
)

func newServer(t *testing.T, s *Server) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv
}

const attempt = 687865856000134148

// split runs a body through a ctx and a gen worker as a frontend would, and
// returns the gen worker's reply text.
func split(t *testing.T, say, path, body string, emitted bool) (ctx openai.Response, gen string) {
	t.Helper()
	ce, ge := newEngine(executor.Ctx, say), newEngine(executor.Gen, say)
	ge.cached = 77 // a gen worker sees the whole prompt as cached
	cs, gs := serveFake(t, ce, nil), serveFake(t, ge, nil)
	b, err := openai.ParseBody([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	leg := b.Clone()
	leg.Delete("stream")
	leg.Delete("stream_options")
	leg.Set("disaggregated_params", json.RawMessage(fmt.Sprintf(`{"request_type":"context_only","disagg_request_id":%d,"return_prompt_token_ids_b64":true}`, attempt)))
	status, _, text := post(t, cs.URL+path, string(leg.AppendJSON(nil)))
	if status != 200 {
		t.Fatalf("ctx leg: %d %s", status, text)
	}
	ctx = decode[openai.Response](t, text)
	d := ctx.Choices[0].Disagg
	d.RequestType, d.CtxUsage, d.FirstTokenEmitted = openai.GenerationOnly, ctx.Usage, emitted
	leg = b.Clone()
	if err := leg.SetValue("disaggregated_params", d); err != nil {
		t.Fatal(err)
	}
	if err := leg.SetValue("prompt_token_ids_b64", ctx.PromptTokenIDsB64); err != nil {
		t.Fatal(err)
	}
	leg.Delete("prompt")
	status, _, gen = post(t, gs.URL+path, string(leg.AppendJSON(nil)))
	if status != 200 {
		t.Fatalf("gen leg: %d %s", status, gen)
	}
	cr, gr := ce.last(t), ge.last(t)
	if cr.TransferID != attempt || gr.TransferID != attempt || !slices.Equal(cr.Prompt, gr.Prompt) || string(ge.opaques[0]) != "opaque" {
		t.Errorf("hand-over: %d %d %v %v %q", cr.TransferID, gr.TransferID, cr.Prompt, gr.Prompt, ge.opaques[0])
	}
	return ctx, gen
}

func TestSplitReply(t *testing.T) {
	ctx, text := split(t, "Paris", "/v1/chat/completions", chatHi+`,"logprobs":true,"top_logprobs":2}`, false)
	c := ctx.Choices[0]
	if c.FinishReason != openai.FinishNotFinished || string(c.FirstDelta) != `{"content":"P"}` || *c.Disagg.CtxRequestID != attempt || *c.Disagg.CtxInfoEndpoint != "tcp://127.0.0.1:9" {
		t.Errorf("ctx reply %+v first_delta %s", c, c.FirstDelta)
	}
	if got, _ := base64.StdEncoding.DecodeString(*c.Disagg.EncodedOpaqueState); string(got) != "opaque" {
		t.Errorf("opaque %q", got)
	}
	if ctx.PromptTokenIDs != nil || ctx.PromptTokenIDsB64 == "" {
		t.Error("prompt ids came in the wrong form")
	}
	gen := decode[openai.Response](t, text)
	if gen.Choices[0].Message.Text() != "Paris" || gen.Choices[0].FinishReason != "stop" {
		t.Errorf("gen reply %s", text)
	}
	if gen.Usage.CompletionTokens != 6 || gen.Usage.Cached() != 2 || gen.Created != ctx.Created {
		t.Errorf("usage %+v", gen.Usage)
	}
	e := newEngine(executor.Mixed, "Paris")
	srv := serveFake(t, e, nil)
	_, _, whole := post(t, srv.URL+"/v1/chat/completions", chatHi+`,"logprobs":true,"top_logprobs":2}`)
	if w := decode[openai.Response](t, whole); string(w.Choices[0].Logprobs) != string(gen.Choices[0].Logprobs) {
		t.Errorf("logprobs differ\nwhole %s\nsplit %s", w.Choices[0].Logprobs, gen.Choices[0].Logprobs)
	}
}

func TestSplitStreamFirstTokenEmitted(t *testing.T) {
	_, text := split(t, "Paris", "/v1/completions", `{"prompt":"x","stream":true,"logprobs":0,"max_tokens":9}`, true)
	data, _ := eventsOf(t, text)
	var got strings.Builder
	offset := -1
	for _, d := range data[:len(data)-1] {
		ev := decode[struct {
			Choices []struct {
				Text string
				LP   struct {
					Offsets []int `json:"text_offset"`
				} `json:"logprobs"`
			}
		}](t, d)
		got.WriteString(ev.Choices[0].Text)
		if offset < 0 {
			offset = ev.Choices[0].LP.Offsets[0]
		}
	}
	if got.String() != "aris" || offset != 1 {
		t.Errorf("text %q, first offset %d", got.String(), offset)
	}
	_, text = split(t, "Paris", "/v1/chat/completions", chatHi+`,"stream":true}`, true)
	if strings.Contains(text, `"role"`) {
		t.Errorf("the role was sent twice: %s", text)
	}
}

func TestContextReplyFinished(t *testing.T) {
	e := newEngine(executor.Ctx, "é")
	srv := serveFake(t, e, nil)
	params := fmt.Sprintf(`"disaggregated_params":{"request_type":"context_only","disagg_request_id":%d}`, attempt)
	_, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x","max_tokens":1,`+params+`}`)
	res := decode[openai.Response](t, text)
	c := res.Choices[0]
	if c.FinishReason != "length" || c.FirstDelta != nil || c.Disagg.EncodedOpaqueState != nil || !slices.Equal(res.PromptTokenIDs, []int32{'x'}) {
		t.Errorf("reply %s", text)
	}
	_, _, text = post(t, srv.URL+"/v1/completions", `{"prompt":"x","max_tokens":5,`+params+`}`)
	if c := decode[openai.Response](t, text).Choices[0]; c.FirstDelta != nil || c.FinishReason != openai.FinishNotFinished {
		t.Errorf("half a character gave %s", text)
	}
}

func TestRoles(t *testing.T) {
	ctxBody := `{"prompt":[1],"disaggregated_params":{"request_type":"context_only","disagg_request_id":5}}`
	genBody := `{"prompt":[1],"disaggregated_params":{"request_type":"generation_only","disagg_request_id":5,"first_gen_tokens":[65],"encoded_opaque_state":"AA=="}}`
	full := `{"prompt":[1]}`
	early := `{"prompt":[1],"disaggregated_params":{"request_type":"generation_only","schedule_style":"generation_first","disagg_request_id":5,"encoded_opaque_state":"AA=="}}`
	for _, tc := range []struct {
		role        executor.Role
		transceiver bool
		body        string
		status      int
		param       string
		kind        request.Kind
	}{
		{executor.Ctx, true, ctxBody, 200, "", request.ContextOnly},
		{executor.Ctx, true, genBody, 400, "disaggregated_params.request_type", 0},
		{executor.Ctx, true, full, 400, "disaggregated_params.request_type", 0},
		{executor.Gen, true, ctxBody, 400, "disaggregated_params.request_type", 0},
		{executor.Gen, true, genBody, 200, "", request.GenerationOnly},
		{executor.Gen, true, full, 200, "", request.Full},
		{executor.Mixed, true, ctxBody, 200, "", request.ContextOnly},
		{executor.Mixed, true, genBody, 200, "", request.GenerationOnly},
		{executor.Mixed, true, full, 200, "", request.Full},
		{executor.Mixed, false, ctxBody, 400, "disaggregated_params.request_type", 0},
		{executor.Mixed, false, genBody, 400, "disaggregated_params.request_type", 0},
		{executor.Mixed, false, full, 200, "", request.Full},
		{executor.Ctx, true, strings.Replace(ctxBody, `"prompt"`, `"stream":true,"prompt"`, 1), 400, "stream", 0},
		{executor.Ctx, true, strings.Replace(ctxBody, `"disagg_request_id":5`, `"x":5`, 1), 400, "disaggregated_params.disagg_request_id", 0},
		{executor.Gen, true, strings.Replace(genBody, `"first_gen_tokens":[65]`, `"x":1`, 1), 400, "disaggregated_params.first_gen_tokens", 0},
		{executor.Gen, true, strings.Replace(genBody, `[65]`, `[999]`, 1), 400, "disaggregated_params.first_gen_tokens", 0},
		{executor.Gen, true, strings.Replace(genBody, `"AA=="`, `"!"`, 1), 400, "disaggregated_params.encoded_opaque_state", 0},
		{executor.Gen, true, strings.Replace(genBody, `"prompt":[1]`, `"prompt":"text"`, 1), 400, "prompt_token_ids", 0},
		{executor.Gen, true, strings.Replace(genBody, `"prompt":[1]`, `"prompt":[1],"logprobs":1`, 1), 400, "disaggregated_params.first_gen_log_probs", 0},
		{executor.Gen, true, strings.Replace(genBody, `"disagg_request_id"`, `"schedule_style":"generation_first","disagg_request_id"`, 1), 400, "disaggregated_params.first_gen_tokens", 0},
		{executor.Gen, true, early, 200, "", request.GenerationOnly},
		{executor.Gen, true, strings.Replace(early, `[1]`, `"text"`, 1), 200, "", request.GenerationOnly},
		{executor.Gen, true, strings.Replace(early, `"encoded_opaque_state"`, `"x"`, 1), 400, "disaggregated_params.encoded_opaque_state", 0},
		{executor.Gen, true, strings.Replace(early, `"encoded_opaque_state"`, `"first_token_emitted":true,"encoded_opaque_state"`, 1), 400, "disaggregated_params.first_gen_tokens", 0},
		{executor.Ctx, true, strings.Replace(ctxBody, `"disagg_request_id"`, `"schedule_style":"generation_first","disagg_request_id"`, 1), 200, "", request.ContextOnly},
	} {
		e := newEngine(tc.role, "A")
		srv := serveFake(t, e, func(c *Config) { c.Transceiver = tc.transceiver })
		status, _, text := post(t, srv.URL+"/v1/completions", tc.body)
		if status != tc.status || tc.param != "" && wireErr(t, status, text).Param != tc.param {
			t.Errorf("%s %v %s: got %d %s", tc.role, tc.transceiver, tc.body, status, text)
			continue
		}
		if status == 200 && (e.last(t).Kind != tc.kind || e.last(t).GenFirst != strings.Contains(tc.body, "generation_first")) {
			t.Errorf("%s: kind %d, generation first %t", tc.body, e.last(t).Kind, e.last(t).GenFirst)
		}
		if n, _ := e.count(); status != 200 && n != 0 {
			t.Errorf("%s: a refused request reached the engine", tc.body)
		}
	}
}

func TestInternalHeaders(t *testing.T) {
	key := openai.Key("secret")
	id := int64(5)
	conv, aff, endpoint, opaque := "c1", "p1", "tcp://a:1", "AA=="
	handoff := key.SignHandoff(&openai.DisaggParams{DisaggRequestID: &id, CtxInfoEndpoint: &endpoint, EncodedOpaqueState: &opaque})
	affinity := key.SignAffinity(openai.Affinity{Role: "generation", Model: "tiny", ConversationID: &conv, AffinityKey: &aff, RequestType: "generation_only", DisaggID: &id})
	noKey := key.SignAffinity(openai.Affinity{Role: "generation", Model: "tiny", ConversationID: &conv, RequestType: "generation_only", DisaggID: &id})
	gen := `{"model":"tiny","prompt":[1],"conversation_params":{"conversation_id":"c1"},"disaggregated_params":{"request_type":"generation_only","disagg_request_id":5,` +
		`"first_gen_tokens":[65],"encoded_opaque_state":"AA==","ctx_info_endpoint":"tcp://a:1"}}`
	full := `{"prompt":[1]}`
	for _, tc := range []struct {
		name    string
		key     openai.Key
		trusted bool
		body    string
		header  []string
		status  int
	}{
		{"signed", key, false, gen, []string{"X-Disagg-Auth", handoff}, 200},
		{"unsigned protected field", key, true, gen, nil, 401},
		{"wrong signature", key, true, gen, []string{"X-Disagg-Auth", affinity}, 401},
		{"malformed signature", key, true, gen, []string{"X-Disagg-Auth", "sha256=zz"}, 401},
		{"affinity unsigned", key, true, gen, []string{"X-Disagg-Auth", handoff, "X-Disagg-Affinity-Key", "p1"}, 401},
		{"affinity signed", key, true, gen, []string{"X-Disagg-Auth", handoff, "X-Disagg-Affinity-Key", "p1", "X-Disagg-Affinity-Auth", affinity}, 200},
		{"affinity for another key", key, true, gen, []string{"X-Disagg-Auth", handoff, "X-Disagg-Affinity-Key", "p2", "X-Disagg-Affinity-Auth", affinity}, 401},
		{"affinity for another conversation", key, true, strings.Replace(gen, "c1", "c2", 1), []string{"X-Disagg-Auth", handoff, "X-Disagg-Affinity-Key", "p1", "X-Disagg-Affinity-Auth", affinity}, 401},
		{"rank with handoff signature", key, true, gen, []string{"X-Disagg-Auth", handoff, "X-Disagg-DP-Rank", "0"}, 200},
		{"rank with affinity signature", key, true, gen, []string{"X-Disagg-Auth", handoff, "X-Disagg-Affinity-Auth", noKey, "X-Disagg-DP-Rank", "0;relax"}, 200},
		{"rank unsigned", key, true, full, []string{"X-Disagg-DP-Rank", "0"}, 401},
		{"tenant unsigned", key, true, full, []string{"X-Disagg-Tenant", "t"}, 401},
		{"no key, trusted", nil, true, gen, []string{"X-Disagg-Affinity-Key", "p1"}, 200},
		{"no key, open listener", nil, false, gen, nil, 401},
		{"no key, open listener, affinity", nil, false, full, []string{"X-Disagg-Affinity-Key", "p1"}, 401},
		{"no key, open listener, rank", nil, false, full, []string{"X-Disagg-DP-Rank", "0"}, 401},
		{"no key, open listener, whole request", nil, false, full, []string{"X-Disagg-Deadline-Ms", "1000"}, 200},
		{"rank out of range", nil, true, full, []string{"X-Disagg-DP-Rank", "1"}, 400},
		{"rank malformed", nil, true, full, []string{"X-Disagg-DP-Rank", "0;maybe"}, 400},
		{"deadline malformed", nil, true, full, []string{"X-Disagg-Deadline-Ms", "soon"}, 400},
		{"deadline passed", nil, true, full, []string{"X-Disagg-Deadline-Ms", "0"}, 504},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEngine(executor.Mixed, "A")
			srv := serveFake(t, e, func(c *Config) { c.Key, c.Trusted = tc.key, tc.trusted })
			status, _, text := post(t, srv.URL+"/v1/completions", tc.body, tc.header...)
			if status != tc.status {
				t.Fatalf("got %d %s, want %d", status, text, tc.status)
			}
			if n, _ := e.count(); (status == 200) != (n == 1) {
				t.Errorf("status %d, but the engine got %d requests", status, n)
			}
		})
	}
}

func TestTenantKey(t *testing.T) {
	e := newEngine(executor.Mixed, "A")
	srv := serveFake(t, e, nil)
	for _, tc := range []struct{ tenant, affinity, want string }{
		{"", "", ""}, {"", "p", "p"}, {"t", "", "t\x00c"}, {"t", "p", "t\x00p"},
	} {
		post(t, srv.URL+"/v1/completions", `{"prompt":[1],"conversation_params":{"conversation_id":"c"}}`,
			"X-Disagg-Tenant", tc.tenant, "X-Disagg-Affinity-Key", tc.affinity)
		if r := e.last(t); r.AffinityKey != tc.want || r.ConversationID != "c" {
			t.Errorf("%+v: key %q conversation %q", tc, r.AffinityKey, r.ConversationID)
		}
	}
}

// A worker that serves clients itself keeps their conversations by the headers
// that the frontend reads, too; an id in the body counts more, and legs have theirs
// from the frontend.
func TestSessionHeader(t *testing.T) {
	const leg = `,"disaggregated_params":{"request_type":"context_only","disagg_request_id":7}`
	e := newEngine(executor.Mixed, "A")
	srv := serveFake(t, e, func(c *Config) { c.Trusted = true })
	for _, tc := range []struct{ more, header, want string }{
		{"", "me", "me"},
		{"", "", ""},
		{`,"conversation_params":{"conversation_id":"c"}`, "me", "c"},
		{leg, "me", ""},
		{"", strings.Repeat("x", 600), ""},
	} {
		post(t, srv.URL+"/v1/completions", `{"prompt":[1]`+tc.more+`}`, "X-Session-ID", tc.header)
		if r := e.last(t); r.ConversationID != tc.want {
			t.Errorf("%+v: conversation %q", tc, r.ConversationID)
		}
	}
}
