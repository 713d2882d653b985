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

// input is what a step reads besides weights and cache: int32 arrays that are
// filled in pinned memory and copied as one. An array's place depends only on the
// numbers of rows, entries and logits, so that captured steps find it again.
type input struct {
	host *gpu.Pinned
	dev  gpu.Ptr
	used int // int32s of the current step

	ids, position, slot         gpu.Ptr // [rows]
	row, length, pageStart      gpu.Ptr // [entries]: rows that attend
	tiles, logitRows, pages     gpu.Ptr // [entries+1], [logits], [...]
	lengths                     []int32 // of entries, to count tiles
	hostLength, hostTiles       []int32
	hostIDs, hostPos, hostSlot  []int32
	hostRow, hostPage, hostLast []int32
	hostPages                   []int32
}

// shape is the sizes of a step.
type shape struct {
	rows    int
	entries int // rows that attend, each a sequence of the attention kernel
	logits  int
	batch   *tensor.Batch
}

// inputWords is the most int32s that an input can take.
func (c *Config) inputWords() int { return 6*c.MaxRows + 1 + c.MaxSeqs + c.MaxPages + arrays*aligned }

const (
	arrays  = 9
	aligned = 4 // int32s: arrays begin at multiples of 16 bytes
)

func (b *Backend) openInput() (err error) {
	n := int64(b.cfg.inputWords()) * 4
	if b.input.host, err = b.allocPinned(n); err != nil {
		return err
	}
	b.input.dev, err = b.alloc(n)
	return err
}

// layout finds the places of the arrays for a step.
func (in *input) layout(s shape, pages int) {
	in.used = 0
	words := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(in.host.Bytes()))), in.host.All().Len()/4)
	take := func(n int) (gpu.Ptr, []int32) {
		at := (in.used + aligned - 1) / aligned * aligned
		in.used = at + n
		return in.dev.At(int64(at) * 4), words[at : at+n : at+n]
	}
	in.ids, in.hostIDs = take(s.rows)
	in.position, in.hostPos = take(s.rows)
	in.slot, in.hostSlot = take(s.rows)
	in.row, in.hostRow = take(s.entries)
	in.length, in.hostLength = take(s.entries)
	in.pageStart, in.hostPage = take(s.entries)
	in.tiles, in.hostTiles = take(s.entries + 1)
	in.logitRows, in.hostLast = take(s.logits)
	in.pages, in.hostPages = take(pages)
}

// fill writes a batch, which may have fewer rows than the shape: the others write
// nothing and attend to nothing.
func (in *input) fill(s shape, blockTokens int) {
	b := s.batch
	in.layout(s, len(b.Pages))
	copy(in.hostIDs, b.Tokens)
	copy(in.hostLast, b.LogitRows)
	copy(in.hostPages, b.Pages)
	for i := range b.Seqs() {
		pages := b.Pages[b.PageStart[i]:b.PageStart[i+1]]
		for row := int(b.RowStart[i]); row < int(b.RowStart[i+1]); row++ {
			pos := int(b.PosStart[i]) + row - int(b.RowStart[i])
			in.hostPos[row] = int32(pos)
			in.hostSlot[row] = pages[pos/blockTokens]*int32(blockTokens) + int32(pos%blockTokens)
			in.hostRow[row], in.hostLength[row], in.hostPage[row] = int32(row), int32(pos+1), b.PageStart[i]
		}
	}
	for row := b.Rows(); row < s.rows; row++ {
		in.hostIDs[row], in.hostPos[row], in.hostSlot[row] = 0, 0, -1
		in.hostRow[row], in.hostLength[row], in.hostPage[row] = int32(row), 0, 0
	}
	for i := len(b.LogitRows); i < s.logits; i++ {
		in.hostLast[i] = int32(i)
	}
	kernels.DecodeTiles(in.hostTiles[:0], in.hostLength)
}

// Check tells whether Run would take the batch, without running anything.
func (b *Backend) Check(batch *tensor.Batch) error {
	if !b.runnable && b.Sealed() {
		return fmt.Errorf("run: the seal failed")
	}
	if err := b.Recorder.Check(batch); err != nil {
		return err
	}
	switch {
	case batch.Seqs() > b.cfg.MaxSeqs:
		return fmt.Errorf("%w: %d sequences, at most %d fit", pass.ErrBatch, batch.Seqs(), b.cfg.MaxSeqs)
	case len(batch.Pages) > b.cfg.MaxPages:
		return fmt.Errorf("%w: %d pages, at most %d fit", pass.ErrBatch, len(batch.Pages), b.cfg.MaxPages)
	}
	return nil
}
