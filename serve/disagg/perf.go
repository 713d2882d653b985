package disagg

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/trace"
)

// Limits of what a worker may tell of its requests.
const (
	perfWait     = 5 * time.Second
	maxPerfBytes = 64 << 20
)

// perfRecord is one request in the frontend's /perf_metrics. Times are seconds of its steady clock, null = not reached.
type perfRecord struct {
	DisaggID  string             `json:"disagg_request_id"` // as text: it does not fit a double
	RequestID string             `json:"request_id"`
	CtxServer string             `json:"ctx_server"`
	GenServer string             `json:"gen_server"`
	Path      Path               `json:"path"`
	Arrival   float64            `json:"disagg_server_arrival_time"`
	CtxSent   *float64           `json:"ctx_dispatch_time"`
	GenSent   *float64           `json:"gen_dispatch_time"`
	First     *float64           `json:"disagg_server_first_token_time"`
	Finish    float64            `json:"finish_time"`
	Outcome   string             `json:"outcome"`
	Prompt    int                `json:"prompt_tokens"`
	Cached    int                `json:"cached_tokens"`
	Output    int                `json:"completion_tokens"`
	StagesMs  map[string]float64 `json:"stages_ms"`
	Ctx       json.RawMessage    `json:"ctx_perf_metrics"`
	Gen       json.RawMessage    `json:"gen_perf_metrics"`
	tenant    string
}

// trip is a finished request that waits for its workers' records.
type trip struct {
	journey
	arrived   time.Time
	requestID string
	tenant    string
	path      Path
	tries     int // reads that found no gen record
}

// perf keeps records of requests until they are read. The zero value is off.
type perf struct {
	size  int
	epoch time.Time // of the steady clock
	ring  *trace.Ring[trip]

	mu      sync.Mutex // of one read at a time
	waiting []trip
	written []perfRecord                // to the file, and not yet read
	parts   map[partKey]json.RawMessage // workers' records without a request yet
	order   []partKey                   // of parts, oldest first
}

// partKey finds a worker's record.
type partKey struct {
	server string
	kind   string // of ours; records of other engines have none
	id     int64
}

func newPerf(size int, epoch time.Time) *perf {
	return &perf{size: size, epoch: epoch, ring: trace.NewRing[trip](size), parts: map[partKey]json.RawMessage{}}
}

func (p *perf) add(plan *RoutePlan) {
	if p.ring.On() && plan.trip.id != 0 {
		p.ring.Add(trip{journey: plan.trip, arrived: plan.Arrived, requestID: plan.RequestID, tenant: plan.Tenant, path: plan.Path})
	}
}

// workerPart is what is read of a worker's record; times are on the frontend's clock.
type workerPart struct {
	CtxID     int64    `json:"ctx_request_id"`
	Kind      string   `json:"kind"`
	Arrival   *float64 `json:"arrival_time"`
	Scheduled *float64 `json:"first_scheduled_time"`
	First     *float64 `json:"first_token_time"`
	Last      *float64 `json:"last_token_time"`
	PullStart *float64 `json:"kv_cache_transfer_start"`
	PullEnd   *float64 `json:"kv_cache_transfer_end"`
}

// keep takes a worker's records; those without an id cannot be joined.
func (p *perf) keep(server string, list []json.RawMessage) {
	for _, raw := range list {
		var w workerPart
		if json.Unmarshal(raw, &w) != nil || w.CtxID == 0 {
			continue
		}
		key := partKey{server, w.Kind, w.CtxID}
		if _, have := p.parts[key]; !have {
			p.order = append(p.order, key)
		}
		p.parts[key] = raw
	}
}

// trim drops the oldest records that no request asked for.
func (p *perf) trim() {
	left := p.order[:0]
	for _, key := range p.order {
		if _, have := p.parts[key]; have {
			left = append(left, key)
		}
	}
	for len(left) > 2*p.size { // a request has two
		delete(p.parts, left[0])
		left = left[1:]
	}
	p.order = slices.Clone(left)
}

// take removes and returns the record of a leg, nil if it is not there.
func (p *perf) take(server, kind string, id int64) json.RawMessage {
	for _, k := range []string{kind, ""} {
		key := partKey{server, k, id}
		if raw, ok := p.parts[key]; ok {
			delete(p.parts, key)
			return raw
		}
	}
	return nil
}

// join makes the record of a request. ok is false when the gen worker's part may still come.
func (p *perf) join(t *trip) (rec perfRecord, ok bool) {
	genKind := "generation_only"
	if t.path == PathGenOnly {
		genKind = "full"
	}
	if _, have := p.parts[partKey{t.gen.ID, genKind, t.id}]; !have && (t.path == PathCtxGen || t.path == PathGenCtx) && !t.genSent.IsZero() && t.tries == 0 {
		if _, foreign := p.parts[partKey{t.gen.ID, "", t.id}]; !foreign {
			t.tries++
			return rec, false
		}
	}
	rec = perfRecord{
		DisaggID: decimalID(t.id), RequestID: t.requestID, CtxServer: t.ctx.ID, GenServer: t.gen.ID, Path: t.path,
		Arrival: p.at(t.arrived), CtxSent: p.maybe(t.ctxSent), GenSent: p.maybe(t.genSent), First: p.maybe(t.first), Finish: p.at(t.finished),
		Outcome: t.outcome, Prompt: t.tokens.Prompt, Cached: t.tokens.Cached, Output: t.tokens.Completion,
		Ctx: p.take(t.ctx.ID, "context_only", t.id), Gen: p.take(t.gen.ID, genKind, t.id), tenant: t.tenant,
	}
	if rec.First == nil {
		rec.First = p.firstOf(t, rec.Ctx, rec.Gen)
	}
	rec.StagesMs = trace.Millis(p.stages(t, rec.Ctx, rec.Gen))
	return rec, true
}

