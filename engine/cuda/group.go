//go:build cuda

package cuda

import (
	"context"
	"fmt"
	"unsafe"

	"tandem/engine/pass"
)

// Collectives go through pinned host memory: the ranks' own kernels are done, the
// rows meet on the host, and what came of it goes back.

// stage is host memory for the rows of all ranks.
func (b *Backend) openStage() (err error) {
	if b.cfg.Group == nil {
		return nil
	}
	widest := 0
	for i := range b.buffers {
		widest = max(widest, b.buffers[i].width*b.buffers[i].size)
	}
	n := int64(b.cfg.sharedRows()) * int64(widest)
	if b.scratch.stage, err = b.allocPinned(n); err != nil {
		return err
	}
	b.scratch.shares, err = b.alloc(n)
	b.parts = make([]int, b.cfg.Group.Size())
	return err
}

func (b *Backend) floats(bytes int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b.scratch.stage.Bytes()))), bytes/4)
}

// first is this rank's first row among those of all, and total how many these are.
func (b *Backend) first(s *shape) (first, total int) {
	for r, n := range s.batch.RankRows {
		if r < b.cfg.Group.ID() {
			first += n
		}
		total += n
	}
	return first, total
}

func because(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrGroup, op, err)
}

// gatherRows sets a shared buffer to the rows that all ranks have.
func (b *Backend) gatherRows(op *pass.Op) (step, error) {
	in, out := b.buffers[op.In], b.buffers[op.Out]
	row := in.width * in.size
	return func(s *shape) error {
		first, total := b.first(s)
		own := b.scratch.stage.Slice(int64(first*row), int64(s.rows*row))
		if err := b.stream.Read(own, in.at); err != nil {
			return err
		}
		if err := b.wait(); err != nil {
			return err
		}
		all := b.floats(total * row)
		err := b.cfg.Group.AllGather(context.Background(), all, all[first*row/4:(first+s.rows)*row/4], s.batch.RankRows, row/4)
		if err != nil {
			return because("gather rows", err)
		}
		return b.stream.Write(out.at, b.scratch.stage.Slice(0, int64(total*row)))
	}, nil
}

// ownRows sets a buffer to this rank's rows of a shared one.
func (b *Backend) ownRows(op *pass.Op) (step, error) {
	in, out := b.buffers[op.In], b.buffers[op.Out]
	if in.view() || out.view() {
		return nil, fmt.Errorf("own rows of a view are not supported on CUDA")
	}
	row := int64(in.width * in.size)
	return func(s *shape) error {
		first, _ := b.first(s)
		return b.stream.Copy(out.at, in.at.At(int64(first)*row), int64(s.rows)*row)
	}, nil
}

// addShares sums the ranks' shares of this rank's rows, and adds them.
func (b *Backend) addShares(op *pass.Op) (step, error) {
	share, x := b.buffers[op.In], b.buffers[op.Out]
	if !share.shared || x.view() {
		return nil, fmt.Errorf("shares of own rows or of a view are not supported on CUDA")
	}
	add, err := b.code.find("td_add")
	width := share.width
	return func(s *shape) error {
		first, total := b.first(s)
		if err := b.stream.Read(b.scratch.stage.Slice(0, int64(total*width*4)), share.at); err != nil {
			return err
		}
		if err := b.wait(); err != nil {
			return err
		}
		all := b.floats(total * width * 4)
		own := all[first*width : (first+s.rows)*width]
		if err := b.cfg.Group.ReduceScatter(context.Background(), own, all, s.batch.RankRows, width); err != nil {
			return because("add shares", err)
		}
		if s.rows == 0 {
			return nil
		}
		from := b.scratch.stage.Slice(int64(first*width*4), int64(s.rows*width*4))
		if err := b.stream.Write(b.scratch.shares, from); err != nil {
			return err
		}
		b.args.Reset().Ptr(x.at).Ptr(b.scratch.shares).Ptr(0).I64(int64(s.rows * width)).I32(width)
		return b.launch(add, each(s.rows*width, 4))
	}, err
}
