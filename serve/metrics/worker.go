package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/engine/runner"
	"tandem/serve/worker"
)

// Worker counts the requests of one engine process; it is a worker.Observer.
// The engine's own state is read from its snapshot at each scrape.
type Worker struct {
	requests         *prometheus.CounterVec
	ttft             prometheus.Histogram
	itl              prometheus.Histogram
	e2e              *prometheus.HistogramVec
	promptTokens     prometheus.Counter
	cachedTokens     prometheus.Counter
	completionTokens prometheus.Counter
	stages           *prometheus.HistogramVec
	foreign          []*foreignWorker
}

var _ worker.Observer = (*Worker)(nil)

// NewWorker registers the metrics of a worker. state returns the engine's
// newest snapshot and what it is, ok = false while the model loads. The dialects
// add foreign names of the same figures.
func NewWorker(reg prometheus.Registerer, state func() (s runner.Stats, i runner.Info, ok bool), dialects ...Dialect) *Worker {
	m := &Worker{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "requests_total", Help: "Completions requests that ended.",
		}, []string{"endpoint", "kind", "stream", "status"}),
		ttft: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "time_to_first_token_seconds", Help: "From arrival to the first output token.", Buckets: shortBuckets,
		}),
		itl: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "inter_token_latency_seconds", Help: "Between two outputs, divided by the tokens of the later one.", Buckets: shortBuckets,
		}),
		e2e: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "request_seconds", Help: "From arrival to the end of a request that was answered.", Buckets: longBuckets,
		}, []string{"kind"}),
		promptTokens:     counter("prompt_tokens_total", "Prompt tokens of answered requests."),
		cachedTokens:     counter("cached_tokens_total", "Prompt tokens of answered requests that were found in the cache."),
		completionTokens: counter("completion_tokens_total", "Output tokens of answered requests."),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "request_stage_seconds", Help: "Where the time of answered requests went; the stages of a request sum to its request_seconds.",
			Buckets: shortBuckets,
		}, []string{"kind", "stage"}),
	}
	for _, d := range dialects {
		m.foreign = append(m.foreign, newForeignWorker(reg, d, state))
	}
	reg.MustRegister(m.stages, m.requests, m.ttft, m.itl, m.e2e, m.promptTokens, m.cachedTokens, m.completionTokens, &engineCollector{state: state})
	return m
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

// FirstToken implements worker.Observer.
func (m *Worker) FirstToken(d time.Duration) {
	m.ttft.Observe(d.Seconds())
	for _, f := range m.foreign {
		f.ttft.WithLabelValues(f.model(), "0").Observe(d.Seconds())
	}
}

// Gap implements worker.Observer.
func (m *Worker) Gap(d time.Duration, tokens int) {
	each := d.Seconds() / float64(max(1, tokens))
	m.itl.Observe(each)
	for _, f := range m.foreign {
		f.itl.WithLabelValues(f.model(), "0").Observe(each)
	}
}

// Done implements worker.Observer.
func (m *Worker) Done(o worker.Observation) {
	m.requests.WithLabelValues(o.Endpoint, o.Kind, strconv.FormatBool(o.Stream), strconv.Itoa(o.Status)).Inc()
	if o.Finish == "" {
		return
	}
	m.e2e.WithLabelValues(o.Kind).Observe(o.Elapsed.Seconds())
	m.promptTokens.Add(float64(o.Prompt))
	m.cachedTokens.Add(float64(o.Cached))
	m.completionTokens.Add(float64(o.Output))
	for _, st := range []struct {
		name string
		took time.Duration
	}{
		{"prepare", o.Stages.Prepare},
		{"queue", o.Stages.Queue},
		{"transfer", o.Stages.Transfer},
		{"prefill", o.Stages.Prefill},
		{"decode", o.Stages.Decode},
		{"reply", o.Stages.Reply},
	} {
		m.stages.WithLabelValues(o.Kind, st.name).Observe(st.took.Seconds())
	}
	for _, f := range m.foreign {
		f.done(&o)
	}
}

// engineCollector reads the engine's snapshot at each scrape, so nothing is
// kept twice and an idle engine costs nothing.
type engineCollector struct {
	state func() (runner.Stats, runner.Info, bool)
}

type engineMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*runner.Stats) float64
}

func engineGauge(name, help string, get func(*runner.Stats) float64, labels ...string) engineMetric {
	return engineMetric{engineDesc(name, help, labels), prometheus.GaugeValue, get}
}

