package result

import (
	"math"
	"slices"
	"testing"
)

const msec = int64(1e6)

// rec is a request sent at send ms (wanted lag ms before), its first chunk ttft ms later, then one chunk each gap ms.
func rec(send, lag, ttft int64, out int, gaps ...int64) *Record {
	r := &Record{
		Phase: Measured, Outcome: OK, Input: 100, Output: out, AskedOutput: out, Sched: (send - lag) * msec, Send: send * msec,
		First: (send + ttft) * msec, FirstAnswer: (send + ttft) * msec, Cached: 25,
	}
	r.Last = r.First
	for _, g := range gaps {
		r.Gaps = append(r.Gaps, g*msec)
		r.Last += g * msec
	}
	r.End = r.Last
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestSummary(t *testing.T) {
	shed := &Record{Phase: Measured, Outcome: Shed, Sched: 0, Send: 0, End: 10 * msec, First: Unset}
	left := &Record{Phase: Measured, Outcome: Cancelled, Sched: 0, Send: Unset, End: Unset, First: Unset}
	warm := rec(0, 0, 9999, 5)
	warm.Phase = Warmup
	limits, err := ParseLimits([]string{"ttft:20", "itl:10"})
	if err != nil {
		t.Fatal(err)
	}
	s := Summarize([]*Record{rec(0, 0, 20, 3, 10, 10), rec(100, 50, 30, 4, 20, 40), shed, left, warm}, SummaryOptions{Limits: limits, Accelerators: 2, OpenLoop: true})
	for name, ok := range map[string]bool{
		"duration":     near(s.Duration, 0.190),
		"counts":       s.Offered == 4 && s.Completed == 2 && s.Failed == 1 && s.Outcomes["cancelled"] == 1,
		"tokens":       s.TotalIn == 200 && s.TotalOut == 7 && s.TotalHit == 50 && near(s.CacheHit, 0.25),
		"rates":        near(s.Throughput, 2/0.19) && near(s.OutputTPS, 7/0.19) && near(s.TotalTPSPerGPU, 207/0.19/2),
		"goodput":      near(s.Goodput, 1/0.19) && near(s.GoodFraction, 1.0/3) && near(s.GoodOfOffered, 0.25),
		"shed":         near(s.ShedRate, 0.25) && s.ErrorRate == 0,
		"ttft":         s.Dist["ttft"].Count == 2 && near(s.Dist["ttft"].Mean, 0.025) && near(s.Dist["ttft"].P50, 0.025),
		"ttft_co":      near(s.Dist["ttft_co"].Max, 0.080),
		"tpot":         near(s.Dist["tpot"].Min, 0.010) && near(s.Dist["tpot"].Max, 0.020),
		"itl":          s.Dist["itl"].Count == 4 && near(s.Dist["itl"].Mean, 0.020),
		"ttst":         near(s.Dist["ttst"].Max, 0.020),
		"e2el":         near(s.Dist["e2el"].Max, 0.090) && near(s.Dist["tpot_incl"].Max, 0.0225),
		"user":         near(s.Dist["user_tps_e2e"].Max, 75) && near(s.Dist["user_tps_decode"].Max, 100),
		"prefill":      near(s.Dist["prefill_tps"].Max, 5000),
		"lag":          near(s.Dist["schedule_lag"].Max, 0.05),
		"flags":        slices.Equal(s.Flags, []string{"degraded_schedule", "errors"}),
		"in flight":    s.ConcurrencyMax == 2 && near(s.ConcurrencyAvg, (40.0+90+10)/190),
		"limits shown": s.Limits == "ttft:20 tpot:10",
	} {
		if !ok {
			t.Errorf("%s is wrong: %+v", name, s)
		}
	}
}

func TestAnswersOfOneTokenHaveNoTPOT(t *testing.T) {
	limits, _ := ParseLimits([]string{"tpot:1"})
	s := Summarize([]*Record{rec(0, 0, 20, 1)}, SummaryOptions{Limits: limits})
	if s.Dist["tpot"].Count != 0 || s.GoodFraction != 1 {
		t.Errorf("%+v", s)
	}
}

func TestWrongLengthsAreFlagged(t *testing.T) {
	short := rec(0, 0, 20, 10)
	short.Output = 9
	if s := Summarize([]*Record{short}, SummaryOptions{}); !slices.Contains(s.Flags, "osl_mismatch") {
		t.Errorf("%v", s.Flags)
	}
}

func TestNoRecords(t *testing.T) {
	if s := Summarize(nil, SummaryOptions{OpenLoop: true}); s.Duration != 0 || s.Throughput != 0 || len(s.Flags) != 0 {
		t.Errorf("%+v", s)
	}
}

// The values are those of numpy.percentile and numpy.std.
func TestQuantilesInterpolateAsNumpyDoes(t *testing.T) {
	s := Describe([]float64{4, 1, 3, 2})
	if !near(s.P50, 2.5) || !near(s.P90, 3.7) || !near(s.P99, 3.97) || !near(s.Std, math.Sqrt(1.25)) || s.Min != 1 || s.Max != 4 {
		t.Errorf("%+v", s)
	}
	if one := Describe([]float64{7}); one.P999 != 7 || one.Std != 0 {
		t.Errorf("%+v", one)
	}
}

// Answers whose tokens nobody counted make rates of tokens too low, and say so.
func TestUncounted(t *testing.T) {
	told, untold := rec(0, 0, 20, 3, 10, 10), rec(50, 0, 20, 0)
	told.Counted, untold.Counted = "usage", "none"
	for want, records := range map[bool][]*Record{false: {told}, true: {told, untold}} {
		if s := Summarize(records, SummaryOptions{}); slices.Contains(s.Flags, "uncounted") != want {
			t.Errorf("%d records: %v", len(records), s.Flags)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, bad := range []string{"", "ttft", "ttft:x", "speed:3", "ttft:-1", "ttft:NaN", "ttft:Inf"} {
		if _, err := ParseLimits([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	l, err := ParseLimits([]string{"rag", "time_to_first_token:100", "itl_p99:35"})
	if err != nil || l.String() != "ttft:300 tpot:100 e2el:3000 ttft:100 itl_p99:35" {
		t.Errorf("%s, %v", l, err)
	}
	if r := rec(0, 0, 20, 3, 10, 40); l.Good(r) {
		t.Error("a gap of 40 ms is within 35 ms")
	}
	for _, key := range []string{"ttft", "tpot", "e2el", "tfat", "ttst", "itl_p99"} {
		l := Limits{{key, 10}}
		whole, empty := rec(0, 0, 20, 3), rec(1, 0, 20, 0)
		whole.Whole = true
		empty.First, empty.FirstAnswer, empty.Last = Unset, Unset, Unset
		if l.Good(empty) || l.Good(whole) != (key == "e2el") || (l.Streamed() == "") != (key == "e2el") {
			t.Errorf("%s: an answer without content is good (%v), or one in one piece (%v)", key, l.Good(empty), l.Good(whole))
		}
	}
}

func FuzzParseLimits(f *testing.F) {
	f.Add("ttft:200")
	f.Fuzz(func(t *testing.T, w string) {
		l, err := ParseLimits([]string{w})
		if err == nil && len(l) > 0 && l[0].Seconds < 0 {
			t.Errorf("%q is %v", w, l)
		}
	})
}
