package disagg

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

func TestPairing(t *testing.T) { // scenario 33
	good, other := newStub(t, discovery.Generation, genReply{}.script), newStub(t, discovery.Generation, genReply{}.script)
	other.info.Fingerprint = "another"
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{other, good})
	for range 3 {
		r.post(completions, hello).wantOK(t, "ABC")
	}
	if len(other.requests()) != 0 {
		t.Error("an unpairable worker was chosen")
	}
	a := r.get("/cluster_info")
	var info struct {
		Ready    bool `json:"is_ready"`
		Warnings []discovery.Warning
		Workers  map[string][]discovery.WorkerStatus `json:"current_workers"`
		Routers  map[string]map[string]string        `json:"routers"`
		Lists    map[string][]string                 `json:"server_lists"`
		Minimal  map[string]int                      `json:"minimal_instances"`
	}
	if err := json.Unmarshal([]byte(a.raw), &info); err != nil {
		t.Fatal(err)
	}
	if !info.Ready || len(info.Warnings) != 1 || info.Warnings[0].Code != discovery.WarnPairing || !strings.Contains(info.Warnings[0].Message, other.id) {
		t.Errorf("%s", a.raw)
	}
	if len(info.Workers["generation_servers"]) != 2 || info.Routers["context"]["type"] != "round_robin" || len(info.Lists["generation"]) != 2 || info.Minimal["context_servers"] != 1 {
		t.Errorf("%s", a.raw)
	}
}

func TestRoundRobinOverWorkers(t *testing.T) { // scenario 36
	c0, c1 := newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Context, ctxReply{}.script)
	r := newRig(t, []*stub{c0, c1}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
	for i, want := range []*stub{c0, c1, c0, c1} {
		if got := r.post(completions, hello).header.Get("X-Disagg-Ctx-Server"); got != want.id {
			t.Errorf("request %d at %s", i, got)
		}
	}
}

func TestConversationSticks(t *testing.T) { // scenario 38
	conv := func() router.Router { return router.NewConversation(router.Config{Type: router.KindConversation}) }
	c0, c1 := newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Context, ctxReply{}.script)
	g := newStub(t, discovery.Generation, genReply{}.script)
	r := newRig(t, []*stub{c0, c1}, []*stub{g}, withRouters(conv(), conv()))
	at := func(session string) string {
		a := r.post(completions, hello, "X-Session-ID", session)
		a.wantOK(t, "ABC")
		return a.header.Get("X-Disagg-Ctx-Server")
	}
	for range 3 {
		if a, b := at("s1"), at("s2"); a != c0.id || b != c1.id {
			t.Errorf("s1 at %s, s2 at %s", a, b)
		}
	}
	down := r.reg.Down(c0.id)
	c0.Close()
	r.reg.LegEnded(c0.id, false)
	<-down
	if a, b := at("s1"), at("s1"); a != c1.id || b != c1.id {
		t.Errorf("after the loss: %s, %s", a, b)
	}
}

func TestStatusRoutes(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	cases := []struct {
		path, body string
		status     int
	}{
		{"/health", "", 200},
		{"/health/live", "", 200},
		{"/health/ready", `"ready":true`, 200},
		{"/version", `{"version":"0.0.0-dev"}`, 200},
		{"/v1/models", `"id":"tiny"`, 200},
		{"/v1/models/tiny", `"id":"tiny"`, 200},
		{"/v1/models/none", `model_not_found`, 404},
		{"/nowhere", `not_found`, 404},
		{completions, `method_not_allowed`, 405},
	}
	for _, c := range cases {
		if a := r.get(c.path); a.status != c.status || !strings.Contains(a.raw, c.body) || (c.path == "/health") != (a.raw == "" && c.path == "/health") {
			t.Errorf("%s: %d %q", c.path, a.status, a.raw)
		}
	}
	r.post(completions, `{"prompt":"`+strings.Repeat("x", 9<<20)+`"}`).wantError(t, 413, "request_too_large")
}

func TestNotStarted(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	r.s.mu.Lock()
	r.s.started = false
	r.s.mu.Unlock()
	a := r.post(completions, hello)
	a.wantError(t, 503, "starting")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", a.header)
	}
	if h := r.get("/health/ready"); h.status != 503 || !strings.Contains(h.raw, `"ready":false`) {
		t.Errorf("%d %s", h.status, h.raw)
	}
}

func TestIDs(t *testing.T) {
	ms := time.Duration(41_000_000_000) * time.Millisecond
	if got := composeID(ms.Milliseconds(), NewIDs(2, 3, nil).fixed, 4); got != 687865856000134148 {
		t.Errorf("example: %d", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		now := idEpoch.Add(time.Hour)
		g := NewIDs(255, 63, func() time.Time { return now })
		last := int64(0)
		for range rapid.IntRange(1, 3000).Draw(t, "n") {
			if rapid.IntRange(0, 99).Draw(t, "move") == 0 {
				now = now.Add(time.Duration(rapid.IntRange(-5000, 5000).Draw(t, "by")) * time.Millisecond)
			}
			id := g.Next()
			if id <= last || id < 1<<40 {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
		}
	})
}

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for key, edit := range map[string]func(*Config){
		"node_id":                   func(c *Config) { c.NodeID = 256 },
		"max_retries":               func(c *Config) { c.MaxRetries = 11 },
		"request_timeout_sec":       func(c *Config) { c.RequestTimeout = 0 },
		"admission_timeout_sec":     func(c *Config) { c.AdmissionTimeout = c.HandoffLease },
		"max_inflight_requests":     func(c *Config) { c.MaxInflight = -1 },
		"internal_request_auth_key": func(c *Config) { c.AuthKey = []byte("short") },
	} {
		c := DefaultConfig()
		edit(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func FuzzCtxReply(f *testing.F) {
	f.Add([]byte(ctxReply{}.body(seen{})))
	f.Add([]byte(`{"choices":[{"message":{"tool_calls":[1]},"first_delta":{}}],"usage":null}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		h, err := parseCtxReply(data)
		if err != nil {
			return
		}
		_ = h.verify(1, true)
		_ = h.skipsGen(nil, 10)
		_, _ = deltaOf(&h.choices[0])
		_ = h.showsEarly()
		body := h.body.Clone()
		_ = stripInternal(&body, false)
		_, _, _ = rewriteUsage(&body, &h.usage)
	})
}
