package cpu

import (
	"context"
	"fmt"

	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// Group is what a backend needs of the collective that its rank belongs to; the
// results must not depend on the order in which ranks arrive. All ranks give
// equal rows and width. An error is the end of the group for all its ranks, and
// comes to each within its time-out; memory is the caller's again by then.
type Group interface {
	ID() int
	Size() int
	// AllGather gives every rank the rows of all, one after another: dst
	// [sum(rows), width] of src [rows[ID], width], which may be the rank's part of
	// dst.
	AllGather(ctx context.Context, dst, src []float32, rows []int, width int) error
	// ReduceScatter gives each rank the sum over all ranks of its rows: dst
	// [rows[ID], width] of src [sum(rows), width], of which dst may be the rank's
	// part and the rest is lost. The sum is a tree: the ranks are halved (the lower
	// part gets (lo+hi)/2) until one is left.
	ReduceScatter(ctx context.Context, dst, src []float32, rows []int, width int) error
}

// collective ends the open segment with a meeting of the ranks.
func (b *Backend) collective(meet func(*tensor.Batch) error) {
	s := b.open
	s.meet = meet
	b.segments = append(b.segments, s)
	b.open = segment{from: s.to, to: s.to}
}

// cuts declares checked column cuts.
func (b *Backend) cuts(cuts []int) (int, error) {
	list := make([]int32, len(cuts))
	for i, c := range cuts {
		list[i] = int32(c)
	}
	return b.prog.Cuts(b.cfg.Group.ID(), list)
}

// gatherBuffer completes a buffer of which each rank has written its columns.
func (b *Backend) gatherBuffer(op *pass.Op) error {
	c, err := b.cuts(op.Cuts)
	if err != nil {
		return err
	}
	rows := (*tensor.Batch).Rows
	if b.Buffers[op.Out].Shared {
		rows = func(batch *tensor.Batch) int { return sum(batch.RankRows) }
	}
	h := int(op.Out)
	return b.gatherColumns(h, c, op.Cuts, "gather columns", rows, func(n int) []float32 { return b.prog.Data(h, n) })
}

func sum(rows []int) (total int) {
	for _, n := range rows {
		total += n
	}
	return total
}

// gatherColumns packs this rank's columns of a buffer or of the logits, gathers
// and unpacks those of the others. The columns of a single row are contiguous and
// stay where they are, which data gives.
func (b *Backend) gatherColumns(in, c int, cuts []int, op string, rows func(*tensor.Batch) int, data func(n int) []float32) error {
	out := max(in, 0)
	id, width := b.cfg.Group.ID(), cuts[len(cuts)-1]
	if err := b.add(kernels.Op{Kind: kernels.Pack, In: in, Out: out, Cuts: c}); err != nil {
		return err
	}
	b.collective(func(batch *tensor.Batch) error {
		n, dst := rows(batch), []float32(nil)
		if n == 1 {
			dst = data(width)
		} else {
			dst = b.prog.Stage(n * width)
		}
		for r := range b.parts {
			b.parts[r] = n * (cuts[r+1] - cuts[r])
		}
		err := b.cfg.Group.AllGather(context.Background(), dst, dst[n*cuts[id]:n*cuts[id+1]], b.parts, 1)
		return because(op, err)
	})
	return b.add(kernels.Op{Kind: kernels.Unpack, In: in, Out: out, Cuts: c})
}

// because says which collective failed.
func because(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", op, err)
}

// gatherRows sets a shared buffer to the rows that all ranks have.
func (b *Backend) gatherRows(op *pass.Op) {
	in, out, width := int(op.In), int(op.Out), b.Buffers[op.Out].Width
	b.collective(func(batch *tensor.Batch) error {
		dst, src := b.prog.Data(out, sum(batch.RankRows)*width), b.prog.Data(in, batch.Rows()*width)
		return because("gather rows", b.cfg.Group.AllGather(context.Background(), dst, src, batch.RankRows, width))
	})
}

// addShares sums the ranks' shares of this rank's rows, and adds them.
func (b *Backend) addShares(op *pass.Op) error {
	share, id, width := int(op.In), b.cfg.Group.ID(), b.Buffers[op.In].Width
	meet := func(batch *tensor.Batch) error { return b.allReduce(b.prog.Data(share, batch.Rows()*width)) }
	if b.Buffers[op.In].Shared {
		meet = func(batch *tensor.Batch) error {
			first := sum(batch.RankRows[:id])
			src := b.prog.Data(share, sum(batch.RankRows)*width)
			dst := src[first*width : (first+batch.Rows())*width]
			return b.cfg.Group.ReduceScatter(context.Background(), dst, src, batch.RankRows, width)
		}
	}
	b.collective(func(batch *tensor.Batch) error { return because("add shares", meet(batch)) })
	return b.add(kernels.Op{Kind: kernels.AddRows, In: share, Out: int(op.Out)})
}

// allReduce replaces values, as many on every rank, by their sums over the ranks:
// each rank adds up a part of them.
func (b *Backend) allReduce(values []float32) error {
	g, n := b.cfg.Group, len(values)
	for r := range b.parts {
		b.parts[r] = n*(r+1)/len(b.parts) - n*r/len(b.parts)
	}
	first := n * g.ID() / g.Size()
	own := values[first : first+b.parts[g.ID()]]
	if err := g.ReduceScatter(context.Background(), own, values, b.parts, 1); err != nil {
		return err
	}
	return g.AllGather(context.Background(), values, own, b.parts, 1)
}
