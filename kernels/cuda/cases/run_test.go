//go:build cuda

package cases

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tandem/engine/cuda/gpu"
	"tandem/kernels/cuda"
	"tandem/kernels/cuda/emu"
)

// The table runs on the emulator, or, with TANDEM_GPU=1, on the machine's own
// device. TANDEM_CASES is a part of the names of those to run. TANDEM_TARGET is the
// only target whose PTX is run, TANDEM_CUBINS a folder of compiled modules to run
// instead.
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
	for _, target := range targets(t) {
		r := &runner{d: d, target: target, modules: map[string]*gpu.Module{}}
		err := d.Do(func() (err error) {
			r.s, err = d.NewStream(0)
			return err
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

// targets are those whose PTX is run. The emulator runs the sources, whichever PTX
// it is given; an old device cannot run that of later ones.
func targets(t *testing.T) []int {
	all := cuda.Targets
	if os.Getenv("TANDEM_GPU") == "" || os.Getenv("TANDEM_CUBINS") != "" {
		return all[:1]
	}
	if only := os.Getenv("TANDEM_TARGET"); only != "" {
		n, err := strconv.Atoi(only)
		if err != nil || !slices.Contains(all, n) {
			t.Fatalf("TANDEM_TARGET is %q, must be one of %v", only, all)
		}
		return []int{n}
	}
	return all
}

// module loads the code when the first of its cases runs.
func (r *runner) module(name string) (*gpu.Module, error) {
	if m, ok := r.modules[name]; ok {
		return m, nil
	}
	image, err := r.image(name)
	if err != nil {
		return nil, err
	}
	m, err := r.d.Load(image)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", name, err)
	}
	r.modules[name] = m
	return m, nil
}

func (r *runner) image(name string) ([]byte, error) {
	if dir := os.Getenv("TANDEM_CUBINS"); dir != "" {
		return os.ReadFile(filepath.Join(dir, name+".cubin"))
	}
	mods, err := cuda.Modules(r.target)
	if err != nil {
		return nil, err
	}
	for _, m := range mods {
		if m.Name == name {
			return m.PTX, nil
		}
	}
	return nil, fmt.Errorf("there is no module %s", name)
}

func (r *runner) run(c *Case) (err error) {
	k, err := cuda.Find(c.Kernel)
	if err != nil {
		return err
	}
	mod, err := r.module(k.Module)
	if err != nil {
		return err
	}
	entry, err := mod.Kernel(k.Name)
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
