package worker

import (
	"context"
	"math"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/trace"
)

// timedEngine tells times with the final output of each request, on a clock that the server shares.
type timedEngine struct {
	*fakeEngine
	clock *fakeClock
	pull  bool
}

// fakeClock is the time of a test. It moves when told to.
type fakeClock struct {
	mu sync.Mutex
	at time.Duration
}

func (c *fakeClock) engine() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *fakeClock) now() time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(c.engine())
}

func (c *fakeClock) move(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at += d
	return c.at
}

func (e *timedEngine) Now() time.Duration { return e.clock.engine() }

func (e *timedEngine) Submit(ctx context.Context, r *request.Request, opaque []byte) (Stream, error) {
	e.clock.move(2 * time.Millisecond) // prepared
	s, err := e.fakeEngine.Submit(ctx, r, opaque)
	if err != nil {
		return nil, err
	}
	return &timedStream{Stream: s, e: e, times: executor.Times{Arrived: e.clock.engine(), Blocks: 3}}, nil
}

type timedStream struct {
	Stream
	e     *timedEngine
	times executor.Times
}

func (s *timedStream) Next(ctx context.Context) (runner.Output, error) {
	c := s.e.clock
	if s.times.Scheduled == 0 {
		if s.e.pull {
			s.times.PullBegan = c.move(3 * time.Millisecond)
			s.times.PullEnded = c.move(40 * time.Millisecond)
		}
		s.times.Scheduled = c.move(10 * time.Millisecond)
		s.times.First = c.move(50 * time.Millisecond)
	} else {
		c.move(5 * time.Millisecond)
	}
	o, err := s.Stream.Next(ctx)
	if o.Finish != request.Running {
		o.Times = s.times
	}
	return o, err
}

// seen keeps the observations of a server.
type seen struct {
	noObserver
	mu   sync.Mutex
	list []Observation
}

func (s *seen) Done(o Observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, o)
}

func timedServer(t *testing.T, pull bool, change func(*Config)) (*httptest.Server, *seen) {
	clock, obs := &fakeClock{at: time.Second}, &seen{}
	e := &timedEngine{fakeEngine: newEngine(executor.Mixed, "ABC"), clock: clock, pull: pull}
	cfg := Config{Trusted: true, Transceiver: true, Observer: obs, PerfRecords: 2, Now: clock.now}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t), Template: fakeTemplate{}})
	clock.move(time.Second)
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv, obs
}

func sum(stages map[string]float64) (total float64) {
	for _, ms := range stages {
		total += ms
	}
	return total
}

func TestPerfRecords(t *testing.T) {
	gen := `{"prompt":[104],"max_tokens":3,"disaggregated_params":{"request_type":"generation_only","disagg_request_id":687865856000134148,` +
		`"ctx_request_id":687865856000134148,"first_gen_tokens":[65],"encoded_opaque_state":"b3BhcXVl"}}`
	for _, tc := range []struct {
		name, body, kind, id string
		pull                 bool
		want                 map[string]float64 // ms
	}{
		{"whole", `{"prompt":"hello","max_tokens":3}`, "full", "", false, map[string]float64{"prepare": 2, "queue": 10, "prefill": 50, "decode": 10}},
		{"streamed", `{"prompt":"hello","max_tokens":3,"stream":true}`, "full", "", false, map[string]float64{"prepare": 2, "queue": 10, "prefill": 50, "decode": 10}},
		{"gen leg", gen, "generation_only", "687865856000134148", true, map[string]float64{"prepare": 2, "queue": 13, "transfer": 40, "prefill": 50, "decode": 10}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv, obs := timedServer(t, tc.pull, nil)
			if status, h, text := post(t, srv.URL+"/v1/completions", tc.body, "X-Request-ID", "r1"); status != 200 || h.Get(trace.HeaderTiming) != "" {
				t.Fatalf("%d %s %v", status, text, h)
			}
			_, _, text := get(t, srv.URL+"/perf_metrics")
			list := decode[[]perfRecord](t, text)
			if len(list) != 1 {
				t.Fatalf("%s", text)
			}
			p := list[0]
			if p.RequestID != "r1" || p.Kind != tc.kind || p.DisaggID != tc.id || p.Outcome != "length" || p.Arrival != 1 {
				t.Errorf("%+v", p)
			}
			for name, ms := range tc.want {
				if math.Abs(p.StagesMs[name]-ms) > 1e-6 {
					t.Errorf("%s is %g ms, want %g", name, p.StagesMs[name], ms)
				}
			}
			if total := (p.Finish - p.Arrival) * 1000; math.Abs(sum(p.StagesMs)-total) > 1e-6 {
				t.Errorf("the stages sum to %g of %g ms", sum(p.StagesMs), total)
			}
			if p.Allocated != p.New+p.Reused || (p.PullStart != nil) != tc.pull || p.First == nil || *p.First <= *p.Scheduled {
				t.Errorf("%+v", p)
			}
			o := obs.list[0]
			if s := o.Stages; s.Prepare+s.Queue+s.Transfer+s.Prefill+s.Decode+s.Reply != o.Elapsed {
				t.Errorf("%+v of %v", s, o.Elapsed)
			}
			if _, _, again := get(t, srv.URL+"/perf_metrics"); strings.TrimSpace(again) != "[]" {
				t.Errorf("told twice: %s", again)
			}
		})
	}
}

