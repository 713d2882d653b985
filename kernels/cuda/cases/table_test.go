package cases

import (
	"testing"

	"tandem/kernels/cuda"
)

func TestEveryKernelHasACase(t *testing.T) {
	seen, names := map[string]bool{}, map[string]bool{}
	for _, c := range All() {
		k, err := cuda.Find(c.Kernel)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		seen[c.Kernel] = true
		if names[c.Name] {
			t.Errorf("two cases are named %q", c.Name)
		}
		names[c.Name] = true
		if len(c.Args) != len(k.Params) {
			t.Errorf("%s: %d arguments, %s has %d parameters", c.Name, len(c.Args), c.Kernel, len(k.Params))
		}
		if c.Launch.Block != k.Threads {
			t.Errorf("%s: blocks of %d threads, %s has %d", c.Name, c.Launch.Block, c.Kernel, k.Threads)
		}
		for i, p := range k.Params {
			if i < len(c.Args) && c.Args[i].Data != nil && p.Kind != cuda.Ptr {
				t.Errorf("%s: %s of %s is no buffer", c.Name, p.Name, c.Kernel)
			}
		}
	}
	for _, k := range cuda.Kernels() {
		if !seen[k.Name] {
			t.Errorf("%s has no case", k.Name)
		}
	}
}
