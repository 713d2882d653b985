//go:build cuda

package gpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"

	"tandem/kernels/cuda/emu"
)

// The tests run on the emulator, or, with TANDEM_GPU=1, on the machine's own devices.

// role makes this test program do one thing in a process of its own, for what one process cannot
// show or survive.
const role = "TANDEM_GPU_TEST_ROLE"

func TestMain(m *testing.M) {
	if err := emulate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if r := os.Getenv(role); r != "" {
		roles[r]()
		return
	}
	os.Exit(m.Run())
}

func emulate() error {
	if os.Getenv("TANDEM_GPU") != "" || os.Getenv(role) != "" {
		return nil
	}
	lib, err := emu.Build("testdata/probe.cu")
	if err != nil {
		return err
	}
	for k, v := range map[string]string{"TANDEM_EMU_DEVICES": "2", "TANDEM_EMU_MEMORY": "67108864"} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	return lib.Setenv()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, ordinal int) *Device {
	t.Helper()
	d, err := Open(ordinal)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// bench is a device with a stream and the kernels of testdata.
type bench struct {
	*testing.T
	d *Device
	s *Stream
	m *Module
}

// on runs fn on a device's thread.
func on(t *testing.T, fn func(b *bench)) {
	t.Helper()
	d := open(t, 0)
	must(t, d.Do(func() error {
		b := &bench{T: t, d: d}
		b.s = b.stream()
		ptx, err := os.ReadFile("testdata/probe.ptx")
		b.must(err)
		b.m, err = d.Load(ptx)
		b.must(err)
		fn(b)
		b.must(b.s.Sync())
		b.must(b.m.Unload())
		return b.s.Free()
	}))
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) stream() *Stream {
	s, err := b.d.NewStream(0)
	b.must(err)
	return s
}

func (b *bench) event(kind EventKind) *Event {
	e, err := b.d.NewEvent(kind)
	b.must(err)
	return e
}

func (b *bench) kernel(name string) *Kernel {
	k, err := b.m.Kernel(name)
	b.must(err)
	return k
}

func (b *bench) alloc(n int64) Ptr {
	p, err := b.d.Alloc(n)
	b.must(err)
	return p
}

func (b *bench) floats(v ...float32) Ptr {
	p := b.alloc(int64(4 * len(v)))
	var buf bytes.Buffer
	b.must(binary.Write(&buf, binary.LittleEndian, v))
	b.must(b.d.Write(p, buf.Bytes()))
	return p
}

func read[T any](b *bench, p Ptr, n int) []T {
	b.Helper()
	out := make([]T, n)
	raw := make([]byte, binary.Size(out))
	b.must(b.d.Read(raw, p))
	b.must(binary.Read(bytes.NewReader(raw), binary.LittleEndian, out))
	return out
}

func (b *bench) scale(s *Stream, out, in Ptr, n int, k float32) {
	b.Helper()
	var a Args
	shape := Shape{Grid: Dim{X: (n + 255) / 256}, Block: Dim{X: 256}}
	b.must(s.Launch(b.kernel("td_probe_scale"), shape, a.Ptr(out).Ptr(in).I32(n).F32(k)))
}

func (b *bench) count(s *Stream, x Ptr) {
	b.Helper()
	var a Args
	b.must(s.Launch(b.kernel("td_probe_count"), Shape{Block: Dim{X: 1}}, a.Ptr(x)))
}

func (b *bench) equal(what string, got, want any) {
	b.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Errorf("%s: %v, want %v", what, got, want)
	}
}

var bits = math.Float32bits
