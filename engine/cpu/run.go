package cpu

import (
	"errors"
	"fmt"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// ErrGroup is wrapped by errors of Run when a collective failed: the step is lost
// and the group has ended.
var ErrGroup = errors.New("the group of ranks failed")

// segment is ops [from, to), run by one native call, and the collective behind.
type segment struct {
	from, to int
	shared   bool                      // some of them run over the rows of all ranks
	meet     func(*tensor.Batch) error // nil behind the last ops
}

// Run runs one step and returns the logits [len(LogitRows), vocab]. They are the
// backend's and valid until the next Run. A batch without rows is allowed; in a
// group it takes part in the collectives unless no rank has rows. A batch that
// Check refuses is refused before any collective.
func (b *Backend) Run(batch *tensor.Batch) ([]float32, error) {
	if err := b.Check(batch); err != nil {
		return nil, err
	}
	do := kernels.Batch{
		Tokens: batch.Tokens, RowStart: batch.RowStart, PosStart: batch.PosStart,
		PageStart: batch.PageStart, Pages: batch.Pages, LogitRows: batch.LogitRows,
	}
	if b.cfg.Group != nil {
		do.SharedRows, do.FirstRow = sum(batch.RankRows), sum(batch.RankRows[:b.cfg.Group.ID()])
	}
	rows := batch.Rows()
	if rows == 0 && do.SharedRows == 0 {
		return nil, nil
	}
	for i := range b.segments {
		s := &b.segments[i]
		if s.from < s.to && (rows > 0 || s.shared) {
			b.prog.Run(&do, s.from, s.to)
		}
		if s.meet == nil {
			continue
		}
		if err := s.meet(batch); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrGroup, err)
		}
	}
	return b.prog.Logits(len(batch.LogitRows) * b.Vocab), nil
}

// WeightsRead counts the bytes of weights that runs have multiplied since New: a
// matrix counts once for each block of rows that it is read for, an expert that no
// row has chosen not at all. It may not be called during Run.
func (b *Backend) WeightsRead() uint64 { return b.prog.WeightsRead() }

// Check tells whether Run would take the batch, without running anything.
func (b *Backend) Check(batch *tensor.Batch) error {
	if !b.runnable && b.Sealed() {
		return errors.New("run: the seal failed")
	}
	return b.Recorder.Check(batch)
}

// Block returns the bytes of a block over all layers, keys and values, or nil
// for an id that is not in the pool. Goroutines other than the loop's may read
// leased blocks and write blocks under a pull.
func (b *Backend) Block(id int32) []byte {
	if id < 0 || int(id) >= b.cfg.KV.Blocks || b.kv.Pool.Bytes == nil {
		return nil
	}
	n := b.kv.BlockBytes()
	return b.kv.Pool.Bytes[int(id)*n : (int(id)+1)*n : (int(id)+1)*n]
}

// CopyBlockPrefix makes the first tokens positions of block to equal those of
// block from. The positions behind them hold nothing of use and must be written
// before they are read.
func (b *Backend) CopyBlockPrefix(from, to int32, tokens int) error {
	if b.closed {
		return ErrClosed
	}
	if err := b.CheckCopy(from, to, tokens); err != nil {
		return err
	}
	if tokens > 0 {
		// One contiguous copy beats picking the positions out of every tile.
		copy(b.Block(to), b.Block(from))
	}
	return nil
}

// Progress counts the phases that runs have finished since New, also those of
// the run in progress. Any goroutine may read it between New and Close: a count
// that moves shows that a long step is not stuck.
func (b *Backend) Progress() uint64 { return b.prog.Progress() }
