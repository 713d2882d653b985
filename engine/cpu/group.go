package cpu

import (
	"context"
	"errors"
	"fmt"

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

var errNoGroup = errors.New("the backend has no group")

// collective ends the open segment with a meeting of the ranks.
func (b *Backend) collective(meet func(*tensor.Batch) error) {
	s := b.open
	s.meet = meet
	b.segments = append(b.segments, s)
	b.open = segment{from: s.to, to: s.to}
}

// begin keeps the first error of a collective op, and tells whether it can be
// recorded.
func (b *Backend) begin(checks ...error) bool {
	switch {
	case b.closed:
		b.fail(ErrClosed)
	case b.sealed:
		b.fail(errors.New("record: the forward pass is sealed"))
	case b.cfg.Group == nil:
		b.fail(errNoGroup)
	}
	for _, err := range checks {
		b.fail(err)
	}
	return b.err == nil
}

// cuts declares column cuts; own is how many columns this rank must have, or -1.
func (b *Backend) cuts(op string, cuts []int, own int) (int, error) {
	g := b.cfg.Group
	if g == nil {
		return 0, errNoGroup
	}
	if b.closed || b.sealed {
		return 0, nil // record reports it
	}
	if len(cuts) != g.Size()+1 || cuts[0] != 0 || cuts[g.Size()] > maxWidth {
		return 0, fmt.Errorf("%s: cuts %v, must be %d from 0 to at most %d", op, cuts, g.Size()+1, maxWidth)
	}
	list := make([]int32, len(cuts))
	for r := range g.Size() {
		if list[r+1] = int32(cuts[r+1]); cuts[r+1] < cuts[r] {
			return 0, fmt.Errorf("%s: cuts %v, must ascend", op, cuts)
		}
	}
	if n := cuts[g.ID()+1] - cuts[g.ID()]; own >= 0 && n != own {
		return 0, fmt.Errorf("%s: cuts %v give rank %d %d rows, its matrix has %d", op, cuts, g.ID(), n, own)
	}
	return b.prog.Cuts(g.ID(), list)
}

// GatherColumns completes a buffer of which each rank has written its columns.
func (b *Backend) GatherColumns(h tensor.Buffer, cuts []int) {
	const op = "gather columns"
	if !b.begin() {
		return
	}
	c, err := b.cuts(op, cuts, -1)
	if !b.begin(err) || !b.begin(b.buffer(op, "it", h, cuts[len(cuts)-1])) {
		return
	}
	rows := (*tensor.Batch).Rows
	if b.buffers[h].shared {
		rows = func(batch *tensor.Batch) int { return sum(batch.RankRows) }
	} else {
		b.equalRows = true
	}
	b.gatherColumns(int(h), c, cuts, op, rows, func(n int) []float32 { return b.prog.Data(int(h), n) })
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
func (b *Backend) gatherColumns(in, c int, cuts []int, op string, rows func(*tensor.Batch) int, data func(n int) []float32) {
	out := max(in, 0)
	cuts, id, width := append([]int(nil), cuts...), b.cfg.Group.ID(), cuts[len(cuts)-1]
	b.record(kernels.Op{Kind: kernels.Pack, In: in, Out: out, Cuts: c})
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
	b.record(kernels.Op{Kind: kernels.Unpack, In: in, Out: out, Cuts: c})
}

// because says which collective failed.
func because(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", op, err)
}

// GatherRows sets out, which is shared, to the rows that all ranks have in x.
func (b *Backend) GatherRows(out, x tensor.Buffer) {
	const op = "gather rows"
	to, _ := b.lookup(out)
	if !b.begin(b.buffer(op, "output", out, to.width), b.buffer(op, "input", x, to.width),
		b.allRows(op, out), b.whole(op, out), b.ownRows(op, x), b.whole(op, x)) {
		return
	}
	b.collective(func(batch *tensor.Batch) error {
		dst := b.prog.Data(int(out), sum(batch.RankRows)*to.width)
		src := b.prog.Data(int(x), batch.Rows()*to.width)
		return because(op, b.cfg.Group.AllGather(context.Background(), dst, src, batch.RankRows, to.width))
	})
}

// OwnRows sets x to this rank's rows of in, which is shared.
func (b *Backend) OwnRows(x, in tensor.Buffer) {
	const op = "own rows"
	from, _ := b.lookup(in)
	if b.begin(b.buffer(op, "input", in, from.width), b.buffer(op, "output", x, from.width), b.ownRows(op, x), b.allRows(op, in)) {
		b.record(kernels.Op{Kind: kernels.OwnRows, In: int(in), Out: int(x)})
	}
}

// AddShares adds to each own row of x the sum over the ranks' values of that row
// in share, which is lost by it. share is shared, or of own rows where all ranks
// have the same.
func (b *Backend) AddShares(x, share tensor.Buffer) {
	const op = "add shares"
	from, _ := b.lookup(share)
	if !b.begin(b.buffer(op, "share", share, from.width), b.buffer(op, "output", x, from.width),
		b.ownRows(op, x), b.whole(op, share), b.apart(op, x, share)) {
		return
	}
	id, width := b.cfg.Group.ID(), from.width
	defer func() { b.record(kernels.Op{Kind: kernels.AddRows, In: int(share), Out: int(x)}) }()
	if !from.shared {
		b.equalRows = true
		b.collective(func(batch *tensor.Batch) error {
			return because(op, b.allReduce(b.prog.Data(int(share), batch.Rows()*width)))
		})
		return
	}
	b.collective(func(batch *tensor.Batch) error {
		first := sum(batch.RankRows[:id])
		src := b.prog.Data(int(share), sum(batch.RankRows)*width)
		dst := src[first*width : (first+batch.Rows())*width]
		return because(op, b.cfg.Group.ReduceScatter(context.Background(), dst, src, batch.RankRows, width))
	})
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
