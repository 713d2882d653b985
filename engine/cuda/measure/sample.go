//go:build cuda

package measure

import (
	"bytes"
	"encoding/binary"

	"tandem/engine/cuda/gpu"
	kernels "tandem/kernels/cuda"
)

// sampling chooses a token for each row of logits: the largest, and one drawn from a nucleus.
func (b *bench) sampling() error {
	argmax, err := b.kernel("td_argmax")
	if err != nil {
		return err
	}
	draw, err := b.kernel("td_sample")
	if err != nil {
		return err
	}
	for _, rows := range b.Batches {
		vocab := b.Model.Vocab
		r := Result{Name: "argmax", Rows: rows, N: vocab, Bytes: 4 * float64(rows) * float64(vocab)}
		tokens, status := b.y, b.y.At(4*int64(rows))
		if err := b.report(r, func(int) error {
			b.args.Reset().Ptr(tokens).Ptr(status).Ptr(b.x).I32(vocab)
			return b.launch(argmax, kernels.PerRow(rows))
		}); err != nil {
			return err
		}
		rules, err := b.rules(rows)
		if err != nil {
			return err
		}
		r.Name = "sampling, top-p"
		if err := b.report(r, func(int) error {
			b.args.Reset().Ptr(tokens).Ptr(status).Ptr(b.x).Ptr(rules).Ptr(0).Ptr(0).Ptr(0).Ptr(0).Ptr(0).I32(vocab)
			return b.launch(draw, kernels.PerRow(rows))
		}); err != nil {
			return err
		}
	}
	return nil
}

// rules are what most requests ask for.
func (b *bench) rules(rows int) (gpu.Ptr, error) {
	var raw bytes.Buffer
	for i := range rows {
		rule := kernels.SampleRow{Temperature: 0.7, TopP: 0.9, Repetition: 1, Seed: uint64(i), Logprobs: -1, Counts: -1}
		if err := binary.Write(&raw, binary.LittleEndian, rule); err != nil {
			return 0, err
		}
	}
	p, err := b.alloc(int64(raw.Len()))
	if err != nil {
		return 0, err
	}
	return p, b.dev.Write(p, raw.Bytes())
}
