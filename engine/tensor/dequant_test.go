package tensor

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
)

func TestDequantizeAgreesWithPython(t *testing.T) {
	text, err := os.ReadFile("testdata/dequant.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Type        string
		Raw, Values []byte
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) != int(Q6_K) {
		t.Errorf("%d types, want %d", len(cases), Q6_K)
	}
	for _, c := range cases {
		t.Run(c.Type, func(t *testing.T) {
			h := Host{Name: "w", Shape: []int{len(c.Values) / 4}, Data: c.Raw}
			for d := F32; d <= Q6_K; d++ {
				if d.String() == c.Type {
					h.DType = d
				}
			}
			got := make([]float32, h.Elems())
			if err := Dequantize(got, h); err != nil {
				t.Fatal(err)
			}
			for i, x := range got {
				want := math.Float32frombits(binary.LittleEndian.Uint32(c.Values[4*i:]))
				if diff := math.Abs(float64(x - want)); diff > 1e-6*math.Abs(float64(want))+1e-6 || x != x {
					t.Fatalf("element %d is %v, want %v", i, x, want)
				}
			}
		})
	}
}

func TestDequantizeErrors(t *testing.T) {
	good := Host{Name: "w", DType: Q8_0, Shape: []int{1, 32}, Data: make([]byte, 34)}
	short := good
	short.Data = short.Data[:33]
	unknown := good
	unknown.DType = Invalid
	for name, c := range map[string]struct {
		h   Host
		dst int
	}{"data": {short, 32}, "type": {unknown, 32}, "destination": {good, 31}} {
		if err := Dequantize(make([]float32, c.dst), c.h); err == nil || !strings.Contains(err.Error(), `"w"`) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestF32ToBF16(t *testing.T) {
	for bits, want := range map[uint32]uint16{
		0x3f800000: 0x3f80, 0x3f808000: 0x3f80, 0x3f818000: 0x3f82, 0x3f808001: 0x3f81, 0xbf80ffff: 0xbf81, 0x7f7fffff: 0x7f80,
		0xff800000: 0xff80, 0x7f800001: 0x7fc0, 0xffffffff: 0xffff, 0x00000001: 0, 0x80000000: 0x8000,
	} {
		if got := F32ToBF16(math.Float32frombits(bits)); got != want {
			t.Errorf("%#x becomes %#x, want %#x", bits, got, want)
		}
	}
}

func TestF8ToF32(t *testing.T) {
	for bits, want := range map[uint8]float64{
		0x00: 0, 0x38: 1, 0xc0: -2, 0x7e: 448, 0xfe: -448, 0x08: math.Ldexp(1, -6), 0x01: math.Ldexp(1, -9), 0x87: -math.Ldexp(7, -9), 0x3d: 1.625,
	} {
		if got := F8ToF32(bits); float64(got) != want {
			t.Errorf("%#02x is %v, want %v", bits, got, want)
		}
	}
	for _, bits := range []uint8{0x7f, 0xff} {
		if x := F8ToF32(bits); x == x {
			t.Errorf("%#02x is no NaN", bits)
		}
	}
	h := Host{Name: "w", DType: F8_S, Shape: []int{1, 64}, Data: make([]byte, 68)}
	binary.LittleEndian.PutUint32(h.Data, math.Float32bits(0.5))
	h.Data[4], h.Data[67] = 0xc0, 0x3d
	got := make([]float32, 64)
	if err := Dequantize(got, h); err != nil || got[0] != -1 || got[1] != 0 || got[63] != 0.8125 {
		t.Errorf("%v, error %v", got, err)
	}
}

func TestF16ToF32(t *testing.T) {
	for bits, want := range map[uint16]float64{
		0x0000: 0, 0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0400: math.Ldexp(1, -14), 0x0001: math.Ldexp(1, -24),
		0x83ff: -math.Ldexp(1023, -24), 0x7c00: math.Inf(1), 0xfc00: math.Inf(-1), 0x3555: 0.333251953125,
	} {
		if got := F16ToF32(bits); float64(got) != want {
			t.Errorf("%#04x is %v, want %v", bits, got, want)
		}
	}
	if x := F16ToF32(0x7e00); x == x {
		t.Error("0x7e00 is no NaN")
	}
	if x := F16ToF32(0x8000); !math.Signbit(float64(x)) {
		t.Error("the sign of -0 is lost")
	}
}
