package metrics

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/engine/runner"
	"tandem/serve/worker"
)

// Dialect is a foreign set of metric names that dashboards know.
type Dialect string

// The dialects of metrics_compat.
const (
	VLLM   Dialect = "vllm"
	TRTLLM Dialect = "trtllm"
)

// ParseDialects reads metrics_compat. The error names the unknown one.
func ParseDialects(names []string) ([]Dialect, error) {
	var out []Dialect
	for _, name := range names {
		d := Dialect(strings.TrimSpace(name))
		if d != VLLM && d != TRTLLM {
			return nil, fmt.Errorf("metrics_compat: %q is not one of %s, %s", name, VLLM, TRTLLM)
		}
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out, nil
}

// prefix starts the dialect's names.
func (d Dialect) prefix() string {
	if d == VLLM {
		return "vllm:"
	}
	return "trtllm_"
}

// foreignLabels are on every metric of a dialect; engine is always "0", as of an
// instance with one engine.
var foreignLabels = []string{"model_name", "engine"}

// foreignMetric is a foreign name of something that a snapshot shows.
type foreignMetric struct {
	name, help string
	kind       prometheus.ValueType
	get        func(*runner.Stats, runner.Info) float64
}

func share(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

func blocksOf(tokens uint64, i runner.Info) float64 {
	return float64(tokens) / float64(max(1, i.Layout.BlockTokens))
}

// foreignShared are the names that both dialects have.
var foreignShared = []foreignMetric{
	{"num_requests_running", "Requests that hold resources.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 { return float64(s.Running) }},
	{"num_requests_waiting", "Requests in the queue.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 { return float64(s.Waiting) }},
	{"kv_cache_usage_perc", "Part of the KV blocks that are in use, 0 to 1.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 {
		return share(float64(s.BlocksTotal-s.BlocksFree-s.BlocksReusable), float64(s.BlocksTotal))
	}},
	{"prefix_cache_queries_total", "Prompt tokens looked for in the cache.", prometheus.CounterValue, func(s *runner.Stats, _ runner.Info) float64 {
		return float64(s.PrefixQueryTokens)
	}},
	{"prefix_cache_hits_total", "Prompt tokens found in the cache.", prometheus.CounterValue, func(s *runner.Stats, _ runner.Info) float64 {
		return float64(s.PrefixHitTokens)
	}},
}

// foreignTRT are the further names of TensorRT-LLM.
var foreignTRT = []foreignMetric{
	{"kv_cache_hit_rate", "Part of the prompt tokens that were found in the cache.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 {
		return share(float64(s.PrefixHitTokens), float64(s.PrefixQueryTokens))
	}},
	{"kv_cache_host_utilization", "Part of the host tier that holds blocks, 0 to 1.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 {
		return share(float64(s.HostBlocks), float64(s.HostTotal))
	}},
	{"kv_cache_reused_blocks_total", "Blocks of prompts found in the cache.", prometheus.CounterValue, func(s *runner.Stats, i runner.Info) float64 {
		return blocksOf(s.PrefixHitTokens, i)
	}},
	{"kv_cache_missed_blocks_total", "Blocks of prompts not found in the cache.", prometheus.CounterValue, func(s *runner.Stats, i runner.Info) float64 {
		return blocksOf(s.PrefixQueryTokens-min(s.PrefixHitTokens, s.PrefixQueryTokens), i)
	}},
	{"kv_cache_onboard_bytes_total", "Bytes of KV blocks brought back from host and disk.", prometheus.CounterValue, func(s *runner.Stats, _ runner.Info) float64 {
		return float64(s.OnboardBytes + s.LoadBytes)
	}},
	{"kv_cache_offload_bytes_total", "Bytes of KV blocks copied to the host.", prometheus.CounterValue, func(s *runner.Stats, _ runner.Info) float64 {
		return float64(s.OffloadBytes)
	}},
	{"num_context_requests", "Running requests in prefill.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 { return float64(s.Prefilling) }},
	{"num_generation_requests", "Running requests in decode.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 { return float64(s.Decoding) }},
	{"num_paused_requests", "Waiting requests that had begun.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 { return float64(s.PausedNow) }},
	{"iteration_latency_seconds", "Duration of the last step.", prometheus.GaugeValue, func(s *runner.Stats, _ runner.Info) float64 { return s.LastStep.Seconds() }},
}

// foreignWorker has the metrics of one dialect.
type foreignWorker struct {
	dialect Dialect
	state   func() (runner.Stats, runner.Info, bool)
	table   []foreignMetric
	descs   []*prometheus.Desc
	config  *prometheus.Desc
	loras   *prometheus.Desc
	name    atomic.Pointer[string] // of the model, once it is loaded

	ttft, itl, tpot, e2e, queue, prefill, decode, inference *prometheus.HistogramVec
	prompt, generation, success                             *prometheus.CounterVec
}

func newForeignWorker(reg prometheus.Registerer, d Dialect, state func() (runner.Stats, runner.Info, bool)) *foreignWorker {
	f := &foreignWorker{dialect: d, state: state, table: foreignShared}
	if d == TRTLLM {
		f.table = slices.Concat(foreignShared, foreignTRT)
	}
	for i := range f.table {
		f.descs = append(f.descs, prometheus.NewDesc(d.prefix()+f.table[i].name, f.table[i].help, foreignLabels, nil))
	}
	f.config = prometheus.NewDesc(d.prefix()+"cache_config_info", "The KV pool, always 1.", append([]string{"block_size", "num_gpu_blocks"}, foreignLabels...), nil)
	f.loras = prometheus.NewDesc(d.prefix()+"lora_requests_info", "LoRA adapters: there are none.",
		[]string{"max_lora", "running_lora_adapters", "waiting_lora_adapters"}, nil)
	hist := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.prefix() + name, Help: help, Buckets: buckets}, foreignLabels)
		reg.MustRegister(h)
		return h
	}
	count := func(name, help string, more ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.prefix() + name, Help: help}, append(more, foreignLabels...))
		reg.MustRegister(c)
		return c
	}
	f.ttft = hist("time_to_first_token_seconds", "From arrival to the first output token.", firstTokenBuckets)
	f.itl = hist("inter_token_latency_seconds", "Between two output tokens.", perTokenBuckets)
	f.tpot = hist("request_time_per_output_token_seconds", "Between output tokens, on average of a request.", perTokenBuckets)
	f.e2e = hist("e2e_request_latency_seconds", "From arrival to the end.", requestBuckets)
	f.queue = hist("request_queue_time_seconds", "Waiting for a turn.", requestBuckets)
	f.prefill = hist("request_prefill_time_seconds", "From the first batch to the first token.", requestBuckets)
	f.decode = hist("request_decode_time_seconds", "From the first token to the last.", requestBuckets)
	f.inference = hist("request_inference_time_seconds", "From the first batch to the last token.", requestBuckets)
	f.prompt = count("prompt_tokens_total", "Prompt tokens of answered requests.")
	f.generation = count("generation_tokens_total", "Output tokens of answered requests.")
	f.success = count("request_success_total", "Answered requests.", "finished_reason")
	reg.MustRegister(f)
	return f
}

