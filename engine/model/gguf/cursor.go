package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// cursor walks the header. The first failure sticks: later reads return zeros,
// so callers check err once per record.
type cursor struct {
	data []byte
	pos  int
	err  error
}

func (c *cursor) left() int { return len(c.data) - c.pos }

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// take returns the next n bytes as a view of the input.
func (c *cursor) take(n uint64) []byte {
	if c.err != nil {
		return nil
	}
	if n > uint64(c.left()) {
		c.fail("needs %d bytes at offset %d, the file has %d left", n, c.pos, c.left())
		return nil
	}
	b := c.data[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return b
}

func (c *cursor) u8() uint8 {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) f32() float32 { return math.Float32frombits(c.u32()) }
func (c *cursor) f64() float64 { return math.Float64frombits(c.u64()) }

// str returns a copy, so that metadata outlives a file mapping.
func (c *cursor) str() string {
	n := c.u64()
	return string(c.take(n))
}

// count reads the number of records that follow and refuses one that cannot fit
// into the rest of the file when each record takes at least minBytes.
func (c *cursor) count(minBytes int) int {
	n := c.u64()
	return c.fits(n, minBytes)
}

func (c *cursor) fits(n uint64, minBytes int) int {
	if c.err != nil {
		return 0
	}
	if n > uint64(c.left()/minBytes) {
		c.fail("count %d at offset %d does not fit into the %d bytes left", n, c.pos, c.left())
		return 0
	}
	return int(n)
}
