//go:build cuda

package tinymodel

import (
	"math"
	"math/rand/v2"
	"testing"

	"tandem/engine/model"
	"tandem/engine/request"
	"tandem/engine/sampler"
	"tandem/engine/tensor"
)

// What the device picks is what the sampler picks from the same logits: tokens, log-probabilities, ranks, alternatives.
func TestCUDAPicksAsTheSampler(t *testing.T) {
	m, err := Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	b := openCUDA(t, ck, KVShape(ck, 16, tensor.BF16)).(cudaRunner).b
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 8 {
		var batch tensor.Batch
		batch.Reset()
		var picks []tensor.Pick
		var params []request.Sampling
		for i := range 1 + random.IntN(4) {
			batch.Add([]int32{int32(random.IntN(ck.Config.Vocab))}, 0, []int32{int32(i)}, true)
			p := someSampling(random)
			params = append(params, p)
			picks = append(picks, tensor.Pick{
				Host: random.IntN(4) == 0, Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: p.TopK, Seed: p.Seed,
				Index: uint64(round), Stream: p.Stream, Logprobs: p.Logprobs,
			})
		}
		logits, err := b.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		logits = append([]float32(nil), logits...)
		picked, rest, err := b.RunPick(&batch, picks)
		if err != nil {
			t.Fatal(err)
		}
		vocab := ck.Config.Vocab
		for i := range picks {
			row := logits[i*vocab : (i+1)*vocab]
			if picks[i].Host {
				for j, l := range rest[:vocab] {
					if l != row[j] {
						t.Fatalf("logit %d of a row that is the host's is %v, want %v", j, l, row[j])
					}
				}
				rest = rest[vocab:]
				continue
			}
			want, bad := sampler.New(&params[i], nil).Sample(append([]float32(nil), row...), round, nil)
			if bad != nil {
				t.Fatal(bad)
			}
			comparePick(t, &params[i], picked[i], want)
		}
	}
}

func someSampling(random *rand.Rand) request.Sampling {
	p := request.DefaultSampling()
	p.Seed, p.Stream = random.Uint64(), uint32(random.IntN(3))
	switch random.IntN(4) {
	case 0:
		p.Temperature = 0
	case 1:
		p.Temperature = 0.2 + 2*random.Float64()
	}
	if random.IntN(2) == 0 {
		p.TopK = 1 + random.IntN(40)
	}
	if random.IntN(2) == 0 {
		p.TopP = 0.05 + 0.9*random.Float64()
	}
	if random.IntN(2) == 0 {
		p.MinP = 0.5 * random.Float64()
	}
	if random.IntN(2) == 0 {
		p.Logprobs = random.IntN(21)
	}
	return p
}

func comparePick(t *testing.T, p *request.Sampling, got tensor.Picked, want request.Token) {
	t.Helper()
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9 }
	if got.State != tensor.PickedOne || got.Token != want.ID {
		t.Fatalf("%+v: the device picked %+v, the sampler %+v", *p, got, want)
	}
	if p.Logprobs < 0 {
		return
	}
	if !near(got.Logprob, want.Logprob) || int(got.Rank) != want.Rank || len(got.Top) != len(want.Top) {
		t.Fatalf("%+v: the device has %+v, the sampler %+v", *p, got, want)
	}
	for i, top := range want.Top {
		if got.Top[i].Token != top.ID || !near(got.Top[i].Logprob, top.Logprob) {
			t.Fatalf("%+v: alternative %d is %+v, want %+v", *p, i, got.Top[i], top)
		}
	}
}
