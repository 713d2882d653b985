package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tandem/serve/disagg"
	"tandem/serve/router"
)

func TestFrontendMetrics(t *testing.T) {
	reg := NewRegistry()
	up := false
	m := NewFrontend(reg, func() (disagg.Snapshot, bool) {
		return disagg.Snapshot{
			Inflight: 2, Handoffs: 1, Ready: true,
			Routers: map[string]disagg.RouterState{disagg.RoleContext: {
				Kind: "conversation", Stats: router.Stats{Open: 3, Sessions: 4, Decisions: map[router.Outcome]uint64{router.Sticky: 5}},
			}},
			Instances: []disagg.InstanceState{{Role: disagg.RoleGeneration, ID: "h:1", Up: true}},
		}, up
	})
	scrape := func() string {
		rec := httptest.NewRecorder()
		Handler(reg).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		return rec.Body.String()
	}
	if strings.Contains(scrape(), "tandem_handoffs_open") {
		t.Error("a server that is not there has state")
	}
	up = true
	m.RequestBegan(true)
	m.RequestBegan(false)
	m.RequestRouted(time.Millisecond)
	m.RequestEnded(200, disagg.Tokens{Prompt: 10, Cached: 4, Completion: 3})
	m.RequestEnded(500, disagg.Tokens{})
	m.LegEnded(disagg.LegEnd{Role: disagg.RoleContext, OK: true, First: time.Second, Total: time.Second, Tokens: 1})
	m.LegEnded(disagg.LegEnd{Role: disagg.RoleGeneration, OK: true, First: time.Second, Total: 3 * time.Second, Tokens: 5})
	m.LegEnded(disagg.LegEnd{Role: disagg.RoleGeneration})
	m.Happened(disagg.EventRetry, disagg.RoleContext)
	m.Happened(disagg.EventAbort, disagg.RoleGeneration, "timeout")
	m.Happened(disagg.EventDisconnect, "decode")
	m.Happened(disagg.EventGenSkipped, "stop")
	for _, e := range []disagg.Event{disagg.EventValidation, disagg.EventBypass, disagg.EventIDRejected, disagg.EventHandoffLapse} {
		m.Happened(e)
	}
	text := scrape()
	for _, want := range []string{
		"tandem_total_requests 2", "tandem_stream_requests 1", "tandem_nonstream_requests 1", "tandem_total_responses 2",
		"tandem_http_exceptions 1", "tandem_internal_errors 1", "tandem_queue_latency_seconds_count 1", "tandem_prompt_tokens_total 10",
		"tandem_cached_tokens_total 4", "tandem_ctx_completed_requests 1", "tandem_ctx_retry_requests 1", "tandem_gen_total_requests 2",
		"tandem_gen_error_requests 1", "tandem_gen_per_token_latency_seconds_sum 0.5", `tandem_aborts_sent_total{reason="timeout",role="generation"} 1`,
		`tandem_client_disconnects_total{phase="decode"} 1`, `tandem_gen_skipped_total{reason="stop"} 1`, "tandem_bypass_total 1",
		"tandem_validation_exceptions 1", "tandem_conversation_id_rejected_total 1", "tandem_handoff_expired_total 1",
		"tandem_handoffs_open 1", `tandem_reservations_open{role="context"} 3`, `tandem_router_sessions{role="context"} 4`,
		`tandem_router_decisions_total{kind="conversation",outcome="sticky",role="context"} 5`, `tandem_instance_up{role="generation",server="h:1"} 1`,
		"tandem_inflight_requests 2", "tandem_ready 1",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the scrape lacks %q", want)
		}
	}
}

func TestRouterTokens(t *testing.T) {
	reg := NewRegistry()
	NewFrontend(reg, func() (disagg.Snapshot, bool) { return disagg.Snapshot{KVMatched: 64, KVPrompt: 97}, true })
	rec := httptest.NewRecorder()
	Handler(reg).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"\ntandem_kv_router_matched_tokens 64\n", "\ntandem_kv_router_prompt_tokens 97\n", "# TYPE tandem_kv_router_prompt_tokens counter"} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %q", want)
		}
	}
}
