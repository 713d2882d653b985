package wire

import (
	"fmt"
	"sync"

	"tandem/engine/transfer"
)

// joined shows what several ranks have of every block as one pool of whole blocks,
// in the order of an undivided one. So workers whose ranks divide layers and heads
// in different ways can hand blocks over to each other.
type joined struct {
	size  int
	ranks []joinedRank
	d     *transfer.Division
}

type joinedRank struct {
	transfer.Memory
	split transfer.SplitMemory // nil if its part of a block is in one piece
	spare sync.Pool            // of *[]byte, for a part that is not
}

// Join returns the memory of ranks that have parts of the blocks of a layout: the
// pool of each holds its part of every block.
func Join(l transfer.Layout, pools []transfer.Memory, parts []transfer.Part) (transfer.SplitMemory, error) {
	if len(pools) != len(parts) {
		return nil, fmt.Errorf("join KV blocks: %d pools for %d parts", len(pools), len(parts))
	}
	d, err := transfer.Divide(l, parts)
	if err != nil {
		return nil, err
	}
	j := &joined{size: l.BlockBytes(), ranks: make([]joinedRank, len(pools)), d: d}
	for i, pool := range pools {
		r := &j.ranks[i]
		r.Memory = pool
		size := len(pool.Block(0))
		if size == 0 {
			var ok bool
			if r.split, ok = pool.(transfer.SplitMemory); ok {
				size = r.split.BlockBytes()
			}
		}
		if size < d.PartBytes(i) {
			return nil, fmt.Errorf("join KV blocks: rank %d has %d bytes of a block, its part is %d", i, size, d.PartBytes(i))
		}
	}
	return j, nil
}

// Block returns nil: no block lies in one piece.
func (j *joined) Block(int32) []byte { return nil }

// BlockBytes is the size of a whole block.
func (j *joined) BlockBytes() int { return j.size }

// Read copies a block to dst.
func (j *joined) Read(id int32, dst []byte) { j.ReadFor(0, id, dst) }

// ReadFor copies a block to dst for a transfer.
func (j *joined) ReadFor(to transfer.ID, id int32, dst []byte) {
	for i, runs := range j.d.Reads(to) {
		if len(runs) == 0 {
			continue
		}
		r := &j.ranks[i]
		own, buf := r.part(id)
		if buf != nil {
			r.split.Read(id, own)
		}
		for _, run := range runs {
			copy(dst[run.Whole:run.Whole+run.Bytes], own[run.Own:])
		}
		r.giveBack(buf)
	}
}

// Write copies src to a block. What several ranks have goes to each of them.
func (j *joined) Write(id int32, src []byte) {
	for i, runs := range j.d.Writes() {
		r := &j.ranks[i]
		own, buf := r.part(id)
		for _, run := range runs {
			copy(own[run.Own:run.Own+run.Bytes], src[run.Whole:])
		}
		if buf != nil {
			r.split.Write(id, own)
		}
		r.giveBack(buf)
	}
}

// part is a rank's part of a block: the bytes themselves, or buf for them.
func (r *joinedRank) part(id int32) (own []byte, buf *[]byte) {
	if r.split == nil {
		return r.Block(id), nil
	}
	buf, ok := r.spare.Get().(*[]byte)
	if !ok {
		b := make([]byte, r.split.BlockBytes())
		buf = &b
	}
	return *buf, buf
}

func (r *joinedRank) giveBack(buf *[]byte) {
	if buf != nil {
		r.spare.Put(buf)
	}
}
