package disagg

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"tandem/serve/discovery"
)

func refuse(status int, message string) func(int, seen, http.ResponseWriter, *http.Request) {
	return func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":{"message":"`+message+`","type":"t","code":"c"}}`)
	}
}

func cut(int, seen, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestClientErrorPasses(t *testing.T) { // scenario 20
	c := newStub(t, discovery.Context, refuse(400, "context length exceeded"))
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
	a := r.post(completions, hello)
	a.wantError(t, 400)
	if a.body.Error.Message != "context length exceeded" || a.body.Error.Type != "t" || len(c.requests()) != 1 {
		t.Errorf("%s, ctx saw %d", a.raw, len(c.requests()))
	}
}

func TestStatusMapping(t *testing.T) {
	cases := []struct {
		name        string
		worker      int
		status      int
		kind, extra string
	}{
		{"bad request", 422, 422, "t", ""},
		{"wrong signature", 401, 502, "internal_auth_error", ""},
		{"forbidden", 403, 502, "internal_auth_error", ""},
		{"busy", 429, 429, "overloaded", "1"},
		{"broken", 500, 502, "upstream_error", ""},
		{"no capacity", 503, 503, "t", "1"},
		{"late", 504, 504, "t", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, []*stub{newStub(t, discovery.Context, refuse(c.worker, "at tcp://10.0.0.1:5000"))},
				[]*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(func(c *Config) { c.ExposeRouting = false }))
			a := r.post(completions, hello)
			a.wantError(t, c.status)
			if a.body.Error.Type != c.kind || a.header.Get("Retry-After") != c.extra || strings.Contains(a.raw, "10.0.0.1") {
				t.Errorf("%s, Retry-After %q", a.raw, a.header.Get("Retry-After"))
			}
			for name := range a.header {
				if strings.HasPrefix(name, "X-Disagg-") && name != "X-Disagg-Request-Id" {
					t.Errorf("header %s without expose_routing_headers", name)
				}
			}
		})
	}
}

func TestTransientRace(t *testing.T) { // scenario 21
	c := newStub(t, discovery.Context, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if n == 0 {
			cut(n, q, w, r)
		}
		ctxReply{}.script(n, q, w, r)
	})
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
	r.post(completions, hello).wantOK(t, "ABC")
	q := c.requests()
	if len(q) != 2 || q[0].params.DisaggRequestID == q[1].params.DisaggRequestID {
		t.Fatalf("ctx saw %+v", q)
	}
	if got := r.gen[0].requests()[0].params.DisaggRequestID; got != q[1].params.DisaggRequestID {
		t.Errorf("gen used %d", got)
	}
	if id := <-c.aborts; id != q[0].params.DisaggRequestID {
		t.Errorf("aborted %d", id)
	}
	if r.obs.count("retry_requests context") != 1 {
		t.Errorf("retries counted: %v", r.obs.seen)
	}
}

func TestRefusedConnectionGoesElsewhere(t *testing.T) { // scenario 22
	dead, alive := newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Context, ctxReply{}.script)
	r := newRig(t, []*stub{dead, alive}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
	dead.Close()
	a := r.post(completions, hello)
	a.wantOK(t, "ABC")
	if a.header.Get("X-Disagg-Ctx-Server") != alive.id {
		t.Errorf("headers %v", a.header)
	}
}

func TestGenDiesMidStream(t *testing.T) { // scenario 23
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		stream(w, chunkText("A"))
		panic(http.ErrAbortHandler)
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g})
	a := r.post(completions, streamed)
	if len(a.events) != 2 || !strings.Contains(a.events[0], `"A"`) || !strings.HasPrefix(a.events[1], `{"error"`) || a.err == nil || len(g.requests()) != 1 {
		t.Errorf("events %q, ended with %v, %d gen requests", a.events, a.err, len(g.requests()))
	}
}

func TestGenEndsWithoutDone(t *testing.T) {
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) { stream(w, chunkText("A")) })
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g})
	a := r.post(completions, streamed)
	if len(a.events) != 2 || !strings.HasPrefix(a.events[1], `{"error"`) || a.err == nil {
		t.Errorf("events %q, ended with %v", a.events, a.err)
	}
}

func TestErrorEventFromGen(t *testing.T) {
	fail := `{"error":{"message":"step failed","type":"internal_error","code":"step_failed"}}`
	t.Run("before anything", func(t *testing.T) {
		bad := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) { stream(w, fail) })
		r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{bad, newStub(t, discovery.Generation, genReply{}.script)})
		if a := r.post(completions, streamed); a.events[len(a.events)-1] != "[DONE]" {
			t.Errorf("another gen worker serves it: %q", a.events)
		}
	})
	t.Run("after an event", func(t *testing.T) {
		bad := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) { stream(w, chunkText("A"), fail) })
		r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{bad})
		a := r.post(completions, streamed)
		if len(a.events) != 2 || !strings.Contains(a.events[1], "step failed") || !strings.Contains(a.events[1], "step_failed") || a.err == nil {
			t.Errorf("%q, %v", a.events, a.err)
		}
	})
}

