package disagg

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

const keyA, keyB = "key-of-alice-0123456789", "key-of-bob-0123456789"

func withKeys(edit func(*Config)) rigOption {
	return withConfig(func(c *Config) {
		c.APIKeys = []APIKey{{"alice", keyA, 1}, {"bob", keyB, 1}}
		if edit != nil {
			edit(c)
		}
	})
}

func bearer(key string) []string { return []string{"Authorization", "Bearer " + key} }

func TestOnlyHoldersOfAKeyGetIn(t *testing.T) {
	r := one(t, ctxReply{}, genReply{}, withKeys(nil))
	for name, headers := range map[string][]string{
		"none": nil, "another": bearer("key-of-carol-0123456789"), "a part": bearer(keyA[:20]), "more": bearer(keyA + "x"), "empty": bearer(""),
		"another scheme": {"Authorization", "Basic " + keyA}, "no scheme": {"Authorization", keyA}, "the name": bearer("alice"),
	} {
		a := r.post(completions, hello, headers...)
		a.wantError(t, 401, "invalid_api_key", "invalid_request_error")
		if a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %v", name, a.header)
		}
	}
	if len(r.ctx[0].requests()) != 0 {
		t.Error("a worker was asked")
	}
	r.post(completions, hello, bearer(keyA)...).wantOK(t, "ABC")
	r.post(completions, hello, "Authorization", "bearer  "+keyB).wantOK(t, "ABC")
	for _, q := range append(r.ctx[0].requests(), r.gen[0].requests()...) {
		if q.header.Get("Authorization") != "" || !strings.Contains("alice bob", q.header.Get(openai.HeaderTenant)) || q.header.Get(openai.HeaderTenant) == "" {
			t.Errorf("a worker got %v", q.header)
		}
	}
	if r.obs.count("api_key_requests_total alice") != 1 || r.obs.count("unauthorized_requests_total ") != 8 {
		t.Errorf("counted: %v", r.obs.seen)
	}
	for path, want := range map[string]int{
		"/health": 200, "/health/live": 200, "/health/ready": 200, "/version": 200, "/v1/models": 401, "/v1/models/tiny": 401,
		"/cluster_info": 401, "/perf_metrics": 401, "/v1/nothing": 401, "/nothing": 404,
	} {
		resp, err := http.Get(r.front.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

func TestTenantIsSignedAndSetsApart(t *testing.T) {
	secret := []byte("0123456789abcdef")
	r := one(t, ctxReply{}, genReply{}, withKeys(func(c *Config) { c.AuthKey = secret }))
	body := `{"model":"tiny","prompt":"hello","max_tokens":3,"cache_salt":"s","conversation_params":{"conversation_id":"c"}}`
	r.post(completions, body, bearer(keyA)...).wantOK(t, "ABC")
	q := r.ctx[0].requests()[0]
	id, conv := q.params.DisaggRequestID, "c"
	a := openai.Affinity{Role: openai.RoleContext, Model: "tiny", ConversationID: &conv, RequestType: openai.ContextOnly, DisaggID: &id}
	if !openai.Key(secret).VerifyAffinity(a, q.header.Get(openai.HeaderAffinityAuth)) {
		t.Errorf("headers %v", q.header)
	}
	if got := string(q.body["conversation_params"]); got != `{"conversation_id":"c"}` {
		t.Errorf("the id on the wire: %s", got)
	}
	if got := string(q.body["cache_salt"]); got != `"alice/s"` {
		t.Errorf("cache_salt: %s", got)
	}
	r.post(completions, `{"model":"tiny","prompt":"x","cache_salt":"`+strings.Repeat("s", openai.MaxCacheSalt)+`"}`, bearer(keyA)...).wantError(t, 400, "cache_salt")
}

// The caches of both workers are told how firmly to keep a request's blocks.
func TestRetentionGoesWithBothLegs(t *testing.T) {
	const keep = `{"token_range_retention_configs":[{"token_start":0,"priority":90,"duration_ms":5}],"decode_retention_priority":1}`
	r := one(t, ctxReply{}, genReply{})
	r.post(completions, `{"model":"tiny","prompt":"hello","max_tokens":3,"kv_cache_retention_config":`+keep+`}`).wantOK(t, "ABC")
	if a, b := r.ctx[0].requests(), r.gen[0].requests(); string(a[0].body["kv_cache_retention_config"]) != keep || string(b[0].body["kv_cache_retention_config"]) != keep {
		t.Errorf("ctx got %s, gen %s", a[0].body["kv_cache_retention_config"], b[0].body["kv_cache_retention_config"])
	}
	r.post(completions, `{"model":"tiny","prompt":"x","kv_cache_retention_config":{"decode_retention_priority":101}}`).wantError(t, 400, "kv_cache_retention_config.decode_retention_priority")
}

// Two tenants may use one conversation id: each has its own.
func TestTenantsDoNotShareConversations(t *testing.T) {
	var ctxs []*stub
	for range 2 {
		ctxs = append(ctxs, newStub(t, discovery.Context, ctxReply{}.script))
	}
	conv := router.NewConversation(router.Config{Type: router.KindConversation})
	r := newRig(t, ctxs, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withRouters(conv, router.NewRoundRobin()), withKeys(nil))
	for _, key := range []string{keyA, keyB, keyA, keyB} {
		r.post(completions, hello, append(bearer(key), "X-Session-Id", "same")...).wantOK(t, "ABC")
	}
	if n := conv.Stats().Sessions; n != 2 {
		t.Errorf("%d conversations", n)
	}
}

func TestNoKeyInLogs(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, []*stub{newStub(t, discovery.Context, refuse(500, "broken"))}, []*stub{newStub(t, discovery.Generation, genReply{}.script)},
		withKeys(nil), func(_ *rig, p *Parts) {
			p.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
	r.post(completions, hello, bearer(keyA)...).wantError(t, 502)
	r.front.Close()
	if text := log.String(); !strings.Contains(text, "key=alice") || strings.Contains(text, keyA) {
		t.Errorf("log: %s", text)
	}
}

func TestKeysAreChecked(t *testing.T) {
	for name, keys := range map[string][]APIKey{
		"no name": {{"", keyA, 1}}, "a bad name": {{"a/b", keyA, 1}}, "twice": {{"a", keyA, 1}, {"a", keyB, 1}}, "short": {{"a", "short", 1}},
		"the same key": {{"a", keyA, 1}, {"b", keyA, 1}}, "weight": {{"a", keyA, 0}}, "long name": {{strings.Repeat("a", 65), keyA, 1}},
	} {
		c := DefaultConfig()
		c.APIKeys = keys
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "api_keys[") || strings.Contains(err.Error(), keyA) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// holding is a cluster whose ctx worker holds every answer until it is released.
func holding(t *testing.T, edit func(*Config)) (r *rig, began <-chan seen, release chan<- struct{}) {
	start, end := make(chan seen, 16), make(chan struct{})
	c := newStub(t, discovery.Context, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		start <- q
		select {
		case <-end:
			ctxReply{}.script(n, q, w, r)
		case <-r.Context().Done():
		}
	})
	return newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withKeys(edit)), start, end
}

func (r *rig) waitQueued(n int) {
	for r.s.Snapshot().Queued != n {
		time.Sleep(100 * time.Microsecond) // looks again; nothing depends on how long it takes
	}
}

func TestPlacesAreShared(t *testing.T) {
	r, began, release := holding(t, func(c *Config) { c.MaxInflight, c.MaxQueued = 1, 3 })
	type end struct {
		name string
		a    answer
	}
	ends := make(chan end, 8)
	send := func(name, key, body string) {
		go func() { ends <- end{name, r.post(completions, body, bearer(key)...)} }()
	}
	send("a0", keyA, hello)
	<-began
	for i, name := range []string{"a1", "a2", "a3"} {
		send(name, keyA, hello)
		r.waitQueued(i + 1)
	}
	r.post(completions, hello, bearer(keyA)...).wantError(t, 429, "overloaded")
	send("b1", keyB, hello) // makes the last of alice's leave
	out := <-ends
	out.a.wantError(t, 429)
	if out.name != "a3" || out.a.header.Get("Retry-After") != "1" {
		t.Errorf("%s was pushed out, %v", out.name, out.a.header)
	}
	release <- struct{}{}
	if first := <-ends; first.name != "a0" {
		t.Errorf("%s ended first", first.name)
	}
	if q := <-began; q.header.Get(openai.HeaderTenant) != "bob" {
		t.Errorf("%s is next", q.header.Get(openai.HeaderTenant))
	}
	for range 2 {
		release <- struct{}{}
		<-began
	}
	release <- struct{}{}
	for range 3 {
		(<-ends).a.wantOK(t, "ABC")
	}
	if r.obs.count("queue_refused_total full") != 1 || r.obs.count("queue_refused_total displaced") != 1 {
		t.Errorf("counted: %v", r.obs.seen)
	}
}

func TestWaitersEnd(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		r, began, release := holding(t, func(c *Config) { c.MaxInflight, c.MaxQueued, c.QueueTimeout = 1, 3, 20*time.Millisecond })
		done := make(chan answer)
		go func() { done <- r.post(completions, hello, bearer(keyA)...) }()
		<-began
		a := r.post(completions, hello, bearer(keyA)...)
		a.wantError(t, 503, "no place")
		if a.header.Get("Retry-After") == "" || len(r.ctx[0].requests()) != 1 {
			t.Errorf("%v; ctx saw %d", a.header, len(r.ctx[0].requests()))
		}
		release <- struct{}{}
		<-done
	})
	t.Run("client left", func(t *testing.T) {
		r, began, release := holding(t, func(c *Config) { c.MaxInflight, c.MaxQueued = 1, 3 })
		done := make(chan answer)
		go func() { done <- r.post(completions, hello, bearer(keyA)...) }()
		<-began
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan answer)
		go func() { gone <- r.postCtx(ctx, completions, hello, bearer(keyB)...) }()
		r.waitQueued(1)
		leave()
		<-gone
		r.waitQueued(0)
		release <- struct{}{}
		(<-done).wantOK(t, "ABC")
		if len(r.ctx[0].requests()) != 1 {
			t.Error("the one who left got a prefill")
		}
	})
	t.Run("shutdown", func(t *testing.T) {
		r, began, _ := holding(t, func(c *Config) { c.MaxInflight, c.MaxQueued = 1, 3 })
		ends := make(chan answer, 2)
		go func() { ends <- r.post(completions, hello, bearer(keyA)...) }()
		<-began
		go func() { ends <- r.post(completions, hello, bearer(keyA)...) }()
		r.waitQueued(1)
		now, cancel := context.WithCancel(t.Context())
		cancel()
		r.s.Drain(now)
		for range 2 {
			(<-ends).wantError(t, 503)
		}
		<-r.ctx[0].aborts
	})
}
