package runner

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"tandem/engine/comm"
	"tandem/engine/cpu"
	"tandem/engine/cuda"
	"tandem/engine/executor"
	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// Backend is a device that loads a model and holds the KV pool of one rank. Its
// memory may be a transfer.SplitMemory too, where Block returns nil because the
// blocks are not the host's.
type Backend interface {
	Device
	model.Ops
	transfer.Memory
	// Seal ends the recording of the forward pass; vocab is the logits of a row.
	Seal(vocab int) error
	// Info describes the backend in one line for the log.
	Info() string
	MemoryReport() tensor.MemoryReport
	// Close frees everything. No run may be in progress, and no transfer may touch
	// a block any more.
	Close()
}

// backendConfig is what one rank's backend is made for.
type backendConfig struct {
	index, of int // the rank's place among those of this process
	kv        tensor.KVShape
	core      executor.Config
	link      *lateGroup // nil = no group
	release   func([]byte)
}

// devices makes the backends of this process's ranks, all of one kind.
type devices interface {
	make(backendConfig) (Backend, error)
	// packing names the order of bytes inside a KV block, and tells in how many lines
	// the keys of a head lie, see transfer.Layout.
	packing(tensor.KVShape) (name string, keyLines int)
	// pool is the bytes that the KV pools of n ranks may take together when nobody
	// says how many, 0 = unknown; most is what there is at all. file is the bytes of
	// the weights that are still to come.
	pool(n int, file int64) (share, most int64)
	// overlap reports whether steps are faster for overlapping.
	overlap() bool
	// loaded is called once, when the weights of all ranks are there.
	loaded()
	// weights is the bytes of the weights of all ranks.
	weights() int
	// close ends what the backends share, after them.
	close()
}

// openDevices finds the devices that o asks for.
func openDevices(o *LoadOptions, ck *model.Checkpoint) (devices, error) {
	switch o.Backend {
	case "", "auto":
		err := cuda.Probe()
		if err == nil {
			err = dropWindows(o.Logger, ck)
		}
		if err == nil {
			return openCUDA(o)
		} else if cuda.Built {
			o.Logger.Info("running on the CPU", "reason", err)
		}
	case "cpu":
	case "cuda":
		if err := cuda.Probe(); err != nil {
			return nil, fmt.Errorf("%w; use --backend auto or cpu", err)
		}
		if err := dropWindows(o.Logger, ck); err != nil {
			return nil, fmt.Errorf("%w; use --backend auto or cpu", err)
		}
		return openCUDA(o)
	default:
		return nil, fmt.Errorf("backend: %q is unknown: auto, cpu or cuda", o.Backend)
	}
	return &cpuDevices{o: o, store: o.store(ck)}, nil
}

// dropWindows bounds requests to a model's smallest sliding window, within which
// full attention is the same, for a backend that has no other. It refuses a model
// whose layers differ in more than that.
func dropWindows(log *slog.Logger, ck *model.Checkpoint) error {
	c := &ck.Config
	if c.LocalRoPE != nil {
		return fmt.Errorf("%s: layers with sliding windows of their own rotation are not supported on CUDA", c.Arch)
	}
	if c.Windows == nil {
		return nil
	}
	ck.Fingerprint() // of the model as it is, before it changes here
	*c = c.WithinWindow()
	log.Warn("requests are bounded by the model's sliding window, which is supported on the CPU only", "max_seq_len", c.Context)
	return nil
}

// activations is the form that the options ask for, of no meaning but on the CPU.
func (o *LoadOptions) activations(onCPU bool) (cpu.Activations, error) {
	switch {
	case o.Activations == "int8" && !onCPU:
		return 0, errors.New("activations: int8 is of the CPU: use it with --backend cpu")
	case o.Activations == "int8":
		return cpu.Activations8, nil
	case o.Activations == "int16" || !onCPU:
		return cpu.Activations16, nil
	case o.Activations == "" || o.Activations == "auto":
		return cpu.BestActivations(o.ISA), nil
	}
	return 0, fmt.Errorf("activations: %q is unknown: auto, int16 or int8", o.Activations)
}

