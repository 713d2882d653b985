package runner

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// lines is a log that tests can read meanwhile.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func startWatched(t *testing.T, d Device, hang time.Duration, overlap bool) (*Engine, chan error, *lines) {
	t.Helper()
	log := &lines{}
	core := executor.DefaultConfig()
	core.Vocab, core.Blocks, core.MaxSeqLen, core.Namespace = vocab, 64, 256, "test@0"
	core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}
	e, err := New(Config{
		Core: core, Info: Info{Vocab: vocab}, Overlap: overlap, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Stall: 20 * time.Millisecond, Hang: hang, Idle: 5 * time.Millisecond,
	}, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- e.Run(context.WithoutCancel(t.Context())) }()
	return e, died, log
}

// TestAHangEndsTheEngineWithADump: the device never comes back. Clients are told,
// Run returns, and the log has what ran. When the device does come back after
// all, its loop ends and touches nothing.
func TestAHangEndsTheEngineWithADump(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		d := &counting{hold: make(chan struct{}), ran: make(chan int, 1000)}
		e, died, log := startWatched(t, d, 60*time.Millisecond, overlap)
		s, err := e.Submit(t.Context(), greedy(e, 10, 1, 2, 3), nil)
		if err != nil {
			t.Fatal(err)
		}
		<-d.ran
		if _, last := collect(t, s); last.Err == nil || last.Err.Code != request.EngineDead {
			t.Fatalf("ended %q %v", last.Finish, last.Err)
		}
		err = <-died
		want := "step 1, with 1 prefill rows of 3 tokens and 0 decode rows, runs on the device"
		if err == nil || !strings.Contains(err.Error(), "the engine hangs") || !strings.Contains(err.Error(), want) {
			t.Fatalf("Run returned %v", err)
		}
		if st := e.Stats(time.Second); st.Health != HealthDead || !strings.Contains(st.Reason, want) {
			t.Errorf("%q %q", st.Health, st.Reason)
		}
		text := log.String()
		for _, want := range []string{
			"the engine stalls", "flight recorder", "stacks=", "flight: step\" rank=0 iter=1 outcome=running", "flight: request\" rank=0 request=1",
			"state=PREFILL", "hold_step=", "flight: pool",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("the log has no %q:\n%s", want, text)
			}
		}
		close(d.hold)
		goleak.VerifyNone(t)
	}
}

// TestViewsOfAHangingEngine: what the engine has is told while its loop hangs.
func TestViewsOfAHangingEngine(t *testing.T) {
	d := &counting{hold: make(chan struct{}), ran: make(chan int, 1000)}
	e, died, _ := startWatched(t, d, 0, false)
	if v := e.Views(t.Context()); len(v) != 1 || len(v[0].Requests) != 0 || v[0].Stats.BlocksTotal != 64 {
		t.Fatalf("an idle engine: %+v", v)
	}
	s, err := e.Submit(t.Context(), greedy(e, 2, 1, 2, 3), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-d.ran
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	v := e.Views(ctx)[0]
	if len(v.Steps) != 1 || v.Steps[0].Outcome != executor.StepRunning || v.Steps[0].IDs[0] != 1 {
		t.Errorf("steps %+v", v.Steps)
	}
	close(d.hold)
	collect(t, s)
	v = e.Views(t.Context())[0]
	if len(v.Requests) != 0 || len(v.Steps) != 2 || v.Steps[1].Outcome != executor.StepOK || v.Steps[1].GenRequests != 1 {
		t.Errorf("%+v", v)
	}
	stop(t, e, died)
}

func TestAPanicIsDumped(t *testing.T) {
	e, died, log := startWatched(t, &counting{fail: func(int) error { panic("broken invariant") }}, 0, false)
	if s, err := e.Submit(t.Context(), greedy(e, 3, 1), nil); err == nil {
		collect(t, s)
	}
	if err := <-died; err == nil {
		t.Fatal("the engine lives")
	}
	if text := log.String(); !strings.Contains(text, "flight recorder") || !strings.Contains(text, "outcome=running") {
		t.Errorf("no dump in\n%s", text)
	}
	goleak.VerifyNone(t)
}

func TestTimingsAreTaken(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		e, died, _ := startWatched(t, &counting{}, 0, overlap)
		s, err := e.Submit(t.Context(), greedy(e, 5, 1, 2, 3), nil)
		if err != nil {
			t.Fatal(err)
		}
		collect(t, s)
		stop(t, e, died)
		tm := e.Stats(time.Second).Timings
		if tm.Sched.Count < 5 || tm.Apply.Count < 5 || tm.Gap.Count < 3 || tm.Exchange.Count != 0 || tm.Sched.Sum <= 0 {
			t.Errorf("overlap %v: %d schedules, %d applies, %d gaps", overlap, tm.Sched.Count, tm.Apply.Count, tm.Gap.Count)
		}
	}
}

