package disagg

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"tandem/serve/discovery"
)

func TestContextFirst(t *testing.T) { // scenario 1
	r := one(t, ctxReply{}, genReply{})
	a := r.post(completions, hello)
	a.wantOK(t, "ABC")
	if u := a.body.Usage; u.PromptTokens != 5 || u.CompletionTokens != 3 || u.TotalTokens != 8 || u.Cached() != 0 {
		t.Errorf("usage %+v", u)
	}
	c, g := r.ctx[0].requests(), r.gen[0].requests()
	if len(c) != 1 || c[0].params.RequestType != "context_only" || string(c[0].body["stream"]) != "false" || string(c[0].body["max_tokens"]) != "3" {
		t.Errorf("ctx saw %+v", c)
	}
	if len(g) != 1 || g[0].params.RequestType != "generation_only" || string(g[0].body["prompt"]) != "[1,2,3,4,5]" ||
		len(g[0].params.FirstGenTokens) != 1 || g[0].params.FirstGenTokens[0] != 65 || g[0].params.DisaggRequestID != c[0].params.DisaggRequestID {
		t.Errorf("gen saw %+v", g)
	}
	if u := g[0].params.CtxUsage; u == nil || u.PromptTokens != 5 {
		t.Errorf("ctx_usage %+v", u)
	}
	want := map[string]string{
		"X-Disagg-Ctx-Server": r.ctx[0].id, "X-Disagg-Gen-Server": r.gen[0].id, "X-Disagg-Path": "ctx_gen",
		"X-Disagg-Request-Id": strconv.FormatInt(c[0].params.DisaggRequestID, 10),
	}
	for k, v := range want {
		if a.header.Get(k) != v {
			t.Errorf("%s is %q, want %q", k, a.header.Get(k), v)
		}
	}
	if id := a.header.Get("X-Request-Id"); id == "" || id != g[0].header.Get("X-Request-Id") {
		t.Errorf("X-Request-ID %q at the client, %q at gen", id, g[0].header.Get("X-Request-Id"))
	}
}

func TestIDsStayExact(t *testing.T) { // scenario 2
	r := one(t, ctxReply{echo: 687865856000134148}, genReply{})
	r.post(completions, hello).wantOK(t, "ABC")
	if g := r.gen[0].requests(); g[0].params.DisaggRequestID != 687865856000134148 {
		t.Errorf("gen got %d", g[0].params.DisaggRequestID)
	}
}

func TestGenSkipped(t *testing.T) { // scenarios 3, 4
	t.Run("budget of one", func(t *testing.T) {
		r := one(t, ctxReply{finish: "length"}, genReply{})
		a := r.post(completions, `{"model":"tiny","prompt":"hello","max_tokens":1}`)
		a.wantOK(t, "A")
		if a.body.Choices[0].FinishReason != "length" || a.header.Get("X-Disagg-Path") != "ctx_only" || a.header.Get("X-Disagg-Gen-Server") != "-" {
			t.Errorf("%s %v", a.raw, a.header)
		}
		if strings.Contains(a.raw, "disaggregated_params") || strings.Contains(a.raw, "prompt_token_ids") || len(r.gen[0].requests()) != 0 {
			t.Errorf("internal fields in %s, gen saw %d", a.raw, len(r.gen[0].requests()))
		}
	})
	t.Run("stop", func(t *testing.T) {
		r := one(t, ctxReply{finish: "stop", text: "-"}, genReply{})
		a := r.post(completions, `{"model":"tiny","prompt":"hello","max_tokens":8}`)
		a.wantOK(t, "")
		if a.body.Choices[0].FinishReason != "stop" || a.body.Usage.TotalTokens != 6 || r.obs.count("gen_skipped_total stop") != 1 || len(r.gen[0].requests()) != 0 {
			t.Errorf("%s", a.raw)
		}
	})
}

func TestGenSkippedStream(t *testing.T) { // scenario 5
	const body = `{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":8,"stream":true,"stream_options":{"include_usage":true}}`
	check := func(name string, c ctxReply, want ...string) {
		t.Run(name, func(t *testing.T) {
			r := one(t, c, genReply{})
			a := r.post(chats, body)
			if len(a.events) != len(want) || a.err != nil {
				t.Fatalf("events %q, %v", a.events, a.err)
			}
			for i, w := range want {
				if !strings.Contains(a.events[i], w) {
					t.Errorf("event %d is %s, want %s", i, a.events[i], w)
				}
				if w != "[DONE]" && !strings.Contains(a.events[i], `"id":"up-1","object":"chat.completion.chunk","created":7,"model":"tiny"`) {
					t.Errorf("event %d has another head: %s", i, a.events[i])
				}
			}
		})
	}
	usage := `"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6`
	check("no text", ctxReply{finish: "stop", text: "-"}, `"role":"assistant"`, `"finish_reason":"stop"`, usage, "[DONE]")
	check("text", ctxReply{finish: "stop"}, `"role":"assistant"`, `{"content":"A"}`, `"finish_reason":"stop"`, usage, "[DONE]")
}

