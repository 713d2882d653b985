package comm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
	"unsafe"
)

// A frame of the byte path is a header of 24 bytes, little-endian: u32 magic,
// u32 collective, u64 step, u64 number of elements; then the elements, float32.
const (
	frameMagic  = 0x31414354 // "TCA1"
	frameHeader = 24
	tokenBytes  = 16
)

// dataConn carries activations between a leaf and the root.
type dataConn struct {
	conn net.Conn
	head [frameHeader]byte
	base net.Buffers // reused for vec
	vec  net.Buffers
}

// interrupt makes calls that run return at once. The connection stays open, so
// that the peer learns the reason from the stream first.
func (d *dataConn) interrupt() {
	if d != nil {
		_ = d.conn.SetDeadline(time.Unix(1, 0))
	}
}

func (d *dataConn) close() {
	if d != nil {
		d.conn.Close()
	}
}

// begin starts a frame of n elements.
func (d *dataConn) begin(op Op, seq uint64, n int) {
	le := binary.LittleEndian
	le.PutUint32(d.head[0:], frameMagic)
	le.PutUint32(d.head[4:], uint32(op))
	le.PutUint64(d.head[8:], seq)
	le.PutUint64(d.head[16:], uint64(n))
	d.base = append(d.base[:0], d.head[:])
}

// add puts elements into the frame, without a copy.
func (d *dataConn) add(x []float32) {
	if len(x) > 0 {
		d.base = append(d.base, rawBytes(x))
	}
}

// flush sends the frame.
func (d *dataConn) flush() error {
	d.vec = d.base
	_, err := d.vec.WriteTo(d.conn)
	return err
}

// expect reads the header of a frame and compares it with what must come.
func (d *dataConn) expect(h *hub, rank int, op Op, seq uint64, n int) error {
	if _, err := io.ReadFull(d.conn, d.head[:]); err != nil {
		return err
	}
	le, iter := binary.LittleEndian, h.ranks[0].iter.Load()
	if got := le.Uint32(d.head[0:]); got != frameMagic {
		return diverged("frame magic", rank, iter, uint32(frameMagic), got)
	}
	if got := le.Uint32(d.head[4:]); got != uint32(op) {
		return diverged("collective", rank, iter, op, Op(min(got, 255)))
	}
	if got := le.Uint64(d.head[8:]); got != seq {
		return diverged("step", rank, iter, seq, got)
	}
	if got := le.Uint64(d.head[16:]); got != uint64(n) {
		return diverged("elements", rank, iter, uint64(n), got)
	}
	return nil
}

// read fills x with the next elements of the frame.
func (d *dataConn) read(x []float32) error {
	_, err := io.ReadFull(d.conn, rawBytes(x))
	return err
}

// rawBytes is the memory of x. Processes agree in byte order, see littleEndian.
func rawBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

func littleEndian() bool {
	one := []float32{1}
	return rawBytes(one)[0] == 0
}

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

// parts returns where each rank's part begins, in elements, and the end.
func (h *hub) partOffsets(c *call) []int {
	for i, n := range c.rows {
		h.offset[i+1] = h.offset[i] + n*c.width
	}
	return h.offset
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
	if do.op != OpAllGather {
		return nil
	}
	for _, l := range c.leaves {
		l.data.begin(do.op, seq, offset[h.cfg.Size]-offset[l.span.Last+1]+offset[l.span.First])
		for i, rows := range h.src {
			if !l.span.Has(i) {
				l.data.add(rows)
			}
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
	if err := l.data.flush(); err != nil || do.op != OpAllGather {
		return h.broken(rootSpan, err)
	}
	others := offset[h.cfg.Size] - offset[h.span.Last+1] + offset[h.span.First]
	if err := l.data.expect(h, 0, do.op, seq, others); err != nil {
		return h.broken(rootSpan, err)
	}
	for r := range h.src {
		if h.span.Has(r) {
			continue
		}
		if err := l.data.read(h.incoming(r, offset[r+1]-offset[r])); err != nil {
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
