package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/engine/request"
	"tandem/engine/sampler"
	"tandem/engine/tensor"
)

// picker is a backend that has nothing but logits.
func picker(t testing.TB, isa string, rows, vocab int) *Backend {
	t.Helper()
	b, err := New(Config{
		Threads: 2, MaxRows: rows, ISA: isa,
		KV: tensor.KVShape{Layers: 1, KVHeads: 1, HeadDim: 16, BlockTokens: 16, Blocks: 1, DType: tensor.F32},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	w, err := b.Matrix(host("output", tensor.F32, make([]float32, vocab*16), vocab, 16))
	if err != nil {
		t.Fatal(err)
	}
	norm, err := b.Vector(host("norm", tensor.F32, make([]float32, 16), 16))
	if err != nil {
		t.Fatal(err)
	}
	x := b.Buffer(16)
	b.Embed(x, w)
	b.Logits(x, norm, 1e-5, w, nil)
	if err := b.Seal(vocab); err != nil {
		t.Fatal(err)
	}
	return b
}

// someLogits are rows of the kinds that models and masks make.
func someLogits(r *rand.Rand, vocab int) []float32 {
	l := make([]float32, vocab)
	kind, width := r.IntN(5), math.Exp(4*r.Float64()-2)
	for i := range l {
		switch l[i] = float32(r.NormFloat64() * width); {
		case kind == 1: // ties, and zeros of both signs
			l[i] = float32(math.Copysign(math.Floor(math.Abs(float64(l[i]))), float64(l[i])))
		case kind == 2 && r.IntN(8) > 0: // most are banned
			l[i] = float32(math.Inf(-1))
		case kind == 3: // all alike
			l[i] = 1.5
		}
	}
	switch r.IntN(12) {
	case 0:
		l[r.IntN(vocab)] = float32(math.NaN())
	case 1:
		l[r.IntN(vocab)] = float32(math.Inf(1))
	case 2:
		for i := range l {
			l[i] = float32(math.Inf(-1))
		}
	}
	return l
}

func someRule(r *rand.Rand, vocab int) request.Sampling {
	p := request.DefaultSampling()
	one := func(of ...float64) float64 { return of[r.IntN(len(of))] }
	p.Seed, p.Stream = r.Uint64(), uint32(r.IntN(3))
	p.Temperature = one(0, 1, 1, .3, 2, 1e-3, 20)
	p.TopK = int(one(0, 0, 1, 2, 20, 50, 300, float64(vocab-1), float64(vocab+5)))
	p.TopP = one(1, 1, .95, .5, .999999, 1e-6)
	p.MinP = one(0, 0, .05, .5, 1)
	p.Logprobs = int(one(-1, -1, 0, 5, 20))
	return p
}

func rules(params []request.Sampling, index int) (out []tensor.Pick) {
	for _, p := range params {
		out = append(out, tensor.Pick{
			Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: p.TopK, Seed: p.Seed, Index: uint64(index), Stream: p.Stream,
			Logprobs: p.Logprobs,
		})
	}
	return out
}

// What the threads pick is what the sampler picks from the same logits, and all
// they say of it is the same to the bit.
func TestPicksAsTheSampler(t *testing.T) {
	for _, isa := range levels() {
		for _, vocab := range []int{1, 7, 256, 1000, 3001} {
			t.Run(fmt.Sprint(isa, " ", vocab), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(vocab), 1))
				b := picker(t, isa, 5, vocab)
				for round := range 150 {
					n := 1 + r.IntN(5)
					params := make([]request.Sampling, n)
					logits := b.prog.Logits(n * vocab)
					for i := range params {
						params[i] = someRule(r, vocab)
						copy(logits[i*vocab:], someLogits(r, vocab))
					}
					was := slices.Clone(logits)
					picks := rules(params, round)
					for i := range picks {
						picks[i].Host = r.IntN(4) == 0
					}
					picked, rest := b.pick(logits, picks)
					for i := range picks {
						row := was[i*vocab : (i+1)*vocab]
						if picks[i].Host {
							if !same(rest[:vocab], row) {
								t.Fatal("the logits of a row of the host's changed")
							}
							rest = rest[vocab:]
							continue
						}
						want, bad := sampler.New(&params[i], nil).Sample(slices.Clone(row), round, nil)
						if bad != nil {
							said := sampler.BadLogits(picked[i].State == tensor.PickedEmpty, round)
							if picked[i].State == tensor.PickedOne || said.Error() != bad.Error() {
								t.Fatalf("picked %+v where the sampler says %v", picked[i], bad)
							}
							continue
						}
						compare(t, &params[i], &picked[i], &want)
					}
				}
			})
		}
	}
}

