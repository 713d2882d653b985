package pass

import (
	"errors"
	"fmt"
	"math"

	"tandem/engine/tensor"
)

// ErrBatch is wrapped by errors that refuse a batch, or the ids of blocks: nothing
// ran, and no collective began.
var ErrBatch = errors.New("bad batch")

// Positions stay this far below the largest int32, so that rounding one up to a
// split or a block cannot overflow.
const positionSlack = 1 << 17

// maxRankRows is the most rows that a rank may claim to have.
const maxRankRows = 1 << 20

// Check tells whether a batch can be run, so that native code can trust it, and
// that a rank can refuse one before its group counts on it.
func (r *Recorder) Check(batch *tensor.Batch) error {
	if r.ended != nil {
		return r.ended
	}
	if !r.sealed {
		return fmt.Errorf("run: the forward pass is not sealed")
	}
	if err := r.checkRows(batch); err != nil {
		return err
	}
	return r.checkRanks(batch)
}

// CheckCopy tells whether tokens positions of one block can go to another.
func (r *Recorder) CheckCopy(from, to int32, tokens int) error {
	n := int32(r.cfg.KV.Blocks)
	if from < 0 || from >= n || to < 0 || to >= n || tokens < 0 || tokens > r.cfg.KV.BlockTokens {
		return fmt.Errorf("%w: copy %d tokens from block %d to %d of %d", ErrBatch, tokens, from, to, n)
	}
	return nil
}

// checkRanks compares the rows of all ranks with the group and the pass.
func (r *Recorder) checkRanks(batch *tensor.Batch) error {
	n, id, rows := r.cfg.Ranks, r.cfg.Rank, batch.RankRows
	if n == 0 {
		return nil
	}
	if len(rows) != n || rows[id] != batch.Rows() {
		return fmt.Errorf("%w: rows %v of the ranks, this is rank %d of %d with %d", ErrBatch, rows, id, n, batch.Rows())
	}
	total := 0
	for i, k := range rows {
		if k < 0 || k > maxRankRows {
			return fmt.Errorf("%w: rank %d has %d rows", ErrBatch, i, k)
		}
		if r.EqualRows && k != rows[0] {
			return fmt.Errorf("%w: ranks 0 and %d have %d and %d rows, must be equal for ranks that split each row", ErrBatch, i, rows[0], k)
		}
		total += k
	}
	if most := r.cfg.MaxSharedRows; r.SharesRows && total > most {
		return fmt.Errorf("%w: rows %v of the ranks, at most %d fit together", ErrBatch, rows, most)
	}
	return nil
}

func (r *Recorder) checkRows(batch *tensor.Batch) error {
	rows, seqs := batch.Rows(), batch.Seqs()
	if rows > r.cfg.MaxRows {
		return fmt.Errorf("%w: %d rows, at most %d fit", ErrBatch, rows, r.cfg.MaxRows)
	}
	if len(batch.RowStart) != seqs+1 || len(batch.PageStart) != seqs+1 {
		return fmt.Errorf("%w: %d sequences with %d row starts and %d page starts", ErrBatch, seqs, len(batch.RowStart), len(batch.PageStart))
	}
	if batch.RowStart[0] != 0 || int(batch.RowStart[seqs]) != rows || batch.PageStart[0] < 0 {
		return fmt.Errorf("%w: rows %d to %d of %d, pages from %d", ErrBatch, batch.RowStart[0], batch.RowStart[seqs], rows, batch.PageStart[0])
	}
	for i, token := range batch.Tokens {
		if token < 0 || int(token) >= r.tokens {
			return fmt.Errorf("%w: row %d has token %d of a vocabulary of %d", ErrBatch, i, token, r.tokens)
		}
	}
	for s := range seqs {
		if err := r.checkSeq(batch, s); err != nil {
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

func (r *Recorder) checkSeq(batch *tensor.Batch, s int) error {
	rows := int(batch.RowStart[s+1]) - int(batch.RowStart[s])
	pages := int(batch.PageStart[s+1]) - int(batch.PageStart[s])
	pos, kv := int(batch.PosStart[s]), r.cfg.KV
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
	first := 0 // page that is read; those before it need not be there
	if r.reach > 0 {
		first = max(0, pos+1-r.reach) / kv.BlockTokens
	}
	for i, id := range batch.Pages[int(batch.PageStart[s])+first : int(batch.PageStart[s])+need] {
		if id < 0 || int(id) >= kv.Blocks {
			return fmt.Errorf("%w: sequence %d page %d is block %d of %d", ErrBatch, s, first+i, id, kv.Blocks)
		}
	}
	return nil
}
