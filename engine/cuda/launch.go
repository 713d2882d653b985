//go:build cuda

package cuda

import (
	"fmt"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// turn is what a step has in pinned memory. The device reads and writes it while
// the step runs, so it is not touched before the step is done: steps take turns.
// Two are on their way at most; the third turn spares the host the proof that the
// older one is done before it fills in the next.
type turn struct {
	input   *gpu.Pinned // see input
	rules   *gpu.Pinned // kernels.SampleRow
	results *gpu.Pinned // as sampling.results
	done    *gpu.Event
	picks   []tensor.Pick
}

// openTurn allocates all but the input.
func (b *Backend) openTurn(t *turn) (err error) {
	if t.rules, err = b.allocPinned(int64(b.sampling.rows) * ruleBytes); err != nil {
		return err
	}
	if t.results, err = b.allocPinned(int64(b.sampling.rows) * resultEnd); err != nil {
		return err
	}
	t.done, err = b.dev.NewEvent(0)
	return err
}

// turn is that of the step that is queued last.
func (b *Backend) turn() *turn { return &b.turns[b.current] }

func (b *Backend) nextTurn() {
	b.current = (b.current + 1) % len(b.turns)
	b.turn().picks = b.turn().picks[:0]
}

// Launch queues a step as RunPick runs it and returns while the device works. Rows
// may take tokens over from the step launched before, see tensor.Batch.Feed. Copies
// of blocks are in the order of the calls. Two steps may be on their way, if the
// former gives the host no logits.
func (b *Backend) Launch(batch *tensor.Batch, picks []tensor.Pick) error {
	if err := checkPicks(batch, picks); err != nil {
		return err
	}
	if err := b.checkLaunch(batch); err != nil {
		return err
	}
	err := b.step(batch, func() error { return b.pick(picks) }, func() error { return b.stream.Record(b.turn().done) })
	if err != nil {
		return err
	}
	b.turn().picks = append(b.turn().picks, picks...)
	b.open = append(b.open, b.current)
	return nil
}

func (b *Backend) checkLaunch(batch *tensor.Batch) error {
	switch {
	case batch.Rows() == 0:
		return fmt.Errorf("%w: nothing to launch", pass.ErrBatch)
	case len(b.open) > 1 || len(b.open) == 1 && hosts(b.turns[b.open[0]].picks) > 0:
		return fmt.Errorf("%w: launched before what runs was waited for", pass.ErrBatch)
	case len(batch.Feed) > 0 && len(batch.Feed) != batch.Rows():
		return fmt.Errorf("%w: tokens to take over for %d of %d rows", pass.ErrBatch, len(batch.Feed), batch.Rows())
	}
	for i, from := range batch.Feed {
		if before := b.turn().picks; from >= 0 && (int(from) >= len(before) || before[from].Host) {
			return fmt.Errorf("%w: row %d takes token %d over, which the step before does not pick", pass.ErrBatch, i, from)
		}
	}
	return nil
}

// Wait ends the step that was launched first; its results are as those of RunPick
// and valid until the next Wait.
func (b *Backend) Wait() ([]tensor.Picked, []float32, error) {
	if len(b.open) == 0 {
		return nil, nil, fmt.Errorf("wait: nothing was launched")
	}
	t := &b.turns[b.open[0]]
	b.open = append(b.open[:0], b.open[1:]...)
	err := b.do(t.done.Sync)
	b.progress.Add(1)
	if err != nil {
		return nil, nil, err
	}
	return b.sampling.read(t.picks, t.results), b.hostLogits(hosts(t.picks)), nil
}

// feed sets the tokens that the step takes over from the one before.
func (b *Backend) feed(s *shape) error {
	if len(s.batch.Feed) == 0 {
		return nil
	}
	in := &b.input
	b.args.Reset().Ptr(in.ids).Ptr(in.ids).Ptr(in.feed).Ptr(b.sampling.results).I32(s.rows)
	return b.launch(b.sampling.merge, kernels.MergeTokens(s.rows))
}
