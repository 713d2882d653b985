package live

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tensor"
	"tandem/serve/discovery"
	"tandem/serve/router"
	"tandem/serve/worker"
	"tandem/test/bench/des"
	"tandem/test/bench/profile"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// cost is what the devices of these tests take. A prompt's last token alone costs as much as a decode, which a device cannot tell
// from it.
var cost = profile.Coefficients{Iteration: 3e-3, CtxToken: 2e-4, GenRequest: 2e-4, GenContext: 5e-8, CtxAttention: 5e-8}

// device takes the time that a batch costs and draws nothing in particular.
type device struct{ logits []float32 }

func (d *device) Run(b *tensor.Batch) ([]float32, error) {
	var p profile.Point
	for i, from := range b.RowStart[:len(b.RowStart)-1] {
		n, pos := int(b.RowStart[i+1]-from), int(b.PosStart[i])
		if n > 1 {
			p.CtxTokens, p.CtxPrior = p.CtxTokens+n, p.CtxPrior+n*pos
		} else {
			p.GenRequests, p.GenContext = p.GenRequests+1, p.GenContext+pos+1
		}
	}
	time.Sleep(time.Duration(cost.Seconds(p) * 1e9))
	d.logits = make([]float32, len(b.LogitRows)*des.Vocab)
	return d.logits, nil
}

func (d *device) CopyBlockPrefix(int32, int32, int) error { return nil }
func (d *device) Check(*tensor.Batch) error               { return nil }
func (d *device) Progress() uint64                        { return 0 }

var small = Setup{Workers: 2, MaxBatch: 32, MaxTokens: 256, Blocks: 600, Block: 16}

// cluster is engines of production behind a router of production, without HTTP.
type cluster struct {
	engines []*runner.Engine
	died    chan error
	route   router.Router
	list    []discovery.Instance
	flights Flights
}

func start(t *testing.T, kind string) *cluster {
	t.Helper()
	c := &cluster{died: make(chan error, small.Workers)}
	var err error
	if c.route, err = router.NewRouter(router.Config{Type: kind}); err != nil {
		t.Fatal(err)
	}
	for i := range small.Workers {
		e, err := runner.New(runner.Config{Core: small.Core(), Info: runner.Info{Vocab: des.Vocab}}, &device{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.engines = append(c.engines, e)
		c.list = append(c.list, discovery.Instance{ID: fmt.Sprint(i), Info: &discovery.ServerInfo{TokensPerBlock: small.Block, MaxBatchSize: small.MaxBatch}})
		go func() { c.died <- e.Run(context.WithoutCancel(t.Context())) }()
	}
	return c
}

func (c *cluster) stop(t *testing.T) {
	t.Helper()
	for _, e := range c.engines {
		e.Shutdown(t.Context())
		if err := <-c.died; err != nil {
			t.Error(err)
		}
	}
}

// look takes the steps that the flight recorders have.
func (c *cluster) look(t *testing.T, now time.Duration) {
	for i, e := range c.engines {
		page := worker.DebugFlight{Ranks: []worker.DebugRankFlight{{}}}
		for _, v := range e.Views(t.Context()) {
			for _, s := range v.Steps {
				page.Ranks[0].Steps = append(page.Ranks[0].Steps, worker.DebugStep{
					Iter: s.Iter, AgoMs: ms(v.Now - s.Planned), Outcome: string(s.Outcome), CtxTokens: s.CtxTokens, CtxPrior: s.CtxPrior,
					Arrived: s.Arrived, GenRows: s.GenRequests, GenDepth: s.GenContext, SchedMs: ms(s.Sched), RunMs: ms(s.Run), ApplyMs: ms(s.Apply),
				})
			}
		}
		c.flights.Take(i, now, &page)
	}
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// ask sends one request and waits for its end.
func (c *cluster) ask(t *testing.T, w *workload.Workload, q *workload.Request, now func() time.Duration) (r *result.Record, release func()) {
	release = func() {}
	r = &result.Record{ID: q.ID, Phase: result.Measured, Outcome: result.Failed, Send: int64(now()), Input: q.Input}
	prompt := q.AppendTokens(nil, w.Seed, des.Vocab)
	sel, err := c.route.Select(router.Request{
		RoutingID: q.Conversation, ConversationID: q.Conversation, Tokens: prompt, MaxTokens: q.Output, Candidates: func() []discovery.Instance { return c.list },
	})
	if err != nil {
		return r, release
	}
	release = func() { sel.Reservation.Release(true) }
	e := c.engines[sel.Instance.ID[0]-'0']
	s := request.DefaultSampling()
	s.Temperature, s.IgnoreEOS = 0, true
	stream, err := e.Submit(t.Context(), &request.Request{ID: e.NewID(), Prompt: prompt, MaxTokens: q.Output, Sampling: s, DPRank: -1}, nil)
	if err != nil {
		return r, release
	}
	for {
		o, err := stream.Next(t.Context())
		if err != nil {
			return r, release
		}
		if len(o.Tokens) > 0 && r.First == 0 {
			r.First = int64(now())
		}
		if o.Finish != request.Running {
			r.Cached, r.Outcome = o.Usage.CachedTokens, result.OK
			return r, release
		}
	}
}

// end is a request that has ended.
type end struct {
	seq     int
	record  *result.Record
	release func()
}

// drive sends a workload by the clock of the bubble. What happens at one instant happens in one order, that of the simulator.
func (c *cluster) drive(t *testing.T, w *workload.Workload, so schedule.Options) (records []*result.Record) {
	t.Helper()
	plan, err := schedule.New(w, so)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	now := func() time.Duration { return time.Since(begin) }
	ended := make(chan end, len(w.Requests))
	stop := c.watch(t, now)
	defer stop()
	poll := func() time.Duration {
		due, next := plan.Poll(now())
		for _, d := range due {
			go func() {
				r, release := c.ask(t, w, &w.Requests[d.Request], now)
				ended <- end{d.Seq, r, release}
			}()
			synctest.Wait()
		}
		return next
	}
	for next := poll(); !plan.Over(now()); {
		var together []end
		select {
		case e := <-ended:
			together = append(together, e)
		case <-time.After(min(next-now(), time.Hour)):
		}
		for synctest.Wait(); len(ended) > 0; {
			together = append(together, <-ended)
		}
		slices.SortFunc(together, func(a, b end) int { return a.seq - b.seq })
		for _, e := range together {
			e.release()
			plan.Done(e.seq, now())
			records = append(records, e.record)
			next = poll()
		}
		if len(together) == 0 {
			next = poll()
		}
	}
	return records
}

// watch takes steps every so often, beside the requests: an engine answers when its step is over.
func (c *cluster) watch(t *testing.T, now func() time.Duration) (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				c.look(t, now())
				return
			case <-time.After(300 * time.Millisecond):
				c.look(t, now())
			}
		}
	}()
	return func() { close(over); <-ended }
}

