//go:build cuda

package cases

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"tandem/engine/cuda/gpu"
	"tandem/kernels/cuda"
	"tandem/kernels/cuda/emu"
)

// The table runs on the emulator, or, with TANDEM_GPU=1, on the machine's own
// device. TANDEM_CASES is a part of the names of those to run.
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

// runner launches cases on a device's thread.
type runner struct {
	d       *gpu.Device
	s       *gpu.Stream
	target  int
	modules map[string]*gpu.Module
}

func TestCases(t *testing.T) {
	d, err := gpu.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	targets := cuda.Targets
	for i, target := range targets {
		if i > 0 && os.Getenv("TANDEM_GPU") == "" {
			break // the emulator runs the sources, whichever PTX it is given
		}
		r := &runner{d: d, target: target, modules: map[string]*gpu.Module{}}
		err := d.Do(func() (err error) {
			if r.s, err = d.NewStream(0); err != nil {
				return err
			}
			return r.load()
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range All() {
			if !strings.Contains(c.Name, os.Getenv("TANDEM_CASES")) {
				continue
			}
			t.Run(fmt.Sprintf("sm%d/%s", target, c.Name), func(t *testing.T) {
				if err := d.Do(func() error { return r.run(&c) }); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func (r *runner) load() error {
	mods, err := cuda.Modules(r.target)
	if err != nil {
		return err
	}
	for _, m := range mods {
		if r.modules[m.Name], err = r.d.Load(m.PTX); err != nil {
			return fmt.Errorf("module %s: %w", m.Name, err)
		}
	}
	return nil
}

func (r *runner) run(c *Case) (err error) {
	k, err := cuda.Find(c.Kernel)
	if err != nil {
		return err
	}
	entry, err := r.modules[k.Module].Kernel(k.Name)
	if err != nil {
		return err
	}
	if c.Launch.Shared > 0 {
		if err := entry.AllowShared(c.Launch.Shared); err != nil {
			return err
		}
	}
	var args gpu.Args
	buffers := make([]gpu.Ptr, len(c.Args))
	defer func() {
		for _, p := range buffers {
			if p != 0 {
				err = errors.Join(err, r.d.Free(p))
			}
		}
	}()
	if len(c.Args) != len(k.Params) {
		return fmt.Errorf("%s: %d arguments, the kernel has %d parameters", c.Name, len(c.Args), len(k.Params))
	}
	for i, a := range c.Args {
		if a.Data != nil {
			if buffers[i], err = r.d.Alloc(int64(len(a.Data))); err != nil {
				return err
			}
			if err := r.d.Write(buffers[i], a.Data); err != nil {
				return err
			}
			a.Scalar = uint64(buffers[i])
		}
		args.U64(a.Scalar)
	}
	l := c.Launch
	shape := gpu.Shape{Grid: gpu.Dim{X: l.Grid[0], Y: l.Grid[1], Z: l.Grid[2]}, Block: gpu.Dim{X: l.Block}, Shared: l.Shared}
	if err := r.s.Launch(entry, shape, &args); err != nil {
		return err
	}
	if err := r.s.Sync(); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	after := make([][]byte, len(c.Args))
	for _, w := range c.Wants {
		after[w.Arg] = make([]byte, len(c.Args[w.Arg].Data))
		if err := r.d.Read(after[w.Arg], buffers[w.Arg]); err != nil {
			return err
		}
	}
	return c.Check(after)
}
