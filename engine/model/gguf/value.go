package gguf

import (
	"fmt"
)

// ValueType is the type of a metadata value, numbered as in the file.
type ValueType uint32

// The value types of GGUF.
const (
	Uint8 ValueType = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

var valueTypes = [...]struct {
	name string
	min  int // least bytes of one value in the file
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Uint16: {"uint16", 2}, Int16: {"int16", 2},
	Uint32: {"uint32", 4}, Int32: {"int32", 4}, Float32: {"float32", 4}, Bool: {"bool", 1},
	String: {"string", 8}, Array: {"array", 12}, Uint64: {"uint64", 8}, Int64: {"int64", 8},
	Float64: {"float64", 8},
}

func (t ValueType) known() bool { return int(t) < len(valueTypes) }

// String returns the type's name, such as "uint32".
func (t ValueType) String() string {
	if t.known() {
		return valueTypes[t].name
	}
	return fmt.Sprintf("type(%d)", uint32(t))
}

// maxNesting bounds arrays of arrays, so that a lying file cannot exhaust the
// stack. No known model nests at all.
const maxNesting = 4

// Value is one metadata value. Data holds the Go value of Type's kind (uint8 …
// uint64, int8 … int64, float32, float64, bool, string), and for an array a
// slice of that kind; an array of arrays is a []Value.
type Value struct {
	Type ValueType
	Elem ValueType // element type of an Array
	Data any
}

func (c *cursor) value(depth int) Value {
	t := ValueType(c.u32())
	if t == Array {
		return c.array(depth)
	}
	return Value{Type: t, Data: c.scalar(t)}
}

func (c *cursor) scalar(t ValueType) any {
	switch t {
	case Uint8:
		return c.u8()
	case Int8:
		return int8(c.u8())
	case Uint16:
		return c.u16()
	case Int16:
		return int16(c.u16())
	case Uint32:
		return c.u32()
	case Int32:
		return int32(c.u32())
	case Float32:
		return c.f32()
	case Bool:
		return c.bool()
	case String:
		return c.str()
	case Uint64:
		return c.u64()
	case Int64:
		return int64(c.u64())
	case Float64:
		return c.f64()
	}
	c.fail("unknown value type %d", uint32(t))
	return nil
}

func (c *cursor) bool() bool {
	b := c.u8()
	if b > 1 {
		c.fail("bool has the value %d", b)
	}
	return b == 1
}

func (c *cursor) array(depth int) Value {
	elem := ValueType(c.u32())
	v := Value{Type: Array, Elem: elem}
	if !elem.known() {
		c.fail("unknown array element type %d", uint32(elem))
		return v
	}
	n := c.count(valueTypes[elem].min)
	if c.err == nil {
		v.Data = c.elements(elem, n, depth)
	}
	return v
}

func (c *cursor) elements(elem ValueType, n, depth int) any {
	switch elem {
	case Uint8:
		return list(c, n, c.u8)
	case Int8:
		return list(c, n, func() int8 { return int8(c.u8()) })
	case Uint16:
		return list(c, n, c.u16)
	case Int16:
		return list(c, n, func() int16 { return int16(c.u16()) })
	case Uint32:
		return list(c, n, c.u32)
	case Int32:
		return list(c, n, func() int32 { return int32(c.u32()) })
	case Float32:
		return list(c, n, c.f32)
	case Bool:
		return list(c, n, c.bool)
	case String:
		return list(c, n, c.str)
	case Uint64:
		return list(c, n, c.u64)
	case Int64:
		return list(c, n, func() int64 { return int64(c.u64()) })
	case Float64:
		return list(c, n, c.f64)
	}
	if depth >= maxNesting {
		c.fail("arrays nest deeper than %d", maxNesting)
		return nil
	}
	return list(c, n, func() Value { return c.array(depth + 1) })
}

// list reads n elements; n was checked against the bytes left. It grows by
// append rather than at once, because a Go string or Value is larger than its
// shortest form in the file.
func list[T any](c *cursor, n int, next func() T) []T {
	out := make([]T, 0, min(n, 1024))
	for range n {
		x := next()
		if c.err != nil {
			return nil
		}
		out = append(out, x)
	}
	return out
}
