package wire

import (
	"sync"

	"tandem/engine/transfer"
)

// memory is one rank's pool as the byte paths use it. Blocks in one piece are
// read and written where they are; others go through a buffer of their size.
type memory struct {
	transfer.Memory
	split      transfer.SplitMemory // nil if every block is in one piece
	turns      transfer.TurnMemory  // nil if no byte is there twice
	blockBytes int                  // as the first block says
	spare      sync.Pool            // of *[]byte
}

func newMemory(m transfer.Memory) *memory {
	split, _ := m.(transfer.SplitMemory)
	turns, _ := m.(transfer.TurnMemory)
	mem := &memory{Memory: m, split: split, turns: turns}
	mem.blockBytes = mem.at(0).size()
	return mem
}

// extent is one block: its bytes, or, if those are nil, where to find them.
type extent struct {
	bytes []byte
	m     *memory
	id    int32
	of    transfer.ID // that it is read for
}

func (m *memory) at(id int32) extent { return extent{bytes: m.Block(id), m: m, id: id} }

// lent is a block that is read for a transfer.
func (m *memory) lent(to transfer.ID, id int32) extent {
	e := m.at(id)
	e.of = to
	return e
}

// size is the bytes of the block, 0 if there is no such block.
func (e extent) size() int {
	if e.inOnePiece() {
		return len(e.bytes)
	}
	return e.m.split.BlockBytes()
}

// inOnePiece tells whether the block is used where it is, not through a buffer.
func (e extent) inOnePiece() bool { return e.bytes != nil || e.m.split == nil }

// fill overwrites the block with bytes of its size.
func (e extent) fill(src []byte) {
	if e.inOnePiece() {
		copy(e.bytes, src)
		return
	}
	e.m.split.Write(e.id, src)
}

// copyTo writes the block to dst, which has its size.
func (e extent) copyTo(dst []byte) {
	if e.inOnePiece() {
		copy(dst, e.bytes)
		return
	}
	if e.m.turns != nil {
		e.m.turns.ReadFor(e.of, e.id, dst)
		return
	}
	e.m.split.Read(e.id, dst)
}

// borrow takes a buffer for one block out of spare, nil where none is needed.
func (m *memory) borrow() *[]byte {
	if m.split == nil {
		return nil
	}
	if buf, ok := m.spare.Get().(*[]byte); ok {
		return buf
	}
	buf := make([]byte, m.split.BlockBytes())
	return &buf
}

// giveBack ends the use of a buffer of borrow.
func (m *memory) giveBack(buf *[]byte) {
	if buf != nil {
		m.spare.Put(buf)
	}
}
