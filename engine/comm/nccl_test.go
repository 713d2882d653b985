//go:build cuda

package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/engine/cuda/gpu"
	"tandem/kernels/cuda/emu"
)

// emulate points this process to the emulator and its NCCL, with four devices.
var emulate = sync.OnceValue(func() error {
	lib, err := emu.Build("../cuda/gpu/testdata/probe.cu")
	return errors.Join(err, os.Setenv("TANDEM_EMU_DEVICES", "4"), lib.Setenv())
})

// station is a rank on its device's thread.
type station struct {
	d *gpu.Device
	s *gpu.Stream
	n *NCCL
}

// ranks runs fn for each rank of a group on a device of its own and returns their errors.
func ranks(t *testing.T, size int, fn func(ctx context.Context, c Comm, s *station) error) []error {
	t.Helper()
	if err := emulate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	group := newWorld(t, layout{size}, Config{}).ranks
	errs := make([]error, size)
	var wg sync.WaitGroup
	for i, c := range group {
		wg.Go(func() {
			d, err := gpu.Open(i)
			if err != nil {
				errs[i] = err
				return
			}
			errs[i] = d.Do(func() error {
				s := &station{d: d}
				if s.s, err = d.NewStream(0); err != nil {
					return err
				}
				return fn(ctx, c, s)
			})
			errs[i] = errors.Join(errs[i], d.Close())
		})
	}
	wg.Wait()
	return errs
}

func (s *station) put(v ...float32) (gpu.Ptr, error) {
	p, err := s.d.Alloc(int64(4 * len(v)))
	if err != nil {
		return 0, err
	}
	var raw []byte
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return p, s.d.Write(p, raw)
}

func (s *station) get(p gpu.Ptr, n int) ([]float32, error) {
	raw := make([]byte, 4*n)
	err := errors.Join(s.s.Sync(), s.d.Read(raw, p))
	out := make([]float32, n)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out, err
}

// collect runs one collective of each kind and compares what arrived.
func collect(ctx context.Context, c Comm, s *station) error {
	r, h := float32(c.ID()), s.s.Handle()
	src, e1 := s.put(r, 10*r, 100*r, 1)
	dst, e2 := s.put(make([]float32, 16)...)
	if err := errors.Join(e1, e2); err != nil {
		return err
	}
	in, out := uint64(src), uint64(dst)
	for _, tc := range []struct {
		name string
		call func() error
		n    int
		want string
	}{
		{"reduce", func() error { return s.n.AllReduce(ctx, out, in, 4, NCCLF32, h) }, 4, "[6 60 600 4]"},
		{"gather", func() error { return s.n.AllGather(ctx, out, in, 2, NCCLF32, h) }, 8, "[0 0 1 10 2 20 3 30]"},
		{"bytes", func() error { return s.n.AllGather(ctx, out, in, 4, NCCLBytes, h) }, 4, "[0 1 2 3]"},
		{"scatter", func() error { return s.n.ReduceScatter(ctx, out, in, 1, NCCLF32, h) }, 1, fmt.Sprint([]float32{[]float32{6, 60, 600, 4}[c.ID()]})},
		{"in place", func() error { return s.n.AllReduce(ctx, in, in, 4, NCCLF32, h) }, 0, "[]"},
		{"again", func() error { return s.n.AllReduce(ctx, out, in, 4, NCCLF32, h) }, 4, "[24 240 2400 16]"},
	} {
		if err := tc.call(); err != nil {
			return fmt.Errorf("%s: %w", tc.name, err)
		}
		got, err := s.get(dst, tc.n)
		if err != nil || fmt.Sprint(got) != tc.want {
			return fmt.Errorf("%s on rank %d: %v, want %s, %w", tc.name, c.ID(), got, tc.want, err)
		}
	}
	return errors.Join(scatterRows(ctx, c, s), s.n.Err())
}

