//go:build cuda

package measure

import (
	"fmt"
	"os"
	"testing"

	"tandem/engine/cuda/gpu"
	"tandem/kernels/cuda/emu"
)

// The tests run on the emulator, or, with TANDEM_GPU=1, on the machine's own device.
func TestMain(m *testing.M) {
	if os.Getenv("TANDEM_GPU") == "" {
		lib, err := emu.Build()
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

func TestEverythingIsMeasured(t *testing.T) {
	seen := map[string]int{}
	err := Run(0, Tiny(), func(r Result) {
		seen[r.Name]++
		if r.Seconds < 0 || r.Bytes < 0 || r.Flop < 0 {
			t.Errorf("%+v: negative", r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int{
		Copy: 1, Cube: 1, "launch": 1, "launch in a graph": 1, "RMSNorm": 1, "decode attention, cache of bf16": 2, "decode attention, cache of e4m3": 2, "prefill attention": 1, "argmax": 2,
		"sampling, top-p":    2,
		"product, q4 weight": 3, "product, f8 weight": 3, "product, gate and up": 2, "product, cube, own kernel": 1,
	} {
		if seen[name] != n {
			t.Errorf("%q was measured %d times, want %d; all: %v", name, seen[name], n, seen)
		}
	}
}

// A case that does not fit keeps none of the others back, and memory is given back.
func TestWhatDoesNotFit(t *testing.T) {
	s := Tiny()
	s.Context = 1 << 20
	seen := map[string]bool{}
	if err := Run(0, s, func(r Result) { seen[r.Name] = true }); err == nil || !seen[Cube] || seen["decode attention, cache of bf16"] {
		t.Errorf("error %v, measured %v", err, seen)
	}
	d, err := gpu.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Do(func() error {
		free, total, err := d.MemInfo()
		if free != total && os.Getenv("TANDEM_GPU") == "" {
			t.Errorf("%d of %d bytes are free", free, total)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
