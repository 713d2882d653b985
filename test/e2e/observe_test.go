//go:build e2e

package e2e

import (
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
)

const (
	traceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	traceID     = "trace_id=4bf92f3577b34da6a3ce929d0e0e4736"
	observeYAML = "request_log: {level: info}\nreturn_perf_metrics: true\nperf_metrics_max_requests: 100\nmetrics_compat: [vllm, trtllm]\n"
)

// startObserved starts a ctx and a gen worker and a frontend that tell all they can.
func startObserved(t *testing.T, more string) (front, ctx, gen *process) {
	t.Helper()
	needModel(t)
	file := writeFile(t, "observe.yaml", "max_seq_len: 512\nkv_cache_config: {max_tokens: 2048}\n"+observeYAML+more)
	worker := func(role string) *process {
		return start(t, role, engineBin, "serve", modelName, "--role", role, "--port", "0", "-c", file, "--threads", "1")
	}
	ctx, gen = worker("ctx"), worker("gen")
	return startFrontend(t, []*process{ctx}, []*process{gen}, observeYAML+more), ctx, gen
}

// traced sends a traced request and returns the answer's text.
func traced(t *testing.T, front *process, body string) (text string, h http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("traceparent", traceParent)
	req.Header.Set("X-Request-ID", "observed-1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %v %s", resp.StatusCode, err, data)
	}
	return string(data), resp.Header
}

// TestTraceThroughAllProcesses follows one request by its trace id, once with spans, whose receiver is not there, and once
// with the context alone; and adds up its stages.
func TestTraceThroughAllProcesses(t *testing.T) {
	for name, more := range map[string]string{
		"context alone": "", "spans to nobody": "otlp_config: {otlp_traces_endpoint: 'http://127.0.0.1:9'}\n",
	} {
		t.Run(name, func(t *testing.T) {
			front, ctx, gen := startObserved(t, more)
			const secret = "The lighthouse keeper wrote"
			text, h := traced(t, front, `{"model":"`+modelName+`","prompt":"`+secret+`","max_tokens":12,"temperature":0}`)
			if st := h.Get("Server-Timing"); !strings.Contains(st, "prefill;dur=") || !strings.Contains(st, "transfer;dur=") {
				t.Errorf("Server-Timing is %q of %s", st, text)
			}
			for _, p := range []*process{front, ctx, gen} {
				ok := eventually(settleLimit, func() bool {
					for line := range strings.Lines(p.log.String()) {
						if strings.Contains(line, "msg=request ") && strings.Contains(line, traceID) && strings.Contains(line, "request_id=observed-1") {
							return true
						}
					}
					return false
				})
				if !ok {
					t.Errorf("%s has no line of the request", p.name)
				}
				if strings.Contains(p.log.String(), secret) {
					t.Errorf("%s logs the prompt", p.name)
				}
			}
			var list []struct {
				Arrival float64            `json:"disagg_server_arrival_time"`
				Finish  float64            `json:"finish_time"`
				Stages  map[string]float64 `json:"stages_ms"`
				Gen     *struct {
					Output int      `json:"completion_tokens"`
					Pull   *float64 `json:"kv_cache_transfer_start"`
				} `json:"gen_perf_metrics"`
			}
			if !eventually(settleLimit, func() bool { getJSON(t, front.url+"/perf_metrics", &list); return len(list) > 0 }) || len(list) != 1 {
				t.Fatalf("%d records", len(list))
			}
			r, sum := list[0], 0.0
			for _, ms := range r.Stages {
				sum += ms
			}
			if total := (r.Finish - r.Arrival) * 1000; math.Abs(sum-total) > 1 || total <= 0 {
				t.Errorf("the stages sum to %g of %g ms: %v", sum, total, r.Stages)
			}
			if r.Gen == nil || r.Gen.Output != 12 || r.Gen.Pull == nil || r.Stages["prefill"] <= 0 || r.Stages["decode"] <= 0 {
				t.Errorf("%+v", r)
			}
			for p, name := range map[*process]string{ctx: "vllm:prompt_tokens_total", gen: "trtllm_generation_tokens_total", front: "gen_completed_requests"} {
				if !strings.Contains(get(t, p.url+"/metrics"), "\n"+name) {
					t.Errorf("%s has no %s", p.name, name)
				}
			}
		})
	}
}
