package reference

import (
	"context"
	"fmt"

	"tandem/engine/tensor"
)

// Group is what the backend of a rank needs of its peers. rows has the number of
// rows of each rank; a collective returns when all ranks have called it.
type Group interface {
	ID() int
	Size() int
	// AllGather sets dst [sum of rows, width] to the src [own rows, width] of all
	// ranks, one after another.
	AllGather(ctx context.Context, dst, src []float32, rows []int, width int) error
	// ReduceScatter sets dst [own rows, width] to the sum of these rows in the src
	// [sum of rows, width] of all ranks. src is scratch afterwards.
	ReduceScatter(ctx context.Context, dst, src []float32, rows []int, width int) error
}

// NewRank is New for a rank of a group, whose backends must run every batch
// together.
func NewRank(kv tensor.KVShape, group Group) (*Backend, error) {
	b, err := New(kv)
	if err == nil {
		b.group = group
	}
	return b, err
}

// Columns implements Ops.
func (b *Backend) Columns(h tensor.Buffer, first, width int) tensor.Buffer {
	of := b.buffers[h]
	b.check(first >= 0 && width > 0 && first+width <= of.width && of.view == tensor.None,
		"Columns: %d to %d of a buffer of width %d", first, first+width, of.width)
	b.buffers = append(b.buffers, buffer{width: width, shared: of.shared, view: h, first: first})
	return tensor.Buffer(len(b.buffers) - 1)
}

// Shared implements Ops.
func (b *Backend) Shared(width int) tensor.Buffer {
	h := b.Buffer(width)
	b.buffers[h].shared = true
	return h
}

// collective records what a rank does with its peers.
func (b *Backend) collective(f func(*step) error) {
	if b.group == nil {
		b.check(false, "the backend has no group")
		return
	}
	b.add(func(s *step) { s.err = f(s) })
}

// GatherColumns implements Ops.
func (b *Backend) GatherColumns(h tensor.Buffer, cuts []int) {
	b.checkCuts("GatherColumns", cuts, b.buffers[h].width)
	b.collective(func(s *step) error {
		rows := b.rows(s, h)
		if !b.buffers[h].shared {
			if err := s.equalRows(); err != nil {
				return err
			}
		}
		own := cuts[b.group.ID() : b.group.ID()+2]
		var part [][]float32
		for i := range rows {
			part = append(part, b.row(h, i)[own[0]:own[1]])
		}
		all, err := b.gatherColumns(part, cuts)
		for i := range all {
			copy(b.row(h, i), all[i])
		}
		return err
	})
}

// gatherColumns returns rows with the columns of all ranks, given this rank's.
func (b *Backend) gatherColumns(part [][]float32, cuts []int) ([][]float32, error) {
	rows, widths := len(part), make([]int, b.group.Size())
	var src []float32
	for r := range widths {
		widths[r] = cuts[r+1] - cuts[r]
	}
	for _, row := range part {
		src = append(src, row...)
	}
	// Each rank's block [rows, its width] is seen as its width rows of as many
	// elements as there are rows.
	dst := make([]float32, rows*cuts[len(widths)])
	if err := b.group.AllGather(context.Background(), dst, src, widths, rows); err != nil {
		return nil, err
	}
	out := make([][]float32, rows)
	for i := range out {
		for r, w := range widths {
			out[i] = append(out[i], dst[rows*cuts[r]+i*w:][:w]...)
		}
	}
	return out, nil
}

func (b *Backend) checkCuts(op string, cuts []int, width int) {
	ok := b.group != nil && len(cuts) == b.group.Size()+1 && cuts[0] == 0 && cuts[len(cuts)-1] == width
	for i := 1; ok && i < len(cuts); i++ {
		ok = cuts[i] >= cuts[i-1]
	}
	b.check(ok, "%s: cuts %v of %d columns", op, cuts, width)
}

// GatherRows implements Ops.
func (b *Backend) GatherRows(out, x tensor.Buffer) {
	b.checkShared("GatherRows", out, x)
	b.collective(func(s *step) error {
		return b.group.AllGather(context.Background(), b.buffers[out].data, b.buffers[x].data, s.RankRows, b.buffers[x].width)
	})
}

// OwnRows implements Ops.
func (b *Backend) OwnRows(x, in tensor.Buffer) {
	b.checkShared("OwnRows", in, x)
	b.add(func(s *step) {
		first := sum(s.RankRows[:b.group.ID()]) * b.buffers[x].width
		copy(b.buffers[x].data, b.buffers[in].data[first:])
	})
}

// checkShared verifies that rows of an own and of a shared buffer correspond.
func (b *Backend) checkShared(op string, shared, own tensor.Buffer) {
	s, o := b.buffers[shared], b.buffers[own]
	b.check(b.group != nil && s.shared && !o.shared && s.width == o.width && s.view == tensor.None && o.view == tensor.None,
		"%s: needs a shared buffer and own rows of one width, has %d and %d", op, s.width, o.width)
}

// AddShares implements Ops.
func (b *Backend) AddShares(x, share tensor.Buffer) {
	if b.buffers[share].shared {
		b.checkShared("AddShares", share, x)
	} else {
		b.check(b.buffers[x].width == b.buffers[share].width && b.buffers[share].view == tensor.None,
			"AddShares: share of width %d, want %d", b.buffers[share].width, b.buffers[x].width)
	}
	b.collective(func(s *step) error {
		sums := make([]float32, len(b.buffers[x].data))
		var err error
		if b.buffers[share].shared {
			err = b.group.ReduceScatter(context.Background(), sums, b.buffers[share].data, s.RankRows, b.buffers[x].width)
		} else if err = s.equalRows(); err == nil {
			err = b.allReduce(sums, b.buffers[share].data)
		}
		for i, v := range sums {
			b.buffers[x].data[i] += v
		}
		return err
	})
}

// allReduce sets out to the sum of in over the ranks; both have one length.
func (b *Backend) allReduce(out, in []float32) error {
	size, id := b.group.Size(), b.group.ID()
	counts := make([]int, size)
	for r := range counts {
		counts[r] = len(in)*(r+1)/size - len(in)*r/size
	}
	own := make([]float32, counts[id])
	if err := b.group.ReduceScatter(context.Background(), own, in, counts, 1); err != nil {
		return err
	}
	return b.group.AllGather(context.Background(), out, own, counts, 1)
}

// equalRows reports ranks with other rows than this one.
func (s *step) equalRows() error {
	for _, n := range s.RankRows {
		if n != s.Batch.Rows() {
			return fmt.Errorf("ranks have %v rows, all must have as many", s.RankRows)
		}
	}
	return nil
}

// checkGroup verifies that the batch tells the rows of all ranks.
func (b *Backend) checkGroup(batch *tensor.Batch) error {
	if b.group == nil {
		return nil
	}
	if id := b.group.ID(); len(batch.RankRows) != b.group.Size() || batch.RankRows[id] != batch.Rows() {
		return fmt.Errorf("rank %d of %d has %d rows, the batch tells %v", id, b.group.Size(), batch.Rows(), batch.RankRows)
	}
	return nil
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
