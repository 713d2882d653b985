//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"

	"tandem/engine/cuda/gemm"
	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// Backend holds a model's weights, its recorded forward pass and the KV pool of
// one rank on one device. One goroutine at a time may use it, except that Read
// and Write may be called from others.
type Backend struct {
	*pass.Recorder
	cfg    Config
	dev    *gpu.Device
	stream *gpu.Stream
	multi  *gemm.Multiplier // nil: the library is not there
	code   code
	blocks blocks
	kvType kernels.KV

	matrices []matrix
	vectors  []gpu.Ptr
	packed   int64 // bytes of weights

	buffers  []buffer // by handle
	scratch  scratch
	input    input
	sampling sampling
	turns    [3]turn
	current  int    // of turns: the step that is queued last
	open     []int  // of turns: launched and not waited for, the older one first
	steps    []step // what the ops became
	graphs   map[int]*gpu.Graph
	dry      bool // steps make plans only, and launch nothing
	args     gpu.Args
	heads    int          // query heads
	rotates  *tensor.RoPE // whose table the step has made so far
	decode   kernels.Decode
	prefill  kernels.Prefill
	parts    []int // of a collective, by rank
	offload  offload
	link     Link // between the devices of the ranks, nil = over the host
	agreed   bool // whether there is one

	progress  atomic.Uint64
	copyError atomic.Pointer[error]
	runnable  bool
	closed    bool
	broken    error // that the device ended with
}

// New opens the device and allocates the KV pool.
func New(cfg Config) (_ *Backend, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("CUDA backend: %w", err)
	}
	b := &Backend{cfg: cfg, kvType: kernels.KVBF16, graphs: map[int]*gpu.Graph{}}
	switch cfg.KV.DType {
	case tensor.F16:
		b.kvType = kernels.KVF16
	case tensor.F8:
		b.kvType = kernels.KVE4M3
	}
	limits := pass.Config{KV: cfg.KV, MaxRows: cfg.MaxRows, MaxSharedRows: cfg.sharedRows(), MaxExperts: kernels.MaxExperts, MaxUsed: kernels.MaxUsed}
	if g := cfg.Group; g != nil {
		limits.Rank, limits.Ranks = g.ID(), g.Size()
	}
	b.Recorder = pass.New(limits)
	defer func() {
		if err != nil {
			b.Close()
			err = fmt.Errorf("CUDA backend: %w", err)
		}
	}()
	if b.dev, err = gpu.Open(cfg.Ordinal); err != nil {
		return nil, err
	}
	err = b.dev.Do(func() (err error) {
		if b.stream, err = b.dev.NewStream(0); err != nil {
			return err
		}
		if b.multi, err = gemm.New(b.dev, gemm.DefaultWorkspace); errors.Is(err, gemm.ErrAbsent) {
			return nil // own kernels then
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := b.code.open(b.dev); err != nil {
		return nil, err
	}
	return b, b.blocks.open(b.dev, cfg.KV.Blocks, int64(cfg.KV.BlockBytes()))
}

// Close frees all memory of the device. No run may be in progress and no transfer
// may touch a block any more. Closing twice does nothing.
func (b *Backend) Close() {
	if b.closed {
		return
	}
	b.closed = true
	b.Recorder.Close(ErrClosed)
	// Errors are of a device that is lost already, and its steps have told.
	b.offload.close()
	_ = b.blocks.close()
	if b.dev == nil {
		return
	}
	_ = b.dev.Do(func() error { b.free(); return nil })
	_ = b.dev.Close()
}

// free gives back what was allocated, on the device's thread.
func (b *Backend) free() {
	if b.stream != nil {
		_ = b.stream.Sync()
	}
	for _, g := range b.graphs {
		_ = g.Free()
	}
	var all []gpu.Ptr
	for _, m := range b.matrices {
		all = append(all, m.at)
	}
	all = append(append(all, b.vectors...), b.scratch.owned...)
	all = append(all, b.blocks.pool)
	for _, p := range all {
		if p != 0 {
			_ = b.dev.Free(p)
		}
	}
	for _, m := range b.scratch.pinned {
		_ = m.Free()
	}
	for i := range b.turns {
		if e := b.turns[i].done; e != nil {
			_ = e.Free()
		}
	}
	if b.link != nil {
		_ = b.link.Close()
	}
	if b.multi != nil {
		_ = b.multi.Close()
	}
	b.offload.free()
	b.code.close()
	if b.stream != nil {
		_ = b.stream.Free()
	}
}

// Info describes the backend in one line for the log.
func (b *Backend) Info() string {
	products := "cuBLASLt"
	if b.multi == nil {
		products = "own products"
	}
	if b.cfg.Deterministic {
		products = "the same bits for every batch"
	}
	return fmt.Sprintf("cuda %s, %s, %d graphs, KV %s in %s", b.dev.Info(), products, len(b.graphs), b.cfg.KV.DType, Packing)
}

// MemoryReport says where the device's memory goes.
func (b *Backend) MemoryReport() tensor.MemoryReport {
	return tensor.MemoryReport{
		Device: b.dev.Info().Name, Threads: 1, WeightBytes: int(b.packed),
		KVBytes: b.cfg.KV.Blocks * b.cfg.KV.BlockBytes(), ActivationBytes: int(b.scratch.bytes), HugeBytes: -1,
	}
}

// Progress counts what steps have queued and waited for since New. Any goroutine
// may read it.
func (b *Backend) Progress() uint64 { return b.progress.Load() }
