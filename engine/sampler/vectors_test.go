package sampler

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/engine/request"
)

func TestPhiloxVectors(t *testing.T) {
	const ones = math.MaxUint32
	cases := []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			ctr: [4]uint32{ones, ones, ones, ones}, key: [2]uint32{ones, ones},
			want: [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
	}
	for _, c := range cases {
		if got := philox(c.ctr, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.ctr, c.key, got, c.want)
		}
	}
}

func TestUniformVectors(t *testing.T) {
	want := map[uint64][]float64{
		42: {0.612959880, 0.987718652, 0.825866831, 0.729599265, 0.326418145, 0.314847472},
		0:  {0.399046472, 0.972241203, 0.019449423, 0.787367772, 0.934536179, 0.450326197},
	}
	for seed, us := range want {
		for n, u := range us {
			if got := Uniform(seed, uint64(n), 0); math.Abs(got-u) > 5e-10 {
				t.Errorf("seed %d n %d: %.9f, want %.9f", seed, n, got, u)
			}
		}
	}
	if Uniform(42, 0, 0) == Uniform(42, 0, 1) || Uniform(42, 0, 0) == Uniform(42, 1<<32, 0) ||
		Uniform(42, 0, 0) == Uniform(42|1<<32, 0, 0) {
		t.Error("stream, high counter word or high seed word has no effect")
	}
}

func TestDrawVectors(t *testing.T) {
	with := func(seed uint64, change func(*request.Sampling)) request.Sampling {
		p := request.DefaultSampling()
		p.Seed = seed
		if change != nil {
			change(&p)
		}
		return p
	}
	cases := []struct {
		name   string
		params request.Sampling
		want   []int32
	}{
		{"plain", with(42, nil), []int32{5, 6, 6, 6, 5, 5, 3, 5, 5, 5, 5, 5}},
		{"top_k", with(42, func(p *request.Sampling) { p.Temperature, p.TopK = .7, 3 }), []int32{6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5}},
		{"top_p", with(42, func(p *request.Sampling) { p.TopP = .8 }), []int32{6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5}},
		{"min_p", with(42, func(p *request.Sampling) { p.MinP = .3 }), []int32{6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5}},
		{"seed 7", with(7, nil), []int32{6, 5, 0, 5, 5, 5, 6, 5, 0, 5, 6, 6}},
		{"greedy", with(42, func(p *request.Sampling) { p.Temperature = 0 }), slices.Repeat([]int32{5}, 12)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := New(&c.params, []int32{0})
			var got []int32
			for n := range 12 {
				tok, err := s.Sample([]float32{2, 1, .5, 0, -1, 3, 3, -2}, n, got)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, tok.ID)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestExpNeg(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	worst := 0.0
	for i := range 200_000 {
		x := -r.Float64() * []float64{1e-3, 1, 20, 708}[i%4]
		got, want := expNeg(x), math.Exp(x)
		worst = max(worst, math.Abs(got-want)/want)
	}
	if worst > 4e-16 {
		t.Errorf("relative error %g", worst)
	}
	if expNeg(0) != 1 || expNeg(-708.5) != 0 || expNeg(math.Inf(-1)) != 0 || expNeg(-1e300) != 0 {
		t.Error("edge values")
	}
}

// TestFilterEdges: values exactly on a filter's edge, as sets of tokens that can
// come out.
func TestFilterEdges(t *testing.T) {
	cases := []struct {
		name   string
		change func(*request.Sampling)
		logits []float32
		want   []int32
	}{
		{"top_p reached exactly", func(p *request.Sampling) { p.TopP = .5 }, []float32{1, 1, 1, 1}, []int32{0, 1}},
		{"top_p keeps one", func(p *request.Sampling) { p.TopP = 1e-9 }, []float32{1, 1, 1, 2}, []int32{3}},
		{"top_k tie", func(p *request.Sampling) { p.TopK = 2 }, []float32{1, 1, 1, 2}, []int32{0, 3}},
		{"min_p 1 keeps the ties of the best", func(p *request.Sampling) { p.MinP = 1 }, []float32{2, 1, 1, 2}, []int32{0, 3}},
		{"top_p is renormalised", func(p *request.Sampling) { p.TopK, p.TopP = 2, .5 }, []float32{1, 1, 1, 1}, []int32{0}},
		{"signed zeros tie", func(p *request.Sampling) { p.TopK = 1 }, []float32{float32(math.Copysign(0, -1)), 0}, []int32{0}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := request.DefaultSampling()
			c.change(&p)
			s, seen := New(&p, nil), map[int32]bool{}
			for n := range 200 {
				tok, err := s.Sample(slices.Clone(c.logits), n, nil)
				if err != nil {
					t.Fatal(err)
				}
				seen[tok.ID] = true
			}
			var got []int32
			for id := range int32(len(c.logits)) {
				if seen[id] {
					got = append(got, id)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("drawn %v, want %v", got, c.want)
			}
		})
	}
}
