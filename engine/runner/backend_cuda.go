//go:build cuda

package runner

import (
	"context"
	"fmt"
	"unsafe"

	"tandem/engine/comm"
	"tandem/engine/cuda"
	"tandem/engine/cuda/gpu"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// cudaDevices are GPUs, one for each rank.
type cudaDevices struct {
	o     *LoadOptions
	infos []gpu.Info
	made  []*cuda.Backend
}

func openCUDA(o *LoadOptions) (devices, error) {
	infos, err := gpu.Devices()
	if err != nil {
		return nil, err
	}
	return &cudaDevices{o: o, infos: infos}, nil
}

func (d *cudaDevices) make(c backendConfig) (Backend, error) {
	if c.of > len(d.infos) {
		return nil, fmt.Errorf("tensor_parallel_size: %d ranks in this process and %d GPUs: each rank needs one", c.of, len(d.infos))
	}
	perSeq := (c.core.MaxSeqLen + c.kv.BlockTokens - 1) / c.kv.BlockTokens
	seqs := min(c.core.EffectiveBatch()+c.core.MaxNumTokens/c.kv.BlockTokens+1, c.core.MaxNumTokens)
	cfg := cuda.Config{
		Ordinal: c.index, KV: c.kv, MaxRows: c.core.MaxNumTokens, MaxSeqs: seqs, MaxPages: seqs * perSeq,
		Graphs: d.o.Graphs, Loaded: d.o.Loaded, Deterministic: d.o.Deterministic,
	}
	if c.link != nil {
		cfg.Group, cfg.LinkTimeout = c.link, d.o.HangTimeout
		if err := comm.LoadNCCL(); d.o.Deterministic {
			d.o.Logger.Info("ranks meet over host memory", "reason", "deterministic: NCCL sums in an order of its own")
		} else if err == nil {
			cfg.Join = func(ctx context.Context) (cuda.Link, error) { return joinNCCL(ctx, c.link) }
		} else if c.index == 0 {
			d.o.Logger.Info("ranks meet over host memory", "reason", err)
		}
	}
	b, err := cuda.New(cfg)
	if err != nil {
		return nil, err
	}
	d.made = append(d.made, b)
	return b, nil
}

var (
	_ Launcher    = (*cuda.Backend)(nil)
	_ BlockCopier = (*cuda.Backend)(nil)

	_ transfer.DeviceMemory = (*cuda.Backend)(nil)
)

// ncclLink is NCCL as a backend takes it.
type ncclLink struct{ *comm.NCCL }

func joinNCCL(ctx context.Context, group comm.Comm) (cuda.Link, error) {
	n, err := comm.JoinNCCL(ctx, group)
	if err != nil {
		return nil, err // not a nil *comm.NCCL in the interface
	}
	return ncclLink{n}, nil
}

func (l ncclLink) AllGather(ctx context.Context, dst, src uint64, count int, stream unsafe.Pointer) error {
	return l.NCCL.AllGather(ctx, dst, src, count, comm.NCCLBytes, stream)
}

func (l ncclLink) ReduceScatter(ctx context.Context, dst, src uint64, count int, stream unsafe.Pointer) error {
	return l.NCCL.ReduceScatter(ctx, dst, src, count, comm.NCCLF32, stream)
}

func (l ncclLink) AllReduce(ctx context.Context, dst, src uint64, count int, stream unsafe.Pointer) error {
	return l.NCCL.AllReduce(ctx, dst, src, count, comm.NCCLF32, stream)
}

func (d *cudaDevices) packing(tensor.KVShape) (string, int) { return cuda.Packing, 1 }

// pool leaves room for the weights, which each device may hold all of, and for what
// steps need.
func (d *cudaDevices) pool(n int, file int64) (share, most int64) {
	for i := range min(n, len(d.infos)) {
		free, total := memory(i)
		room := int64(float64(free-file-workspace(total)) * d.o.memory())
		if i == 0 {
			share, most = room, total
		}
		share, most = min(share, room), min(most, total)
	}
	return max(share, 1) * int64(n), most * int64(n)
}

// workspace is set aside for activations and the libraries.
func workspace(total int64) int64 { return min(total/16, 4<<30) }

// memory returns the free and all bytes of a device.
func memory(ordinal int) (free, total int64) {
	d, err := gpu.Open(ordinal)
	if err != nil {
		return 0, 0
	}
	_ = d.Do(func() (err error) { free, total, err = d.MemInfo(); return err })
	_ = d.Close()
	return free, total
}

// overlap is on: a step leaves the host nothing to do but to wait.
func (d *cudaDevices) overlap() bool { return true }

func (d *cudaDevices) loaded() {}

func (d *cudaDevices) weights() (n int) {
	for _, b := range d.made {
		n += b.MemoryReport().WeightBytes
	}
	return n
}

func (d *cudaDevices) close() {}

// memory is the part of the free memory that the pool takes.
func (o *LoadOptions) memory() float64 {
	if o.Memory > 0 {
		return o.Memory
	}
	return DefaultMemory
}
