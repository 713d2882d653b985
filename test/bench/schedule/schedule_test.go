package schedule

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/test/bench/workload"
)

const ms = time.Millisecond

// sent is one sending as a virtual client saw it.
type sent struct {
	Send
	at, end time.Duration
}

// play runs a schedule in virtual time; a request takes what took says.
func play(t testing.TB, w *workload.Workload, o Options, took func(Send) time.Duration) []sent {
	t.Helper()
	s, err := New(w, o)
	if err != nil {
		t.Fatal(err)
	}
	var out []sent
	flying := map[int]int{} // seq to index of out
	now := time.Duration(0)
	for steps := 0; !s.Over(now); steps++ {
		if steps > 1_000_000 {
			t.Fatal("the schedule does not end")
		}
		due, next := s.Poll(now)
		for _, d := range due {
			flying[d.Seq] = len(out)
			out = append(out, sent{d, now, now + took(d)})
		}
		if len(due) > 0 {
			continue
		}
		seq := -1
		for q, i := range flying {
			if out[i].end < next || out[i].end == next && (seq < 0 || q < seq) {
				next, seq = out[i].end, q
			}
		}
		if next == Never {
			if s.Over(now) {
				break
			}
			t.Fatalf("nothing in flight and nothing to come, but not over; %d sent", len(out))
		}
		if now = max(now, next); seq >= 0 {
			s.Done(seq, now)
			delete(flying, seq)
		}
	}
	return out
}

func singles(n int) *workload.Workload {
	w := &workload.Workload{}
	for i := range n {
		w.Requests = append(w.Requests, workload.Request{ID: fmt.Sprint(i), Arrival: workload.NoArrival})
	}
	return w
}

// talks is n conversations of turns requests, each 10 ms after the one before.
func talks(n, turns int) *workload.Workload {
	w := &workload.Workload{}
	for c := range n {
		for k := range turns {
			r := workload.Request{ID: fmt.Sprintf("%d.%d", c, k), Arrival: workload.NoArrival, Conversation: fmt.Sprint(c)}
			if k > 0 {
				r.After, r.Delay = []int{len(w.Requests) - 1}, 10*ms
			}
			w.Requests = append(w.Requests, r)
		}
	}
	return w
}

func fixed(d time.Duration) func(Send) time.Duration {
	return func(Send) time.Duration { return d }
}

func TestRateHasTheGapsOfItsDistribution(t *testing.T) {
	const n = 20000
	for _, shape := range []float64{0, 0.25, 1, 4} {
		out := play(t, singles(n), Options{Mode: Rate, Rate: 50, Burstiness: shape, Seed: 7}, fixed(0))
		var sum, square float64
		for i := 1; i < n; i++ {
			g := (out[i].Sched - out[i-1].Sched).Seconds()
			sum, square = sum+g, square+g*g
		}
		mean := sum / (n - 1)
		cv := math.Sqrt(square/(n-1)-mean*mean) / mean
		want := 1 / math.Sqrt(max(shape, map[bool]float64{true: 1}[shape == 0]))
		if math.Abs(mean*50-1) > 0.05 || math.Abs(cv/want-1) > 0.06 {
			t.Errorf("burstiness %g: mean gap %.4f s, coefficient of variation %.3f, want %.3f", shape, mean, cv, want)
		}
	}
}

func TestRamp(t *testing.T) {
	out := play(t, singles(1), Options{Mode: Constant, Rate: 10, RateEnd: 30, Duration: 10 * time.Second, Recycle: true}, fixed(0))
	if len(out) != 200 && len(out) != 201 { // the last is due at the very end
		t.Errorf("%d requests in 10 s from 10/s to 30/s, want 200", len(out))
	}
	half := 0
	for _, s := range out {
		if s.Sched < 5*time.Second {
			half++
		}
	}
	if half != 75 && half != 76 {
		t.Errorf("%d in the first half, want 75", half)
	}
	if down := play(t, singles(1), Options{Mode: Constant, Rate: 30, RateEnd: 1e-9, Duration: 10 * time.Second, Recycle: true}, fixed(0)); len(down) != 150 && len(down) != 151 {
		t.Errorf("%d requests in 10 s from 30/s to none, want 150", len(down))
	}
}

