package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Format is how a weight of a linear layer lies on the device; see quant.cuh.
type Format int

// The formats. FormatBF16 is plain; the others are packed in tiles.
const (
	FormatBF16 Format = iota
	FormatQ4
	FormatQ4M
	FormatQ5
	FormatQ5M
	FormatQ6
	FormatQ8
	FormatF8
)

type formatInfo struct {
	name              string
	bits, group, zero int
	min               bool
	code, tile        int // bytes of codes, of a tile
}

var formats = [...]formatInfo{
	FormatBF16: {name: "bf16"},
	FormatQ4:   {"q4", 4, 32, 8, false, 512, 576},
	FormatQ4M:  {"q4m", 4, 32, 0, true, 512, 640},
	FormatQ5:   {"q5", 5, 32, 16, false, 640, 704},
	FormatQ5M:  {"q5m", 5, 32, 0, true, 640, 768},
	FormatQ6:   {"q6", 6, 16, 32, false, 768, 896},
	FormatQ8:   {"q8", 8, 32, 0, false, 1024, 1088},
	FormatF8:   {"f8", 8, 64, 0, false, 1024, 1040},
}

// String is the format's name in kernel names.
func (f Format) String() string { return formats[f].name }

// Bytes is the size of a weight [n, k].
func (f Format) Bytes(n, k int) int64 {
	if f == FormatBF16 {
		return 2 * int64(n) * int64(k)
	}
	return int64(ceil(n, 16)) * int64(ceil(k, 64)) * int64(formats[f].tile)
}

// TileBytes returns the bytes of a tile and of the codes in it, for td_fill_packed.
func (f Format) TileBytes() (tile, codes int) { return formats[f].tile, formats[f].code }

// Group is the number of columns that share a scale.
func (f Format) Group() int { return formats[f].group }

// Row is one row of a quantised weight before it is packed. A code is what is
// stored: unsigned for 4, 5 and 6 bits, the bits of an int8 or of an e4m3 number
// for 8. Scales and minima are one for each group of columns.
type Row struct {
	Codes        []byte
	Scales, Mins []float32
}

// Packer writes rows of a weight [n, k] to packed tiles.
type Packer struct {
	format Format
	k      int
	dst    []byte
}

// NewPacker packs to dst, which has Bytes(n, k) bytes, all zero.
func NewPacker(f Format, n, k int, dst []byte) (*Packer, error) {
	if f == FormatBF16 || k%32 != 0 || n < 1 {
		return nil, fmt.Errorf("cannot pack [%d, %d] as %s: columns must be a multiple of 32", n, k, f)
	}
	if int64(len(dst)) != f.Bytes(n, k) {
		return nil, fmt.Errorf("pack [%d, %d] as %s: %d bytes, have %d", n, k, f, f.Bytes(n, k), len(dst))
	}
	return &Packer{f, k, dst}, nil
}

// Put stores row i. Rows may come in any order and, of different tiles, from
// several goroutines. For FormatF8 rows [8j, 8j+8) have the same scales.
func (p *Packer) Put(i int, r Row) {
	info := &formats[p.format]
	tiles := ceil(p.k, 64)
	for tile := range tiles {
		t := p.dst[(i/16*tiles+tile)*info.tile:][:info.tile]
		for c := range min(64, p.k-tile*64) {
			p.code(t, i%16, c, r.Codes[tile*64+c])
		}
		for g := range min(64/info.group, ceil(p.k-tile*64, info.group)) {
			at := tile*64/info.group + g
			var m float32
			if info.min {
				m = r.Mins[at]
			}
			p.scale(t[info.code:], i%16, g, r.Scales[at], m)
		}
	}
}

// place returns lane, step, register pair p and element e of a column of a tile.
func (p *Packer) place(c int) (t, s, pair, e int) {
	if formats[p.format].group == 16 {
		return c % 16 / 4, c / 16, c % 4 / 2, c % 2
	}
	return c % 32 / 8, c/32*2 + c%8/4, c % 4 / 2, c % 2
}

func (p *Packer) code(tile []byte, row, c int, code byte) {
	t, s, pair, e := p.place(c)
	lane, half := row%8*4+t, row/8
	j := 2*pair + half
	if formats[p.format].bits == 8 {
		tile[s/2*512+lane*16+(s%2*2+pair)*4+2*e+half] = code
		return
	}
	put := func(at, bit int, v byte) { tile[at+bit/8] |= v << (bit % 8) }
	put(lane*16+s*4, 16*e+4*j, code&15)
	switch formats[p.format].bits {
	case 5:
		put(512+lane*4, 16*e+4*s+j, code>>4&1)
	case 6:
		put(512+lane*8+s/2*4, 16*e+s%2*8+2*j, code>>4&3)
	}
}

func (p *Packer) scale(scales []byte, row, group int, scale, minimum float32) {
	g, half := row%8, row/8
	put := func(i int, v float32) { binary.LittleEndian.PutUint16(scales[2*i:], F16Bits(v)) }
	switch {
	case p.format == FormatF8:
		binary.LittleEndian.PutUint32(scales[4*half:], math.Float32bits(scale))
	case formats[p.format].min:
		put(g*8+half*4+group*2, scale)
		put(g*8+half*4+group*2+1, minimum)
	case formats[p.format].group == 16:
		put(g*8+half*4+group, scale)
	default:
		put(g*4+half*2+group, scale)
	}
}

// F16Bits rounds x to the nearest half precision number, ties to even; what is too
// large becomes infinite.
func F16Bits(x float32) uint16 {
	bits := math.Float32bits(x)
	sign := uint16(bits >> 16 & 0x8000)
	a := math.Float32frombits(bits &^ (1 << 31))
	switch {
	case a != a:
		return sign | 0x7e00
	case a >= 65520:
		return sign | 0x7c00
	case a < 1.0/(1<<14): // multiples of 2^-24
		return sign | uint16(math.RoundToEven(float64(a)*(1<<24)))
	}
	b := math.Float32bits(a)
	b += 0xfff + b>>13&1
	return sign | uint16(b>>13-(127-15)<<10)
}
