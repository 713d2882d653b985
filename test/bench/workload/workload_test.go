package workload

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func all(t testing.TB) map[string]*Workload {
	t.Helper()
	agents := C4(12, 3)
	agents.Fanout = 0.2
	return map[string]*Workload{
		"random":        Random(RandomOptions{Requests: 50, Input: Spread(100, 0.5), Output: Uniform(1, 20), Prefix: 32, Seed: 3}),
		"shared-prefix": SharedPrefix(SharedPrefixOptions{Groups: 3, PerGroup: 5, System: Fixed(64), Question: Fixed(16), Output: Fixed(4), Seed: 3}),
		"multi-turn": MultiTurn(MultiTurnOptions{
			Conversations: 8, Turns: Geometric(4), First: Fixed(50), Next: Fixed(20), Output: Fixed(10), Think: Exponential(1),
			Prefixes: []PrefixBucket{{0.5, 2, 40}}, Seed: 3,
		}),
		"agentic": Agentic(agents),
	}
}

func TestGeneratorsMakeWholeWorkloads(t *testing.T) {
	again := all(t)
	for name, w := range all(t) {
		if !reflect.DeepEqual(w, again[name]) {
			t.Errorf("%s: two generations with one seed differ", name)
		}
		if problems := w.Check(); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
		for i, r := range w.Requests {
			n := 0
			for s := range r.Segments {
				n += s.Tokens
			}
			if n != r.Input || r.Output < 1 || slices.ContainsFunc(r.After, func(a int) bool { return a >= i }) {
				t.Fatalf("%s: request %d: segments of %d tokens, input %d, output %d, after %v", name, i, n, r.Input, r.Output, r.After)
			}
		}
	}
}

func TestTurnsBeginWithTheTurnBefore(t *testing.T) {
	w := all(t)["multi-turn"]
	for _, r := range w.Requests {
		if len(r.After) == 0 {
			continue
		}
		p := w.Requests[r.After[0]]
		before := p.AppendTokens(nil, w.Seed, 1000)
		now := r.AppendTokens(nil, w.Seed, 1000)
		if len(now) != r.Input || !slices.Equal(now[:len(before)], before) || r.Prompt[len(p.Prompt)].ID != p.Reply {
			t.Fatalf("%s does not begin with %s and its answer", r.ID, p.ID)
		}
	}
}

func TestAgentsReuseMost(t *testing.T) {
	w := Agentic(C4(60, 1))
	if got := w.Reuse(64, 0); got < 0.93 || got > 0.97 {
		t.Errorf("reuse with an endless cache %.3f, want about 0.95", got)
	}
	if small, large := w.Reuse(64, 20_000), w.Reuse(64, 2_000_000); small >= large {
		t.Errorf("reuse of a small cache %.3f, of a large one %.3f", small, large)
	}
}

// Blocks tell what tokens tell: two prompts have the same block at the same place if and only if they have the same
// tokens up to its end.
func TestBlocksAreWhatTokensAre(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seg := rapid.Custom(func(t *rapid.T) Segment {
			id := rapid.Uint64Range(1, 3).Draw(t, "id")
			return Segment{id, 3 * int(id)} // a segment's length goes with its name, as generators do it
		})
		a := Request{ID: "a", Prompt: rapid.SliceOfN(seg, 0, 6).Draw(rt, "a"), Input: rapid.IntRange(1, 40).Draw(rt, "input a")}
		b := Request{ID: "b", Prompt: rapid.SliceOfN(seg, 0, 6).Draw(rt, "b"), Input: rapid.IntRange(1, 40).Draw(rt, "input b")}
		size := rapid.IntRange(1, 8).Draw(rt, "block")
		ta, tb := a.AppendTokens(nil, 1, 1<<30), b.AppendTokens(nil, 1, 1<<30)
		ba, bb := a.AppendBlocks(nil, size), b.AppendBlocks(nil, size)
		if len(ta) != a.Input || len(ba) != a.Input/size {
			rt.Fatalf("%d tokens, %d blocks of %d for %d", len(ta), len(ba), size, a.Input)
		}
		for i := range min(len(ba), len(bb)) {
			same := slices.Equal(ta[:(i+1)*size], tb[:(i+1)*size])
			if (ba[i] == bb[i]) != same {
				rt.Fatalf("block %d: ids equal %v, tokens equal %v", i, ba[i] == bb[i], same)
			}
		}
	})
}

func TestDist(t *testing.T) {
	rng := rngOf(1, "test")
	for text, want := range map[string][2]float64{ // mean, tolerance
		"512": {512, 0}, "100:0.5": {100, 2}, "10-20": {15, 0.2}, "normal(50,5)": {50, 0.5}, "geometric(30)": {30, 1},
		"exponential(2)": {2, 0.1}, "lognormal(100,0.5)": {100 * math.Exp(0.125), 3}, "0": {0, 0},
	} {
		d, err := ParseDist(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		sum := 0.0
		for range 20000 {
			sum += d.Sample(rng)
		}
		if got := sum / 20000; math.Abs(got-want[0]) > want[1] {
			t.Errorf("%s: mean %.2f", text, got)
		}
		if again, err := ParseDist(d.String()); err != nil || again != d {
			t.Errorf("%s is written as %s: %v", text, d, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "5-", "9-3", "normal(1)", "normal(1,2", "lognormal(1,99)", "5:2", "NaN", "1e99", "geometric(1,2)"} {
		if d, err := ParseDist(text); err == nil {
			t.Errorf("%q is read as %v", text, d)
		}
	}
}

func TestSharedSegmentsStayWhenAWorkloadIsRepeated(t *testing.T) {
	w := all(t)["multi-turn"]
	shared := w.Shared()
	if len(shared) == 0 || len(shared) > 2 {
		t.Errorf("%d shared segments, want the prefixes of one bucket", len(shared))
	}
	for _, r := range w.Requests {
		if shared[r.Reply] {
			t.Errorf("the answer of %s counts as shared", r.ID)
		}
	}
}

func FuzzParseDist(f *testing.F) {
	for _, s := range []string{"512", "1:0.5", "2-3", "normal(1,2)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseDist(text); err == nil {
			if n := d.Int(rngOf(1, text), 1); n < 1 {
				t.Errorf("%q gives %d", text, n)
			}
		}
	})
}

// Tails stay within what others can count, and means are those of what is drawn.
func TestTailsAndMeans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for text, mean := range map[string]float64{"7": 7, "2-4": 3, "10:0.5": 10, "lognormal(4,0.5)": 4.532593812, "normal(9,1)": 9, "geometric(6)": 6, "exponential(2)": 2} {
		d, err := ParseDist(text)
		if err != nil || math.Abs(d.Mean()-mean) > 1e-6 {
			t.Errorf("%s has the mean %g, want %g; %v", text, d.Mean(), mean, err)
		}
	}
	for range 1000 {
		if v := LogNormal(most, 10).Sample(rng); v > most {
			t.Fatalf("%g is drawn", v)
		}
	}
	if _, err := ParseDist("1e12"); err == nil {
		t.Error("1e12 is accepted")
	}
}
