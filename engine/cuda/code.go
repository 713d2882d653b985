//go:build cuda

package cuda

import (
	"fmt"

	"tandem/engine/cuda/gpu"
	kernels "tandem/kernels/cuda"
)

// code is the kernels, whose modules are compiled by the driver when the first of
// their kernels is asked for.
type code struct {
	dev     *gpu.Device
	images  map[string][]byte // PTX of modules
	modules map[string]*gpu.Module
	kernels map[string]*kernel
}

// kernel is a loaded kernel and the number of its parameters.
type kernel struct {
	*gpu.Kernel
	params int
}

func (c *code) open(dev *gpu.Device) error {
	c.dev, c.images = dev, map[string][]byte{}
	c.modules, c.kernels = map[string]*gpu.Module{}, map[string]*kernel{}
	i, err := gpu.Pick(dev.Info().Capability, kernels.Targets)
	if err != nil {
		return err
	}
	mods, err := kernels.Modules(kernels.Targets[i])
	for _, m := range mods {
		c.images[m.Name] = m.PTX
	}
	return err
}

// find loads a kernel. It runs on the device's thread.
func (c *code) find(name string) (*kernel, error) {
	if k, ok := c.kernels[name]; ok {
		return k, nil
	}
	desc, err := kernels.Find(name)
	if err != nil {
		return nil, err
	}
	mod, ok := c.modules[desc.Module]
	if !ok {
		image, ok := c.images[desc.Module]
		if !ok {
			return nil, fmt.Errorf("kernel %s: module %s is not built in", name, desc.Module)
		}
		if mod, err = c.dev.Load(image); err != nil {
			return nil, fmt.Errorf("module %s: %w", desc.Module, err)
		}
		c.modules[desc.Module] = mod
	}
	k, err := mod.Kernel(name)
	if err != nil {
		return nil, err
	}
	c.kernels[name] = &kernel{k, len(desc.Params)}
	return c.kernels[name], nil
}

func (c *code) close() {
	for _, m := range c.modules {
		_ = m.Unload()
	}
}

// launch queues a kernel with the arguments in b.args.
func (b *Backend) launch(k *kernel, l kernels.Launch) error {
	if b.args.Len() != k.params {
		panic(fmt.Sprintf("cuda: kernel %s takes %d parameters, got %d", k.Name(), k.params, b.args.Len()))
	}
	if l.Grid[0] == 0 || l.Grid[1] == 0 {
		return nil // a rank without rows
	}
	b.progress.Add(1)
	if b.dry {
		return nil
	}
	return b.stream.Launch(k.Kernel, gpu.Shape{
		Grid: gpu.Dim{X: l.Grid[0], Y: l.Grid[1], Z: l.Grid[2]}, Block: gpu.Dim{X: l.Block}, Shared: l.Shared,
	}, &b.args)
}

// each launches a kernel over n elements, per of them in a thread.
func each(n, per int) kernels.Launch { return kernels.Each(int64(n), per) }
