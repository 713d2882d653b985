package worker

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
)

func debugGet(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	s.Debug().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return rec.Code, rec.Body.String()
}

func TestDebugPages(t *testing.T) {
	e := newEngine(executor.Mixed, "")
	s := New(Config{})
	if code, _ := debugGet(t, s, "/debug/requests"); code != http.StatusServiceUnavailable {
		t.Errorf("without an engine: %d", code)
	}
	second := time.Second
	v := runner.View{
		Rank: 0, Now: 10 * second, At: 9 * second, Stats: executor.Stats{BlocksTotal: 9, BlocksFree: 2, BlocksActive: 4, BlocksReusable: 3, BlocksFenced: 1, PoolFull: 2 * second},
		Requests: []executor.RequestReport{
			{ID: 1, State: request.Decode, Prompt: 30, Computed: 33, Output: 4, MaxTokens: 9, Blocks: 3, Committed: 1, Arrived: 2 * second, Entered: 4 * second, Held: [executor.NumHolds]time.Duration{9 * second}},
			{ID: 7, Kind: request.ContextOnly, State: request.CtxSend, Transfer: 1<<60 + 1, Blocks: 5, Arrived: second, Entered: 3 * second, Due: 12 * second, Held: [executor.NumHolds]time.Duration{executor.HoldLease: 3 * second}},
			{ID: 8, State: request.Waiting, Arrived: 9 * second, Entered: 9 * second},
		},
		Steps: []executor.StepRecord{
			{Iter: 4, Planned: 8 * second, Outcome: executor.StepOK, GenRequests: 2, GenContext: 300, CtxPrior: 40, Run: 20 * time.Millisecond, IDs: [8]request.ID{1, 7}},
			{Iter: 5, Planned: 9 * second, Outcome: executor.StepRunning, CtxRequests: 1, CtxTokens: 16, Tally: executor.Tally{Arrived: 3}},
		},
		Events: []executor.EventRecord{{At: 5 * second, Iter: 3, Kind: executor.EventFailed, ID: 2, Code: request.BadLogits, Text: "NaN"}},
	}
	v.Buckets[0], v.Buckets[35] = 1, 2
	e.views, e.health = []runner.View{v}, runner.HealthStalled
	s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t)})
	s.live.add(&job{req: &request.Request{ID: 1}}, known{requestID: "abc", stream: true, route: &runner.Route{Rank: 0, Reason: "new"}})

	_, text := debugGet(t, s, "/debug/requests")
	d := decode[DebugRequests](t, text)
	if d.Health != "stalled" || len(d.Ranks) != 1 || d.Ranks[0].AgeMs != 1000 || len(d.Ranks[0].Requests) != 3 {
		t.Fatalf("%s", text)
	}
	a, lease, waits := d.Ranks[0].Requests[0], d.Ranks[0].Requests[1], d.Ranks[0].Requests[2]
	if a.State != "DECODE" || a.InStateMs != 6000 || a.AgeMs != 8000 || a.RequestID != "abc" || !a.Stream || a.Route.Reason != "new" ||
		!slices.Equal(a.Holds, []DebugHold{{"step", 1000}}) || a.Output != 4 || a.DueMs != nil {
		t.Errorf("%+v", a)
	}
	if lease.DisaggID != "1152921504606846977" || !slices.Equal(lease.Holds, []DebugHold{{"lease", 7000}}) || lease.DueMs == nil || *lease.DueMs != 2000 || lease.Kind != "context_only" {
		t.Errorf("%+v", lease)
	}
	if waits.State != "WAITING" || len(waits.Holds) != 0 || waits.RequestID != "" {
		t.Errorf("%+v", waits)
	}

	_, text = debugGet(t, s, "/debug/blocks")
	b := decode[DebugBlocks](t, text).Ranks[0]
	if b.Total != 9 || b.Free != 2 || b.Fenced != 1 || b.FullMs != 2000 || !slices.Equal(b.Buckets, []DebugBucket{{0, 1}, {35, 2}}) ||
		len(b.Holders) != 2 || b.Holders[0].ID != 7 || b.Holders[1].RequestID != "abc" {
		t.Errorf("%s", text)
	}

	_, text = debugGet(t, s, "/debug/flight")
	f := decode[DebugFlight](t, text).Ranks[0]
	if len(f.Steps) != 2 || f.Steps[0].RunMs != 20 || f.Steps[0].AgoMs != 2000 || f.Steps[0].GenDepth != 300 || f.Steps[0].CtxPrior != 40 || !slices.Equal(f.Steps[0].First, []request.ID{1, 7}) ||
		f.Steps[1].Outcome != "running" || f.Steps[1].Arrived != 3 || len(f.Events) != 1 || f.Events[0].Code != "bad_logits" || f.Events[0].AgoMs != 5000 {
		t.Errorf("%s", text)
	}
	if code, _ := debugGet(t, s, "/debug/secrets"); code != http.StatusNotFound {
		t.Errorf("%d", code)
	}
}

func TestResetPrefixCache(t *testing.T) {
	for _, c := range []struct {
		ranks int
		err   error
		code  int
		text  string
	}{{2, nil, 200, `{"ranks":2}`}, {0, nil, 409, "rank 0"}, {1, runner.ErrStopped, 503, "1 ranks have reset"}} {
		e := newEngine(executor.Mixed, "")
		e.resets, e.resetErr = c.ranks, c.err
		s := New(Config{})
		s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t)})
		rec := httptest.NewRecorder()
		s.Debug().ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/reset_prefix_cache", http.NoBody))
		if rec.Code != c.code || !strings.Contains(rec.Body.String(), c.text) {
			t.Errorf("%+v: %d %s", c, rec.Code, rec.Body)
		}
	}
}

// TestDebugKnowsRequestsWhileTheyRun: what is told of a request goes with it.
func TestDebugKnowsRequestsWhileTheyRun(t *testing.T) {
	e := newEngine(executor.Mixed, "hello")
	e.gate = make(chan struct{})
	srv := serveFake(t, e, nil)
	s := srv.Config.Handler.(*Server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/completions", strings.NewReader(`{"prompt":"x","max_tokens":3}`))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("X-Request-ID", "seen-1")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}()
	e.gate <- struct{}{}
	if k := s.live.get(1); k.requestID != "seen-1" {
		t.Errorf("%+v", k)
	}
	close(e.gate)
	<-done
	srv.Close() // waits for handlers
	if k := s.live.get(1); k.requestID != "" {
		t.Errorf("%+v is known for ever", k)
	}
}