// The calls of a message have no index, those of a delta must have one.
func TestGenSkippedStreamWithACall(t *testing.T) {
	reply := ctxReply{finish: "length"}
	c := newStub(t, discovery.Context, func(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
		call := `"content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{"}}]`
		_, _ = io.WriteString(w, strings.Replace(reply.body(q), `"content":"A"`, call, 1))
	})
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
	a := r.post(chats, `{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":1,"stream":true}`)
	want := `"delta":{"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{"},"index":0}]}`
	if len(a.events) != 4 || !strings.Contains(a.events[1], want) || !strings.Contains(a.events[2], `"finish_reason":"length"`) {
		t.Errorf("%q, %v", a.events, a.err)
	}
}

func TestLengthFromOlderWorker(t *testing.T) { // scenario 6
	r := one(t, ctxReply{finish: "length"}, genReply{})
	r.post(completions, `{"model":"tiny","prompt":"hello","max_tokens":8}`).wantOK(t, "ABC")
	if len(r.gen[0].requests()) != 1 {
		t.Error("gen was not asked")
	}
}

func TestEdge(t *testing.T) { // scenarios 7, 8, 9 and the bad inputs that only the frontend judges
	r := one(t, ctxReply{}, genReply{})
	bad := []struct{ name, path, body, want string }{
		{"two prompts", completions, `{"model":"tiny","prompt":["a","b"]}`, `"param":"prompt"`},
		{"empty list", completions, `{"model":"tiny","prompt":[]}`, `"param":"prompt"`},
		{"empty inner list", completions, `{"model":"tiny","prompt":[[]]}`, `"param":"prompt"`},
		{"internal params", completions, `{"model":"tiny","prompt":"x","disaggregated_params":{"request_type":"generation_only","ctx_info_endpoint":"tcp://evil:1"}}`, `"param":"disaggregated_params"`},
		{"internal params of a wrong type", completions, `{"model":"tiny","prompt":"x","disaggregated_params":{"request_type":3}}`, `"param":"disaggregated_params"`},
		{"internal params null", completions, `{"model":"tiny","prompt":"x","disaggregated_params":null}`, `"param":"disaggregated_params"`},
		{"n", completions, `{"model":"tiny","prompt":"x","n":2}`, `"param":"n"`},
		{"template", chats, `{"model":"tiny","messages":[{"role":"user","content":"x"}],"chat_template":"{{ 1 }}"}`, `"param":"chat_template"`},
		{"blank conversation", completions, `{"model":"tiny","prompt":"x","conversation_params":{"conversation_id":"  "}}`, "conversation_id"},
		{"extra conversation key", completions, `{"model":"tiny","prompt":"x","conversation_params":{"conversation_id":"x","subagent_affinity_id":"M"}}`, "conversation_params"},
		{"broken JSON", completions, `{"model":`, "JSON"},
		{"no messages", chats, `{"model":"tiny","messages":[]}`, "messages"},
	}
	for _, c := range bad {
		t.Run(c.name, func(t *testing.T) { r.post(c.path, c.body).wantError(t, 400, c.want) })
	}
	r.post(completions, `{"model":"other","prompt":"x"}`).wantError(t, 404, "model_not_found", "tiny")
	if n := len(r.ctx[0].requests()) + len(r.gen[0].requests()); n != 0 {
		t.Errorf("workers saw %d requests", n)
	}
	for _, prompt := range []string{`["a"]`, `[1,2,3]`, `[[1,2,3]]`} {
		r.post(completions, `{"model":"tiny","prompt":`+prompt+`}`).wantOK(t, "ABC")
	}
}

func TestUnknownFieldsAreRelayed(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	body := `{"model":"tiny","prompt":"hello","big":18446744073709551615,"temperature":0.10,"user":"u","zz":{"b":1,"a":[1.0]}}`
	a := r.post(completions, body, "X-Disagg-Affinity-Key", "M", "X-Request-ID", "mine")
	a.wantOK(t, "ABC")
	for _, q := range append(r.ctx[0].requests(), r.gen[0].requests()...) {
		if string(q.body["big"]) != "18446744073709551615" || string(q.body["temperature"]) != "0.10" || string(q.body["zz"]) != `{"b":1,"a":[1.0]}` {
			t.Errorf("changed on the way: %v", q.body)
		}
		if q.header.Get("X-Disagg-Affinity-Key") != "" || q.header.Get("X-Request-Id") != "mine" {
			t.Errorf("headers %v", q.header)
		}
	}
	if a.header.Get("X-Request-Id") != "mine" {
		t.Errorf("X-Request-ID %q", a.header.Get("X-Request-Id"))
	}
}