// firstOf is when the first token of a whole answer was there, as the worker that wrote it says: that of the gen leg, or of
// the only leg. It is moved into the time of that leg. nil when no worker tells.
func (p *perf) firstOf(t *trip, ctx, gen json.RawMessage) *float64 {
	raw, from := gen, t.genSent
	if from.IsZero() {
		raw, from = ctx, t.ctxSent
	}
	var w workerPart
	_ = json.Unmarshal(raw, &w) // keep has read it; none stays empty
	if w.First == nil || from.IsZero() || t.outcome != "ok" {
		return nil
	}
	at := min(max(*w.First, p.at(from)), p.at(t.finished))
	return &at
}

// stages divides the request's time with what the workers say. What they say is moved within their legs, so the sum is
// the total even if their clocks are off.
func (p *perf) stages(t *trip, ctx, gen json.RawMessage) []trace.Stage {
	var c, g workerPart
	_ = json.Unmarshal(ctx, &c) // keep has read it; none stays empty
	_ = json.Unmarshal(gen, &g)
	tl := &trace.Timeline{Start: t.arrived}
	tl.Add("route", t.firstSent())
	if !t.ctxSent.IsZero() {
		within := func(name string, at *float64) { tl.AddWithin(t.ctxSent, t.ctxDone, name, p.time(at)) }
		within("ctx_send", c.Arrival)
		within("ctx_queue", c.Scheduled)
		within("prefill", c.First)
		tl.Add("ctx_reply", t.ctxDone)
		tl.Add("kv_wait", t.genSent)
	}
	if !t.genSent.IsZero() {
		within := func(name string, at *float64) { tl.AddWithin(t.genSent, t.finished, name, p.time(at)) }
		within("gen_send", g.Arrival)
		within("gen_queue", g.PullStart)
		within("transfer", g.PullEnd)
		within("gen_queue", g.Scheduled)
		if t.ctxSent.IsZero() {
			within("prefill", g.First)
		}
		within("decode", g.Last)
	}
	tl.Add("reply", t.finished)
	return tl.Stages(t.finished)
}

func (p *perf) at(t time.Time) float64 { return t.Sub(p.epoch).Seconds() }

func (p *perf) maybe(t time.Time) *float64 {
	if t.IsZero() {
		return nil
	}
	at := p.at(t)
	return &at
}

func (p *perf) time(at *float64) time.Time {
	if at == nil || *at < -1e9 || *at > 1e9 { // of no clock
		return time.Time{}
	}
	return p.epoch.Add(time.Duration(*at * float64(time.Second)))
}

// perfMetrics drains the records of who asks: each is told once, or a read later if the gen worker's part is missing.
func (s *Server) perfMetrics(w http.ResponseWriter, r *http.Request) {
	out := []perfRecord{}
	who, _ := s.keys.find(r.Header) // guard has refused who has none
	mine := func(tenant string) bool { return tenant == who.name }
	switch {
	case s.perfFile != nil: // what was written since the last read
		out = s.perf.takeWritten(mine)
	case s.perf.ring.On():
		out = s.collect(r.Context(), mine)
	}
	writeJSON(w, http.StatusOK, out)
}

// collect joins the finished requests of some tenants with what their workers tell.
func (s *Server) collect(ctx context.Context, of func(tenant string) bool) []perfRecord {
	out := []perfRecord{}
	p := s.perf
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, p.ring.Drain()...)
	var asked, later []trip
	for i := range p.waiting {
		if t := &p.waiting[i]; of(t.tenant) {
			asked = append(asked, *t)
		} else {
			later = append(later, *t)
		}
	}
	for server, list := range s.workerRecords(ctx, asked) {
		p.keep(server, list)
	}
	for i := range asked {
		t := &asked[i]
		if rec, ok := p.join(t); ok {
			out = append(out, rec)
		} else {
			later = append(later, *t)
		}
	}
	p.trim()
	p.waiting = later[max(0, len(later)-p.size):]
	return out
}

// workerRecords drains the records of all workers that took part.
func (s *Server) workerRecords(ctx context.Context, trips []trip) map[string][]json.RawMessage {
	ctx, cancel := context.WithTimeout(ctx, perfWait)
	defer cancel()
	ask := map[string]discovery.Instance{}
	for i := range trips {
		for _, in := range []discovery.Instance{trips[i].ctx, trips[i].gen} {
			if in.URL != "" {
				ask[in.ID] = in
			}
		}
	}
	out := map[string][]json.RawMessage{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for id, in := range ask {
		wg.Go(func() {
			var list []json.RawMessage
			if err := s.fetchJSON(ctx, in.URL+"/perf_metrics", &list); err != nil {
				s.log.Debug("a worker does not tell its perf metrics", "server", id, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[id] = list
		})
	}
	wg.Wait()
	return out
}

// fetchJSON reads a bounded JSON answer.
func (s *Server) fetchJSON(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, maxPerfBytes)).Decode(v)
}

// isTiming recognises a worker's comment that tells its stages; it is not for the client.
func isTiming(event []byte) (text string, ok bool) {
	return strings.CutPrefix(strings.TrimSpace(string(event)), ": "+trace.HeaderTiming+": ")
}