// The simulator does what production's driver does: engines over devices of known cost, behind a router, and the simulator with
// what their flight recorders tell give the same times to a first token, for each router.
func TestLiveAgainstSimulated(t *testing.T) {
	w := workload.MultiTurn(workload.MultiTurnOptions{
		Conversations: 24, Turns: workload.Fixed(5), First: workload.Uniform(300, 500), Next: workload.Uniform(40, 80), Output: workload.Fixed(8),
		Think: workload.Exponential(0.1), Seed: 3,
	})
	for i := range w.Requests {
		w.Requests[i].Reply = 0
	}
	so := schedule.Options{Mode: schedule.Sessions, Concurrency: 6, RampUp: 600 * time.Millisecond, Seed: 3}
	var arms []*Arm
	for _, kind := range []string{router.KindRoundRobin, router.KindLoad, router.KindConversation} {
		synctest.Test(t, func(t *testing.T) {
			c := start(t, kind)
			records := c.drive(t, w, so)
			c.stop(t)
			m, err := NewModel(c.flights.Steps())
			if err != nil {
				t.Fatal(err)
			}
			setup := small
			setup.Router = kind
			sim, err := setup.Simulate(m, 0, w, so, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			r := Round{NewSide(records), NewSide(sim.Export()), m.Fit.ResidualP95}
			arms = append(arms, &Arm{kind, []Round{r}})
			if n := len(r.Live.ttft); n != len(w.Requests) || len(r.Sim.ttft) != n || m.Fit.ResidualP95 > 0.02 {
				t.Fatalf("%s: %d live, %d simulated, fit %+v", kind, n, len(r.Sim.ttft), m.Fit)
			}
			for i, live := range r.Live.ttft {
				if d := live - r.Sim.ttft[i]; math.Abs(d) > 1e-4 {
					t.Errorf("%s: the time %d of %d differs by %.6f s", kind, i+1, len(r.Live.ttft), d)
				}
			}
		})
	}
	var page strings.Builder
	misses, err := Report(&page, arms, 0.05)
	if err != nil || len(misses) > 0 || !strings.Contains(page.String(), "Order by TTFT p50: live conversation < ") {
		t.Errorf("%v %v\n%s", misses, err, page.String())
	}
	t.Log(page.String())
}

func TestPollReadsFlightRecorders(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked == 2 {
			cancel()
		}
		steps := []worker.DebugStep{
			{Iter: 1, AgoMs: 1e9, Outcome: "ok", RunMs: 1},                                      // before time 0
			{Iter: 2, AgoMs: 40, Outcome: "ok", SchedMs: 1, RunMs: 8, ApplyMs: 1, CtxTokens: 9}, // another follows at once
			{Iter: 3, AgoMs: 29, Outcome: "ok", RunMs: 4, GenRows: 2, GenDepth: 50},             // then there was nothing to do
			{Iter: 4, AgoMs: 9, Outcome: "failed", RunMs: 1, Arrived: 1},
			{Iter: 5, AgoMs: 2, Outcome: "running"},
		}
		_ = json.NewEncoder(w).Encode(worker.DebugFlight{Ranks: []worker.DebugRankFlight{{Steps: steps[:min(asked+2, 5)]}}})
	}))
	defer srv.Close()
	var f Flights
	if err := f.Poll(ctx, []string{srv.URL}, time.Millisecond, func() time.Duration { return time.Minute }); err != nil {
		t.Fatal(err)
	}
	steps := f.Steps()
	if len(steps) != 2 || steps[0].Seconds != 0.011 || steps[0].CtxTokens != 9 || steps[1].Seconds != 0.004 || steps[1].GenContext != 50 ||
		steps[0].Start != time.Minute-40*time.Millisecond {
		t.Errorf("%+v", steps)
	}
	srv.Config.Handler = http.NotFoundHandler()
	if err := f.Poll(ctx, []string{srv.URL}, time.Hour, func() time.Duration { return 0 }); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("%v", err)
	}
}

