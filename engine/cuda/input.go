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
// filled in the step's own pinned memory and copied as one. An array's place depends
// only on the numbers of the shape, so that captured steps find it again.
type input struct {
	words []int32 // of the step's pinned memory
	dev   gpu.Ptr
	used  int // words of the current step

	ids, position, slot     gpu.Ptr // [rows]
	row, length, pageStart  gpu.Ptr // [entries]: sequences with one row
	tiles, logitRows        gpu.Ptr // [entries+1], [logits]
	chunks                  gpu.Ptr // [tiles] of chunks: (sequence, first token)
	seqRow, seqPos, seqPage gpu.Ptr // [seqs+1], [seqs], [seqs]
	pages                   gpu.Ptr
	feed                    gpu.Ptr // [rows]: see tensor.Batch, of steps that have it
	seqRows, several        []int32 // scratch
	pairs                   []int32 // of chunks
}

// shape is the sizes of a step.
type shape struct {
	rows    int
	entries int // sequences with one row, each decodes a token
	tiles   int // of the chunks of other sequences
	logits  int
	seqs    int // of the chunks' arrays: may be more than the batch has
	batch   *tensor.Batch
}

// inputWords is the most words that an input can take.
func (c *Config) inputWords() int {
	return 4*c.MaxRows + 4*c.MaxSeqs + 2 + 2*c.MaxRows + 3*c.MaxSeqs + c.MaxPages + arrays*aligned
}

const (
	arrays  = 14
	aligned = 4 // words: arrays begin at multiples of 16 bytes
)

func (b *Backend) openInput() (err error) {
	n := int64(b.cfg.inputWords()) * 4
	for i := range b.turns {
		if b.turns[i].input, err = b.allocPinned(n); err != nil {
			return err
		}
	}
	b.input.dev, err = b.alloc(n)
	return err
}

// send fills in the step's words and lets the device copy them.
func (b *Backend) send(s *shape) error {
	in, host := &b.input, b.turn().input
	in.words = unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(host.Bytes()))), b.cfg.inputWords())
	in.fill(s, b.cfg.KV.BlockTokens)
	return b.stream.Write(in.dev, host.Slice(0, 4*int64(in.used)))
}

// take gives the next array of n words, on the host and on the device.
func (in *input) take(n int) ([]int32, gpu.Ptr) {
	at := (in.used + aligned - 1) / aligned * aligned
	in.used = at + n
	return in.words[at : at+n : at+n], in.dev.At(int64(at) * 4)
}

// fill writes a batch, which may have fewer rows than the shape: the others write
// nothing and attend to nothing. pairs are the tiles of chunks.
func (in *input) fill(s *shape, blockTokens int) {
	in.used = 0
	b := s.batch
	var ids, pos, slot, last []int32
	ids, in.ids = in.take(s.rows)
	pos, in.position = in.take(s.rows)
	slot, in.slot = in.take(s.rows)
	last, in.logitRows = in.take(s.logits)
	in.fillEntries(s)
	copy(ids, b.Tokens)
	copy(last, b.LogitRows)
	for i := range b.Seqs() {
		pages := b.Pages[b.PageStart[i]:b.PageStart[i+1]]
		for row := b.RowStart[i]; row < b.RowStart[i+1]; row++ {
			p := int(b.PosStart[i] + row - b.RowStart[i])
			pos[row], slot[row] = int32(p), pages[p/blockTokens]*int32(blockTokens)+int32(p%blockTokens)
		}
	}
	for row := b.Rows(); row < s.rows; row++ {
		ids[row], pos[row], slot[row] = 0, 0, -1
	}
	for i := len(b.LogitRows); i < s.logits; i++ {
		last[i] = int32(i)
	}
	if s.tiles > 0 {
		var chunks, row, pos, page []int32
		chunks, in.chunks = in.take(2 * s.tiles)
		row, in.seqRow = in.take(s.seqs + 1)
		pos, in.seqPos = in.take(s.seqs)
		page, in.seqPage = in.take(s.seqs)
		copy(chunks, in.pairs)
		for i := copy(row, b.RowStart); i <= s.seqs; i++ {
			row[i] = row[i-1] // no rows, which ends the tile
		}
		clear(pos[copy(pos, b.PosStart):])
		clear(page[copy(page, b.PageStart[:b.Seqs()]):])
	}
	var pages []int32
	pages, in.pages = in.take(len(b.Pages))
	copy(pages, b.Pages)
	if len(b.Feed) > 0 { // last, for captured steps do not know it
		var feed []int32
		feed, in.feed = in.take(s.rows)
		for i := copy(feed, b.Feed); i < s.rows; i++ {
			feed[i] = -1
		}
	}
}

// fillEntries writes the sequences that decode a token.
func (in *input) fillEntries(s *shape) {
	b, n := s.batch, 0
	var row, length, page, tiles []int32
	row, in.row = in.take(s.entries)
	length, in.length = in.take(s.entries)
	page, in.pageStart = in.take(s.entries)
	tiles, in.tiles = in.take(s.entries + 1)
	for i := 0; i < b.Seqs() && n < s.entries; i++ { // none where rows of one are chunks
		if b.RowStart[i+1]-b.RowStart[i] == 1 {
			row[n], length[n], page[n] = b.RowStart[i], b.PosStart[i]+1, b.PageStart[i]
			n++
		}
	}
	for ; n < s.entries; n++ {
		row[n], length[n], page[n] = int32(n), 0, 0
	}
	kernels.DecodeTiles(tiles[:0], length)
}

// measure finds the shape of a batch that is not captured. With chunks all sequences
// count as such, also those of one row.
func (in *input) measure(b *tensor.Batch, prefill kernels.Prefill, chunks bool) shape {
	s := shape{rows: b.Rows(), logits: len(b.LogitRows), seqs: b.Seqs(), batch: b}
	in.several, in.seqRows = in.several[:0], in.seqRows[:0]
	for i := range b.Seqs() {
		n := b.RowStart[i+1] - b.RowStart[i]
		in.seqRows = append(in.seqRows, n)
		if n == 1 && !chunks {
			s.entries++
		} else {
			in.several = append(in.several, int32(i))
		}
	}
	in.pairs = prefill.Tiles(in.pairs[:0], in.several, in.seqRows, b.PosStart)
	s.tiles = len(in.pairs) / 2
	return s
}

// padded is the shape of a batch that decodes n rows at most.
func (in *input) padded(b *tensor.Batch, n int, prefill kernels.Prefill, chunks bool) shape {
	if !chunks {
		return shape{rows: n, entries: n, logits: n, batch: b}
	}
	s := in.measure(b, prefill, true)
	for i := s.seqs; i < n; i++ {
		in.pairs = append(in.pairs, int32(i), 0)
	}
	s.rows, s.tiles, s.logits, s.seqs = n, n, n, n
	return s
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