// store makes the store of packed weights, which keeps them in a file if the
// options name a folder for it. The file is named by the model's place and by what
// of it this process loads, so that a changed model replaces its own file.
func (o *LoadOptions) store(ck *model.Checkpoint) *cpu.Store {
	if o.PackedDir == "" {
		return cpu.NewStore()
	}
	source, err := filepath.Abs(ck.Path)
	if err != nil {
		source = ck.Path
	}
	ranks, _ := o.span() // checked before
	use := fmt.Sprintf("%d-%d of %+v f32 %t", ranks.First, ranks.Last, o.parallel(0), o.F32)
	sum := sha256.Sum256([]byte(source + "\n" + use))
	name := strings.TrimSuffix(filepath.Base(source), ".gguf")
	return cpu.OpenStore(cpu.Saved{
		Path:   filepath.Join(o.PackedDir, fmt.Sprintf("%s-%x.packed", name[:min(len(name), 64)], sum[:6])),
		Source: source, Identity: ck.Identity() + " " + use, MinBytes: packedMin, Logger: o.Logger,
	})
}

// packedMin is the size of weights that are packed in a tenth of a second.
const packedMin = 64 << 20

// cpuDevices are shares of the cores, over weights that the ranks have in common.
type cpuDevices struct {
	o     *LoadOptions
	store *cpu.Store
}

func (d *cpuDevices) make(c backendConfig) (Backend, error) {
	var group cpu.Group
	if c.link != nil {
		group = c.link
	}
	if cores := cpu.DefaultThreads(); c.index == 0 && c.of > cores {
		d.o.Logger.Warn("more ranks than cores: they take turns, and every step is as slow as the last of them", "ranks", c.of, "cores", cores)
	}
	first, end := d.threads(c.index, c.of)
	var cpus []int
	if d.o.PinThreads {
		var err error
		if cpus, err = cpu.Processors(d.o.PinSkip+first, end-first); err != nil {
			return nil, err //nolint:wrapcheck // it names the key
		}
	}
	b, err := cpu.New(cpu.Config{
		Threads: end - first, CPUs: cpus, KV: c.kv, MaxRows: c.core.MaxNumTokens, ISA: d.o.ISA, Loaded: d.o.Loaded, Store: d.store, Group: group,
		Nice: d.o.Nice, Shared: d.o.sharesPool(), Activations: d.o.acts,
		Release: c.release,
	})
	if err != nil {
		return nil, err // not a nil *cpu.Backend in the interface
	}
	return b, nil
}

func (d *cpuDevices) packing(kv tensor.KVShape) (string, int) { return cpu.Packing, cpu.KeyLines(kv) }

func (d *cpuDevices) pool(int, int64) (share, most int64) {
	return int64(float64(availableMemory()) * memoryShare), totalMemory()
}

// overlap is off: a step takes all cores, so what is done beside it makes it slower.
func (d *cpuDevices) overlap() bool { return false }

func (d *cpuDevices) loaded() { d.store.Save() }

func (d *cpuDevices) weights() int { return d.store.Bytes() }

func (d *cpuDevices) close() { _ = d.store.Close() } // only a backend that is open could keep it

// threads is the share of the i-th of n ranks in the compute threads: [first, end).
func (d *cpuDevices) threads(i, n int) (first, end int) {
	total := d.o.Threads
	if total == 0 {
		total = cpu.DefaultThreads()
	}
	if total < n {
		return i, i + 1
	}
	return total * i / n, total * (i + 1) / n
}

// lateGroup is the place of a device in a group that it is made before.
type lateGroup struct {
	comm.Comm
	id, size int
}

func (g *lateGroup) ID() int   { return g.id }
func (g *lateGroup) Size() int { return g.size }