func same(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func compare(t *testing.T, p *request.Sampling, got *tensor.Picked, want *request.Token) {
	t.Helper()
	if got.State != tensor.PickedOne || got.Token != want.ID {
		t.Fatalf("%+v: picked %+v, the sampler %+v", *p, *got, *want)
	}
	if p.Logprobs < 0 {
		return
	}
	if got.Logprob != want.Logprob || int(got.Rank) != want.Rank || len(got.Top) != len(want.Top) {
		t.Fatalf("%+v: picked %+v, the sampler %+v", *p, *got, *want)
	}
	for i, top := range want.Top {
		if got.Top[i].Token != top.ID || got.Top[i].Logprob != top.Logprob {
			t.Fatalf("%+v: alternative %d is %+v, want %+v", *p, i, got.Top[i], top)
		}
	}
}

// A batch whose rules do not fit is refused, and one without logits picks nothing.
func TestRunPickChecks(t *testing.T) {
	b := picker(t, "", 4, 100)
	var batch tensor.Batch
	batch.Reset()
	batch.Add([]int32{1, 2}, 0, []int32{0}, true)
	if _, _, err := b.RunPick(&batch, nil); err == nil {
		t.Error("a row without a rule was taken")
	}
	picked, rest, err := b.RunPick(&batch, []tensor.Pick{{TopP: 1, Logprobs: -1}})
	if err != nil || len(rest) != 0 || len(picked) != 1 || picked[0].Token != 0 {
		t.Errorf("all logits alike: %+v, %d logits, %v", picked, len(rest), err)
	}
	batch.Reset()
	batch.Add([]int32{1}, 0, []int32{0}, false)
	if picked, rest, err := b.RunPick(&batch, nil); err != nil || len(picked)+len(rest) != 0 {
		t.Errorf("no logits: %+v, %v, %v", picked, rest, err)
	}
}

// Beside engine/sampler's benchmark of the same rules.
func BenchmarkPick(b *testing.B) {
	const vocab = 49152
	e := picker(b, "", 1, vocab)
	r := rand.New(rand.NewPCG(1, 1))
	logits := e.prog.Logits(vocab)
	for i := range logits {
		logits[i] = float32((r.Float64() + r.Float64() + r.Float64() - 1.5) * 12)
	}
	for _, c := range []struct {
		name string
		rule tensor.Pick
	}{
		{"greedy", tensor.Pick{TopP: 1, Logprobs: -1}},
		{"temperature", tensor.Pick{Temperature: 1, TopP: 1, Logprobs: -1}},
		{"top_k=40", tensor.Pick{Temperature: 1, TopP: 1, TopK: 40, Logprobs: -1}},
		{"top_k=5000", tensor.Pick{Temperature: 1, TopP: 1, TopK: 5000, Logprobs: -1}},
		{"top_p=.95", tensor.Pick{Temperature: 1, TopP: .95, Logprobs: -1}},
		{"top_k=50,top_p=.9", tensor.Pick{Temperature: 1, TopP: .9, TopK: 50, Logprobs: -1}},
		{"min_p=.05", tensor.Pick{Temperature: 1, TopP: 1, MinP: .05, Logprobs: -1}},
		{"greedy,logprobs=5", tensor.Pick{TopP: 1, Logprobs: 5}},
	} {
		b.Run(c.name, func(b *testing.B) {
			rule := []tensor.Pick{c.rule}
			for n := 0; b.Loop(); n++ {
				rule[0].Index = uint64(n)
				e.pick(logits, rule)
			}
		})
	}
}
