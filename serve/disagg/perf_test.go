package disagg

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/serve/discovery"
)

// manualClock is the time of a test; the scripts of workers move it.
type manualClock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *manualClock { return &manualClock{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *manualClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *manualClock) move(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
	return c.at
}

// perfWorker tells times of its requests on a clock of its own, ahead of the frontend's by skew.
type perfWorker struct {
	clock *manualClock
	epoch time.Time
	skew  float64
	kind  string // "" = as another engine, which tells no kind
	pull  bool
	mute  bool // tells no records

	mu     sync.Mutex
	offset float64
	list   []string
}

func (p *perfWorker) own(t time.Time) float64 { return t.Sub(p.epoch).Seconds() + p.skew }

// work spends time as a worker does and keeps the record.
func (p *perfWorker) work(id int64) {
	arrival := p.own(p.clock.move(2 * time.Millisecond))
	pull := ""
	if p.pull {
		pull = fmt.Sprintf(`"kv_cache_transfer_start":%.6f,"kv_cache_transfer_end":%.6f,`,
			p.own(p.clock.move(3*time.Millisecond))+p.offset, p.own(p.clock.move(20*time.Millisecond))+p.offset)
	}
	scheduled, first := p.own(p.clock.move(10*time.Millisecond)), p.own(p.clock.move(40*time.Millisecond))
	last := first
	if p.pull {
		last = p.own(p.clock.move(100 * time.Millisecond))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kind := ""
	if p.kind != "" {
		kind = `"kind":"` + p.kind + `",`
	}
	p.list = append(p.list, fmt.Sprintf(`{%s"ctx_request_id":%d,%s"arrival_time":%.6f,"first_scheduled_time":%.6f,"first_token_time":%.6f,"last_token_time":%.6f}`,
		kind, id, pull, arrival+p.offset, scheduled+p.offset, first+p.offset, last+p.offset))
	p.clock.move(time.Millisecond)
}

func (p *perfWorker) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.URL.Path == "/steady_clock_offset" && r.Method == http.MethodGet:
		_, _ = fmt.Fprintf(w, `{"receive_ts":%.9f,"transmit_ts":%.9f}`, p.own(p.clock.now()), p.own(p.clock.now()))
	case r.URL.Path == "/steady_clock_offset":
		var b struct{ Offset float64 }
		_ = json.NewDecoder(r.Body).Decode(&b)
		p.offset = b.Offset
	case r.URL.Path == "/perf_metrics" && !p.mute:
		_, _ = io.WriteString(w, "["+strings.Join(p.list, ",")+"]")
		p.list = nil
	default:
		http.NotFound(w, r)
	}
}

// perfRig is a frontend over a ctx and a gen worker whose clocks are off.
func perfRig(t *testing.T, edit func(c, g *perfWorker), opts ...rigOption) (*rig, *manualClock) {
	t.Helper()
	clock := newClock()
	c := &perfWorker{clock: clock, epoch: clock.now(), skew: 5000, kind: "context_only"}
	g := &perfWorker{clock: clock, epoch: clock.now(), skew: -77, kind: "generation_only", pull: true}
	if edit != nil {
		edit(c, g)
	}
	ctx := newStub(t, discovery.Context, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		c.work(q.params.DisaggRequestID)
		w.Header().Set("Server-Timing", "queue;dur=10, prefill;dur=40")
		ctxReply{}.script(n, q, w, r)
	})
	gen := newStub(t, discovery.Generation, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		g.work(q.params.DisaggRequestID)
		if string(q.body["stream"]) == "true" {
			stream(w, chunkText("B"))
			_, _ = io.WriteString(w, ": Server-Timing: queue;dur=3, transfer;dur=20, decode;dur=100\n\n")
			stream(w, "[DONE]")
			return
		}
		w.Header().Set("Server-Timing", "queue;dur=3, transfer;dur=20, decode;dur=100")
		genReply{}.script(n, q, w, r)
	})
	ctx.more, gen.more = c.serve, g.serve
	opts = append(opts, func(r *rig, p *Parts) { p.Now, r.cfg.PerfRecords = clock.now, 3 })
	r := newRig(t, []*stub{ctx}, []*stub{gen}, opts...)
	r.s.background.Wait() // clocks are compared
	return r, clock
}

func (r *rig) perf(headers ...string) (list []perfRecord) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.front.URL+"/perf_metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		r.t.Fatal(err)
	}
	return list
}

