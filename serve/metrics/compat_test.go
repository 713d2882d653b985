package metrics

import (
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/engine/transfer"
	"tandem/serve/disagg"
	"tandem/serve/worker"
)

// The names that dashboards of other engines look for.
const (
	vllmNames = `num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
		prompt_tokens_total generation_tokens_total request_success_total time_to_first_token_seconds inter_token_latency_seconds
		request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
		request_decode_time_seconds request_inference_time_seconds cache_config_info lora_requests_info`
	trtNames = `kv_cache_hit_rate kv_cache_host_utilization kv_cache_reused_blocks_total kv_cache_missed_blocks_total
		kv_cache_onboard_bytes_total kv_cache_offload_bytes_total num_context_requests num_generation_requests num_paused_requests
		iteration_latency_seconds`
	orchestratorNames = `total_requests stream_requests nonstream_requests validation_exceptions http_exceptions internal_errors
		total_responses queue_latency_seconds ctx_total_requests ctx_error_requests ctx_retry_requests ctx_completed_requests
		ctx_first_token_latency_seconds ctx_complete_latency_seconds ctx_per_token_latency_seconds gen_total_requests
		gen_error_requests gen_retry_requests gen_completed_requests gen_first_token_latency_seconds gen_complete_latency_seconds
		gen_per_token_latency_seconds`
)

func names(prefix string, lists ...string) (out []string) {
	for _, name := range strings.Fields(strings.Join(lists, " ")) {
		out = append(out, prefix+name)
	}
	slices.Sort(out)
	return out
}

// foreign returns the names of a registry that are not ours.
func foreign(t *testing.T, reg *prometheus.Registry) (out []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "tandem_") {
			out = append(out, f.GetName())
		}
	}
	return out
}

func busyWorker(reg prometheus.Registerer, dialects ...Dialect) *Worker {
	m := NewWorker(reg, func() (runner.Stats, runner.Info, bool) {
		return runner.Stats{Stats: executor.Stats{
			Running: 3, Waiting: 2, Prefilling: 1, Decoding: 2, PausedNow: 1, BlocksTotal: 10, BlocksFree: 4, BlocksReusable: 1,
			PrefixQueryTokens: 640, PrefixHitTokens: 160, LastStep: 20 * time.Millisecond,
		}}, runner.Info{Model: "tiny", Layout: transfer.Layout{BlockTokens: 16}}, true
	}, dialects...)
	m.FirstToken(20 * time.Millisecond)
	m.Gap(30*time.Millisecond, 3)
	m.Done(worker.Observation{
		Endpoint: "chat", Kind: "full", Status: 200, Finish: "stop", Elapsed: time.Second, Prompt: 10, Output: 5,
		Stages: worker.Stages{Queue: 100 * time.Millisecond, Prefill: 200 * time.Millisecond, Decode: 400 * time.Millisecond},
	})
	return m
}

func TestForeignNames(t *testing.T) {
	for _, tc := range []struct {
		name string
		with []Dialect
		want []string
	}{
		{"off", nil, nil},
		{"vllm", []Dialect{VLLM}, names("vllm:", vllmNames)},
		{"trtllm", []Dialect{TRTLLM}, names("trtllm_", vllmNames, trtNames)},
		{"both", []Dialect{TRTLLM, VLLM}, append(names("trtllm_", vllmNames, trtNames), names("vllm:", vllmNames)...)},
	} {
		reg := prometheus.NewRegistry()
		busyWorker(reg, tc.with...)
		if got := foreign(t, reg); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v\nwant %v", tc.name, got, tc.want)
		}
		reg = prometheus.NewRegistry()
		NewFrontend(reg, func() (disagg.Snapshot, bool) { return disagg.Snapshot{}, true }, tc.with...)
		var want []string
		if slices.Contains(tc.with, TRTLLM) {
			want = names("", orchestratorNames)
		}
		if got := foreign(t, reg); !slices.Equal(got, want) {
			t.Errorf("frontend, %s: %v\nwant %v", tc.name, got, want)
		}
	}
}

func TestForeignValues(t *testing.T) {
	reg := NewRegistry()
	busyWorker(reg, VLLM, TRTLLM)
	rec := httptest.NewRecorder()
	Handler(reg).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	text := rec.Body.String()
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="tiny"} 3`, `vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5`,
		`vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1`,
		`vllm:request_time_per_output_token_seconds_sum{engine="0",model_name="tiny"} 0.1`,
		`vllm:request_queue_time_seconds_sum{engine="0",model_name="tiny"} 0.1`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",model_name="tiny",le="0.02"} 1`,
		`vllm:cache_config_info{block_size="16",engine="0",model_name="tiny",num_gpu_blocks="10"} 1`,
		`trtllm_kv_cache_hit_rate{engine="0",model_name="tiny"} 0.25`, `trtllm_kv_cache_reused_blocks_total{engine="0",model_name="tiny"} 10`,
		`trtllm_kv_cache_missed_blocks_total{engine="0",model_name="tiny"} 30`, `trtllm_num_generation_requests{engine="0",model_name="tiny"} 2`,
		`trtllm_iteration_latency_seconds{engine="0",model_name="tiny"} 0.02`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestParseDialects(t *testing.T) {
	if got, err := ParseDialects([]string{"vllm", " trtllm", "vllm"}); err != nil || !slices.Equal(got, []Dialect{VLLM, TRTLLM}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParseDialects([]string{"sglang"}); err == nil || !strings.Contains(err.Error(), `metrics_compat: "sglang"`) {
		t.Errorf("%v", err)
	}
}

func TestPageHasTheForeignNames(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(text), "\n## Names of other engines\n")
	part, after, _ := strings.Cut(part, "\nOn a frontend ")
	after, _, _ = strings.Cut(after, "\n## ")
	var vllm, trt []string
	for line := range strings.Lines(part) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.HasPrefix(cells[1], " `") || strings.Contains(cells[1], ":") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		if strings.TrimSpace(cells[2]) == "x" {
			vllm = append(vllm, name)
		}
		if strings.TrimSpace(cells[3]) == "x" {
			trt = append(trt, name)
		}
	}
	slices.Sort(vllm)
	slices.Sort(trt)
	if want := names("", vllmNames); !slices.Equal(vllm, want) {
		t.Errorf("the page has %v\nwant %v", vllm, want)
	}
	if want := names("", vllmNames, trtNames); !slices.Equal(trt, want) {
		t.Errorf("the page has %v\nwant %v", trt, want)
	}
	for _, name := range names("", orchestratorNames) {
		if name = strings.TrimPrefix(strings.TrimPrefix(name, "ctx_"), "gen_"); !strings.Contains(after, "`"+name+"`") {
			t.Errorf("the page lacks %s", name)
		}
	}
}
