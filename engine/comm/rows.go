package comm

import (
	"errors"
	"fmt"
	"time"
)

// broken explains an error of the byte path: a divergence as it is, the group's
// own end if that interrupted it, else a lost peer.
func (h *hub) broken(ranks Span, err error) error {
	if err == nil || errors.Is(err, ErrDivergence) {
		return err
	}
	// The stream often knows better why a peer went, and hears of it by itself.
	select {
	case <-h.done:
		return h.err
	case <-time.After(linger / 4):
		return h.lost(ranks, fmt.Errorf("byte path: %w", err))
	}
}

// partOffsets returns where each rank's part begins, in elements, and the end.
func (h *hub) partOffsets(c *call) []int {
	if c.op == OpAllGather || c.op == OpReduceScatter {
		for i, n := range c.rows {
			h.offset[i+1] = h.offset[i] + n*c.width
		}
	}
	return h.offset
}

// prefix is where the elements that an all-to-all brings from one rank to
// another begin in its src.
func (c *call) prefix(from, to, size int) (n int) {
	for _, rows := range c.rows[from*size : from*size+to] {
		n += rows * c.width
	}
	return n
}

// passes tells whether rows themselves go to the ranks, not sums.
func (c *call) passes() bool { return c.op == OpAllGather || c.op == OpAllToAll }

// passed is the stretch of a rank's src that the ranks of another process need,
// none if they need only sums.
func (c *call) passed(offset []int, from int, to Span) (lo, hi int) {
	size := len(offset) - 1
	switch {
	case to.Has(from):
	case c.op == OpAllGather:
		return 0, offset[from+1] - offset[from]
	case c.op == OpAllToAll:
		return c.prefix(from, to.First, size), c.prefix(from, to.Last+1, size)
	}
	return 0, 0
}

// passedTotal adds passed up over all ranks.
func (c *call) passedTotal(offset []int, to Span) (n int) {
	for from := range len(offset) - 1 {
		lo, hi := c.passed(offset, from, to)
		n += hi - lo
	}
	return n
}

// incoming returns the buffer for n elements of a rank of another process and
// shows it to the local ranks.
func (h *hub) incoming(rank, n int) []float32 {
	if cap(h.inbox[rank]) < n {
		h.inbox[rank] = make([]float32, n)
	}
	h.src[rank] = h.inbox[rank][:n]
	return h.src[rank]
}

// contribution is how many elements a rank shows to the others.
func (c *call) contribution(offset []int, rank int) int {
	switch c.op {
	case OpAllGather:
		return offset[rank+1] - offset[rank]
	case OpReduceScatter:
		return offset[len(offset)-1]
	case OpAllToAll:
		return c.prefix(rank, len(offset)-1, len(offset)-1)
	}
	return c.n
}

func (c *root) collect(seq uint64, h *hub) error {
	do := &h.ranks[0].call
	offset := h.partOffsets(do)
	for i, l := range c.leaves {
		c.waiting.Store(-int32(i) - 1)
		err := l.receive(h, do, offset, seq)
		c.waiting.Store(0)
		if err != nil {
			return h.broken(l.span, err)
		}
	}
	if !do.passes() {
		return nil
	}
	for _, l := range c.leaves {
		l.data.begin(do.op, seq, do.passedTotal(offset, l.span))
		for from, rows := range h.src {
			lo, hi := do.passed(offset, from, l.span)
			l.data.add(rows[lo:hi])
		}
		if err := l.data.flush(); err != nil {
			return h.broken(l.span, err)
		}
	}
	return nil
}

// receive reads what the leaf's ranks show.
func (l *leafConn) receive(h *hub, do *call, offset []int, seq uint64) error {
	total := 0
	for r := l.span.First; r <= l.span.Last; r++ {
		total += do.contribution(offset, r)
	}
	if err := l.data.expect(h, l.span.First, do.op, seq, total); err != nil {
		return err
	}
	for r := l.span.First; r <= l.span.Last; r++ {
		if err := l.data.read(h.incoming(r, do.contribution(offset, r))); err != nil {
			return err
		}
	}
	return nil
}

// spread sends each leaf the sums of its ranks.
func (c *root) spread(seq uint64, h *hub) error {
	do := &h.ranks[0].call
	for _, l := range c.leaves {
		switch do.op {
		case OpAllReduce:
			l.data.begin(do.op, seq, do.n)
			l.data.add(h.dst[h.span.First])
		case OpReduceScatter:
			l.data.begin(do.op, seq, h.offset[l.span.Last+1]-h.offset[l.span.First])
			for r := l.span.First; r <= l.span.Last; r++ {
				l.data.add(h.src[r][h.offset[r]:h.offset[r+1]])
			}
		default:
			return nil
		}
		if err := l.data.flush(); err != nil {
			return h.broken(l.span, err)
		}
	}
	return nil
}

func (l *leaf) collect(seq uint64, h *hub) error {
	do := &h.ranks[0].call
	offset := h.partOffsets(do)
	total := 0
	for r := h.span.First; r <= h.span.Last; r++ {
		total += do.contribution(offset, r)
	}
	l.data.begin(do.op, seq, total)
	for r := h.span.First; r <= h.span.Last; r++ {
		l.data.add(h.src[r])
	}
	if err := l.data.flush(); err != nil || !do.passes() {
		return h.broken(rootSpan, err)
	}
	if err := l.data.expect(h, 0, do.op, seq, do.passedTotal(offset, h.span)); err != nil {
		return h.broken(rootSpan, err)
	}
	for r := range h.src {
		if h.span.Has(r) {
			continue
		}
		lo, hi := do.passed(offset, r, h.span)
		if err := l.data.read(h.incoming(r, hi-lo)); err != nil {
			return h.broken(rootSpan, err)
		}
	}
	return nil
}

// spread reads the sums of the local ranks.
func (l *leaf) spread(seq uint64, h *hub) error {
	do, own := &h.ranks[0].call, h.span
	switch do.op {
	case OpAllReduce:
		sum := h.dst[own.First]
		err := l.data.expect(h, 0, do.op, seq, do.n)
		if err == nil {
			err = l.data.read(sum)
		}
		for r := own.First + 1; r <= own.Last && err == nil; r++ {
			copy(h.dst[r], sum)
		}
		return h.broken(rootSpan, err)
	case OpReduceScatter:
		err := l.data.expect(h, 0, do.op, seq, h.offset[own.Last+1]-h.offset[own.First])
		for r := own.First; r <= own.Last && err == nil; r++ {
			err = l.data.read(h.dst[r])
		}
		return h.broken(rootSpan, err)
	}
	return nil
}