func TestMixedWorkerRunsAlone(t *testing.T) {
	m := newStub(t, discovery.Mixed, genReply{}.script)
	r := newRig(t, []*stub{m}, []*stub{m})
	a := r.post(completions, hello)
	a.wantOK(t, "ABC")
	q := m.requests()
	if len(q) != 1 || q[0].body["disaggregated_params"] != nil || a.header.Get("X-Disagg-Path") != "gen_only" || a.header.Get("X-Disagg-Ctx-Server") != "-" {
		t.Errorf("worker saw %+v, headers %v", q, a.header)
	}
	if a.body.Usage.Cached() != 5 {
		t.Errorf("a bypassed worker's own usage is right: %+v", a.body.Usage)
	}
}

// Two mixed workers share the legs if they can hand blocks over, else each takes whole requests.
func TestTwoMixedWorkersSplit(t *testing.T) {
	both := func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if q.params.RequestType == "context_only" {
			ctxReply{}.script(n, q, w, r)
			return
		}
		genReply{}.script(n, q, w, r)
	}
	for _, endpoint := range []string{"tcp://127.0.0.1:7", ""} {
		a, b := newStub(t, discovery.Mixed, both), newStub(t, discovery.Mixed, both)
		a.info.TransferEndpoint, b.info.TransferEndpoint = endpoint, endpoint
		r := newRig(t, []*stub{a, b}, []*stub{a, b})
		used := map[string]bool{}
		for range 4 {
			got := r.post(completions, hello)
			got.wantOK(t, "ABC")
			c, g := got.header.Get("X-Disagg-Ctx-Server"), got.header.Get("X-Disagg-Gen-Server")
			if used[g] = true; c == g || (c == "-") != (endpoint == "") {
				t.Errorf("legs at %s and %s, transfer endpoint %q", c, g, endpoint)
			}
		}
		if len(used) != 2 {
			t.Errorf("requests went to %v only", used)
		}
	}
}

func TestConversationIDs(t *testing.T) { // scenario 39
	r := one(t, ctxReply{}, genReply{})
	cases := []struct {
		body    string
		headers []string
		want    string
	}{
		{`{"model":"tiny","prompt":"x","conversation_params":{"conversation_id":"b1"}}`, []string{"X-Session-ID", "h1"}, `{"conversation_id":"b1"}`},
		{hello, []string{"X-Correlation-ID", "c1", "X-Session-ID", " "}, `{"conversation_id":"c1"}`},
		{hello, nil, ""},
	}
	for i, c := range cases {
		r.post(completions, c.body, c.headers...).wantOK(t, "ABC")
		for _, q := range []seen{r.ctx[0].requests()[i], r.gen[0].requests()[i]} {
			if got := string(q.body["conversation_params"]); got != c.want {
				t.Errorf("case %d: %s, want %s", i, got, c.want)
			}
		}
	}
}

func TestTokenRelayAsBytes(t *testing.T) {
	script := func(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
		body := strings.Replace(ctxReply{}.body(q), `"prompt_token_ids":[1,2,3,4,5]`, `"prompt_token_ids_b64":"AQAAAAIAAAADAAAAcBEBAA=="`, 1)
		_, _ = w.Write([]byte(body))
	}
	r := newRig(t, []*stub{newStub(t, discovery.Context, script)}, []*stub{newStub(t, discovery.Generation, genReply{}.script)},
		withConfig(func(c *Config) { c.PromptIDsAsBytes, c.StripMessageHistory = true, true }))
	r.post(chats, `{"model":"tiny","messages":[{"role":"system","content":"s"},{"role":"user","content":"last"}]}`).wantOK(t, "ABC")
	q := r.gen[0].requests()[0]
	if string(q.body["prompt_token_ids_b64"]) != `"AQAAAAIAAAADAAAAcBEBAA=="` || string(q.body["messages"]) != `[{"role":"user","content":"last"}]` {
		t.Errorf("gen saw %s", q.body)
	}
	var params map[string]json.RawMessage
	_ = json.Unmarshal(r.ctx[0].requests()[0].body["disaggregated_params"], &params)
	if string(params["return_prompt_token_ids_b64"]) != "true" {
		t.Errorf("ctx saw %s", params)
	}
}

// A frontend whose strict start waits for one worker more says so, though there are enough of each role.
func TestStartingSaysWhatIsMissing(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	r.s.mu.Lock()
	r.s.started = false
	r.s.mu.Unlock()
	r.post(completions, hello).wantError(t, http.StatusServiceUnavailable, "not all listed workers are ready yet")
}