func checkSum(t *testing.T, p *perfRecord) {
	t.Helper()
	sum := 0.0
	for name, ms := range p.StagesMs {
		if ms < 0 {
			t.Errorf("%s took %g ms", name, ms)
		}
		sum += ms
	}
	if total := (p.Finish - p.Arrival) * 1000; math.Abs(sum-total) > 1e-3 {
		t.Errorf("the stages sum to %g of %g ms: %v", sum, total, p.StagesMs)
	}
}

func TestPerfRecordsJoinTheLegs(t *testing.T) {
	want := map[string]float64{"ctx_send": 2, "ctx_queue": 10, "prefill": 40, "ctx_reply": 1, "gen_send": 2, "gen_queue": 13, "transfer": 20, "decode": 140}
	for _, foreign := range []bool{false, true} {
		for _, body := range []string{`{"prompt":"hi","max_tokens":8}`, `{"prompt":"hi","max_tokens":8,"stream":true}`} {
			r, _ := perfRig(t, func(c, g *perfWorker) {
				if foreign {
					c.kind, g.kind = "", ""
				}
			})
			r.post("/v1/completions", body, "X-Request-ID", "r1")
			list := r.perf()
			if len(list) != 1 {
				t.Fatalf("%d records", len(list))
			}
			p := &list[0]
			checkSum(t, p)
			for name, ms := range want {
				if math.Abs(p.StagesMs[name]-ms) > 0.01 {
					t.Errorf("%s is %g ms, want %g", name, p.StagesMs[name], ms)
				}
			}
			if p.RequestID != "r1" || p.CtxServer != r.ctx[0].id || p.GenServer != r.gen[0].id || p.Outcome != "ok" || p.Path != PathCtxGen {
				t.Errorf("%+v", p)
			}
			if len(p.Ctx) < 10 || len(p.Gen) < 10 || p.CtxSent == nil || p.GenSent == nil || *p.GenSent < *p.CtxSent {
				t.Errorf("%+v", p)
			}
			if p.First == nil || *p.First < *p.GenSent || *p.First > p.Finish {
				t.Errorf("the first token is not within the gen leg: %+v", p)
			}
			if again := r.perf(); len(again) != 0 {
				t.Errorf("told twice: %+v", again)
			}
		}
	}
}

func TestPerfRecordWaitsOnceForGen(t *testing.T) {
	r, _ := perfRig(t, func(_, g *perfWorker) { g.mute = true })
	r.post("/v1/completions", `{"prompt":"hi"}`)
	if list := r.perf(); len(list) != 0 {
		t.Errorf("told before the gen worker: %+v", list)
	}
	list := r.perf()
	if len(list) != 1 || len(list[0].Ctx) < 10 || string(list[0].Gen) != "null" {
		t.Fatalf("%+v", list)
	}
	checkSum(t, &list[0])
}