func engineCounter(name, help string, get func(*runner.Stats) uint64, labels ...string) engineMetric {
	return engineMetric{engineDesc(name, help, labels), prometheus.CounterValue, func(s *runner.Stats) float64 { return float64(get(s)) }}
}

func engineDesc(name, help string, pairs []string) *prometheus.Desc {
	labels := prometheus.Labels{}
	for i := 0; i+1 < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}
	return prometheus.NewDesc(namespace+"_"+name, help, nil, labels)
}

// engineMetrics is the table of what a snapshot shows.
var engineMetrics = []engineMetric{
	engineCounter("iterations_total", "Iterations of the engine loop.", func(s *runner.Stats) uint64 { return s.Iter }),
	engineCounter("batch_tokens_total", "Tokens computed, by phase.", func(s *runner.Stats) uint64 { return s.PrefillTokens }, "kind", "prefill"),
	engineCounter("batch_tokens_total", "Tokens computed, by phase.", func(s *runner.Stats) uint64 { return s.DecodeTokens }, "kind", "decode"),
	engineGauge("running", "Requests that hold resources.", func(s *runner.Stats) float64 { return float64(s.Running) }),
	engineGauge("waiting", "Requests in the queue.", func(s *runner.Stats) float64 { return float64(s.Waiting) }),
	engineCounter("paused_total", "Requests sent back to the queue for want of blocks.", func(s *runner.Stats) uint64 { return s.Paused }),
	engineGauge("blocks", "KV blocks of the pool.", func(s *runner.Stats) float64 { return float64(s.BlocksTotal) }),
	engineGauge("free_blocks", "KV blocks that hold nothing.", func(s *runner.Stats) float64 { return float64(s.BlocksFree) }),
	engineGauge("active_blocks", "KV blocks that a request uses.", func(s *runner.Stats) float64 { return float64(s.BlocksActive) }),
	engineGauge("cached_blocks", "KV blocks kept for reuse.", func(s *runner.Stats) float64 { return float64(s.BlocksReusable) }),
	engineGauge("fenced_blocks", "Of the active KV blocks those of ended requests that a running step may still write.", func(s *runner.Stats) float64 { return float64(s.BlocksFenced) }),
	engineGauge("leased_blocks", "KV blocks waiting to be fetched by a gen worker.", func(s *runner.Stats) float64 { return float64(s.BlocksLeased) }),
	engineGauge("receiving_blocks", "KV blocks that a fetch writes to.", func(s *runner.Stats) float64 { return float64(s.BlocksReceiving) }),
	engineGauge("recv_inflight", "Fetches of KV under way.", func(s *runner.Stats) float64 { return float64(s.Receiving) }),
	engineGauge("handoffs_open", "Hand-overs not yet fetched, ended or expired.", func(s *runner.Stats) float64 { return float64(s.HandoffsOpen) }),
	engineGauge("holds", "Reasons, of any kind, for which blocks are held.", func(s *runner.Stats) float64 { return float64(s.Holds) }),
	engineCounter("prefix_hit_tokens_total", "Prompt tokens found in the cache at admission.", func(s *runner.Stats) uint64 { return s.PrefixHitTokens }),
	engineCounter("prefix_query_tokens_total", "Prompt tokens looked for in the cache at admission.", func(s *runner.Stats) uint64 { return s.PrefixQueryTokens }),
	engineCounter("pending_share_tokens_total", "Prompt tokens shared with requests that had still to compute them.", func(s *runner.Stats) uint64 { return s.PendingShare }),
	engineGauge("loading", "Requests that wait for blocks from the host or the disk.", func(s *runner.Stats) float64 { return float64(s.Loading) }),
	engineGauge("tier_blocks", "KV blocks kept below the pool.", func(s *runner.Stats) float64 { return float64(s.HostBlocks) }, "tier", "host"),
	engineGauge("tier_blocks", "KV blocks kept below the pool.", func(s *runner.Stats) float64 { return float64(s.DiskBlocks) }, "tier", "disk"),
	engineCounter("tier_hit_tokens_total", "Prompt tokens brought back to the pool instead of being computed.", func(s *runner.Stats) uint64 { return s.HostHitTokens }, "tier", "host"),
	engineCounter("tier_hit_tokens_total", "Prompt tokens brought back to the pool instead of being computed.", func(s *runner.Stats) uint64 { return s.DiskHitTokens }, "tier", "disk"),
	engineCounter("tier_evicted_blocks_total", "KV blocks that a tier below the pool gave up for others.", func(s *runner.Stats) uint64 { return s.HostEvicted }, "tier", "host"),
	engineCounter("tier_evicted_blocks_total", "KV blocks that a tier below the pool gave up for others.", func(s *runner.Stats) uint64 { return s.DiskEvicted }, "tier", "disk"),
	engineCounter("offload_bytes", "Bytes of KV blocks copied between tiers.", func(s *runner.Stats) uint64 { return s.OffloadBytes }, "dir", "device_to_host"),
	engineCounter("offload_bytes", "Bytes of KV blocks copied between tiers.", func(s *runner.Stats) uint64 { return s.OnboardBytes }, "dir", "host_to_device"),
	engineCounter("offload_bytes", "Bytes of KV blocks copied between tiers.", func(s *runner.Stats) uint64 { return s.SpillBytes }, "dir", "host_to_disk"),
	engineCounter("offload_bytes", "Bytes of KV blocks copied between tiers.", func(s *runner.Stats) uint64 { return s.LoadBytes }, "dir", "disk_to_device"),
	engineCounter("tier_failed_total", "Copies between tiers that failed; their blocks are computed anew.", func(s *runner.Stats) uint64 { return s.TierFailed }),
	engineCounter("tier_bad_files_total", "Files of the disk tier that did not hold what they should.", func(s *runner.Stats) uint64 { return s.BadFiles }),
	engineCounter("tier_disk_rests_total", "Times at which the disk was left alone for a while after a failure.", func(s *runner.Stats) uint64 { return s.DiskRests }),
	engineCounter("tier_declined_total", "Times at which blocks were computed or pulled although a tier had them, since copying takes longer.", func(s *runner.Stats) uint64 { return s.RecomputedCheaper }),
	engineCounter("conv_overlap_total", "Requests of a conversation that had another one under way.", func(s *runner.Stats) uint64 { return s.ConvOverlap }),
	engineCounter("dead_tail_demoted_total", "KV blocks that a later turn did not send back and that go first now.", func(s *runner.Stats) uint64 { return s.DeadTails }),
	engineCounter("window_freed_blocks_total", "KV blocks that running requests gave back because they lie before the sliding window.", func(s *runner.Stats) uint64 { return s.WindowFreed }),
	engineCounter("evicted_blocks_total", "Cached blocks given up for new ones.", func(s *runner.Stats) uint64 { return s.EvictedBlocks }),
	engineCounter("lease_expired_total", "Hand-overs that nobody fetched in time.", func(s *runner.Stats) uint64 { return s.LeasesExpired }),
	engineCounter("stale_pull_total", "Fetches voided because their lease had changed.", func(s *runner.Stats) uint64 { return s.StalePulls }),
	engineCounter("recompute_fallback_total", "Failed fetches replaced by local prefill.", func(s *runner.Stats) uint64 { return s.Recomputed }),
	engineCounter("step_errors_total", "Steps that failed.", func(s *runner.Stats) uint64 { return s.StepErrors }),
	engineGauge("error_budget", "Points left of 10 before failed steps end the engine.", func(s *runner.Stats) float64 { return s.ErrorBudget }),
	engineCounter("deadlocks_total", "Times that nothing could be scheduled although requests waited: bugs.", func(s *runner.Stats) uint64 { return s.Deadlocks }),
	engineCounter("illegal_transition_total", "State changes that must not happen: bugs.", func(s *runner.Stats) uint64 { return s.IllegalTransition }),
	engineGauge("pool_full_seconds", "For how long no KV block was free and none was won.", func(s *runner.Stats) float64 { return s.PoolFull.Seconds() }),
	engineGauge("ready", "1 while /health answers 200.", ready),
	engineGauge("last_step_age_seconds", "Since the end of the last iteration.", func(s *runner.Stats) float64 { return s.LastStepAge.Seconds() }),
}

func ready(s *runner.Stats) float64 {
	if s.Health == runner.HealthOK || s.Health == runner.HealthIdle {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *engineCollector) Describe(ch chan<- *prometheus.Desc) {
	for i := range engineMetrics {
		ch <- engineMetrics[i].desc
	}
	describeLoop(ch)
	describeTransfer(ch)
	describeRanks(ch)
}

// Collect implements prometheus.Collector.
func (c *engineCollector) Collect(ch chan<- prometheus.Metric) {
	s, info, ok := c.state()
	if !ok {
		return
	}
	for i := range engineMetrics {
		m := &engineMetrics[i]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.get(&s))
	}
	collectLoop(ch, &s)
	collectTransfer(ch, &s)
	collectRanks(ch, &s, info)
}
