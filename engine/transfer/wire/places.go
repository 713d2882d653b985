package wire

import (
	"fmt"

	"tandem/engine/transfer"
)

// places are where the blocks of one pull go. If blocks here have another number
// of tokens than the owner's, they are made of those, and one that comes may
// belong to several of them, or be a piece of one.
type places struct {
	m          *memory
	dst        []int32
	size       int               // bytes of an owner's block
	reshape    *transfer.Reshape // nil: the sizes are equal
	first, end int               // tokens that dst begins and ends with
	from, to   int               // tokens of an owner's block, and of one here
	have       int               // owner's blocks that need not come
	want       int               // those that must
	part, room *[]byte           // of the block here that is being made; of one that comes
}

// placesOf checks an order against its handle before the network is touched.
func placesOf(m *memory, order *transfer.Pull) (*places, error) {
	h := &order.Handle
	if h.Layout.BlockTokens <= 0 {
		return nil, fmt.Errorf("pull %d: the handle has no layout", h.ID)
	}
	own := h.Layout
	if order.BlockTokens > 0 {
		own.BlockTokens = order.BlockTokens
	}
	p := &places{
		m: m, dst: order.Dst, size: h.Layout.BlockBytes(), from: h.Layout.BlockTokens, to: own.BlockTokens,
		have: len(order.Have), want: h.Layout.Blocks(h.PromptTokens) - len(order.Have),
	}
	if p.from != p.to {
		r, ok := transfer.Reshapes(h.Layout, own)
		if !ok {
			return nil, &pullError{code: CodeLayout, reason: fmt.Sprintf("blocks of %d tokens cannot be made of blocks of %d", p.to, p.from)}
		}
		p.reshape = &r
	}
	p.end = own.Blocks(h.PromptTokens) * p.to
	p.first = p.end - len(p.dst)*p.to
	if p.first < 0 || p.first/p.from != p.have {
		return nil, fmt.Errorf("pull %d: %d destination blocks of %d tokens do not follow the %d blocks that are held", h.ID, len(p.dst), p.to, p.have)
	}
	for _, id := range p.dst {
		if got, want := m.at(id).size(), own.BlockBytes(); got != want {
			return nil, &pullError{code: CodeLayout, reason: fmt.Sprintf("own blocks have %d bytes, the handle's %d", got, want)}
		}
	}
	return p, nil
}

// filled returns how many of dst are whole when n of the owner's blocks have come.
func (p *places) filled(n int) int {
	if n == p.want {
		return len(p.dst)
	}
	return max((p.have+n)*p.from-p.first, 0) / p.to
}

// direct is where the i-th block that comes may be written to as it is, nil if
// there is no such place.
func (p *places) direct(i int) []byte {
	if p.reshape != nil {
		return nil
	}
	return p.m.at(p.dst[i]).bytes
}

// buffer has room for a block that comes.
func (p *places) buffer() []byte {
	if p.room == nil && p.reshape == nil {
		p.room = p.m.borrow()
	} else if p.room == nil {
		b := make([]byte, p.size)
		p.room = &b
	}
	return *p.room
}

// put takes the i-th block that comes, which has size bytes. They come in order.
func (p *places) put(i int, src []byte) {
	if p.reshape == nil {
		p.m.at(p.dst[i]).fill(src)
		return
	}
	from := (p.have + i) * p.from
	for at := max(from, p.first); at < min(from+p.from, p.end); {
		n := min(p.from, p.to)
		p.piece(at, n, src, at-from, i == p.want-1)
		at += n
	}
}

// piece takes n tokens of src from the one at on, which are those of the prompt
// from token on; last tells that no other block comes.
func (p *places) piece(token, n int, src []byte, at int, last bool) {
	place := p.m.at(p.dst[(token-p.first)/p.to])
	after := token % p.to
	if place.inOnePiece() {
		p.reshape.Copy(place.bytes, after, src, at, n)
		return
	}
	if p.part == nil {
		p.part = p.m.borrow()
	}
	if p.reshape.Copy(*p.part, after, src, at, n); after+n == p.to || last {
		place.fill(*p.part)
	}
}

// copy takes the i-th block from memory of this process.
func (p *places) copy(i int, src extent) error {
	if src.size() != p.size {
		return fmt.Errorf("the owner's block %d has %d bytes, its layout %d", src.id, src.size(), p.size)
	}
	if src.inOnePiece() {
		p.put(i, src.bytes)
		return nil
	}
	if to := p.direct(i); to != nil {
		src.copyTo(to)
		return nil
	}
	src.copyTo(p.buffer())
	p.put(i, p.buffer())
	return nil
}

// close gives buffers back.
func (p *places) close() {
	p.m.giveBack(p.part)
	if p.reshape == nil {
		p.m.giveBack(p.room)
	}
}
