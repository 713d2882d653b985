package comm

import (
	"encoding/binary"
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
