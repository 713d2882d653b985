//go:build cuda

package measure

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tandem/engine/cuda/gemm"
	"tandem/engine/cuda/gpu"
	kernels "tandem/kernels/cuda"
)

// bench is a device with two buffers, on whose thread everything here runs.
type bench struct {
	Sizes
	emit func(Result)

	dev        *gpu.Device
	s          *gpu.Stream
	start, end *gpu.Event
	modules    map[string]*gpu.Module
	images     map[string][]byte
	multi      *gemm.Multiplier // nil: no library
	args       gpu.Args

	overlap bool // kernels begin while the ones before them end

	x, y gpu.Ptr // Bytes each
	more []gpu.Ptr
}

// Run measures everything on the device with that ordinal and gives each result to emit as soon as
// it is there. Measurements that fail do not keep the others back; their errors are joined.
func Run(ordinal int, sizes Sizes, emit func(Result)) error {
	dev, err := gpu.Open(ordinal)
	if err != nil {
		return err
	}
	b := &bench{Sizes: sizes, emit: emit, dev: dev, modules: map[string]*gpu.Module{}, images: map[string][]byte{}}
	err = dev.Do(b.all)
	return errors.Join(err, dev.Close())
}

func (b *bench) all() error {
	defer b.close()
	if err := b.open(); err != nil {
		return err
	}
	var all error
	for _, m := range []struct {
		name string
		run  func() error
	}{
		{"copy", b.copies},
		{"launches", b.launches},
		{"norm", b.norm},
		{"decode attention", b.decodeAttention},
		{"prefill attention", b.prefillAttention},
		{"sampling", b.sampling},
		{"products by own kernels for few rows", b.gemvs},
		{"products", b.products},
	} {
		if err := m.run(); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", m.name, err))
			if errors.Is(err, gpu.ErrBroken) {
				break
			}
		}
	}
	return all
}

// reserve is the memory that stays free for what is not a buffer.
const reserve = 2 << 30

func (b *bench) open() (err error) {
	if b.s, err = b.dev.NewStream(0); err != nil {
		return err
	}
	for _, e := range []**gpu.Event{&b.start, &b.end} {
		if *e, err = b.dev.NewEvent(gpu.Timing); err != nil {
			return err
		}
	}
	i, err := gpu.Pick(b.dev.Info().Capability, kernels.Targets)
	if err != nil {
		return err
	}
	mods, err := kernels.Modules(kernels.Targets[i])
	if err != nil {
		return err
	}
	for _, m := range mods {
		b.images[m.Name] = m.PTX
	}
	if b.multi, err = gemm.New(b.dev, gemm.DefaultWorkspace); err != nil && !errors.Is(err, gemm.ErrAbsent) {
		return err
	}
	free, _, err := b.dev.MemInfo()
	if err != nil {
		return err
	}
	if free > 2*reserve {
		b.Bytes = min(b.Bytes, (free-reserve)/2&^0xfffff)
	}
	for _, p := range []*gpu.Ptr{&b.x, &b.y} {
		if *p, err = b.dev.Alloc(b.Bytes); err != nil {
			return err
		}
		if err := b.fill(*p, b.Bytes/2); err != nil {
			return err
		}
	}
	return b.s.Sync()
}

func (b *bench) close() {
	_ = b.s.Sync()
	for _, p := range append(b.more, b.x, b.y) {
		if p != 0 {
			_ = b.dev.Free(p)
		}
	}
	if b.multi != nil {
		_ = b.multi.Close()
	}
	for _, m := range b.modules {
		_ = m.Unload()
	}
}

// alloc takes memory until the end.
func (b *bench) alloc(n int64) (gpu.Ptr, error) {
	p, err := b.dev.Alloc(max(n, 256))
	if err == nil {
		b.more = append(b.more, p)
	}
	return p, err
}

// ints puts words on the device.
func (b *bench) ints(v []int32) (gpu.Ptr, error) {
	p, err := b.alloc(int64(4 * len(v)))
	if err != nil {
		return 0, err
	}
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = append(raw, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
	}
	return p, b.dev.Write(p, raw)
}

// kernel is a loaded kernel and the number of its parameters.
type kernel struct {
	*gpu.Kernel
	params int
}

func (b *bench) kernel(name string) (*kernel, error) {
	k, err := kernels.Find(name)
	if err != nil {
		return nil, err
	}
	m, ok := b.modules[k.Module]
	if !ok {
		if m, err = b.dev.Load(b.images[k.Module]); err != nil {
			return nil, fmt.Errorf("module %s: %w", k.Module, err)
		}
		b.modules[k.Module] = m
	}
	entry, err := m.Kernel(name)
	return &kernel{entry, len(k.Params)}, err
}

// launch queues a kernel with the arguments in b.args.
func (b *bench) launch(k *kernel, l kernels.Launch) error {
	if b.args.Len() != k.params {
		return fmt.Errorf("%s takes %d parameters, got %d", k.Name(), k.params, b.args.Len())
	}
	return b.s.Launch(k.Kernel, gpu.Shape{
		Grid: gpu.Dim{X: l.Grid[0], Y: l.Grid[1], Z: l.Grid[2]}, Block: gpu.Dim{X: l.Block}, Shared: l.Shared,
		Overlap: b.overlap,
	}, &b.args)
}

// fill sets n bf16 numbers to small values.
func (b *bench) fill(p gpu.Ptr, n int64) error {
	k, err := b.kernel("td_fill_bf16")
	if err != nil {
		return err
	}
	b.args.Reset().Ptr(p).I64(n).I64(1).F32(1)
	return b.launch(k, kernels.Each(n, 4))
}

// roundTime is about how long a round takes, so that slow calls are not repeated as often as quick ones.
const roundTime = 100 * time.Millisecond

// time gives the seconds of one call of queue: the median over rounds of many calls in a row. i
// counts the calls, so that they may take turns with memory that no cache holds.
func (b *bench) time(queue func(i int) error) (float64, error) {
	if _, err := b.row(1, queue); err != nil { // compiles, plans, and is not counted
		return 0, err
	}
	one, err := b.row(1, queue)
	if err != nil {
		return 0, err
	}
	calls := b.Calls
	if one > 0 {
		calls = max(1, min(calls, int(roundTime/one)))
	}
	var all []float64
	for range b.Rounds {
		d, err := b.row(calls, queue)
		if err != nil {
			return 0, err
		}
		all = append(all, d.Seconds()/float64(calls))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

func (b *bench) row(calls int, queue func(i int) error) (time.Duration, error) {
	if err := b.s.Record(b.start); err != nil {
		return 0, err
	}
	for i := range calls {
		if err := queue(i); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(b.s.Record(b.end), b.end.Sync(), b.s.Sync()); err != nil {
		return 0, err
	}
	return b.end.Since(b.start)
}

// report times and emits.
func (b *bench) report(r Result, queue func(i int) error) error {
	var err error
	if r.Seconds, err = b.time(queue); err != nil {
		return err
	}
	b.emit(r)
	return nil
}
