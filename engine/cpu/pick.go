package cpu

import (
	"fmt"
	"math"

	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// picking is the memory of RunPick.
type picking struct {
	rules  []kernels.PickRule
	chosen []kernels.Picked
	picked []tensor.Picked
}

// RunPick is Run for a batch whose logit row i is chosen from as picks[i] says, by
// all threads and in vectors. The logits of those that are the host's come back,
// in order. Both results are the backend's and valid until the next step.
func (b *Backend) RunPick(batch *tensor.Batch, picks []tensor.Pick) ([]tensor.Picked, []float32, error) {
	if len(picks) != len(batch.LogitRows) {
		return nil, nil, fmt.Errorf("%w: %d picks for %d logit rows", pass.ErrBatch, len(picks), len(batch.LogitRows))
	}
	logits, err := b.Run(batch)
	if err != nil || logits == nil {
		return nil, nil, err
	}
	picked, rest := b.pick(logits, picks)
	return picked, rest, nil
}

// pick chooses from the logits of the last run and puts rows of the host first.
func (b *Backend) pick(logits []float32, picks []tensor.Pick) ([]tensor.Picked, []float32) {
	p := &b.picking
	p.rules, p.picked = p.rules[:0], p.picked[:0]
	for i := range picks {
		p.rules = append(p.rules, rule(&picks[i]))
	}
	for len(p.chosen) < len(picks) {
		p.chosen = append(p.chosen, kernels.Picked{})
	}
	b.prog.Pick(p.rules, p.chosen)
	host := 0 // rows of the host so far
	for i := range picks {
		if !picks[i].Host {
			p.picked = append(p.picked, result(&p.chosen[i], picks[i].Logprobs))
			continue
		}
		p.picked = append(p.picked, tensor.Picked{})
		if host < i {
			copy(logits[host*b.Vocab:(host+1)*b.Vocab], logits[i*b.Vocab:])
		}
		host++
	}
	return p.picked, logits[:host*b.Vocab]
}

func rule(p *tensor.Pick) kernels.PickRule {
	r := kernels.PickRule{
		Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, Seed: p.Seed, Index: p.Index, Stream: p.Stream,
		TopK: int32(min(p.TopK, math.MaxInt32)), Logprobs: int32(min(p.Logprobs, kernels.PickTop)),
	}
	if p.Host {
		r.Host = 1
	}
	return r
}

// result names what was chosen. Logarithms are taken here, where those of the
// sampler are.
func result(c *kernels.Picked, logprobs int) tensor.Picked {
	out := tensor.Picked{Token: c.Token, State: tensor.PickState(c.State)}
	if logprobs < 0 || out.State != tensor.PickedOne {
		return out
	}
	norm := float64(c.Top) + math.Log(c.Sum)
	out.Logprob, out.Rank = float64(c.Logit)-norm, c.Rank
	for i := range c.Tops {
		out.Top = append(out.Top, tensor.TopPick{Token: c.IDs[i], Logprob: float64(c.Logits[i]) - norm})
	}
	return out
}
