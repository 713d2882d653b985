//go:build cuda

package gemm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tandem/engine/cuda/gpu"
	"tandem/kernels/cuda/emu"
)

// The tests run on the emulator, or, with TANDEM_GPU=1, on the machine's own devices and library.

// role makes this test program only load the library: it is loaded once in a process.
const role = "TANDEM_GEMM_TEST_LOAD"

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		err := Load()
		fmt.Println(errors.Is(err, ErrAbsent), err)
		return
	}
	if os.Getenv("TANDEM_GPU") == "" {
		lib, err := emu.Build("../gpu/testdata/probe.cu")
		if err == nil {
			err = lib.Setenv()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func loadWith(t *testing.T, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), role+"=1", "TANDEM_CUBLASLT="+path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestLoadSaysWhatIsMissing(t *testing.T) {
	if got := loadWith(t, "/nowhere/x.so"); !strings.HasPrefix(got, "true cuBLASLt not found: TANDEM_CUBLASLT names /nowhere/x.so: ") {
		t.Error(got)
	}
	if got := loadWith(t, "libm.so.6"); !strings.Contains(got, "libm.so.6 lacks cublasLtGetVersion") {
		t.Error(got)
	}
	got := loadWith(t, "")
	want := "true cuBLASLt not found: tried libcublasLt.so.13, libcublasLt.so.12, libcublasLt.so.11; " +
		"install CUDA's cuBLAS, or name the library in TANDEM_CUBLASLT"
	if got != want && got != "false <nil>" {
		t.Errorf("%q, want %q", got, want)
	}
}

// desk is a device with a stream and a multiplier, on the device's thread.
type desk struct {
	*testing.T
	d *gpu.Device
	s *gpu.Stream
	g *Multiplier
}

func on(t *testing.T, fn func(k *desk)) {
	t.Helper()
	d, err := gpu.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	err = d.Do(func() error {
		k := &desk{T: t, d: d}
		k.s, err = d.NewStream(0)
		k.must(err)
		k.g, err = New(d, 1<<20)
		k.must(err)
		fn(k)
		k.must(k.s.Sync())
		return errors.Join(k.g.Close(), k.s.Free())
	})
	if err := errors.Join(err, d.Close()); err != nil {
		t.Error(err)
	}
}

func (k *desk) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// round gives v as an element of the type, and its bits.
func round(typ Type, v float32) (float32, uint32) {
	b := math.Float32bits(v)
	if typ == F32 {
		return v, b
	}
	b = (b + 0x7fff + b>>16&1) >> 16 // to bfloat16, to nearest even
	return math.Float32frombits(b << 16), b
}

func put(out []byte, typ Type, v float32) []byte {
	_, b := round(typ, v)
	if typ == F32 {
		return binary.LittleEndian.AppendUint32(out, b)
	}
	return binary.LittleEndian.AppendUint16(out, uint16(b))
}

// matrix is rows of numbers on the host and the device; what lies between rows is NaN.
type matrix struct {
	at   gpu.Ptr
	v    [][]float32
	typ  Type
	step int
}

func (k *desk) matrix(r *rand.Rand, typ Type, rows, cols, step int) matrix {
	m := matrix{typ: typ, step: step}
	var raw []byte
	for range rows {
		row := make([]float32, cols)
		for i := range step {
			x := float32(math.NaN())
			if i < cols {
				x, _ = round(typ, float32(r.NormFloat64()))
				row[i] = x
			}
			raw = put(raw, typ, x)
		}
		m.v = append(m.v, row)
	}
	var err error
	m.at, err = k.d.Alloc(int64(len(raw)))
	k.must(err)
	k.must(k.d.Write(m.at, raw))
	return m
}

func (k *desk) read(m matrix) [][]float32 {
	size := m.typ.size()
	raw := make([]byte, len(m.v)*m.step*size)
	k.must(k.d.Read(raw, m.at))
	out := make([][]float32, len(m.v))
	for i := range out {
		for j := range m.v[i] {
			at := raw[(i*m.step+j)*size:]
			if m.typ == F32 {
				out[i] = append(out[i], math.Float32frombits(binary.LittleEndian.Uint32(at)))
			} else {
				out[i] = append(out[i], math.Float32frombits(uint32(binary.LittleEndian.Uint16(at))<<16))
			}
		}
	}
	return out
}

func (k *desk) compare(op Op, y, x, w, bias matrix) {
	k.Helper()
	for i, row := range k.read(y) {
		for j, got := range row {
			want, scale := 0.0, 1.0
			for n := range op.K {
				p := float64(x.v[i][n]) * float64(w.v[j][n])
				want += p
				scale += math.Abs(p)
			}
			if op.Add {
				want += float64(y.v[i][j])
			}
			if op.Bias {
				want += float64(bias.v[0][j])
			}
			tolerance := 1e-5 * scale
			if op.Out != F32 {
				tolerance += math.Abs(want) / 128
			}
			if d := math.Abs(float64(got) - want); !(d <= tolerance) {
				k.Errorf("%v at (%d, %d): %v, want %v", op, i, j, got, want)
				return
			}
		}
	}
}

func TestProducts(t *testing.T) {
	on(t, func(k *desk) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, op := range []Op{
			{M: 1, N: 8, K: 16, In: BF16, Out: BF16},
			{M: 3, N: 24, K: 40, In: BF16, Out: F32},
			{M: 17, N: 64, K: 32, In: BF16, Out: F32, Add: true},
			{M: 5, N: 16, K: 64, In: BF16, Out: BF16, Bias: true},
			{M: 4, N: 8, K: 8, In: F32, Out: F32},
			{M: 4, N: 16, K: 24, In: BF16, Out: F32, Add: true, StrideX: 32, StrideW: 48, StrideY: 20},
		} {
			full := op
			k.must(full.check())
			x, w := k.matrix(r, op.In, op.M, op.K, full.StrideX), k.matrix(r, op.In, op.N, op.K, full.StrideW)
			y, bias := k.matrix(r, op.Out, op.M, op.N, full.StrideY), matrix{}
			if op.Bias {
				bias = k.matrix(r, op.Out, 1, op.N, op.N)
			}
			k.must(k.g.Multiply(k.s, op, y.at, x.at, w.at, bias.at))
			k.must(k.s.Sync())
			k.compare(op, y, x, w, bias)
		}
	})
}

func TestPlansAreMadeOnce(t *testing.T) {
	on(t, func(k *desk) {
		r := rand.New(rand.NewPCG(3, 4))
		x, w, y := k.matrix(r, BF16, 8, 16, 16), k.matrix(r, BF16, 8, 16, 16), k.matrix(r, F32, 8, 8, 8)
		op := Op{M: 8, N: 8, K: 16, In: BF16, Out: F32}
		for range 3 {
			k.must(k.g.Multiply(k.s, op, y.at, x.at, w.at, 0))
		}
		if n := k.g.Plans(); n != 1 {
			k.Errorf("%d plans for one shape", n)
		}
		smaller := op
		smaller.M = 4
		k.must(k.g.Multiply(k.s, smaller, y.at, x.at, w.at, 0))
		d, err := k.g.Tune(k.s, op, y.at, x.at, w.at, 0)
		k.must(err)
		if n := k.g.Plans(); n != 2 || d < 0 {
			k.Errorf("%d plans for two shapes, %v", n, d)
		}
	})
}

func TestCaptureNeedsPreparation(t *testing.T) {
	on(t, func(k *desk) {
		r := rand.New(rand.NewPCG(5, 6))
		op := Op{M: 2, N: 8, K: 8, In: BF16, Out: F32, Add: true}
		x, w, y := k.matrix(r, BF16, 2, 8, 8), k.matrix(r, BF16, 8, 8, 8), k.matrix(r, F32, 2, 8, 8)
		multiply := func() error { return k.g.Multiply(k.s, op, y.at, x.at, w.at, 0) }
		if _, err := k.s.Capture(multiply); err == nil || !strings.Contains(err.Error(), "not prepared") {
			k.Errorf("an unprepared product in a capture: %v", err)
		}
		k.must(k.g.Prepare(k.s, op))
		g, err := k.s.Capture(multiply)
		k.must(err)
		k.must(k.s.Run(g))
		k.must(k.s.Sync())
		k.compare(op, y, x, w, matrix{})
		k.must(g.Free())
	})
}

func TestRefusals(t *testing.T) {
	on(t, func(k *desk) {
		p, err := k.d.Alloc(4096)
		k.must(err)
		ok := Op{M: 2, N: 8, K: 8, In: BF16, Out: F32}
		for name, tc := range map[string]struct {
			op      Op
			x, bias gpu.Ptr
			want    string
		}{
			"no rows":       {Op{N: 8, K: 8, In: BF16, Out: F32}, p, 0, "sizes must be positive"},
			"narrow stride": {Op{M: 2, N: 8, K: 8, In: BF16, Out: F32, StrideX: 4}, p, 0, "stride 4 of x is less than its row of 8"},
			"odd rows":      {Op{M: 2, N: 8, K: 9, In: BF16, Out: F32}, p, 0, "rows of x are 18 bytes apart"},
			"odd address":   {ok, p + 2, 0, "must be multiples of 16"},
			"surplus bias":  {ok, p, p, "bias false"},
		} {
			err := k.g.Multiply(k.s, tc.op, p, tc.x, p, tc.bias)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				k.Errorf("%s: %v, want %q", name, err, tc.want)
			}
		}
		if n := k.g.Plans(); n != 0 {
			k.Errorf("%d plans were made", n)
		}
	})
}

func TestErrorText(t *testing.T) {
	e := &Error{"product", 15}
	if want := "cublasLt: product: NOT_SUPPORTED: no algorithm for these types and sizes (15)"; e.Error() != want {
		t.Errorf("%q", e.Error())
	}
}
