package cpu

import (
	"fmt"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// Packing names the order of bytes inside one KV block, for the transfer
// handshake.
const Packing = kernels.Packing

// WeightForm numbers the form that weights are packed into, on which the bits of what
// is computed with them depend.
const WeightForm = kernels.Layout

// Activations is what products with quantised weights turn activations into.
type Activations int

// The forms. Activations8 makes products faster that wait for arithmetic, from AVX2 on
// (portable C, also of arm64, is slower with it), and is less exact; weights in F16
// and BF16 keep 16 bits with it.
const (
	Activations16 Activations = iota // integers of 16 bits with a scale per row
	Activations8                     // integers of 8 bits with a scale per 32 values of a row, and its outliers as they are
)

// String is the name of the form in configurations.
func (a Activations) String() string {
	if a == Activations8 {
		return "int8"
	}
	return "int16"
}

// BestActivations is the fastest form at a level as in Config.ISA.
func BestActivations(isa string) Activations {
	if level, err := (Config{ISA: isa}).level(); err == nil && level >= kernels.AVX2 {
		return Activations8
	}
	return Activations16
}

// Config says what a Backend is made for.
type Config struct {
	// Threads that compute, the calling one included; 0 takes one per physical
	// core that the process may use.
	Threads int
	// CPUs are the processors of the threads, one each, of Processors; nil leaves that
	// to the system.
	CPUs []int
	// Nice lowers the priority of the threads, 0 to 19 as of nice(2), so that other
	// processes compute first. The calling one has it after JoinThreads. Linux only.
	Nice int
	// KV is the geometry of the paged cache. BlockTokens must be 8 or a multiple
	// of 16, and HeadDim a multiple of 16.
	KV tensor.KVShape
	// Shared lets other processes of the host map the KV pool, see Backend.File. The
	// system may have larger pages for memory that is private.
	Shared bool
	// MaxRows is the most rows of a batch (max_num_tokens).
	MaxRows int
	// Group is the group that the backend's rank belongs to, nil for a backend
	// that is alone.
	Group Group
	// MaxSharedRows is the most rows of all ranks in a step of a pass with shared
	// buffers; 0 is MaxRows for each rank, at most 2^20.
	MaxSharedRows int
	// Store holds the weights, so that backends of one process share those that
	// they load alike. nil keeps them in the backend.
	Store *Store
	// ISA is "portable", "avx2", "avx512" or "amx", or empty for the best there is.
	// "amx-model" is AMX modelled in C on AVX-512, for tests.
	ISA string
	// Activations is their form in products. What is kept of weights and of the cache
	// is the same with either.
	Activations Activations
	// Release, if set, is called with bytes of tensors that are packed and not
	// needed any more.
	Release func([]byte)
	// Loaded, if set, is called after each weight tensor is packed, with its
	// name and its bytes in the file, by the goroutine that loads; not for a tensor
	// that the Store had.
	Loaded func(name string, bytes int)
}

const (
	maxHeadDim = 1024
	maxRows    = 1 << 20
)

// Validate checks the numbers. The errors name the configuration key.
func (c Config) Validate() error {
	kv := c.KV
	switch {
	case c.Threads < 0 || c.Threads > 1024:
		return fmt.Errorf("threads is %d, must be 0 (one per core) to 1024", c.Threads)
	case len(c.CPUs) > 0 && len(c.CPUs) != c.Threads:
		return fmt.Errorf("%d processors for %d threads", len(c.CPUs), c.Threads)
	case c.Nice < 0 || c.Nice > 19:
		return fmt.Errorf("threads_nice is %d, must be 0 to 19", c.Nice)
	case c.Activations != Activations16 && c.Activations != Activations8:
		return fmt.Errorf("activations of form %d are unknown", c.Activations)
	case c.MaxRows < 1 || c.MaxRows > maxRows:
		return fmt.Errorf("max_num_tokens is %d, must be 1 to %d", c.MaxRows, maxRows)
	case c.MaxSharedRows != 0 && (c.MaxSharedRows < c.MaxRows || c.MaxSharedRows > maxRows):
		return fmt.Errorf("%d rows of all ranks, must be max_num_tokens %d to %d", c.MaxSharedRows, c.MaxRows, maxRows)
	case c.Group != nil && (c.Group.ID() < 0 || c.Group.ID() >= c.Group.Size()):
		return fmt.Errorf("rank %d of a group of %d", c.Group.ID(), c.Group.Size())
	case kv.BlockTokens != 8 && (kv.BlockTokens < 16 || kv.BlockTokens%16 != 0 || kv.BlockTokens > 1<<16):
		return fmt.Errorf("kv_cache_config.tokens_per_block is %d, must be 8 or a multiple of 16 on the CPU", kv.BlockTokens)
	case kv.DType != tensor.BF16 && kv.DType != tensor.F32 && kv.DType != tensor.I8:
		return fmt.Errorf("kv_cache_config.dtype is %s: on the CPU it must be auto, bfloat16, float32 or int8", kv.DType)
	case kv.HeadDim < 16 || kv.HeadDim%16 != 0 || kv.HeadDim > maxHeadDim:
		return fmt.Errorf("head dimension %d is not supported on the CPU: a multiple of 16 up to %d is", kv.HeadDim, maxHeadDim)
	case kv.Layers < 1 || kv.KVHeads < 1 || kv.Layers > 1<<16 || kv.KVHeads > 1<<16:
		return fmt.Errorf("KV cache of %d layers and %d heads: both must be 1 to %d", kv.Layers, kv.KVHeads, 1<<16)
	case kv.Blocks < 1 || kv.BlockBytes() <= 0 || kv.Blocks > (1<<47)/kv.BlockBytes():
		return fmt.Errorf("KV cache of %d blocks of %d bytes: no such memory", kv.Blocks, kv.BlockBytes())
	}
	_, err := c.level()
	return err
}

// sharedRows resolves MaxSharedRows.
func (c Config) sharedRows() int {
	switch {
	case c.Group == nil:
		return 0
	case c.MaxSharedRows != 0:
		return c.MaxSharedRows
	}
	return max(c.MaxRows, min(c.MaxRows*c.Group.Size(), maxRows))
}

// level resolves ISA against what the machine has.
func (c Config) level() (kernels.Level, error) {
	names := map[string]kernels.Level{
		"portable": kernels.Portable, "avx2": kernels.AVX2, "avx512": kernels.AVX512, "amx": kernels.AMX, "amx-model": kernels.AMXModel,
	}
	best := names[kernels.ISA()]
	if c.ISA == "" {
		return best, nil
	}
	level, ok := names[c.ISA]
	if !ok {
		return 0, fmt.Errorf("instruction set %q is unknown: portable, avx2, avx512 and amx are", c.ISA)
	}
	if level == kernels.AMXModel && best >= kernels.AVX512 {
		return level, nil
	}
	if level > best {
		return 0, fmt.Errorf("instruction set %s is not available on this machine, the best is %s", c.ISA, kernels.ISA())
	}
	return level, nil
}