func TestGenRefusesAdmission(t *testing.T) { // scenario 24
	g0, g1 := newStub(t, discovery.Generation, refuse(503, "queue full")), newStub(t, discovery.Generation, genReply{}.script)
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g0, g1})
	r.post(completions, hello).wantOK(t, "ABC")
	if len(r.ctx[0].requests()) != 1 || len(g1.requests()) != 1 || g1.requests()[0].params.DisaggRequestID != r.ctx[0].requests()[0].params.DisaggRequestID {
		t.Error("one ctx request, and the second gen worker gets its id")
	}
}

func TestBusyGenIsOfferedOnce(t *testing.T) {
	var gens []*stub
	for range 3 {
		gens = append(gens, newStub(t, discovery.Generation, refuse(429, "full")))
	}
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, gens)
	r.post(completions, hello).wantError(t, 429)
	if n := len(gens[0].requests()) + len(gens[1].requests()) + len(gens[2].requests()); n != 2 {
		t.Errorf("%d offers", n)
	}
	if id := <-r.ctx[0].aborts; id != r.ctx[0].requests()[0].params.DisaggRequestID {
		t.Errorf("ctx abort for %d", id)
	}
}

func TestNoGenNoPrefill(t *testing.T) { // scenario 25
	g0, g1 := newStub(t, discovery.Generation, genReply{}.script), newStub(t, discovery.Generation, genReply{}.script)
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g0, g1})
	for _, g := range []*stub{g0, g1} {
		down := r.reg.Down(g.id)
		g.Close()
		r.reg.LegEnded(g.id, false)
		<-down
	}
	a := r.post(completions, hello)
	a.wantError(t, 503, "service_unavailable")
	if a.header.Get("Retry-After") != "1" || len(r.ctx[0].requests()) != 0 {
		t.Errorf("headers %v, ctx saw %d", a.header, len(r.ctx[0].requests()))
	}
}

func TestConsumedHandoffRestartsOnce(t *testing.T) {
	gone := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(502)
		_, _ = io.WriteString(w, `{"error":{"message":"gone","code":"unknown_transfer"}}`)
	}
	g := newStub(t, discovery.Generation, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if n == 0 {
			gone(n, q, w, r)
			return
		}
		genReply{}.script(n, q, w, r)
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g})
	r.post(completions, hello).wantOK(t, "ABC")
	if len(r.ctx[0].requests()) != 2 || len(g.requests()) != 2 {
		t.Errorf("ctx %d, gen %d", len(r.ctx[0].requests()), len(g.requests()))
	}
	always := newStub(t, discovery.Generation, gone)
	r = newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{always})
	r.post(completions, hello).wantError(t, 502, "unknown_transfer")
	if len(always.requests()) != 2 {
		t.Errorf("gen saw %d", len(always.requests()))
	}
}

func TestMalformedCtxReplies(t *testing.T) {
	text := func(s string) func(int, seen, http.ResponseWriter, *http.Request) {
		return func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
	}
	cases := []struct {
		name   string
		script func(int, seen, http.ResponseWriter, *http.Request)
		want   string
	}{
		{"no JSON", text("hello"), "JSON"},
		{"no choices", text(`{"choices":[]}`), "0 choices"},
		{"no params", text(`{"choices":[{"finish_reason":"not_finished"}]}`), "disaggregated_params"},
		{"no ids", text(`{"choices":[{"finish_reason":"not_finished","disaggregated_params":{"first_gen_tokens":[1]}}]}`), "ctx_request_id null"},
		{"no token", text(`{"choices":[{"finish_reason":"not_finished","disaggregated_params":{"ctx_request_id":7,"disagg_request_id":7}}]}`), "0 first_gen_tokens"},
		{"no prompt ids", ctxReply{noTokens: true}.script, "prompt_token_ids"},
		{"a stream", func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) { stream(w, "{}", "[DONE]") }, "stream"},
		{"error finish", ctxReply{finish: "error"}.script, "prefill failed"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, []*stub{newStub(t, discovery.Context, c.script)}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
			r.post(completions, hello).wantError(t, 502, c.want)
			<-r.ctx[0].aborts
			if len(r.gen[0].requests()) != 0 {
				t.Error("gen was asked")
			}
		})
	}
}

func TestNoRetry(t *testing.T) {
	c := newStub(t, discovery.Context, cut)
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(func(c *Config) { c.NoRetry = true }))
	r.post(completions, hello).wantError(t, 502, "upstream_error")
	if len(c.requests()) != 1 {
		t.Errorf("ctx saw %d", len(c.requests()))
	}
}

func TestRacesEndAfterFiveAttempts(t *testing.T) {
	c := newStub(t, discovery.Context, cut)
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
	r.post(completions, hello).wantError(t, 502)
	if n := len(c.requests()); n > raceAttempts || n < 2 {
		t.Errorf("%d attempts", n)
	}
}

func TestLegErrorText(t *testing.T) {
	e := &legError{role: discovery.Generation, id: 7, err: upstream("broken")}
	if got := e.Error(); got != "generation leg 7: broken" {
		t.Errorf("%q", got)
	}
	e.cause = io.EOF
	if got := e.Error(); got != "generation leg 7: broken: EOF" {
		t.Errorf("%q", got)
	}
}
