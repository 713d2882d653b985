//go:build cuda

package cuda

import (
	"context"
	"fmt"
	"unsafe"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
)

// Collectives go over a Link between devices or, without one, through pinned host
// memory: the ranks' own kernels are done, the rows meet on the host, and what came
// of it goes back.

// stage is host memory for the rows of all ranks.
func (b *Backend) openStage() (err error) {
	if b.cfg.Group == nil {
		return nil
	}
	widest := 0
	for i := range b.buffers {
		widest = max(widest, b.buffers[i].width*b.buffers[i].size)
	}
	// Parts of ranks may all take as much as the largest.
	size := int64(b.cfg.Group.Size())
	rows, logits := int64(b.cfg.MaxRows)*int64(widest), 4*int64(b.cfg.MaxSeqs)*(int64(b.Vocab)/size+1)
	n := max(int64(b.cfg.sharedRows())*int64(widest), size*(max(rows, logits)+16))
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
		if on, err := b.linked(); on || err != nil {
			return firstOf(err, func() error { return b.linkGatherRows(s, &in, &out) })
		}
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

// gatherColumns completes a buffer of which each rank has written its columns. rows
// is how many, nil for those of the buffer. Each rank's part is packed, and rounded
// up to whole floats, since the ranks exchange those.
func (b *Backend) gatherColumns(all buffer, cuts []int, rows func(*shape) int) (step, error) {
	if rows == nil {
		rows = func(s *shape) int { return s.rowsOf(&all) }
	}
	size, stride, id := all.size, int64(all.stride*all.size), b.cfg.Group.ID()
	column := func(r int) (at gpu.Ptr, width int64) {
		return all.at.At(int64(cuts[r] * size)), int64((cuts[r+1] - cuts[r]) * size)
	}
	return func(s *shape) error {
		n := rows(s)
		if on, err := b.linked(); on || err != nil {
			return firstOf(err, func() error { return b.linkGatherColumns(&all, cuts, n) })
		}
		own, total := b.layParts(func(r int) int { _, width := column(r); return n * int(width) })
		at, width := column(id)
		if err := b.stream.CopyRows(b.scratch.shares.At(own), width, at, stride, width, n); err != nil {
			return err
		}
		if err := b.meet("gather columns", own, total); err != nil {
			return err
		}
		from := b.scratch.shares
		for r, part := range b.parts {
			if at, width := column(r); r != id {
				if err := b.stream.CopyRows(at, stride, from, width, width, n); err != nil {
					return err
				}
			}
			from = from.At(4 * int64(part))
		}
		return nil
	}, nil
}

// layParts sets b.parts to the floats that bytes of each rank take, and returns
// where this rank's bytes begin and how many there are in all.
func (b *Backend) layParts(bytes func(rank int) int) (own, total int64) {
	for r := range b.parts {
		b.parts[r] = (bytes(r) + 3) / 4
		if r == b.cfg.Group.ID() {
			own = total
		}
		total += 4 * int64(b.parts[r])
	}
	return own, total
}

// meet sends this rank's part of scratch.shares to all ranks and gets theirs.
func (b *Backend) meet(op string, own, total int64) error {
	part := 4 * int64(b.parts[b.cfg.Group.ID()])
	if err := b.stream.Read(b.scratch.stage.Slice(own, part), b.scratch.shares.At(own)); err != nil {
		return err
	}
	if err := b.wait(); err != nil {
		return err
	}
	all := b.floats(int(total))
	if err := b.cfg.Group.AllGather(context.Background(), all, all[own/4:(own+part)/4], b.parts, 1); err != nil {
		return because(op, err)
	}
	return b.stream.Write(b.scratch.shares, b.scratch.stage.Slice(0, total))
}

// addShares sums the ranks' shares of this rank's rows, and adds them.
func (b *Backend) addShares(op *pass.Op) (step, error) {
	share, x := b.buffers[op.In], b.buffers[op.Out]
	if share.view() || x.view() {
		return nil, fmt.Errorf("shares of a view are not supported on CUDA")
	}
	add, err := b.code.find("td_add")
	width := share.width
	plus := func(s *shape, delta gpu.Ptr) error {
		b.args.Reset().Ptr(x.at).Ptr(delta).Ptr(0).I64(int64(s.rows * width)).I32(width)
		return b.launch(add, each(s.rows*width, 4))
	}
	return func(s *shape) error {
		if on, err := b.linked(); on || err != nil {
			return firstOf(err, func() error {
				offset, err := b.linkShares(s, &share)
				if err != nil {
					return err
				}
				return plus(s, b.scratch.shares.At(offset))
			})
		}
		first, total := b.first(s)
		sum := b.scatter
		if !share.shared {
			first, total, sum = 0, s.rows, b.reduce
		}
		if err := b.stream.Read(b.scratch.stage.Slice(0, int64(total*width*4)), share.at); err != nil {
			return err
		}
		if err := b.wait(); err != nil {
			return err
		}
		if err := sum(s, first, total, width); err != nil {
			return because("add shares", err)
		}
		if s.rows == 0 {
			return nil
		}
		from := b.scratch.stage.Slice(int64(first*width*4), int64(s.rows*width*4))
		if err := b.stream.Write(b.scratch.shares, from); err != nil {
			return err
		}
		return plus(s, b.scratch.shares)
	}, err
}

// firstOf is err, or else what fn returns.
func firstOf(err error, fn func() error) error {
	if err != nil {
		return err
	}
	return fn()
}

// scatter sums rows of all ranks, of which each gets its own.
func (b *Backend) scatter(s *shape, first, total, width int) error {
	all := b.floats(total * width * 4)
	return b.cfg.Group.ReduceScatter(context.Background(), all[first*width:(first+s.rows)*width], all, s.batch.RankRows, width)
}

// reduce sums rows that all ranks have: each adds up a part of the values.
func (b *Backend) reduce(_ *shape, _, rows, width int) error {
	g, n := b.cfg.Group, rows*width
	for r := range b.parts {
		b.parts[r] = n*(r+1)/len(b.parts) - n*r/len(b.parts)
	}
	all := b.floats(n * 4)
	first := n * g.ID() / g.Size()
	own := all[first : first+b.parts[g.ID()]]
	if err := g.ReduceScatter(context.Background(), own, all, b.parts, 1); err != nil {
		return err
	}
	return g.AllGather(context.Background(), all, own, b.parts, 1)
}
