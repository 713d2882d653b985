//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// sampling is the device's choice of tokens: its rules go up in one copy, and what
// it chose comes back in one.
type sampling struct {
	argmax, sample *kernel

	rules *gpu.Pinned // kernels.SampleRow
	dev   gpu.Ptr

	// Of the results: tokens and states, then, where log-probabilities were wanted,
	// ranks, ids of alternatives, log-probabilities of the tokens and of them.
	host    *gpu.Pinned
	results gpu.Ptr
	rows    int // that there is room for, even
	picked  []tensor.Picked
}

const (
	ruleBytes = int64(unsafe.Sizeof(kernels.SampleRow{}))
	topWidth  = kernels.MaxTopLogprobs
)

// Offsets into the results, in units of rows.
const (
	stateAt   = 4
	rankAt    = 8
	topIDAt   = 12
	logprobAt = topIDAt + 4*topWidth + 4 // keeps float64 aligned
	topAt     = logprobAt + 8
	resultEnd = topAt + 8*topWidth
)

func (b *Backend) openSampling() (err error) {
	s := &b.sampling
	s.rows = (b.cfg.MaxSeqs + 1) / 2 * 2
	if s.argmax, err = b.code.find("td_argmax"); err != nil {
		return err
	}
	if s.sample, err = b.code.find("td_sample"); err != nil {
		return err
	}
	if s.rules, err = b.allocPinned(int64(s.rows) * ruleBytes); err != nil {
		return err
	}
	if s.dev, err = b.alloc(int64(s.rows) * ruleBytes); err != nil {
		return err
	}
	if s.host, err = b.allocPinned(int64(s.rows) * resultEnd); err != nil {
		return err
	}
	s.results, err = b.alloc(int64(s.rows) * resultEnd)
	return err
}

// RunPick is Run for a batch whose logit row i is chosen from as picks[i] says.
// The logits of those that are the host's come back, in order. Both results are
// the backend's and valid until the next step.
func (b *Backend) RunPick(batch *tensor.Batch, picks []tensor.Pick) ([]tensor.Picked, []float32, error) {
	if len(picks) != len(batch.LogitRows) {
		return nil, nil, fmt.Errorf("%w: %d picks for %d logit rows", pass.ErrBatch, len(picks), len(batch.LogitRows))
	}
	logits, n := []float32(nil), 0
	err := b.step(batch, func() error {
		if err := b.choose(picks); err != nil {
			return err
		}
		row := int64(b.Vocab) * 4
		for i := range picks {
			if !picks[i].Host {
				continue
			}
			if err := b.stream.Read(b.scratch.host.Slice(int64(n)*row, row), b.scratch.logits.At(int64(i)*row)); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	logits = b.hostLogits(n)
	return b.sampling.read(picks), logits, nil
}

// choose queues the choice from scratch.logits.
func (b *Backend) choose(picks []tensor.Pick) error {
	s, n := &b.sampling, len(picks)
	greedy, host, logprobs := true, true, false
	rules := unsafe.Slice((*kernels.SampleRow)(unsafe.Pointer(unsafe.SliceData(s.rules.Bytes()))), s.rows)
	for i, p := range picks {
		greedy = greedy && (p.Host || p.Temperature < 1e-5 && p.Logprobs < 0)
		host, logprobs = host && p.Host, logprobs || p.Logprobs >= 0 && !p.Host
		rules[i] = kernels.SampleRow{
			Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, Repetition: 1, Seed: p.Seed, Index: p.Index, Stream: p.Stream,
			TopK: int32(p.TopK), Logprobs: int32(p.Logprobs), Counts: -1,
		}
		if p.Host {
			rules[i] = kernels.SampleRow{TopP: 1, Repetition: 1, Logprobs: -1, Counts: -1}
		}
	}
	if host {
		return nil
	}
	at := func(offset int) gpu.Ptr { return s.results.At(int64(s.rows) * int64(offset)) }
	if greedy {
		b.args.Reset().Ptr(at(0)).Ptr(at(stateAt)).Ptr(b.scratch.logits).I32(b.Vocab)
		if err := b.launch(s.argmax, kernels.PerRow(n)); err != nil {
			return err
		}
	} else {
		if err := b.stream.Write(s.dev, s.rules.Slice(0, int64(n)*ruleBytes)); err != nil {
			return err
		}
		b.args.Reset().Ptr(at(0)).Ptr(at(stateAt)).Ptr(b.scratch.logits).Ptr(s.dev).Ptr(0).
			Ptr(at(logprobAt)).Ptr(at(rankAt)).Ptr(at(topIDAt)).Ptr(at(topAt)).I32(b.Vocab)
		if err := b.launch(s.sample, kernels.PerRow(n)); err != nil {
			return err
		}
	}
	size := rankAt
	if logprobs {
		size = resultEnd
	}
	return b.stream.Read(s.host.Slice(0, int64(s.rows)*int64(size)), s.results)
}

// read takes the results out of pinned memory.
func (s *sampling) read(picks []tensor.Pick) []tensor.Picked {
	s.picked = s.picked[:0]
	tokens, states := column[int32](s, 0, 1), column[int32](s, stateAt, 1)
	ranks, topIDs := column[int32](s, rankAt, 1), column[int32](s, topIDAt, topWidth)
	logprobs, top := column[float64](s, logprobAt, 1), column[float64](s, topAt, topWidth)
	for i, p := range picks {
		if p.Host {
			s.picked = append(s.picked, tensor.Picked{})
			continue
		}
		one := tensor.Picked{Token: tokens[i], State: tensor.PickState(states[i])}
		if p.Logprobs >= 0 && one.State == tensor.PickedOne {
			one.Logprob, one.Rank = logprobs[i], ranks[i]
			for j := range p.Logprobs {
				if id := topIDs[i*topWidth+j]; id >= 0 {
					one.Top = append(one.Top, tensor.TopPick{Token: id, Logprob: top[i*topWidth+j]})
				}
			}
		}
		s.picked = append(s.picked, one)
	}
	return s.picked
}

// column is an array of the results.
func column[T any](s *sampling, offset, width int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(s.host.Bytes()[s.rows*offset:]))), s.rows*width)
}