func TestTimingBuckets(t *testing.T) {
	var tm timing
	for _, d := range []time.Duration{-1, 0, 2 * time.Microsecond, 2001, 4 * time.Microsecond, time.Second, time.Hour} {
		tm.add(d)
	}
	var got Timing
	tm.addTo(&got)
	tm.addTo(&got)
	if got.Count != 14 || got.Counts[0] != 6 || got.Counts[1] != 4 || got.Counts[timingBuckets-1] != 2 {
		t.Errorf("%+v", got)
	}
	for i := range timingBuckets - 1 {
		if got.Counts[i] > 0 && i > 1 && got.Bound(i) < time.Second {
			t.Errorf("bucket %d up to %v", i, got.Bound(i))
		}
	}
}

// TestHealthNamesWhatStalls looks at the decision alone.
func TestHealthNamesWhatStalls(t *testing.T) {
	const stall = 10 * time.Second
	running := func() (executor.StepRecord, bool) {
		return executor.StepRecord{Iter: 7, Planned: 3 * time.Second, Outcome: executor.StepRunning, CtxRequests: 2, CtxTokens: 900, GenTokens: 5}, true
	}
	ended := func() (executor.StepRecord, bool) {
		return executor.StepRecord{}, false
	}
	full := executor.Stats{BlocksTotal: 64, BlocksLeased: 56, BlocksActive: 8, Waiting: 3, PoolFull: 25 * time.Second}
	full.HoldAges[executor.HoldLease] = 55 * time.Second
	for _, c := range []struct {
		name  string
		s     *status
		now   time.Duration
		want  Health
		words string
	}{
		{"idle", &status{ranks: []rankStatus{{}}}, time.Hour, HealthIdle, ""},
		{"within its time", &status{ranks: []rankStatus{{at: 5 * time.Second, step: running}}}, 14 * time.Second, HealthOK, ""},
		{
			"a step stands",
			&status{ranks: []rankStatus{{at: 3 * time.Second, step: running}}},
			20 * time.Second, HealthStalled,
			"no headway for 17s: step 7, with 2 prefill rows of 900 tokens and 5 decode rows, runs on the device for 17s",
		},
		{"the device moves", &status{ranks: []rankStatus{{at: 3 * time.Second, step: running}}, moved: 15 * time.Second}, 20 * time.Second, HealthOK, ""},
		{"the loop stands", &status{ranks: []rankStatus{{at: 3 * time.Second, step: ended}}}, 20 * time.Second, HealthStalled, "the loop is not in a step"},
		{"one of two ranks", &status{ranks: []rankStatus{{at: 19 * time.Second, step: ended}, {at: 2 * time.Second}}}, 20 * time.Second, HealthStalled, "rank 1: no headway for 18s"},
		{"a full pool, not yet", &status{ranks: []rankStatus{{at: 100 * time.Second, RankStats: RankStats{Stats: full}}}}, 104 * time.Second, HealthOK, ""},
		{
			"a full pool",
			&status{ranks: []rankStatus{{at: 100 * time.Second, RankStats: RankStats{Stats: full}}}},
			106 * time.Second, HealthStalled,
			"the KV pool has been full for 31s and nothing ended: of 64 blocks 56 leased to generation workers (the oldest for 55s), 8 in use by requests; 3 requests wait",
		},
		{"draining", &status{drain: true, ranks: []rankStatus{{}}}, time.Hour, HealthDraining, "1 requests and 1 hand-overs are left"},
		{"dead", &status{dead: true, why: "too many failed steps", drain: true, ranks: []rankStatus{{}}}, time.Hour, HealthDead, "too many failed steps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want != HealthIdle {
				c.s.ids = map[request.ID]struct{}{1: {}, 2: {}}
			}
			out := Stats{Alive: 2}
			out.HandoffsOpen = 1
			last := c.now
			for i := range c.s.ranks {
				last = min(last, c.s.ranks[i].at)
			}
			c.s.judge(&out, c.now, last, stall)
			if out.Health != c.want || !strings.Contains(out.Reason, c.words) || (c.words == "") != (out.Reason == "") {
				t.Errorf("%q: %q", out.Health, out.Reason)
			}
		})
	}
}
