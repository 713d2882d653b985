package guided

import "slices"

// expr is a pattern of bytes.
type expr struct {
	op       op
	lit      []byte
	set      set
	subs     []*expr
	min, max int    // of repeat; max -1 = any number
	rule     string // of ref
	ranges   []rune // of class: lo, hi, lo, hi and so on
}

type op uint8

const (
	opLit op = iota
	opSet
	opClass // a character; the network takes it apart, which counts what it costs
	opSeq
	opAlt
	opRepeat
	opRef
)

// set is a set of bytes.
type set [4]uint64

func (s *set) has(b byte) bool { return s[b>>6]>>(b&63)&1 == 1 }

func (s *set) add(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		s[b>>6] |= 1 << (b & 63)
	}
}

func bytesIn(lo, hi byte) *expr {
	e := &expr{op: opSet}
	e.set.add(lo, hi)
	return e
}

func lit(s string) *expr            { return &expr{op: opLit, lit: []byte(s)} }
func seq(subs ...*expr) *expr       { return &expr{op: opSeq, subs: subs} }
func alt(subs ...*expr) *expr       { return &expr{op: opAlt, subs: subs} }
func ref(rule string) *expr         { return &expr{op: opRef, rule: rule} }
func rep(e *expr, lo, hi int) *expr { return &expr{op: opRepeat, subs: []*expr{e}, min: lo, max: hi} }
func opt(e *expr) *expr             { return rep(e, 0, 1) }

// oneOf is one of the bytes of s.
func oneOf(s string) *expr {
	e := &expr{op: opSet}
	for _, b := range []byte(s) {
		e.set.add(b, b)
	}
	return e
}

// runes is one character in any of the ranges lo, hi, lo, hi and so on, in UTF-8.
func runes(ranges ...rune) *expr {
	var subs []*expr
	one := &expr{op: opSet}
	for i := 0; i+1 < len(ranges); i += 2 {
		lo, hi := ranges[i], ranges[i+1]
		if lo < 0x80 {
			one.set.add(byte(lo), byte(min(hi, 0x7F)))
			lo = 0x80
		}
		for _, part := range [...][2]rune{{0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}} {
			if a, b := max(lo, part[0]), min(hi, part[1]); a <= b {
				subs = split(subs, []byte(string(a)), []byte(string(b)))
			}
		}
	}
	if one.set != (set{}) {
		subs = slices.Insert(subs, 0, one)
	}
	if len(subs) == 1 {
		return subs[0]
	}
	return alt(subs...)
}

// split appends the byte sequences from lo to hi, which have one length and in every
// place but the first range over all of 80 to BF.
func split(out []*expr, lo, hi []byte) []*expr {
	n := len(lo)
	if n == 1 {
		return append(out, bytesIn(lo[0], hi[0]))
	}
	least, most := slices.Repeat([]byte{0x80}, n-1), slices.Repeat([]byte{0xBF}, n-1)
	below := func(first byte, lo, hi []byte) {
		for _, rest := range split(nil, lo, hi) {
			out = append(out, seq(bytesIn(first, first), rest))
		}
	}
	if lo[0] == hi[0] {
		below(lo[0], lo[1:], hi[1:])
		return out
	}
	from, to := lo[0], hi[0]
	if !slices.Equal(lo[1:], least) {
		below(from, lo[1:], most)
		from++
	}
	last := !slices.Equal(hi[1:], most)
	if last {
		to--
	}
	if from <= to {
		all := bytesIn(from, to)
		for range n - 1 {
			all = seq(all, bytesIn(0x80, 0xBF))
		}
		out = append(out, all)
	}
	if last {
		below(hi[0], least, hi[1:])
	}
	return out
}