func TestPerfRecordsOfFailuresAndOfOneLeg(t *testing.T) {
	fails := newStub(t, discovery.Context, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"too long","type":"invalid_request_error"}}`)
	})
	r := newRig(t, []*stub{fails}, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(func(c *Config) { c.PerfRecords = 8 }))
	r.post("/v1/completions", `{"prompt":"hi"}`)
	list := r.perf()
	if len(list) != 1 || list[0].Outcome != openaiInvalid || list[0].GenServer != "" || string(list[0].Ctx) != "null" {
		t.Errorf("%+v", list)
	}
	r = one(t, ctxReply{finish: "stop"}, genReply{}, withConfig(func(c *Config) { c.PerfRecords = 8 }))
	r.post("/v1/completions", `{"prompt":"hi"}`)
	if list = r.perf(); len(list) != 1 || list[0].Path != PathCtxOnly || list[0].GenServer != "" || list[0].First == nil {
		t.Errorf("%+v", list)
	}
	checkSum(t, &list[0])
}

// TestPerfRecordsAreOfTheKey: nobody is told of, or takes away, the records of another key, from the ring or behind a file.
func TestPerfRecordsAreOfTheKey(t *testing.T) {
	for name, file := range map[string]*lineLog{"ring": nil, "file": {}} {
		t.Run(name, func(t *testing.T) {
			r, _ := perfRig(t, nil, withKeys(nil), func(_ *rig, p *Parts) {
				if file != nil {
					p.PerfFile = file
				}
			})
			for _, key := range []string{keyA, keyB, keyA} {
				r.post(completions, hello, bearer(key)...).wantOK(t, "ABC")
			}
			if file != nil {
				r.s.writePerf(t.Context())
				r.s.writePerf(t.Context())
			}
			for _, want := range []struct {
				key string
				n   int
			}{{keyA, 2}, {keyA, 0}, {keyB, 1}, {keyB, 0}} {
				list := r.perf(bearer(want.key)...)
				for end := time.Now().Add(30 * time.Second); len(list) < want.n && time.Now().Before(end); { // the server writes by itself, too
					list = append(list, r.perf(bearer(want.key)...)...)
				}
				if len(list) != want.n {
					t.Errorf("%d records, not %d", len(list), want.n)
				}
				for i := range list {
					if len(list[i].Ctx) < 10 || len(list[i].Gen) < 10 {
						t.Errorf("not joined: %+v", list[i])
					}
				}
			}
		})
	}
}

const openaiInvalid = "invalid_request_error"

func TestPerfRecordsAreBounded(t *testing.T) {
	r, _ := perfRig(t, nil) // of 3
	for range 9 {
		r.post("/v1/completions", `{"prompt":"hi"}`)
	}
	if list := r.perf(); len(list) != 3 {
		t.Errorf("%d records of 3", len(list))
	}
	p := r.s.perf
	if len(p.parts) > 6 || len(p.order) > 6 || len(p.waiting) > 3 {
		t.Errorf("kept %d parts, %d keys, %d requests", len(p.parts), len(p.order), len(p.waiting))
	}
	off := one(t, ctxReply{}, genReply{})
	off.post("/v1/completions", `{"prompt":"hi"}`)
	if list := off.perf(); list == nil || len(list) != 0 {
		t.Errorf("kept by default: %+v", list)
	}
}

func TestClockOffset(t *testing.T) {
	// the worker is 100 s ahead; 2 ms there, 1 ms in it, 2 ms back
	if got := clockOffset(10, 110.002, 110.003, 10.005); math.Abs(got-100) > 1e-9 {
		t.Errorf("%g", got)
	}
}

func TestServerTimingTellsTheClient(t *testing.T) {
	for _, on := range []bool{true, false} {
		r, _ := perfRig(t, nil, withConfig(func(c *Config) { c.ReturnPerf = on }))
		const want = "ctx;dur=53.000, ctx_queue;dur=10.000, prefill;dur=40.000, transfer;dur=20.000, gen_queue;dur=3.000"
		a := r.post("/v1/completions", `{"prompt":"hi"}`)
		if got := a.header.Get("Server-Timing"); on && got != want+", decode;dur=100.000" || !on && got != "" {
			t.Errorf("whole: %q", got)
		}
		a = r.post("/v1/completions", `{"prompt":"hi","stream":true}`)
		_, after, ok := strings.Cut(a.raw, "\n\n: Server-Timing: ")
		if ok != on || on && !strings.Contains(after, "ttft;dur=") || on && !strings.HasSuffix(after, "\n\ndata: [DONE]\n\n") {
			t.Errorf("stream, %t: %s", on, a.raw)
		}
		if strings.Count(a.raw, "Server-Timing") > 1 || !on && strings.Contains(a.raw, "Server-Timing") {
			t.Errorf("the worker's own is not for the client: %s", a.raw)
		}
		if got := r.ctx[0].requests()[0].header.Get("X-Disagg-Return-Metrics"); on != (got == "1") {
			t.Errorf("asked the worker: %q", got)
		}
	}
}

// lineLog takes lines as a file does.
type lineLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

// Every request is in the file once, also those that finish just before the end, and readers still get the newest.
func TestPerfRecordsGoToAFile(t *testing.T) {
	file := &lineLog{}
	r, _ := perfRig(t, nil, func(_ *rig, p *Parts) { p.PerfFile = file })
	for range 5 {
		r.post("/v1/completions", `{"prompt":"hi"}`)
	}
	r.s.writePerf(t.Context())
	r.s.writePerf(t.Context())
	if list := r.perf(); len(list) != 3 { // of perf_metrics_max_requests
		t.Errorf("readers get %d", len(list))
	}
	if list := r.perf(); len(list) != 0 {
		t.Errorf("told twice: %d", len(list))
	}
	r.post("/v1/completions", `{"prompt":"hi","stream":true}`)
	r.s.Close()
	r.s.stopPerfFile = nil
	ids := map[string]bool{}
	for _, line := range file.lines {
		var rec perfRecord
		if err := json.Unmarshal([]byte(line), &rec); err != nil || ids[rec.RequestID] || len(rec.Gen) < 10 {
			t.Errorf("%v in %s", err, line)
		}
		ids[rec.RequestID] = true
	}
	if len(ids) != 4 { // the ring of 3 was full before the first write
		t.Errorf("%d records", len(ids))
	}
}