func TestPerfRecordsAreBoundedAndOffByDefault(t *testing.T) {
	for _, size := range []int{0, 2} {
		srv, _ := timedServer(t, false, func(c *Config) { c.PerfRecords = size })
		for range 5 {
			post(t, srv.URL+"/v1/completions", `{"prompt":"hello","max_tokens":1}`)
		}
		_, _, text := get(t, srv.URL+"/perf_metrics")
		if list := decode[[]perfRecord](t, text); len(list) != size {
			t.Errorf("%d records, want %d", len(list), size)
		}
	}
}

func TestClockOffsetMovesRecords(t *testing.T) {
	srv, _ := timedServer(t, false, nil)
	if status, _, text := post(t, srv.URL+"/steady_clock_offset", `{"offset":100}`); status != 200 {
		t.Fatal(text)
	}
	post(t, srv.URL+"/v1/completions", `{"prompt":"hello","max_tokens":1}`)
	_, _, text := get(t, srv.URL+"/perf_metrics")
	if p := decode[[]perfRecord](t, text)[0]; p.Arrival != 101 || *p.First < 101 || p.Finish < *p.First {
		t.Errorf("%s", text)
	}
}

func TestServerTiming(t *testing.T) {
	for _, tc := range []struct {
		name   string
		own    bool
		header string
		stream bool
		want   bool
	}{
		{"not asked for", false, "", false, false},
		{"asked for", false, "1", false, true},
		{"own key", true, "", false, true},
		{"streamed", false, "1", true, true},
		{"streamed, not asked for", false, "", true, false},
	} {
		srv, _ := timedServer(t, false, func(c *Config) { c.ReturnPerf = tc.own })
		body := `{"prompt":"hello","max_tokens":3}`
		if tc.stream {
			body = `{"prompt":"hello","max_tokens":3,"stream":true}`
		}
		_, h, text := post(t, srv.URL+"/v1/completions", body, "X-Disagg-Return-Metrics", tc.header)
		const want = "prepare;dur=2.000, queue;dur=10.000, prefill;dur=50.000, decode;dur=10.000"
		got := h.Get(trace.HeaderTiming)
		if tc.stream {
			_, after, _ := strings.Cut(text, ": Server-Timing: ")
			got, after, _ = strings.Cut(after, "\n")
			if tc.want && after != "\ndata: [DONE]\n\n" {
				t.Errorf("%s: the comment is not the last before [DONE]: %q", tc.name, after)
			}
		}
		if tc.want && got != want || !tc.want && got != "" {
			t.Errorf("%s: %q\n%s", tc.name, got, text)
		}
	}
}

func TestSpansOfAWorker(t *testing.T) {
	exp := tracetest.NewInMemoryExporter()
	tracer, err := trace.NewTracer(trace.Options{Exporter: keep{exp}, Ratio: 1})
	if err != nil {
		t.Fatal(err)
	}
	srv, _ := timedServer(t, true, func(c *Config) { c.Tracer = tracer })
	post(t, srv.URL+"/v1/completions", `{"prompt":"secret","max_tokens":3}`, "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	post(t, srv.URL+"/v1/completions", `{`)
	srv.Close()
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := map[string]time.Duration{}
	for _, s := range exp.GetSpans() {
		took[s.Name] = s.EndTime.Sub(s.StartTime)
		if s.Name != "refused" && s.SpanContext.TraceID().String() != "4bf92f3577b34da6a3ce929d0e0e4736" {
			t.Errorf("%s is in another trace", s.Name)
		}
	}
	if took["full"] != 115*time.Millisecond || took["transfer"] != 40*time.Millisecond || took["prefill"] != 50*time.Millisecond {
		t.Errorf("%v", took)
	}
	if _, ok := took["refused"]; !ok {
		t.Error("a refused request has no span")
	}
}

// keep is an exporter whose spans survive its shutdown.
type keep struct{ *tracetest.InMemoryExporter }

func (keep) Shutdown(context.Context) error { return nil }