// scatterRows sends to+1 rows of two numbers, (from, to), from each rank to each other.
func scatterRows(ctx context.Context, c Comm, s *station) error {
	var rows []int
	for from := range c.Size() {
		for to := range c.Size() {
			n := to + 1
			if to == from {
				n = 0
			}
			rows = append(rows, n)
		}
	}
	var out, want []float32
	for peer := range c.Size() {
		for range rows[c.ID()*c.Size()+peer] {
			out = append(out, float32(c.ID()), float32(peer))
		}
		for range rows[peer*c.Size()+c.ID()] {
			want = append(want, float32(peer), float32(c.ID()))
		}
	}
	src, e1 := s.put(out...)
	dst, e2 := s.put(make([]float32, len(want))...)
	if err := errors.Join(e1, e2); err != nil {
		return err
	}
	if err := s.n.AllToAll(ctx, uint64(dst), uint64(src), rows, 8, s.s.Handle()); err != nil {
		return err
	}
	got, err := s.get(dst, len(want))
	if fmt.Sprint(got) != fmt.Sprint(want) {
		err = errors.Join(err, fmt.Errorf("all-to-all on rank %d: %v, want %v", c.ID(), got, want))
	}
	return err
}

func TestNCCLCollectives(t *testing.T) {
	errs := ranks(t, 4, func(ctx context.Context, c Comm, s *station) (err error) {
		if s.n, err = JoinNCCL(ctx, c); err != nil {
			return err
		}
		err = collect(ctx, c, s)
		return errors.Join(err, s.n.Close(), s.n.Close())
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestNCCLMissingRank lets one rank leave between the name and the communicator.
func TestNCCLMissingRank(t *testing.T) {
	errs := ranks(t, 3, func(ctx context.Context, c Comm, s *station) error {
		if c.ID() == 2 {
			_, err := shareUnique(ctx, c)
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		n, err := JoinNCCL(ctx, c)
		if again := n.AllReduce(ctx, 0, 0, 1, NCCLF32, nil); again == nil || n.Err() == nil {
			t.Errorf("rank %d goes on after %v", c.ID(), err)
		}
		return err
	})
	for rank, err := range errs[:2] {
		late := errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "remote process exited")
		if !late || !strings.Contains(err.Error(), fmt.Sprintf("nccl: join on rank %d of 3", rank)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if errs[2] != nil {
		t.Error(errs[2])
	}
}

func TestNCCLRefusals(t *testing.T) {
	errs := ranks(t, 2, func(ctx context.Context, c Comm, s *station) (err error) {
		if s.n, err = JoinNCCL(ctx, c); err != nil {
			return err
		}
		if err := c.Barrier(ctx); err != nil { // the refusal of one ends it for all
			return err
		}
		err = s.n.AllReduce(ctx, 0, 0, 1, NCCLType(99), s.s.Handle())
		return errors.Join(err, c.Barrier(ctx))
	})
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("nccl: all-reduce on rank %d of 2: ", rank)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestNCCLOfOneDevice gives two ranks the same device, which NCCL refuses.
func TestNCCLOfOneDevice(t *testing.T) {
	var first *gpu.Device
	var opened sync.WaitGroup
	opened.Add(1)
	errs := ranks(t, 2, func(ctx context.Context, c Comm, s *station) error {
		if c.ID() == 0 {
			first = s.d
			opened.Done()
		}
		opened.Wait()
		if c.ID() == 0 {
			_, err := JoinNCCL(ctx, c)
			return err
		}
		other, err := gpu.Open(first.Info().Ordinal)
		if err != nil {
			return err
		}
		err = other.Do(func() error {
			_, err := JoinNCCL(ctx, c)
			return err
		})
		return errors.Join(err, other.Close())
	})
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("nccl: join on rank %d of 2: ", rank)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestLoadNCCLSaysWhatIsMissing(t *testing.T) {
	const child = "TANDEM_TEST_LOAD_NCCL"
	if os.Getenv(child) != "" {
		fmt.Println("answer:", errors.Is(LoadNCCL(), ErrNoNCCL), LoadNCCL())
		return
	}
	for path, want := range map[string]string{
		"/nowhere/libnccl.so.2": "answer: true NCCL not found: /nowhere/libnccl.so.2: ",
		"libm.so.6":             "answer: true NCCL not found: libm.so.6 lacks ncclGetUniqueId; install it, or name the library in TANDEM_NCCL",
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", t.Name())
		cmd.Env = append(os.Environ(), child+"=1", "TANDEM_NCCL="+path)
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %s, want %q", err, out, want)
		}
	}
}
