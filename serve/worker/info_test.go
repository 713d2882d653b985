package worker

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/serve/discovery"
	"tandem/serve/openai"
)

func TestServerInfo(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Ctx, ""), func(c *Config) { c.AdminAddr = "127.0.0.1:1" })
	_, _, text := get(t, srv.URL+"/server_info")
	info := decode[discovery.ServerInfo](t, text)
	if info.Role != "context" || info.Model != "tiny" || info.TokensPerBlock != 16 || info.HashAlgo != "tandem-kv1" || info.ADPSize != 1 ||
		info.Layout.Layers != 2 || info.AdminAddr != "127.0.0.1:1" || info.MaxBatchSize != 4 || string(info.Disagg) != `{"ctx_info_endpoint":"tcp://127.0.0.1:9","encoded_opaque_state":"dGVtcGxhdGU="}` {
		t.Errorf("%s", text)
	}
	members := decode[map[string]json.RawMessage](t, text)
	for _, name := range []string{
		"role", "model", "model_fingerprint", "incarnation", "tokens_per_block", "kv_cache_hash_algo", "kv_layout",
		"max_batch_size", "max_num_tokens", "max_seq_len", "adp_size", "adp_conversation_affinity", "kv_events", "disaggregated_params",
		"kv_cache_namespace", "loras", "fork", "resume", "bodies", "admin_addr", "transfer_endpoint",
	} {
		if _, ok := members[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestHealth(t *testing.T) {
	e := newEngine(executor.Mixed, "")
	cfg := Config{}
	s := New(cfg)
	srv := newServer(t, s)
	check := func(want int, state string) {
		t.Helper()
		for _, path := range []string{"/health", "/health/ready"} {
			status, _, text := get(t, srv.URL+path)
			if h := decode[discovery.Health](t, text); status != want || h.Status != state {
				t.Errorf("%s: %d %s, want %d %s", path, status, text, want, state)
			}
		}
		if status, _, _ := get(t, srv.URL+"/health/live"); status != 200 {
			t.Errorf("live: %d", status)
		}
	}
	check(503, "loading")
	if status, h, _ := post(t, srv.URL+"/v1/completions", `{"prompt":"x"}`); status != 503 || h.Get("Retry-After") == "" {
		t.Errorf("a loading worker answered %d", status)
	}
	s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t)})
	for health, want := range map[runner.Health]int{
		runner.HealthOK: 200, runner.HealthIdle: 200, runner.HealthStalled: 503, runner.HealthDraining: 503, runner.HealthDead: 503,
	} {
		e.health = health
		check(want, string(health))
	}
	e.health = runner.HealthOK
	_, _, text := get(t, srv.URL+"/health")
	if h := decode[discovery.Health](t, text); h.RequestsActive != 3 || h.LastStepAgeMs != 1.5 || h.KVBlocksFree != 4 {
		t.Errorf("%s", text)
	}
	s.Drain()
	check(503, "draining")
	if status, _, _ := post(t, srv.URL+"/v1/completions", `{"prompt":"x"}`); status != 503 {
		t.Errorf("a draining worker answered %d", status)
	}
}

func TestModelsAndVersion(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Mixed, ""), func(c *Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("m 1\n")) })
	})
	for path, want := range map[string]string{
		"/v1/models": `"id":"tiny"`, "/v1/models/tiny": `"object":"model"`, "/version": `{"version":"1.2.3"}`,
		"/metrics": "m 1", "/prometheus/metrics": "m 1",
	} {
		if status, _, text := get(t, srv.URL+path); status != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, _, text := get(t, srv.URL+"/v1/models/org/other"); status != 404 || wireErr(t, status, text).Code != openai.CodeModelNotFound {
		t.Errorf("%d %s", status, text)
	}
}

func TestCacheStats(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Mixed, ""), nil)
	_, _, text := get(t, srv.URL+"/kv_cache_stats")
	want := `{"blocks_total":15,"blocks_free":1,"blocks_active":2,"blocks_reusable":3,"blocks_pinned_for_handoff":4,"blocks_receiving":5,` +
		`"handoffs_open":6,"transfers_in_flight":7,"requests_active":8,"requests_waiting":9`
	if got := strings.TrimSpace(text); got != want+`,"ranks":[`+want+`}]}` {
		t.Errorf("%s", got)
	}
}

func TestCacheStatsOfRanks(t *testing.T) {
	e := newEngine(executor.Mixed, "")
	e.ranks = []runner.RankStats{
		{Stats: executor.Stats{BlocksTotal: 5, BlocksFree: 5, Waiting: 2}},
		{Stats: executor.Stats{BlocksTotal: 10, BlocksFree: 3, BlocksActive: 7, Waiting: 7, Running: 8}},
	}
	srv := serveFake(t, e, nil)
	_, _, text := get(t, srv.URL+"/kv_cache_stats")
	got := decode[cacheStatsBody](t, text)
	if len(got.Ranks) != 2 || got.Ranks[1].BlocksActive != 7 || got.Ranks[0].Waiting != 2 || got.BlocksTotal != 15 || got.Waiting != 9 {
		t.Errorf("%s", text)
	}
}