func TestInfiniteRateSendsAllAtOnce(t *testing.T) {
	out := play(t, singles(3), Options{Mode: Rate, Rate: math.Inf(1), Requests: 7, Recycle: true}, fixed(ms))
	if len(out) != 7 || out[6].at != 0 || out[6].Play != 2 || out[6].Request != 0 {
		t.Errorf("%+v", out)
	}
}

func TestMaxConcurrencyHoldsBackButKeepsTheWantedTime(t *testing.T) {
	out := play(t, singles(4), Options{Mode: Constant, Rate: 1000, MaxConcurrency: 1}, fixed(10*ms))
	for i, s := range out {
		if s.Sched != time.Duration(i)*ms || s.at != time.Duration(i)*10*ms {
			t.Errorf("request %d wanted at %v, sent at %v", i, s.Sched, s.at)
		}
	}
}

func TestSessions(t *testing.T) {
	out := play(t, talks(3, 2), Options{Mode: Sessions, Concurrency: 2}, fixed(5*ms))
	want := map[int]time.Duration{0: 0, 2: 0, 1: 15 * ms, 3: 15 * ms, 4: 20 * ms, 5: 35 * ms}
	for _, s := range out {
		if s.Sched != want[s.Request] {
			t.Errorf("request %d at %v, want %v", s.Request, s.Sched, want[s.Request])
		}
	}
}

// A root conversation of two turns; between them two sub-agents, one of which stays after the root's end.
func tree() *workload.Workload {
	none := workload.NoArrival
	return &workload.Workload{Requests: []workload.Request{
		{ID: "a", Conversation: "root", Arrival: none},
		{ID: "b", Conversation: "sub1", Parent: "root", After: []int{0}, Arrival: none},
		{ID: "c", Conversation: "sub2", Parent: "root", After: []int{0}, Arrival: none},
		{ID: "d", Conversation: "root", After: []int{0, 1}, ToolWait: 3 * ms, Arrival: none},
		{ID: "e", Conversation: "next", Arrival: none},
	}}
}

func TestTreesKeepTheirSlotUntilAllIsDone(t *testing.T) {
	took := func(s Send) time.Duration { return []time.Duration{ms, ms, 20 * ms, ms, ms}[s.Request] }
	for mode, want := range map[Mode]time.Duration{Trees: 21 * ms, Sessions: 6 * ms} {
		out := play(t, tree(), Options{Mode: mode, Concurrency: 1}, took)
		if last := out[len(out)-1]; last.Request != 4 || last.Sched != want {
			t.Errorf("%s: %+v, want request 4 at %v", mode, last, want)
		}
	}
}

