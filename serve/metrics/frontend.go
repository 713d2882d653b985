package metrics

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/serve/disagg"
)

// Frontend counts what the frontend does; it is a disagg.Observer. State is read from the server's snapshot at each
// scrape.
type Frontend struct {
	sets                       []*requestMetrics
	prompt, cached, completion prometheus.Counter
	events                     map[disagg.Event]*prometheus.CounterVec
}

// requestMetrics are the series that other orchestrators have as well.
type requestMetrics struct {
	requests, streams, whole                 prometheus.Counter
	invalid, responses, httpErrors, internal prometheus.Counter
	queue                                    prometheus.Histogram
	legs                                     map[string]*legMetrics // by role
}

// legMetrics are the series of one role, whose name is their prefix.
type legMetrics struct {
	total, failed, retried, completed prometheus.Counter
	first, complete, perToken         prometheus.Histogram
}

var _ disagg.Observer = (*Frontend)(nil)

// NewFrontend registers the metrics of a frontend. snapshot returns the server's state, ok = false before there is one.
// The dialect TRTLLM adds the names of its orchestrator; VLLM has none of a frontend.
func NewFrontend(reg prometheus.Registerer, snapshot func() (s disagg.Snapshot, ok bool), dialects ...Dialect) *Frontend {
	m := &Frontend{
		sets:       []*requestMetrics{newRequestMetrics(reg, namespace)},
		prompt:     counter("prompt_tokens_total", "Prompt tokens of answers."),
		cached:     counter("cached_tokens_total", "Prompt tokens of answers that a ctx worker found in its cache."),
		completion: counter("completion_tokens_total", "Output tokens of answers."),
		events:     map[disagg.Event]*prometheus.CounterVec{},
	}
	if slices.Contains(dialects, TRTLLM) {
		m.sets = append(m.sets, newRequestMetrics(reg, ""))
	}
	reg.MustRegister(m.prompt, m.cached, m.completion)
	for _, e := range []struct {
		name   disagg.Event
		help   string
		labels []string
	}{
		{disagg.EventAbort, "Aborts sent to workers.", []string{"role", "reason"}},
		{disagg.EventDisconnect, "Clients that left before their answer was complete.", []string{"phase"}},
		{disagg.EventGenSkipped, "Requests that ended with their first token.", []string{"reason"}},
		{disagg.EventBypass, "Requests that one worker ran alone.", nil},
		{disagg.EventIDRejected, "Conversation headers that were ignored as invalid.", nil},
		{disagg.EventAffinity, "Legs that were placed by an affinity key.", []string{"leg"}},
		{disagg.EventForcedRank, "Ranks that the router chose, by what was sent of them.", []string{"leg", "row"}},
		{disagg.EventResume, "Streams that broke and were to go on at another gen worker, by how that ended.", []string{"outcome"}},
		{disagg.EventUnauthorized, "Requests without a valid API key.", nil},
		{disagg.EventKey, "Requests with a valid API key.", []string{"key"}},
		{disagg.EventHedge, "Slow ctx legs that were tried at a second worker.", nil},
		{disagg.EventNoPlace, "Requests refused because too many run and wait.", []string{"reason"}},
		{disagg.EventNoRetry, "Attempts that were not repeated because retry_budget is spent.", nil},
		{disagg.EventHome, "Conversations that this frontend did not know and asked disagg_coordinator_url for.", []string{"outcome"}},
		{disagg.EventRankInvalid, "Ranks that the router chose and the worker does not have.", nil},
		{disagg.EventHandoffLapse, "Hand-overs whose blocks were gone when a gen worker asked.", nil},
	} {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: string(e.name), Help: e.help}, e.labels)
		if len(e.labels) == 0 {
			vec.WithLabelValues() // shown as 0 from the start
		}
		m.events[e.name] = vec
		reg.MustRegister(vec)
	}
	reg.MustRegister(&frontendCollector{snapshot})
	return m
}

func newRequestMetrics(reg prometheus.Registerer, space string) *requestMetrics {
	count := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: space, Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	m := &requestMetrics{
		requests:   count("total_requests", "Completions requests that passed the edge."),
		streams:    count("stream_requests", "Completions requests that asked for a stream."),
		whole:      count("nonstream_requests", "Completions requests that did not ask for a stream."),
		invalid:    count("validation_exceptions", "Requests refused at the edge."),
		responses:  count("total_responses", "Answers, of any status."),
		httpErrors: count("http_exceptions", "Answers with a status of 400 or more."),
		internal:   count("internal_errors", "Answers with status 500: bugs of the frontend."),
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: space, Name: "queue_latency_seconds", Help: "From arrival to the choice of the first worker.", Buckets: firstTokenBuckets,
		}),
		legs: map[string]*legMetrics{},
	}
	reg.MustRegister(m.queue)
	for role, prefix := range map[string]string{disagg.RoleContext: "ctx_", disagg.RoleGeneration: "gen_"} {
		m.legs[role] = newLegMetrics(reg, space, prefix)
	}
	return m
}