// A process without rank 0 shows its state and refuses everything else, also
// while it loads, so that nobody takes it for the instance.
func TestRemoteRanks(t *testing.T) {
	s := New(Config{Version: "1", Ranks: "2-3", Remote: true, Metrics: http.NotFoundHandler()})
	srv := newServer(t, s)
	refused := func() {
		t.Helper()
		for _, path := range []string{"/v1/models", "/kv_cache_stats", "/nothing"} {
			if status, _, text := get(t, srv.URL+path); status != 404 || !strings.Contains(text, "computes ranks 2-3 of an instance") {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/disagg/abort"} {
			if status, _, text := post(t, srv.URL+path, `{"prompt":"x"}`); status != 404 || !strings.Contains(text, "rank 0") {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
	}
	refused()
	s.Attach(Backend{Engine: newEngine(executor.Gen, "")})
	refused()
	for _, path := range []string{"/health", "/health/ready", "/health/live", "/version"} {
		if status, _, text := get(t, srv.URL+path); status != 200 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	_, _, text := get(t, srv.URL+"/server_info")
	if info := decode[discovery.ServerInfo](t, text); info.Ranks != "2-3" || !info.Remote || info.Role != "generation" {
		t.Errorf("%s", text)
	}
}

func TestServerInfoOfRanks(t *testing.T) {
	e := newEngine(executor.Gen, "")
	e.info.Ranks, e.info.Conversations, e.info.Router = 4, true, "conversation_aware"
	srv := serveFake(t, e, nil)
	_, _, text := get(t, srv.URL+"/server_info")
	info := decode[discovery.ServerInfo](t, text)
	if info.ADPSize != 4 || !info.ADPConversation || info.ADPRouter != "conversation_aware" || info.Layout.TP != 1 || info.Remote {
		t.Errorf("%s", text)
	}
}

func TestAbort(t *testing.T) {
	e := newEngine(executor.Mixed, "")
	e.abort = executor.AbortSettling
	srv := serveFake(t, e, nil)
	for body, want := range map[string]string{
		`{"disagg_request_id":687865856000134148,"reason":"client left"}`: `{"state":"settling"}`,
		`{"disagg_request_id":5}`: `{"state":"settling"}`,
	} {
		if status, _, text := post(t, srv.URL+"/disagg/abort", body); status != 200 || strings.TrimSpace(text) != want {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	exact := false
	for _, id := range e.aborted {
		exact = exact || id == 687865856000134148
	}
	if !exact {
		t.Errorf("ids %v went through a float", e.aborted)
	}
	for _, body := range []string{``, `{}`, `{"disagg_request_id":"5"}`, `{"disagg_request_id":1.5}`, `{"disagg_request_id":0}`, `{"disagg_request_id":null}`, `[]`} {
		if status, _, text := post(t, srv.URL+"/disagg/abort", body); status != 400 {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
}

func TestAbortIsSigned(t *testing.T) {
	key := openai.Key("0123456789abcdef")
	e := newEngine(executor.Mixed, "")
	srv := serveFake(t, e, func(c *Config) { c.Key = key })
	const body = `{"disagg_request_id":5}`
	for name, got := range map[string]string{"none": "", "of another id": key.SignAbort(6), "of another key": openai.Key("another").SignAbort(5)} {
		if status, _, text := post(t, srv.URL+"/disagg/abort", body, openai.HeaderAuth, got); status != 401 || len(e.aborted) > 0 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, _, text := post(t, srv.URL+"/disagg/abort", body, openai.HeaderAuth, key.SignAbort(5)); status != 200 || len(e.aborted) != 1 {
		t.Errorf("%d %s", status, text)
	}
}

func TestAbortWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(executor.Ctx, "")
		e.busy = true
		s := New(Config{})
		s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t)})
		rec := httptest.NewRecorder()
		start := time.Now()
		s.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/disagg/abort", strings.NewReader(`{"disagg_request_id":5}`)))
		if rec.Code != 200 || !strings.Contains(rec.Body.String(), "settling") || time.Since(start) != abortWait {
			t.Errorf("%d %s after %v", rec.Code, rec.Body, time.Since(start))
		}
	})
}

func TestSteadyClock(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Mixed, ""), nil)
	_, _, text := get(t, srv.URL+"/steady_clock_offset")
	got := decode[map[string]float64](t, text)
	if got["receive_ts"] < 0 || got["transmit_ts"] < got["receive_ts"] {
		t.Errorf("%s", text)
	}
	if status, _, text := post(t, srv.URL+"/steady_clock_offset", `{"offset":-1.25}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	_, _, text = get(t, srv.URL+"/steady_clock_offset")
	if got := decode[map[string]float64](t, text); got["offset"] != -1.25 || got["receive_ts"] < 0 {
		t.Errorf("%s", text)
	}
	if status, _, _ := post(t, srv.URL+"/steady_clock_offset", `{}`); status != 400 {
		t.Errorf("no offset: %d", status)
	}
}
