//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"tandem/engine/cuda/gpu"
	"tandem/engine/tensor"
)

// Run runs one step and returns the logits [len(LogitRows), vocab]. They are the
// backend's and valid until the next Run. A batch without rows is allowed; in a
// group it takes part in the collectives unless no rank has rows.
func (b *Backend) Run(batch *tensor.Batch) ([]float32, error) {
	n := len(batch.LogitRows)
	err := b.step(batch, func() error {
		return b.stream.Read(b.scratch.host.Slice(0, 4*int64(n*b.Vocab)), b.scratch.logits)
	}, b.wait)
	if err != nil {
		return nil, err
	}
	return b.hostLogits(n), nil
}

// hostLogits are the first n rows that were copied to the host.
func (b *Backend) hostLogits(n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b.scratch.host.Bytes()))), n*b.Vocab)
}

// step queues a batch, then what after queues, which is left out if no logits are
// wanted, then what end does.
func (b *Backend) step(batch *tensor.Batch, after, end func() error) error {
	if err := b.Check(batch); err != nil {
		return err
	}
	if lost := b.copyError.Swap(nil); lost != nil {
		return *lost
	}
	total := batch.Rows()
	for _, n := range batch.RankRows {
		total += n
	}
	if total == 0 {
		return nil
	}
	return b.do(func() error {
		err := b.queue(batch)
		if err == nil && len(batch.LogitRows) > 0 {
			err = after()
		}
		switch {
		case err == nil:
			return end()
		case b.cfg.Group != nil: // whose peers are in the middle of the step, which ends the group
			return err
		}
		return errors.Join(err, b.wait()) // what is queued of it must not meet the next step's input
	})
}

// do runs fn on the device's thread and remembers an error that is the end of it.
func (b *Backend) do(fn func() error) error {
	err := b.dev.Do(fn)
	if errors.Is(err, gpu.ErrBroken) && b.broken == nil {
		b.broken = err
	}
	return err
}

// Fatal is the error after which the device answers nothing any more, nil so far:
// only a new process helps.
func (b *Backend) Fatal() error { return b.broken }

func (b *Backend) wait() error {
	wait := b.stream.Sync
	if b.link != nil {
		wait = b.await
	}
	err := wait()
	b.progress.Add(1)
	return err
}

// queue gives the device a step, as a captured one if it only decodes.
func (b *Backend) queue(batch *tensor.Batch) error {
	bucket := b.bucket(batch)
	var s shape
	if bucket == 0 {
		s = b.input.measure(batch, b.prefill, b.cfg.Deterministic)
	} else {
		s = b.input.padded(batch, bucket, b.prefill, b.cfg.Deterministic)
	}
	b.nextTurn()
	if err := b.send(&s); err != nil {
		return err
	}
	if err := b.feed(&s); err != nil {
		return err
	}
	if bucket == 0 {
		return b.eager(&s)
	}
	b.progress.Add(1)
	return b.stream.Run(b.graphs[bucket])
}

// capture makes the graphs of all sizes, so that no request waits for one. A capture
// must find the plans of products made.
func (b *Backend) capture() error {
	if b.cfg.Group != nil {
		return nil
	}
	var none tensor.Batch
	none.Reset()
	for _, size := range b.cfg.Graphs {
		if size < 1 || size > b.cfg.MaxSeqs {
			continue
		}
		s := b.input.padded(&none, size, b.prefill, b.cfg.Deterministic)
		if err := b.send(&s); err != nil { // places the arrays
			return err
		}
		b.dry = true
		err := b.eager(&s)
		b.dry = false
		if err != nil {
			return err
		}
		g, err := b.stream.Capture(func() error { return b.eager(&s) })
		if err != nil {
			return fmt.Errorf("capture a step of %d rows: %w", size, err)
		}
		b.graphs[size] = g
		if err := b.stream.Upload(g); err != nil {
			return err
		}
		if err := b.stream.Sync(); err != nil { // before the next send overwrites the host's words
			return err
		}
	}
	return nil
}

func (b *Backend) eager(s *shape) error {
	for _, st := range b.steps {
		if err := st(s); err != nil {
			return err
		}
	}
	return nil
}

// bucket is the captured number of rows that a batch runs with, 0 for none: only
// batches in which every sequence decodes one token have one.
func (b *Backend) bucket(batch *tensor.Batch) int {
	rows := batch.Rows()
	if b.cfg.Group != nil || rows == 0 || rows != batch.Seqs() || rows != len(batch.LogitRows) {
		return 0
	}
	i, _ := slices.BinarySearch(b.cfg.Graphs, rows)
	if i == len(b.cfg.Graphs) || b.cfg.Graphs[i] > b.cfg.MaxSeqs {
		return 0
	}
	return b.cfg.Graphs[i]
}
