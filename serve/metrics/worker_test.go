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
	m := NewWorker(reg, func() (runner.Stats, runner.Info, bool) {
		return runner.Stats{
			LastStepAge: 1500 * time.Millisecond,
			Timings:     runner.Timings{Sched: runner.Timing{Count: 3, Sum: time.Millisecond, Counts: [24]uint64{1, 1, 0, 1}}},
			Stats:       executor.Stats{HoldAges: [executor.NumHolds]time.Duration{0, 2 * time.Second}, ErrorBudget: 9.5, Iter: 7, PrefillTokens: 11, DecodeTokens: 5, BlocksFree: 3, BlocksLeased: 2, HandoffsOpen: 1, LeasesExpired: 4},
		}, runner.Info{}, loaded
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
	if text := scrape(); strings.Contains(text, "tandem_adp_") {
		t.Errorf("an engine of one rank has ranks:\n%s", text)
	}
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
		`tandem_hold_age_seconds{kind="lease"} 2`, `tandem_hold_age_seconds{kind="step"} 0`, "tandem_error_budget 9.5", "tandem_ready 0",
		"tandem_sched_seconds_count 3", `tandem_sched_seconds_bucket{le="4e-06"} 2`, `tandem_sched_seconds_bucket{le="1.6e-05"} 3`, "tandem_device_gap_seconds_count 0",
		"# TYPE tandem_iterations_total counter", "# TYPE tandem_free_blocks gauge", "go_goroutines",
	} {
		if !strings.Contains(text, want+"\n") && !strings.Contains(text, want+" ") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestRankMetrics(t *testing.T) {
	reg := NewRegistry()
	ranks := []runner.RankStats{
		{Active: 6, QueuedWork: 700, Steps: 9, Padded: 2, Held: 1, Placed: map[string]uint64{"sticky": 4, "overflow": 1}},
		{Active: 0, Steps: 9, Padded: 7, Placed: map[string]uint64{"new": 3}, Stats: executor.Stats{
			BlocksFree: 1, BlocksActive: 2, BlocksReusable: 3, BlocksLeased: 4, BlocksReceiving: 5,
		}},
	}
	NewWorker(reg, func() (runner.Stats, runner.Info, bool) {
		return runner.Stats{Ranks: ranks, Queued: 5, Stats: executor.Stats{Waiting: 7}}, runner.Info{Router: "conversation_aware"}, true
	})
	scrape := func() string {
		rec := httptest.NewRecorder()
		Handler(reg).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		return rec.Body.String()
	}
	text := scrape()
	for _, want := range []string{
		`tandem_adp_rank_active{rank="0"} 6`, `tandem_adp_rank_active{rank="1"} 0`, `tandem_adp_rank_queued_tokens{rank="0"} 700`,
		`tandem_adp_steps_total{rank="1"} 9`, `tandem_adp_dummy_steps_total{rank="1"} 7`, `tandem_adp_held_total{rank="0"} 1`,
		`tandem_adp_routed_total{rank="0",reason="sticky"} 4`, `tandem_adp_routed_total{rank="0",reason="overflow"} 1`,
		`tandem_adp_routed_total{rank="1",reason="new"} 3`,
		`tandem_adp_rank_blocks{rank="1",state="free"} 1`, `tandem_adp_rank_blocks{rank="1",state="active"} 2`,
		`tandem_adp_rank_blocks{rank="1",state="cached"} 3`, `tandem_adp_rank_blocks{rank="1",state="leased"} 4`,
		`tandem_adp_rank_blocks{rank="1",state="receiving"} 5`,
		"tandem_adp_skew 2", "tandem_adp_queue_waiting 5", "tandem_waiting 7", `tandem_adp_router_info{router="conversation_aware"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	ranks[0].Active = 0
	if !strings.Contains(scrape(), "tandem_adp_skew 1\n") {
		t.Error("idle ranks are uneven")
	}
}