func newLegMetrics(reg prometheus.Registerer, space, prefix string) *legMetrics {
	hist := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: space, Name: prefix + name, Help: help, Buckets: buckets})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: space, Name: name, Help: help})
	}
	l := &legMetrics{
		total:     counter(prefix+"total_requests", "Attempts of this leg."),
		failed:    counter(prefix+"error_requests", "Attempts that failed."),
		retried:   counter(prefix+"retry_requests", "Attempts that repeat a failed one."),
		completed: counter(prefix+"completed_requests", "Attempts that succeeded."),
		first:     hist("first_token_latency_seconds", "From sending the leg to its first token.", firstTokenBuckets),
		complete:  hist("complete_latency_seconds", "From sending the leg to its end.", legBuckets),
		perToken:  hist("per_token_latency_seconds", "Between tokens after the first, on average of a leg.", firstTokenBuckets),
	}
	reg.MustRegister(l.total, l.failed, l.retried, l.completed, l.first, l.complete, l.perToken)
	return l
}

// RequestBegan implements disagg.Observer.
func (m *Frontend) RequestBegan(stream bool) {
	for _, r := range m.sets {
		r.requests.Inc()
		if stream {
			r.streams.Inc()
		} else {
			r.whole.Inc()
		}
	}
}

// RequestRouted implements disagg.Observer.
func (m *Frontend) RequestRouted(wait time.Duration) {
	for _, r := range m.sets {
		r.queue.Observe(wait.Seconds())
	}
}

// RequestEnded implements disagg.Observer.
func (m *Frontend) RequestEnded(status int, t disagg.Tokens) {
	for _, r := range m.sets {
		r.responses.Inc()
		if status >= http.StatusBadRequest {
			r.httpErrors.Inc()
		}
		if status == http.StatusInternalServerError {
			r.internal.Inc()
		}
	}
	m.prompt.Add(float64(t.Prompt))
	m.cached.Add(float64(t.Cached))
	m.completion.Add(float64(t.Completion))
}

// LegEnded implements disagg.Observer.
func (m *Frontend) LegEnded(e disagg.LegEnd) {
	for _, r := range m.sets {
		r.legs[e.Role].ended(&e)
	}
}

func (l *legMetrics) ended(e *disagg.LegEnd) {
	l.total.Inc()
	if !e.OK {
		l.failed.Inc()
		return
	}
	l.completed.Inc()
	l.complete.Observe(e.Total.Seconds())
	if e.First > 0 {
		l.first.Observe(e.First.Seconds())
	}
	if e.Tokens > 1 && e.First > 0 && e.Total >= e.First {
		l.perToken.Observe((e.Total - e.First).Seconds() / float64(e.Tokens-1))
	}
}

// Happened implements disagg.Observer.
func (m *Frontend) Happened(e disagg.Event, labels ...string) {
	switch e {
	case disagg.EventRetry:
		for _, r := range m.sets {
			r.legs[labels[0]].retried.Inc()
		}
	case disagg.EventValidation:
		for _, r := range m.sets {
			r.invalid.Inc()
		}
	default:
		m.events[e].WithLabelValues(labels...).Inc()
	}
}

// frontendCollector reads the server's snapshot at each scrape.
type frontendCollector struct {
	snapshot func() (disagg.Snapshot, bool)
}

func frontendDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

var (
	descInflight  = frontendDesc("inflight_requests", "Requests being answered.")
	descQueued    = frontendDesc("queued_requests", "Requests that wait for a place among those that run at once.")
	descReady     = frontendDesc("ready", "1 while requests are accepted.")
	descHandoffs  = frontendDesc("handoffs_open", "Ctx replies whose blocks were neither fetched nor given up.")
	descOpen      = frontendDesc("reservations_open", "Legs charged to a worker.", "role")
	descSessions  = frontendDesc("router_sessions", "Conversations remembered.", "role")
	descKVMatched = frontendDesc("kv_router_matched_tokens", "Prompt tokens that a router found in the cache of the worker it chose.")
	descKVPrompt  = frontendDesc("kv_router_prompt_tokens", "Prompt tokens of the placements that looked at caches.")
	descDecisions = frontendDesc("router_decisions_total", "Placements.", "role", "kind", "outcome")
	descUp        = frontendDesc("instance_up", "1 while a worker may be chosen.", "role", "server")
	descWarnings  = frontendDesc("cluster_warnings", "Warnings in /cluster_info.", "code")
)

// Describe implements prometheus.Collector.
func (c *frontendCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInflight, descQueued, descReady, descHandoffs, descOpen, descSessions, descKVMatched, descKVPrompt, descDecisions, descUp, descWarnings} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *frontendCollector) Collect(ch chan<- prometheus.Metric) {
	s, ok := c.snapshot()
	if !ok {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descInflight, float64(s.Inflight))
	gauge(descQueued, float64(s.Queued))
	gauge(descReady, bit(s.Ready))
	gauge(descHandoffs, float64(s.Handoffs))
	ch <- prometheus.MustNewConstMetric(descKVMatched, prometheus.CounterValue, float64(s.KVMatched))
	ch <- prometheus.MustNewConstMetric(descKVPrompt, prometheus.CounterValue, float64(s.KVPrompt))
	for role, r := range s.Routers {
		gauge(descOpen, float64(r.Open), role)
		gauge(descSessions, float64(r.Sessions), role)
		for outcome, n := range r.Decisions {
			ch <- prometheus.MustNewConstMetric(descDecisions, prometheus.CounterValue, float64(n), role, r.Kind, string(outcome))
		}
	}
	for _, in := range s.Instances {
		gauge(descUp, bit(in.Up), in.Role, in.ID)
	}
	for code, n := range s.Warnings {
		gauge(descWarnings, float64(n), code)
	}
}

func bit(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