// model is the value of model_name; a snapshot is too dear for each token.
func (f *foreignWorker) model() string {
	if name := f.name.Load(); name != nil {
		return *name
	}
	_, info, ok := f.state()
	if ok {
		f.name.Store(&info.Model)
	}
	return info.Model
}

func (f *foreignWorker) done(o *worker.Observation) {
	if o.Finish == "" {
		return
	}
	model := f.model()
	f.e2e.WithLabelValues(model, "0").Observe(o.Elapsed.Seconds())
	f.queue.WithLabelValues(model, "0").Observe(o.Stages.Queue.Seconds())
	f.prefill.WithLabelValues(model, "0").Observe(o.Stages.Prefill.Seconds())
	f.decode.WithLabelValues(model, "0").Observe(o.Stages.Decode.Seconds())
	f.inference.WithLabelValues(model, "0").Observe((o.Stages.Prefill + o.Stages.Decode).Seconds())
	if o.Output > 1 {
		f.tpot.WithLabelValues(model, "0").Observe(o.Stages.Decode.Seconds() / float64(o.Output-1))
	}
	f.prompt.WithLabelValues(model, "0").Add(float64(o.Prompt))
	f.generation.WithLabelValues(model, "0").Add(float64(o.Output))
	f.success.WithLabelValues(o.Finish, model, "0").Inc()
}

// Describe implements prometheus.Collector.
func (f *foreignWorker) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range f.descs {
		ch <- d
	}
	ch <- f.config
	ch <- f.loras
}

// Collect implements prometheus.Collector.
func (f *foreignWorker) Collect(ch chan<- prometheus.Metric) {
	s, info, ok := f.state()
	if !ok {
		return
	}
	for i := range f.table {
		ch <- prometheus.MustNewConstMetric(f.descs[i], f.table[i].kind, f.table[i].get(&s, info), info.Model, "0")
	}
	ch <- prometheus.MustNewConstMetric(f.config, prometheus.GaugeValue, 1,
		fmt.Sprint(info.Layout.BlockTokens), fmt.Sprint(s.BlocksTotal), info.Model, "0")
	ch <- prometheus.MustNewConstMetric(f.loras, prometheus.GaugeValue, 1, "0", "", "")
}
