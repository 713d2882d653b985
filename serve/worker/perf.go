package worker

import (
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// The stages of a request at a worker, in this order.
const (
	stagePrepare  = "prepare"  // read, rendered, tokenised, given a place
	stageQueue    = "queue"    // waiting for its turn
	stageTransfer = "transfer" // blocks on their way here
	stagePrefill  = "prefill"
	stageDecode   = "decode"
	stageReply    = "reply" // the last token is there, the answer not yet
)

// Stages say where the time of an answered request went; their sum is Elapsed.
type Stages struct{ Prepare, Queue, Transfer, Prefill, Decode, Reply time.Duration }

// turns are the turning points of a request on the server's clock, the zero time
// for those it did not come to.
type turns struct {
	pullBegan, pullEnded, scheduled, first, last time.Time
	submitted                                    time.Time
	blocks                                       int
}

// turnsOf brings the engine's times onto the server's clock: both are read now.
func turnsOf(t executor.Times, engine time.Duration, now time.Time) turns {
	at := func(d time.Duration) time.Time {
		if d <= 0 {
			return time.Time{}
		}
		return now.Add(d - engine)
	}
	return turns{
		submitted: at(t.Arrived), pullBegan: at(t.PullBegan), pullEnded: at(t.PullEnded),
		scheduled: at(t.Scheduled), first: at(t.First), last: now, blocks: t.Blocks,
	}
}

// timeline divides the request's time from its arrival.
func (t *turns) timeline(start time.Time) *trace.Timeline {
	l := &trace.Timeline{Start: start}
	l.Add(stagePrepare, t.submitted)
	l.Add(stageQueue, t.pullBegan)
	l.Add(stageTransfer, t.pullEnded)
	l.Add(stageQueue, t.scheduled)
	l.Add(stagePrefill, t.first)
	l.Add(stageDecode, t.last)
	return l
}

// stages divides the time until end.
func (t *turns) stages(start, end time.Time) []trace.Stage {
	l := t.timeline(start)
	l.Add(stageReply, end)
	return l.Stages(end)
}

func sumsOf(list []trace.Stage) (s Stages) {
	for _, st := range list {
		switch st.Name {
		case stagePrepare:
			s.Prepare = st.Took
		case stageQueue:
			s.Queue = st.Took
		case stageTransfer:
			s.Transfer = st.Took
		case stagePrefill:
			s.Prefill = st.Took
		case stageDecode:
			s.Decode = st.Took
		default:
			s.Reply += st.Took
		}
	}
	return s
}

// perfRecord is one request in /perf_metrics. Times are seconds of the server's
// steady clock, with the offset that a frontend gave it; null = not reached.
type perfRecord struct {
	RequestID string             `json:"request_id"`
	DisaggID  string             `json:"disagg_request_id,omitempty"` // as text: it does not fit a double
	CtxID     int64              `json:"ctx_request_id,omitempty"`
	Kind      string             `json:"kind"`
	Outcome   string             `json:"outcome"` // finish reason, or the error code
	Rank      *int               `json:"rank,omitempty"`
	Arrival   float64            `json:"arrival_time"`
	Scheduled *float64           `json:"first_scheduled_time"`
	First     *float64           `json:"first_token_time"`
	Last      *float64           `json:"last_token_time"`
	Finish    float64            `json:"finish_time"`
	PullStart *float64           `json:"kv_cache_transfer_start"`
	PullEnd   *float64           `json:"kv_cache_transfer_end"`
	Allocated int                `json:"num_total_allocated_blocks"`
	New       int                `json:"num_new_allocated_blocks"`
	Reused    int                `json:"num_reused_blocks"`
	Missed    int                `json:"num_missed_blocks"`
	Prompt    int                `json:"prompt_tokens"`
	Cached    int                `json:"cached_tokens"`
	Output    int                `json:"completion_tokens"`
	StagesMs  map[string]float64 `json:"stages_ms"`
}

// record makes the perf record of a request that was submitted.
func (x *exchange) record(end time.Time, stages []trace.Stage) perfRecord {
	t, c := &x.turns, &x.s.clock
	p := perfRecord{
		RequestID: x.r.Header.Get(openai.HeaderRequestID), Kind: x.ob.Kind, Outcome: x.ob.Finish,
		Arrival: c.at(x.start), Finish: c.at(end), StagesMs: trace.Millis(stages),
		Scheduled: c.maybe(t.scheduled), First: c.maybe(t.first), Last: c.maybe(t.last),
		PullStart: c.maybe(t.pullBegan), PullEnd: c.maybe(t.pullEnded),
		Prompt: x.ob.Prompt, Cached: x.cached, Output: x.ob.Output, Allocated: t.blocks, Rank: x.rank,
	}
	if p.Outcome == "" {
		p.Outcome = "error_" + strconv.Itoa(x.ob.Status)
	}
	if id := x.job.req.TransferID; x.job.req.Kind != request.Full {
		p.DisaggID, p.CtxID = strconv.FormatInt(id, 10), id
	}
	if b := x.job.info.Layout.BlockTokens; b > 0 {
		p.Reused = min(x.cached/b, t.blocks)
		p.New = t.blocks - p.Reused
		p.Missed = max(0, (len(x.job.req.Prompt)+b-1)/b-p.Reused)
	}
	return p
}

// settle divides the time of the request, for metrics and its record.
func (x *exchange) settle(end time.Time) {
	if x.job == nil || x.turns.last.IsZero() {
		return
	}
	stages := x.turns.stages(x.start, end)
	x.ob.Stages = sumsOf(stages)
	if x.s.perf.On() {
		x.s.perf.Add(x.record(end, stages))
	}
}

// perfMetrics drains the records: each is told once.
func (s *Server) perfMetrics(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.perf.Drain()) }