func TestFixedFollowsTheTrace(t *testing.T) {
	w := &workload.Workload{}
	for i := range 5 {
		w.Requests = append(w.Requests, workload.Request{ID: fmt.Sprint(i), Arrival: time.Duration(100+10*i) * ms})
	}
	for name, c := range map[string]struct {
		o    Options
		want []time.Duration
	}{
		"as recorded": {Options{}, []time.Duration{100 * ms, 110 * ms, 120 * ms, 130 * ms, 140 * ms}},
		"faster":      {Options{Speed: 2, AutoOffset: true}, []time.Duration{0, 5 * ms, 10 * ms, 15 * ms, 20 * ms}},
		"a part":      {Options{From: 110 * ms, To: 130 * ms}, []time.Duration{0, 10 * ms}},
	} {
		c.o.Mode = Fixed
		var got []time.Duration
		for _, s := range play(t, w, c.o, fixed(ms)) {
			got = append(got, s.Sched)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestRecordedConversationsCloseTheirLoop(t *testing.T) {
	w := &workload.Workload{Requests: []workload.Request{
		{ID: "a", Conversation: "x", Arrival: 0, Observed: &workload.Observed{E2EMs: 30}},
		{ID: "b", Conversation: "x", Arrival: 50 * ms},
	}}
	if out := play(t, w, Options{Mode: Sessions, Concurrency: 1}, fixed(5*ms)); out[1].Sched != 25*ms {
		t.Errorf("the second turn is wanted at %v, want 5 ms of answer and 20 ms of thought", out[1].Sched)
	}
	if out := play(t, w, Options{Mode: Fixed}, fixed(5*ms)); out[1].Sched != 50*ms {
		t.Errorf("by the trace it is wanted at %v", out[1].Sched)
	}
	if out := play(t, w, Options{Mode: Sessions, Concurrency: 1, NoThink: true}, fixed(5*ms)); out[1].Sched != 5*ms {
		t.Errorf("without thought it is wanted at %v", out[1].Sched)
	}
}

func TestRefusals(t *testing.T) {
	bad := &workload.Workload{Requests: []workload.Request{{ID: "a", After: []int{0}}}}
	for name, err := range map[string]error{
		"no rate":      refused(singles(1), Options{Mode: Rate}),
		"NaN":          refused(singles(1), Options{Mode: Rate, Rate: math.NaN()}),
		"no slots":     refused(singles(1), Options{Mode: Trees}),
		"mode":         refused(singles(1), Options{Mode: "x"}),
		"endless":      refused(singles(1), Options{Mode: Concurrency, Concurrency: 1, Recycle: true}),
		"ramp to what": refused(singles(1), Options{Mode: Rate, Rate: 1, RateEnd: 2}),
		"gaps of 0":    refused(singles(1), Options{Mode: Constant, Rate: 1e9}),
		"gap for ever": refused(singles(1), Options{Mode: Rate, Rate: 1e-300}),
		"no shape":     refused(singles(1), Options{Mode: Rate, Rate: 1, Burstiness: math.Inf(1)}),
		"speed":        refused(singles(1), Options{Mode: Fixed, Speed: 1e-15}),
		"before it":    refused(singles(1), Options{Mode: Fixed, To: -ms}),
		"backwards":    refused(singles(1), Options{Mode: Fixed, From: 2 * ms, To: ms}),
		"thought":      refused(singles(1), Options{Mode: Trees, Concurrency: 1, ThinkScale: math.Inf(1)}),
		"duration":     refused(singles(1), Options{Mode: Trees, Concurrency: 1, Duration: -ms}),
		"ramp-up":      refused(singles(1), Options{Mode: Trees, Concurrency: 1, RampUp: -ms}),
		"in flight":    refused(singles(1), Options{Mode: Rate, Rate: 1, MaxConcurrency: -1}),
		"requests":     refused(singles(1), Options{Mode: Rate, Rate: 1, Requests: -1}),
		"itself":       refused(bad, Options{Mode: Concurrency, Concurrency: 1}),
		"nothing":      refused(singles(0), Options{Mode: Concurrency, Concurrency: 1}),
	} {
		if !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A workload with fewer units than slots does not reach the load.
func TestSpareSlots(t *testing.T) {
	for _, mode := range []Mode{Concurrency, Sessions, Trees} {
		for slots, want := range map[int]int{2: 0, 3: 0, 5: 2} {
			s, err := New(talks(3, 2), Options{Mode: mode, Concurrency: slots})
			if err != nil {
				t.Fatal(err)
			}
			due, _ := s.Poll(0)
			for _, d := range due {
				s.Done(d.Seq, ms)
			}
			if got := s.Spare(); got != want {
				t.Errorf("%s: %d of %d slots were never used, want %d", mode, got, slots, want)
			}
		}
	}
}

func refused(w *workload.Workload, o Options) error {
	_, err := New(w, o)
	return err
}

// Whatever the load model: each request is sent once, after all it waits for and not before it is wanted; no limit is
// passed; and the same run again is the same.
func TestSchedulesHoldTheirPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &workload.Workload{}
		for i := range rapid.IntRange(1, 30).Draw(rt, "requests") {
			r := workload.Request{ID: fmt.Sprint(i), Arrival: time.Duration(rapid.IntRange(-1, 50).Draw(rt, "arrival")) * ms}
			if r.Arrival < 0 {
				r.Arrival = workload.NoArrival
			}
			if c := rapid.IntRange(0, 5).Draw(rt, "conversation"); c > 0 {
				r.Conversation = fmt.Sprint(c)
				if c > 3 {
					r.Parent = fmt.Sprint(c - 3)
				}
			}
			if i > 0 && rapid.Bool().Draw(rt, "waits") {
				r.After = []int{rapid.IntRange(0, i-1).Draw(rt, "after")}
				r.Delay = time.Duration(rapid.IntRange(0, 5).Draw(rt, "delay")) * ms
			}
			w.Requests = append(w.Requests, r)
		}
		o := Options{Mode: rapid.SampledFrom(Modes).Draw(rt, "mode"), Rate: 100, Concurrency: rapid.IntRange(1, 4).Draw(rt, "n"), Seed: 1}
		o.RampUp = time.Duration(rapid.IntRange(0, 20).Draw(rt, "ramp")) * ms
		if o.Mode == Rate || o.Mode == Constant || o.Mode == Fixed {
			o.MaxConcurrency = rapid.IntRange(0, 3).Draw(rt, "limit")
		}
		took := func(s Send) time.Duration { return time.Duration(workload.Mix(1, uint64(s.Request))%30) * ms }
		out := play(t, w, o, took)
		check(rt, w, o, out)
		if again := play(t, w, o, took); !reflect.DeepEqual(out, again) {
			rt.Fatalf("two runs differ")
		}
	})
}

func check(t *rapid.T, w *workload.Workload, o Options, out []sent) {
	at := map[int]sent{}
	for i, s := range out {
		if _, twice := at[s.Request]; twice || s.at < s.Sched || s.Seq != i {
			t.Fatalf("request %d: sent twice (%v), or at %v before %v", s.Request, twice, s.at, s.Sched)
		}
		at[s.Request] = s
		flying := 0
		for _, before := range out[:i+1] {
			if before.end > s.at {
				flying++
			}
		}
		if o.MaxConcurrency > 0 && flying > o.MaxConcurrency || o.Mode == Concurrency && flying > o.Concurrency {
			t.Fatalf("%d in flight at %v", flying, s.at)
		}
	}
	if len(out) != len(w.Requests) {
		t.Fatalf("%d of %d requests were sent", len(out), len(w.Requests))
	}
	for i, r := range w.Requests {
		for _, a := range r.After {
			if at[i].Sched < at[a].end+r.Delay {
				t.Fatalf("request %d is wanted at %v, %d ended at %v", i, at[i].Sched, a, at[a].end)
			}
		}
	}
}

// A conversation that is joined midway lacks its beginning the first time, and is whole the next.
func TestEarlyRequestsAreSentFromTheSecondPlayOn(t *testing.T) {
	w := talks(2, 4)
	for _, i := range []int{0, 1} {
		w.Requests[i].Early = true
	}
	for _, mode := range []Mode{Trees, Sessions} {
		out := play(t, w, Options{Mode: mode, Concurrency: 1, Recycle: true, Requests: 14}, fixed(ms))
		var got []int
		for _, s := range out {
			got = append(got, s.Request)
		}
		if want := []int{2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: requests %v, want %v", mode, got, want)
		}
		if out[0].at != 0 {
			t.Errorf("%s: the first turn that is left comes at %v", mode, out[0].at)
		}
	}
}

// Times that a clock cannot count do not come out as times before now.
func TestLongTimesStayLong(t *testing.T) {
	w := talks(1, 2)
	w.Requests[1].Delay = 1000 * time.Hour
	for name, o := range map[string]Options{
		"thought": {Mode: Sessions, Concurrency: 1, ThinkScale: 1e6},
		"gap":     {Mode: Constant, Rate: leastRate, Recycle: true, Requests: 2},
	} {
		s, err := New(w, o)
		if err != nil {
			t.Fatal(err)
		}
		due, _ := s.Poll(0)
		s.Done(due[0].Seq, ms)
		if more, next := s.Poll(1000 * time.Hour); len(due) != 1 || name == "thought" && (len(more) != 0 || next < 1e5*time.Hour) || next < 0 {
			t.Errorf("%s: %d at first, then %d, and more at %v", name, len(due), len(more), next)
		}
	}
}
