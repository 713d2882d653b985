//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

func TestScenario47(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{yaml: "perf_metrics_max_requests: 100"})
	for i := range 10 {
		path, body := textPath, helloText
		if i%2 == 1 {
			path, body = chatPath, helloChat
		}
		if a := r.ask(t, path, body); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.raw)
		}
	}
	r.waitIdle(t)
	var records []struct {
		ID      json.RawMessage `json:"disagg_request_id"`
		Ctx     string          `json:"ctx_server"`
		Gen     string          `json:"gen_server"`
		Arrival float64         `json:"disagg_server_arrival_time"`
		CtxTime float64         `json:"ctx_dispatch_time"`
		GenTime float64         `json:"gen_dispatch_time"`
		First   *float64        `json:"disagg_server_first_token_time"`
		Finish  float64         `json:"finish_time"`
	}
	getJSON(t, r.url+"/perf_metrics", &records)
	if len(records) != 10 {
		t.Errorf("%d records", len(records))
	}
	for _, p := range records {
		if !strings.HasPrefix(string(p.ID), `"`) {
			t.Errorf("the id %s is no text", p.ID)
		}
		if p.First == nil { // of whole answers the worker tells it
			t.Errorf("record %+v has no first token", p)
			continue
		}
		if p.Arrival > p.CtxTime || p.CtxTime > p.GenTime || p.GenTime > *p.First || *p.First > p.Finish || p.Finish == 0 {
			t.Errorf("record %+v is out of order", p)
		}
	}
	if text := strings.TrimSpace(get(t, r.url+"/perf_metrics")); text != "[]" {
		t.Errorf("the second time it says %s", text)
	}
}

// TestScenario48 is part of every rig: see waitIdle. Here the gauges must have
// moved in between, or they would say nothing.
func TestScenario48(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	began, release := make(chan struct{}), make(chan struct{})
	r.gen[0].setScript(func(c *call) {
		close(began)
		if c.until(release) {
			genReply{}.script(c)
		}
	})
	done := make(chan answer, 1)
	go func() { done <- r.ask(t, textPath, helloText) }()
	<-began
	open := strings.Join(r.open(t), "\n")
	for _, name := range []string{"tandem_handoffs_open", "tandem_reservations_open", "tandem_inflight_requests"} {
		if !strings.Contains(open, name) {
			t.Errorf("%s is zero while a request waits for gen: %q", name, open)
		}
	}
	close(release)
	(<-done).wantOK(t, "ABC")
	r.waitIdle(t)
}
