package trace

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func ms(n int) time.Time { return epoch.Add(time.Duration(n) * time.Millisecond) }

func TestStages(t *testing.T) {
	for _, tc := range []struct {
		name string
		ends []point
		want []Stage
	}{
		{"none", nil, []Stage{{"rest", 100 * time.Millisecond}}},
		{"in order", []point{{"queue", ms(10)}, {"prefill", ms(60)}, {"decode", ms(100)}}, []Stage{{"queue", 10e6}, {"prefill", 50e6}, {"decode", 40e6}}},
		{"a point is missing", []point{{"queue", time.Time{}}, {"prefill", ms(60)}}, []Stage{{"prefill", 60e6}, {"rest", 40e6}}},
		{"out of order", []point{{"queue", ms(50)}, {"prefill", ms(20)}, {"decode", ms(200)}}, []Stage{{"queue", 50e6}, {"prefill", 0}, {"decode", 50e6}}},
		{"joined", []point{{"queue", ms(10)}, {"transfer", ms(30)}, {"queue", ms(100)}}, []Stage{{"queue", 80e6}, {"transfer", 20e6}}},
	} {
		tl := Timeline{Start: epoch}
		for _, p := range tc.ends {
			tl.Add(p.name, p.at)
		}
		if got := tl.Stages(ms(100)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestStagesSumToTheTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := Timeline{Start: epoch}
		for range rapid.IntRange(0, 8).Draw(t, "points") {
			at := rapid.IntRange(-1, 3000).Draw(t, "at")
			end := ms(at)
			if at < 0 {
				end = time.Time{}
			}
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			if rapid.Bool().Draw(t, "foreign") {
				tl.AddWithin(ms(200), ms(900), name, end)
			} else {
				tl.Add(name, end)
			}
		}
		finish := ms(rapid.IntRange(0, 2000).Draw(t, "finish"))
		var sum time.Duration
		for _, s := range tl.Stages(finish) {
			if s.Took < 0 {
				t.Fatalf("%s took %v", s.Name, s.Took)
			}
			sum += s.Took
		}
		if sum != finish.Sub(epoch) {
			t.Fatalf("the stages sum to %v of %v", sum, finish.Sub(epoch))
		}
	})
}

func TestForeignPointsStayWithinTheLeg(t *testing.T) {
	tl := Timeline{Start: epoch}
	tl.AddWithin(ms(10), ms(50), "early", ms(-500))
	tl.AddWithin(ms(10), ms(50), "late", ms(900))
	want := []Stage{{"early", 10e6}, {"late", 40e6}, {"rest", 10e6}}
	if got := tl.Stages(ms(60)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRingKeepsTheNewest(t *testing.T) {
	r := NewRing[int](3)
	for i := range 5 {
		r.Add(i)
	}
	if got := r.Drain(); !slices.Equal(got, []int{2, 3, 4}) || r.Lost() != 2 {
		t.Errorf("%v, lost %d", got, r.Lost())
	}
	if got := r.Drain(); got == nil || len(got) != 0 {
		t.Errorf("drained twice: %v", got)
	}
	r.Add(9)
	if got := r.Drain(); !slices.Equal(got, []int{9}) {
		t.Errorf("%v", got)
	}
	off := NewRing[int](0)
	off.Add(1)
	if off.On() || len(off.Drain()) != 0 || off.Lost() != 0 {
		t.Error("a ring of no size keeps something")
	}
}

func TestServerTimingGoesThereAndBack(t *testing.T) {
	want := []Stage{{"queue", 1500 * time.Microsecond}, {"prefill", 20 * time.Millisecond}}
	text := ServerTiming(want)
	if text != "queue;dur=1.500, prefill;dur=20.000" {
		t.Errorf("%q", text)
	}
	if got := ParseServerTiming(text); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := ParseServerTiming(`cache;desc="a, b", db;desc=x;dur=3, bad;dur=NaN, neg;dur=-1, ;dur=4`); !slices.Equal(got, []Stage{{"db", 3 * time.Millisecond}}) {
		t.Errorf("%v", got)
	}
}

func FuzzParseServerTiming(f *testing.F) {
	f.Add("a;dur=1, b;desc=\"x\";dur=2")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range ParseServerTiming(text) {
			if s.Took < 0 || s.Name == "" {
				t.Errorf("%v", s)
			}
		}
	})
}
