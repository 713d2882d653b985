package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/serve/worker"
)

func TestWorkerMetrics(t *testing.T) {
	reg := NewRegistry()
	loaded := false
	m := NewWorker(reg, func() (runner.Stats, bool) {
		return runner.Stats{
			LastStepAge: 1500 * time.Millisecond,
			Stats:       executor.Stats{Iter: 7, PrefillTokens: 11, DecodeTokens: 5, BlocksFree: 3, BlocksLeased: 2, HandoffsOpen: 1, LeasesExpired: 4},
		}, loaded
	})
	scrape := func() string {
		rec := httptest.NewRecorder()
		Handler(reg).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		if rec.Code != 200 {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		return rec.Body.String()
	}
	if strings.Contains(scrape(), "tandem_iterations_total") {
		t.Error("an engine that is not there has metrics")
	}
	loaded = true
	m.FirstToken(20 * time.Millisecond)
	m.Gap(30*time.Millisecond, 3)
	m.Done(worker.Observation{Endpoint: "chat", Kind: "full", Stream: true, Status: 200, Finish: "stop", Elapsed: time.Second, Prompt: 10, Output: 4, Cached: 6})
	m.Done(worker.Observation{Endpoint: "completions", Kind: "refused", Status: 400, Elapsed: time.Second, Prompt: 99, Output: 99, Cached: 99})
	text := scrape()
	for _, want := range []string{
		"tandem_iterations_total 7", `tandem_batch_tokens_total{kind="prefill"} 11`, `tandem_batch_tokens_total{kind="decode"} 5`,
		"tandem_free_blocks 3", "tandem_leased_blocks 2", "tandem_handoffs_open 1", "tandem_lease_expired_total 4", "tandem_last_step_age_seconds 1.5",
		"tandem_time_to_first_token_seconds_sum 0.02", "tandem_inter_token_latency_seconds_sum 0.01", `tandem_request_seconds_count{kind="full"} 1`,
		`tandem_requests_total{endpoint="chat",kind="full",status="200",stream="true"} 1`,
		`tandem_requests_total{endpoint="completions",kind="refused",status="400",stream="false"} 1`,
		"tandem_prompt_tokens_total 10", "tandem_cached_tokens_total 6", "tandem_completion_tokens_total 4",
		"# TYPE tandem_iterations_total counter", "# TYPE tandem_free_blocks gauge", "go_goroutines",
	} {
		if !strings.Contains(text, want+"\n") && !strings.Contains(text, want+" ") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
