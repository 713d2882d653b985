package gguf

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
)

// tensorRecord is a tensor as a test wants it in the file, true or not.
type tensorRecord struct {
	name   string
	dims   []uint64
	kind   uint32
	offset uint64
	data   int // bytes of zeros to append
}

type keyRecord struct {
	key  string
	kind uint32
	raw  []byte
}

var le = binary.LittleEndian

func str(s string) []byte { return append(le.AppendUint64(nil, uint64(len(s))), s...) }

func build(keys []keyRecord, tensors ...tensorRecord) []byte {
	b := le.AppendUint32([]byte(Magic), 3)
	b = le.AppendUint64(b, uint64(len(tensors)))
	b = le.AppendUint64(b, uint64(len(keys)))
	for _, k := range keys {
		b = le.AppendUint32(append(b, str(k.key)...), k.kind)
		b = append(b, k.raw...)
	}
	total := 0
	for _, t := range tensors {
		b = le.AppendUint32(append(b, str(t.name)...), uint32(len(t.dims)))
		for _, d := range t.dims {
			b = le.AppendUint64(b, d)
		}
		b = le.AppendUint64(le.AppendUint32(b, t.kind), t.offset)
		total += t.data
	}
	for len(b)%32 != 0 {
		b = append(b, 0)
	}
	return append(b, make([]byte, total)...)
}

func header(version uint32, tensors, keys uint64) []byte {
	b := le.AppendUint32([]byte(Magic), version)
	return le.AppendUint64(le.AppendUint64(b, tensors), keys)
}

func u32(n uint32) []byte { return le.AppendUint32(nil, n) }
func u64(n uint64) []byte { return le.AppendUint64(nil, n) }

func arrayOf(elem uint32, n uint64, raw ...byte) []byte {
	return append(append(u32(elem), u64(n)...), raw...)
}

func TestLyingFiles(t *testing.T) {
	good := tensorRecord{name: "w", dims: []uint64{8}, kind: 0, data: 32}
	nested := []byte{}
	for range 5 {
		nested = append(nested, arrayOf(9, 1)...)
	}
	with := func(change func(*tensorRecord)) []byte {
		r := good
		change(&r)
		return build(nil, r)
	}
	cases := map[string]struct {
		data []byte
		want string
	}{
		"empty":              {nil, "not a GGUF"},
		"other file":         {[]byte("PK\x03\x04 something"), "not a GGUF"},
		"version 1":          {header(1, 0, 0), "version 1"},
		"big-endian":         {header(3<<24, 0, 0), "big-endian"},
		"huge key count":     {header(3, 0, 1<<63), "metadata: count 9223372036854775808"},
		"huge tensor count":  {header(3, 1<<63, 0), "tensor list: count"},
		"huge key length":    {append(header(3, 0, 1), append(u64(1<<62), make([]byte, 32)...)...), "key 0 of 1"},
		"huge string":        {build([]keyRecord{{"k", 8, u64(1 << 40)}}), `key "k"`},
		"huge array":         {build([]keyRecord{{"k", 9, arrayOf(5, 1<<61)}}), `key "k": count`},
		"huge string array":  {build([]keyRecord{{"k", 9, arrayOf(8, 1<<61)}}), `key "k": count`},
		"unknown value type": {build([]keyRecord{{"k", 77, nil}}), `key "k": unknown value type 77`},
		"unknown elem type":  {build([]keyRecord{{"k", 9, arrayOf(13, 0)}}), `key "k": unknown array element`},
		"deep nesting":       {build([]keyRecord{{"k", 9, nested}}), `key "k": arrays nest`},
		"bool of 2":          {build([]keyRecord{{"k", 7, []byte{2}}}), `key "k": bool`},
		"duplicate key":      {build([]keyRecord{{"k", 0, []byte{1}}, {"k", 0, []byte{1}}}), `"k" occurs twice`},
		"alignment 0":        {build([]keyRecord{{"general.alignment", 4, u32(0)}}), "general.alignment"},
		"alignment 48":       {build([]keyRecord{{"general.alignment", 4, u32(48)}}), "general.alignment"},
		"alignment a string": {build([]keyRecord{{"general.alignment", 8, str("x")}}), "general.alignment"},
		"duplicate tensor":   {build(nil, good, good), `"w" occurs twice`},
		"no dimensions":      {with(func(r *tensorRecord) { r.dims = nil }), `"w": has 0 dim`},
		"nine dimensions":    {with(func(r *tensorRecord) { r.dims = make([]uint64, 9) }), `"w": has 9 dim`},
		"zero dimension":     {with(func(r *tensorRecord) { r.dims = []uint64{8, 0} }), `"w": dimension 0`},
		"dims overflow":      {with(func(r *tensorRecord) { r.dims = []uint64{1 << 32, 1 << 32} }), `"w": dimension`},
		"dims wrap to small": {with(func(r *tensorRecord) { r.dims = []uint64{1 << 63, 2, 8} }), `"w": dimension`},
		"too many elements":  {with(func(r *tensorRecord) { r.dims = []uint64{1 << 50} }), `"w": 4503599627370496 bytes`},
		"unknown type":       {with(func(r *tensorRecord) { r.kind = 20 }), `"w": element type IQ4_NL`},
		"numbered type":      {with(func(r *tensorRecord) { r.kind = 999 }), `"w": element type number 999`},
		"broken groups":      {with(func(r *tensorRecord) { r.kind = 8; r.dims = []uint64{48} }), `"w": 48 elements`},
		"unaligned":          {with(func(r *tensorRecord) { r.offset = 4 }), `"w": offset 4`},
		"offset outside":     {with(func(r *tensorRecord) { r.offset = 1 << 40 }), `"w": 32 bytes at data offset`},
		"offset wraps":       {with(func(r *tensorRecord) { r.offset = 1<<64 - 32 }), `"w": 32 bytes at data offset`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.data)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := Parse(build(nil, good)); err != nil {
		t.Errorf("the good file: %v", err)
	}
}

// A file may claim anything, but memory taken stays in proportion to its size.
func TestAllocationIsBounded(t *testing.T) {
	claims := [][]byte{
		build([]keyRecord{{"k", 9, arrayOf(8, 1000, make([]byte, 8000)...)}}),
		build([]keyRecord{{"k", 9, arrayOf(8, 1001, make([]byte, 8000)...)}}),
		build([]keyRecord{{"k", 9, arrayOf(9, 1<<40)}}),
		header(3, 1<<40, 1<<40),
	}
	for i, data := range claims {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = Parse(data)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > uint64(64*len(data)+64<<10) {
			t.Errorf("case %d: %d bytes allocated for a file of %d", i, got, len(data))
		}
	}
}
