//go:build cuda

package cuda

import (
	"fmt"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
)

// buffer is an activation on the device, or a view of columns of one.
type buffer struct {
	at     gpu.Ptr // first element
	size   int     // bytes of an element: 4 for float32, 2 for bf16
	width  int
	stride int // elements from row to row
	shared bool
}

func (b *buffer) view() bool { return b.stride != b.width }

// scratch is device memory that steps use besides the buffers.
type scratch struct {
	owned  []gpu.Ptr // all of it, to be freed
	pinned []*gpu.Pinned
	bytes  int64

	normed  gpu.Ptr // bf16 [rows, widest input of a product]
	wide    gpu.Ptr // f32 [rows, widest q, k and v or gate and up]
	weight  gpu.Ptr // bf16, a part of a quantised weight
	partial gpu.Ptr // of decode attention
	counter gpu.Ptr
	rope    gpu.Ptr // f32 [rows, head dimension]
	logits  gpu.Ptr // f32 [sequences, vocabulary]
	host    *gpu.Pinned

	moe      moeScratch
	attended gpu.Ptr     // bf16 [rows, heads of this rank], where its columns are a part of a buffer
	stage    *gpu.Pinned // rows of all ranks, on their way
	shares   gpu.Ptr     // the same on the device
}

// alloc takes device memory that is freed with the backend.
func (b *Backend) alloc(n int64) (gpu.Ptr, error) {
	p, err := b.dev.Alloc(max(n, 256))
	if err != nil {
		return 0, err
	}
	b.scratch.owned = append(b.scratch.owned, p)
	b.scratch.bytes += n
	return p, nil
}

// allocPinned takes host memory that is freed with the backend.
func (b *Backend) allocPinned(n int64) (*gpu.Pinned, error) {
	m, err := b.dev.AllocPinned(max(n, 256))
	if err == nil {
		b.scratch.pinned = append(b.scratch.pinned, m)
	}
	return m, err
}

// elements finds the element type of each buffer: what enters a product is bf16,
// the residual stream float32. The models never use one buffer as both.
func (b *Backend) elements() ([]int, error) {
	sizes := make([]int, len(b.Buffers))
	var err error
	set := func(size int, list ...tensor.Buffer) {
		for _, h := range list {
			root := b.Buffers[h].Root
			if sizes[root] != 0 && sizes[root] != size && err == nil {
				err = fmt.Errorf("buffer %d holds the residual stream and the input of a product", root)
			}
			sizes[root] = size
		}
	}
	for i := range b.Ops {
		switch op := &b.Ops[i]; op.Kind {
		case pass.Embed:
			set(4, op.Out)
		case pass.AttnInput, pass.GatedMLP:
			set(4, op.In)
			set(2, op.Out)
		case pass.Attention:
			set(2, op.In, op.Out)
		case pass.AddLinear:
			set(2, op.In)
			set(4, op.Out)
		case pass.MoE, pass.AddShares, pass.GatherRows, pass.OwnRows:
			set(4, op.In, op.Out)
		case pass.Logits:
			set(4, op.In)
		}
	}
	for i, buf := range b.Buffers {
		if sizes[buf.Root] == 0 {
			sizes[buf.Root] = 4 // nobody uses it
		}
		sizes[i] = sizes[buf.Root]
	}
	return sizes, err
}

// place allocates the buffers.
func (b *Backend) place() error {
	sizes, err := b.elements()
	if err != nil {
		return err
	}
	b.buffers = make([]buffer, len(b.Buffers))
	for i, buf := range b.Buffers {
		to := &b.buffers[i]
		*to = buffer{size: sizes[i], width: buf.Width, shared: buf.Shared}
		if root := &b.buffers[buf.Root]; int(buf.Root) != i {
			to.at, to.stride = root.at.At(int64(buf.First*to.size)), root.stride
			continue
		}
		rows := b.cfg.MaxRows
		if buf.Shared {
			rows = b.cfg.sharedRows()
		}
		to.stride = buf.Width
		if to.at, err = b.alloc(int64(rows) * int64(buf.Width*to.size)); err != nil {
			return fmt.Errorf("activations of %d rows: %w; lower max_num_tokens", rows, err)
		}
	}
	return nil
}