// What is too far apart in most rounds, and what is in another order, is told; what is as good as equal is in no order, and one
// round that was disturbed says nothing.
func TestReportTellsMisses(t *testing.T) {
	arm := func(name string, rounds ...[2]float64) *Arm {
		a := &Arm{Name: name}
		for _, r := range rounds {
			a.Rounds = append(a.Rounds, Round{Live: Side{ttft: []float64{r[0]}}, Sim: Side{ttft: []float64{r[1]}}})
		}
		return a
	}
	for _, c := range []struct {
		arms []*Arm
		want string
	}{
		{[]*Arm{arm("a", [2]float64{1, 1.1}), arm("b", [2]float64{2, 1.8})}, ""},
		{[]*Arm{arm("a", [2]float64{1, 1.2})}, "TTFT p50 of a is 1.20 of the live one"},
		{[]*Arm{arm("a", [2]float64{1, 1.2}, [2]float64{9, 9}, [2]float64{2, 1})}, ""},
		{[]*Arm{arm("a", [2]float64{1, 1.2}, [2]float64{9, 10.8}, [2]float64{2, 2})}, "TTFT p95 of a is 1.20 of the live one"},
		{[]*Arm{arm("a", [2]float64{1, 1.14}), arm("b", [2]float64{1.2, 1.1})}, "a and b are in another order"},
		{[]*Arm{arm("a", [2]float64{1.2, 1.1}), arm("b", [2]float64{1, 1.14})}, "a and b are in another order"},
		{[]*Arm{arm("a", [2]float64{1, 1}, [2]float64{5, 5}, [2]float64{1, 1}), arm("b", [2]float64{2, 2}, [2]float64{4, 4}, [2]float64{2, 2})}, ""},
		{[]*Arm{arm("a", [2]float64{1, 1.1}), arm("b", [2]float64{1.05, 1})}, ""},
		{[]*Arm{{"a", []Round{{Live: Side{ttft: []float64{1, 1}}, Sim: Side{ttft: []float64{1}}}}}}, "a has 2 requests live and 1 simulated"},
		{[]*Arm{{"a", []Round{{Live: Side{ttft: []float64{1}}}}}}, "a has 1 requests live and 0 simulated"},
	} {
		misses, err := Report(&strings.Builder{}, c.arms, 0.15)
		if got := strings.Join(misses, "; "); err != nil || !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestHop(t *testing.T) {
	r := &result.Record{First: 100e6, Stages: map[string]float64{"prefill": 80, "gen_queue": 10}}
	if got := Hop([]*result.Record{r, r, {First: 5e9}}); got != 5*time.Millisecond {
		t.Error(got)
	}
	if got := Hop(nil); got != 0 {
		t.Error(got)
	}
}
