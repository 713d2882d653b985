package cases

import (
	"math"
	"slices"
	"testing"

	"tandem/engine/request"
	"tandem/engine/sampler"
	"tandem/kernels/cuda"
)

// The references must be what the engine's sampler defines.
func TestReferencesAreTheSampler(t *testing.T) {
	for _, vocab := range []int{2, 50, 3001} {
		r := rng("sampler")
		for i := range 200 {
			row := randomRow(r, vocab, i%3)
			s := request.Sampling{
				Temperature: []float64{0, 1, .6, 2}[i%4], TopK: r.IntN(60), TopP: 1 - r.Float64()*float64(i%2),
				MinP: r.Float64() * float64(i%3) / 5, RepetitionPenalty: 1.2, FrequencyPenalty: .3, PresencePenalty: .1,
				Seed: r.Uint64(), Stream: uint32(i), Logprobs: 5,
			}
			prompt, output := []int32{1, 0, 1}, []int32{1, 1}
			s.LogitBias = []request.Bias{{Token: 1, Value: 1.5}}
			p := cuda.SampleRow{
				Temperature: s.Temperature, TopP: s.TopP, MinP: s.MinP, Repetition: 1.2, Frequency: .3, Presence: .1,
				Seed: s.Seed, Index: 2, Stream: s.Stream, TopK: int32(s.TopK),
			}
			logits := make([]float32, vocab)
			for j, l := range row {
				logits[j] = float32(l)
			}
			counts := make([]int, vocab)
			counts[0], counts[1] = 1, 5
			Shape(row, p, counts, nil, map[int]float64{1: 1.5})
			want, err := sampler.New(&s, prompt).Sample(logits, 2, output)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := Pick(row, p)
			if got != int(want.ID) {
				t.Fatalf("vocabulary %d, row %d: token %d, the sampler's %d (%+v)", vocab, i, got, want.ID, p)
			}
			own, rank, ids, values := logprobs(row, got, 5)
			if math.Abs(own-want.Logprob) > 1e-9 || rank != want.Rank || len(ids) != len(want.Top) {
				t.Fatalf("logprob %v rank %d, the sampler's %+v", own, rank, want)
			}
			for j, top := range want.Top {
				if ids[j] != int(top.ID) || math.Abs(values[j]-top.Logprob) > 1e-9 {
					t.Fatalf("alternative %d: %d %v, the sampler's %+v", j, ids[j], values[j], top)
				}
			}
		}
	}
}

func TestUniformIsTheSamplers(t *testing.T) {
	for n := range uint64(100) {
		if got, want := Uniform(n*n<<31, n, uint32(n)), sampler.Uniform(n*n<<31, n, uint32(n)); got != want {
			t.Fatalf("token %d: %v, the sampler's %v", n, got, want)
		}
	}
}

func TestCheckNoticesDifferences(t *testing.T) {
	c := Case{
		Name: "x", Kernel: "td_to_bf16", Args: []Arg{encode(F32, []float64{1, 2, 3})},
		Wants: []Want{{0, F32, []float64{1, 2.5, math.NaN()}, 0.1, 0}},
	}
	good := encode(F32, []float64{1.05, 2.5, 3}).Data
	if err := c.Check([][]byte{good}); err != nil {
		t.Error(err)
	}
	for i, v := range []float64{1.2, math.NaN(), 4} {
		bad := slices.Clone(good)
		put(F32, bad[4*i:], v)
		if c.Check([][]byte{bad}) == nil {
			t.Errorf("element %d = %v passes", i, v)
		}
	}
}

func TestE4M3RoundTrips(t *testing.T) {
	for c := range 256 {
		v := e4m3Value(byte(c))
		if got := e4m3Bits(v); v == v && got != byte(c) {
			t.Errorf("%#02x is %v and becomes %#02x", c, v, got)
		}
	}
	for v, want := range map[float64]byte{500: 0x7e, 1e9: 0x7e, 17: 0x58, 19: 0x5a, 1.0 / 1024: 0, 1.5 / 512: 2, -0.0155: 0x88} {
		if got := e4m3Bits(v); got != want {
			t.Errorf("%v becomes %#02x, want %#02x", v, got, want)
		}
	}
}
