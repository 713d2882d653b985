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

	merge *kernel

	dev gpu.Ptr // kernels.SampleRow

	// Tokens and states, then, where log-probabilities were wanted, ranks, ids of
	// alternatives, log-probabilities of the tokens and of them.
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
	if s.merge, err = b.code.find("td_merge_tokens"); err != nil {
		return err
	}
	for i := range b.turns {
		if err := b.openTurn(&b.turns[i]); err != nil {
			return err
		}
	}
	if s.dev, err = b.alloc(int64(s.rows) * ruleBytes); err != nil {
		return err
	}
	s.results, err = b.alloc(int64(s.rows) * resultEnd)
	return err
}

// RunPick is Run for a batch whose logit row i is chosen from as picks[i] says.
// The logits of those that are the host's come back, in order. Both results are
// the backend's and valid until the next step.
func (b *Backend) RunPick(batch *tensor.Batch, picks []tensor.Pick) ([]tensor.Picked, []float32, error) {
	if err := checkPicks(batch, picks); err != nil {
		return nil, nil, err
	}
	if err := b.step(batch, func() error { return b.pick(picks) }, b.wait); err != nil {
		return nil, nil, err
	}
	return b.sampling.read(picks, b.turn().results), b.hostLogits(hosts(picks)), nil
}

func checkPicks(batch *tensor.Batch, picks []tensor.Pick) error {
	if len(picks) != len(batch.LogitRows) {
		return fmt.Errorf("%w: %d picks for %d logit rows", pass.ErrBatch, len(picks), len(batch.LogitRows))
	}
	return nil
}

// hosts counts the rows whose logits the host wants.
func hosts(picks []tensor.Pick) (n int) {
	for i := range picks {
		if picks[i].Host {
			n++
		}
	}
	return n
}

// pick queues the choices, and copies of the logits that are the host's.
func (b *Backend) pick(picks []tensor.Pick) error {
	row, n := int64(b.Vocab)*4, int64(hosts(picks))
	if n == int64(len(picks)) {
		return b.stream.Read(b.scratch.host.Slice(0, n*row), b.scratch.logits)
	}
	if err := b.choose(picks); err != nil {
		return err
	}
	n = 0
	for i := range picks {
		if !picks[i].Host {
			continue
		}
		if err := b.stream.Read(b.scratch.host.Slice(n*row, row), b.scratch.logits.At(int64(i)*row)); err != nil {
			return err
		}
		n++
	}
	return nil
}

// choose queues the choice from scratch.logits, of which some rows are not the host's.
func (b *Backend) choose(picks []tensor.Pick) error {
	s, n, own := &b.sampling, len(picks), b.turn()
	greedy, logprobs := true, false
	rules := unsafe.Slice((*kernels.SampleRow)(unsafe.Pointer(unsafe.SliceData(own.rules.Bytes()))), s.rows)
	for i, p := range picks {
		greedy = greedy && (p.Host || p.Temperature < 1e-5 && p.Logprobs < 0)
		logprobs = logprobs || p.Logprobs >= 0 && !p.Host
		rules[i] = kernels.SampleRow{
			Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, Repetition: 1, Seed: p.Seed, Index: p.Index, Stream: p.Stream,
			TopK: int32(p.TopK), Logprobs: int32(p.Logprobs), Counts: -1,
		}
		if p.Host {
			rules[i] = kernels.SampleRow{TopP: 1, Repetition: 1, Logprobs: -1, Counts: -1}
		}
	}
	at := func(offset int) gpu.Ptr { return s.results.At(int64(s.rows) * int64(offset)) }
	if greedy {
		b.args.Reset().Ptr(at(0)).Ptr(at(stateAt)).Ptr(b.scratch.logits).I32(b.Vocab)
		if err := b.launch(s.argmax, kernels.PerRow(n)); err != nil {
			return err
		}
	} else {
		if err := b.stream.Write(s.dev, own.rules.Slice(0, int64(n)*ruleBytes)); err != nil {
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
	return b.stream.Read(own.results.Slice(0, int64(s.rows)*int64(size)), s.results)
}

// read takes the results out of pinned memory.
func (s *sampling) read(picks []tensor.Pick, from *gpu.Pinned) []tensor.Picked {
	s.picked = s.picked[:0]
	tokens, states := column[int32](s, from, 0, 1), column[int32](s, from, stateAt, 1)
	ranks, topIDs := column[int32](s, from, rankAt, 1), column[int32](s, from, topIDAt, topWidth)
	logprobs, top := column[float64](s, from, logprobAt, 1), column[float64](s, from, topAt, topWidth)
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
func column[T any](s *sampling, from *gpu.Pinned, offset, width int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(from.Bytes()[s.rows*offset:]))), s.rows*width)
}