// timing is the Server-Timing of a request whose last token is there, "" if
// nobody asked for it.
func (x *exchange) timing() string {
	if !x.job.in.returnMetrics && !x.s.cfg.ReturnPerf {
		return ""
	}
	return trace.ServerTiming(x.turns.timeline(x.start).Stages(x.turns.last))
}

// at is a time on the steady clock, in seconds.
func (c *clockOffset) at(t time.Time) float64 { return t.Sub(c.start).Seconds() + c.load() }

func (c *clockOffset) maybe(t time.Time) *float64 {
	if t.IsZero() {
		return nil
	}
	at := c.at(t)
	return &at
}

// endSpan ends the request's span, with a child for each stage.
func (x *exchange) endSpan(end time.Time) {
	span := x.link.Span
	if span == nil {
		return
	}
	span.Name(x.ob.Kind)
	span.Text("tandem.request_id", x.r.Header.Get(openai.HeaderRequestID))
	span.Text("tandem.finish_reason", x.ob.Finish)
	span.Int("http.response.status_code", x.ob.Status)
	span.Int("gen_ai.usage.input_tokens", x.ob.Prompt)
	span.Int("gen_ai.usage.output_tokens", x.ob.Output)
	if x.job != nil {
		span.Int("tandem.cached_tokens", x.cached)
		if id := x.job.req.TransferID; id != 0 {
			span.Text("tandem.disagg_request_id", strconv.FormatInt(id, 10))
		}
		if x.rank != nil {
			span.Int("tandem.rank", *x.rank)
		}
	}
	if x.ob.Finish == "" {
		span.Fail(strconv.Itoa(x.ob.Status))
	}
	if !x.turns.last.IsZero() {
		span.Stages(x.start, x.turns.stages(x.start, end))
	}
	span.End(end)
}

// logRequest writes the request's line. Nothing that a user wrote is in it but ids.
func (x *exchange) logRequest(end time.Time) {
	id := x.r.Header.Get(openai.HeaderRequestID)
	if !x.s.cfg.RequestLog.Wants(x.s.log, id, x.ob.Finish == "") {
		return
	}
	attrs := append(make([]slog.Attr, 0, 20), slog.String("request_id", id), slog.String("kind", x.ob.Kind))
	if t := x.link.TraceID(); t != "" {
		attrs = append(attrs, slog.String("trace_id", t))
	}
	if x.job != nil {
		if q := x.job.req; q.TransferID != 0 {
			attrs = append(attrs, slog.Int64("disagg_request_id", q.TransferID))
		}
		if c := x.job.req.ConversationID; c != "" {
			attrs = append(attrs, slog.String("conversation_id", openai.Cut(c, 64)))
		}
		if x.rank != nil {
			attrs = append(attrs, slog.Int("rank", *x.rank))
		}
	}
	attrs = append(attrs, slog.Bool("stream", x.ob.Stream), slog.Int("status", x.ob.Status), slog.String("finish", x.ob.Finish),
		slog.Int("prompt_tokens", x.ob.Prompt), slog.Int("cached_tokens", x.cached), slog.Int("completion_tokens", x.ob.Output),
		slog.Float64("total_ms", float64(x.ob.Elapsed.Microseconds())/1000))
	if !x.turns.last.IsZero() {
		attrs = append(attrs, trace.Attr("stages", x.turns.stages(x.start, end)))
	}
	x.s.log.LogAttrs(x.r.Context(), x.s.cfg.RequestLog.Level, "request", attrs...)
}
