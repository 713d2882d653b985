package cpu

import (
	"errors"
	"fmt"
	"math"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// ErrBatch is wrapped by errors of Check, Run and CopyBlockPrefix that refuse what
// they were given: nothing ran, and no collective began.
var ErrBatch = errors.New("bad batch")

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
	return b.prog.Logits(len(batch.LogitRows) * b.vocab), nil
}

// Check tells whether Run would take the batch, without running anything, so
// that a rank can refuse one before its group counts on it.
func (b *Backend) Check(batch *tensor.Batch) error {
	if b.closed {
		return ErrClosed
	}
	if !b.sealed {
		return fmt.Errorf("run: the forward pass is not sealed")
	}
	if err := b.checkRows(batch); err != nil {
		return err
	}
	return b.checkRanks(batch)
}

// checkRanks compares the rows of all ranks with the group and the pass.
func (b *Backend) checkRanks(batch *tensor.Batch) error {
	g, rows := b.cfg.Group, batch.RankRows
	if g == nil {
		return nil
	}
	if len(rows) != g.Size() || rows[g.ID()] != batch.Rows() {
		return fmt.Errorf("%w: rows %v of the ranks, this is rank %d of %d with %d", ErrBatch, rows, g.ID(), g.Size(), batch.Rows())
	}
	for r, n := range rows {
		if n < 0 || n > maxRows {
			return fmt.Errorf("%w: rank %d has %d rows", ErrBatch, r, n)
		}
		if b.equalRows && n != rows[0] {
			return fmt.Errorf("%w: ranks 0 and %d have %d and %d rows, must be equal for ranks that split each row", ErrBatch, r, rows[0], n)
		}
	}
	if most := b.cfg.sharedRows(); b.sharesRows && sum(rows) > most {
		return fmt.Errorf("%w: rows %v of the ranks, at most %d fit together", ErrBatch, rows, most)
	}
	return nil
}

// checkRows makes sure that native code can trust the batch.
func (b *Backend) checkRows(batch *tensor.Batch) error {
	rows, seqs := batch.Rows(), batch.Seqs()
	if rows > b.cfg.MaxRows {
		return fmt.Errorf("%w: %d rows, at most %d fit", ErrBatch, rows, b.cfg.MaxRows)
	}
	if len(batch.RowStart) != seqs+1 || len(batch.PageStart) != seqs+1 {
		return fmt.Errorf("%w: %d sequences with %d row starts and %d page starts", ErrBatch, seqs, len(batch.RowStart), len(batch.PageStart))
	}
	if batch.RowStart[0] != 0 || int(batch.RowStart[seqs]) != rows || batch.PageStart[0] < 0 {
		return fmt.Errorf("%w: rows %d to %d of %d, pages from %d", ErrBatch, batch.RowStart[0], batch.RowStart[seqs], rows, batch.PageStart[0])
	}
	for i, token := range batch.Tokens {
		if token < 0 || int(token) >= b.tokens {
			return fmt.Errorf("%w: row %d has token %d of a vocabulary of %d", ErrBatch, i, token, b.tokens)
		}
	}
	for s := range seqs {
		if err := b.checkSeq(batch, s); err != nil {
			return err
		}
	}
	for i, row := range batch.LogitRows {
		if row < 0 || int(row) >= rows || i > 0 && row <= batch.LogitRows[i-1] {
			return fmt.Errorf("%w: logit row %d of %d rows, must ascend", ErrBatch, row, rows)
		}
	}
	return nil
}

func (b *Backend) checkSeq(batch *tensor.Batch, s int) error {
	rows := int(batch.RowStart[s+1]) - int(batch.RowStart[s])
	pages := int(batch.PageStart[s+1]) - int(batch.PageStart[s])
	pos, kv := int(batch.PosStart[s]), b.cfg.KV
	if rows < 1 || pos < 0 || pos+rows > math.MaxInt32-positionSlack {
		return fmt.Errorf("%w: sequence %d has %d rows from position %d", ErrBatch, s, rows, pos)
	}
	if pages < 0 || int(batch.PageStart[s+1]) > len(batch.Pages) {
		return fmt.Errorf("%w: sequence %d has pages %d to %d of %d", ErrBatch, s, batch.PageStart[s], batch.PageStart[s+1], len(batch.Pages))
	}
	need := (pos + rows + kv.BlockTokens - 1) / kv.BlockTokens
	if need > pages {
		return fmt.Errorf("%w: sequence %d has %d pages, positions up to %d need %d", ErrBatch, s, pages, pos+rows, need)
	}
	for i, id := range batch.Pages[batch.PageStart[s] : int(batch.PageStart[s])+need] {
		if id < 0 || int(id) >= kv.Blocks {
			return fmt.Errorf("%w: sequence %d page %d is block %d of %d", ErrBatch, s, i, id, kv.Blocks)
		}
	}
	return nil
}

// Positions stay this far below the largest int32, so that rounding one up to a
// split or a block cannot overflow.
const positionSlack = 1 << 17

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
	src, dst := b.Block(from), b.Block(to)
	if src == nil || dst == nil || tokens < 0 || tokens > b.cfg.KV.BlockTokens {
		return fmt.Errorf("%w: copy %d tokens from block %d to %d of %d", ErrBatch, tokens, from, to, b.cfg.KV.Blocks)
	}
	if tokens > 0 {
		// One contiguous copy beats picking the positions out of every tile.
		copy(dst, src)
	}
	return nil
}

// Progress counts the phases that runs have finished since New, also those of
// the run in progress. Any goroutine may read it between New and Close: a count
// that moves shows that a long step is not stuck.
func (b *Backend) Progress() uint64 { return b.prog.Progress() }
