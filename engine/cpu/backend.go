package cpu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// ErrClosed is returned by methods of a closed backend.
var ErrClosed = errors.New("the CPU backend is closed")

// Backend holds a model's weights, its recorded forward pass and the KV pool of
// one rank. One goroutine at a time may use it, except that Block may be called
// from others between New and Close.
type Backend struct {
	*pass.Recorder
	cfg      Config
	level    kernels.Level
	threads  int
	pool     *kernels.Pool
	kv       kernels.KV
	mem      kvPool // of kv
	prog     *kernels.Program
	store    *Store
	packed   int // bytes that this backend put in the store
	shared   int // bytes of the store that others put there before
	matrices []*kernels.Matrix
	vectors  [][]float32
	segments []segment
	open     segment // that ops are added to
	parts    []int   // of a collective, by rank
	picking  picking

	runnable bool // sealed, and the program too
	closed   bool
}

// kvTypes are the element types that a cache may have.
var kvTypes = map[tensor.DType]kernels.KVType{
	tensor.BF16: kernels.KVBFloat16, tensor.F32: kernels.KVFloat32, tensor.I8: kernels.KVInt8,
}

// New starts the threads and maps the KV pool. Pages of the pool take memory
// once they are written.
func New(cfg Config) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("CPU backend: %w", err)
	}
	b := &Backend{cfg: cfg, threads: cfg.Threads, store: cfg.Store}
	limits := pass.Config{
		KV: cfg.KV, MaxRows: cfg.MaxRows, MaxSharedRows: cfg.sharedRows(), MaxExperts: kernels.MaxExperts, MaxUsed: kernels.MaxUsed,
	}
	if g := cfg.Group; g != nil {
		b.parts = make([]int, g.Size())
		limits.Rank, limits.Ranks = g.ID(), g.Size()
	}
	b.Recorder = pass.New(limits)
	if b.store == nil {
		b.store = NewStore()
	}
	b.level, _ = cfg.level()
	if b.threads == 0 {
		b.threads = DefaultThreads()
	}
	b.kv = kernels.KV{
		Layers: cfg.KV.Layers, KVHeads: cfg.KV.KVHeads, HeadDim: cfg.KV.HeadDim,
		BlockTokens: cfg.KV.BlockTokens, Type: kvTypes[cfg.KV.DType],
	}
	var err error
	if b.mem, err = newKVPool(b.kv.BlockBytes()*cfg.KV.Blocks, cfg.Shared); err != nil {
		return nil, fmt.Errorf("CPU backend: KV pool: %w", err)
	}
	b.kv.Pool = b.mem.Region
	if err = b.store.enter(); err != nil {
		b.mem.close()
		return nil, fmt.Errorf("CPU backend: %w", err)
	}
	if b.pool, err = b.newPool(); err == nil {
		b.prog, err = kernels.NewProgram(b.pool, b.level, b.kv, cfg.MaxRows, cfg.sharedRows())
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("CPU backend: %w", err)
	}
	if cfg.Activations == Activations8 {
		b.prog.SetActivations(kernels.Activations8)
	}
	return b, nil
}

// newPool starts the threads, which inherit their priority from the one that does so.
func (b *Backend) newPool() (pool *kernels.Pool, err error) {
	if b.cfg.Nice == 0 {
		return kernels.NewPool(b.threads, b.cfg.CPUs)
	}
	started := make(chan struct{})
	go func() {
		defer close(started)
		runtime.LockOSThread() // it ends with the goroutine: nothing else may run at its priority
		b.JoinThreads()
		pool, err = kernels.NewPool(b.threads, b.cfg.CPUs)
	}()
	<-started
	return pool, err
}

// JoinThreads gives the calling thread the priority of the backend's own. It has to
// be locked to its goroutine to its end, since it cannot go back.
func (b *Backend) JoinThreads() {
	if b.cfg.Nice > 0 && runtime.GOOS == "linux" {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, b.cfg.Nice) // of the thread; lower is always allowed
	}
}

// Close ends the threads and frees activations, the KV pool and, unless they are
// in a Config.Store, weights. No run may be in progress and no transfer may touch
// a block any more. Closing twice does nothing.
func (b *Backend) Close() {
	if b.closed {
		return
	}
	b.closed = true
	b.Recorder.Close(ErrClosed)
	if b.prog != nil {
		b.prog.Close()
	}
	if b.pool != nil {
		b.pool.Close()
	}
	b.mem.close()
	b.kv.Pool.Bytes = nil
	b.store.leave()
	if b.cfg.Store == nil {
		_ = b.store.Close() // nobody else is in it
	}
}

// MemoryReport reads the current figures; it may take milliseconds.
func (b *Backend) MemoryReport() tensor.MemoryReport {
	r := tensor.MemoryReport{
		Device: b.level.String(), Threads: b.threads, KVBytes: b.cfg.KV.Blocks * b.kv.BlockBytes(), HugeBytes: hugeBytes(),
	}
	if !b.closed {
		r.WeightBytes, r.SharedBytes = b.packed, b.shared
	}
	if b.runnable && !b.closed {
		r.ActivationBytes = b.prog.Bytes()
	}
	return r
}

// Info describes the backend in one line for the log.
func (b *Backend) Info() string {
	return fmt.Sprintf("cpu %s, %d threads, KV %s in %s", b.level, b.threads, b.cfg.KV.DType, Packing)
}

func hugeBytes() int {
	data, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "AnonHugePages:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err == nil {
				return kib << 10
			}
		}
	}
	return -1
}
