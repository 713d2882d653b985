package pass

import (
	"fmt"

	"tandem/engine/tensor"
)

const maxWidth = 1 << 24

// Buffer declares an activation of width floats a row.
func (r *Recorder) Buffer(width int) tensor.Buffer { return r.declare(width, false) }

// Shared declares an activation of width floats for the rows of all ranks, rank
// 0's first.
func (r *Recorder) Shared(width int) tensor.Buffer {
	if r.cfg.Ranks == 0 {
		r.fail(ErrNoGroup)
		return tensor.None
	}
	r.SharesRows = true
	return r.declare(width, true)
}

func (r *Recorder) declare(width int, shared bool) tensor.Buffer {
	if r.open() != nil || width < 1 || width > maxWidth {
		r.fail(fmt.Errorf("buffer of width %d: must be 1 to %d, before the seal", width, maxWidth))
		return tensor.None
	}
	h := tensor.Buffer(len(r.Buffers))
	r.Buffers = append(r.Buffers, Buffer{Width: width, Root: h, Shared: shared})
	return h
}

// Columns is a view of the columns [first, first+width) of a buffer or view. The
// recording fails if there are none such.
func (r *Recorder) Columns(of tensor.Buffer, first, width int) tensor.Buffer {
	from, ok := r.lookup(of)
	switch {
	case r.open() != nil || !ok:
		r.fail(fmt.Errorf("columns: not a buffer"))
	case first < 0 || width < 1 || width > from.Width || first > from.Width-width:
		r.fail(fmt.Errorf("columns: %d from %d on of a buffer of %d", width, first, from.Width))
	default:
		r.Buffers = append(r.Buffers, Buffer{Width: width, Root: from.Root, First: from.First + first, Shared: from.Shared})
		return tensor.Buffer(len(r.Buffers) - 1)
	}
	return tensor.None
}

func (r *Recorder) lookup(h tensor.Buffer) (Buffer, bool) {
	if int(h) < 0 || int(h) >= len(r.Buffers) {
		return Buffer{}, false
	}
	return r.Buffers[h], true
}

// The checks below say nothing about handles that are not buffers: buffer does.

// buffer checks that a handle names a buffer of the given width.
func (r *Recorder) buffer(op, name string, h tensor.Buffer, width int) error {
	got, ok := r.lookup(h)
	if !ok {
		return fmt.Errorf("%s: %s is not a buffer", op, name)
	}
	if got.Width != width {
		return fmt.Errorf("%s: %s is %d wide, must be %d", op, name, got.Width, width)
	}
	return nil
}

// apart checks that two buffers have no column in common.
func (r *Recorder) apart(op string, x, y tensor.Buffer) error {
	p, ok := r.lookup(x)
	q, ok2 := r.lookup(y)
	if ok && ok2 && p.Root == q.Root && p.First < q.First+q.Width && q.First < p.First+p.Width {
		return fmt.Errorf("%s: input and output are the same buffer", op)
	}
	return nil
}

func (r *Recorder) sameOrApart(op string, x, y tensor.Buffer) error {
	if x == y {
		return nil
	}
	return r.apart(op, x, y)
}

// sameRows checks that both buffers are of the same rows.
func (r *Recorder) sameRows(op string, x, y tensor.Buffer) error {
	p, ok := r.lookup(x)
	q, ok2 := r.lookup(y)
	if ok && ok2 && p.Shared != q.Shared {
		return fmt.Errorf("%s: one buffer has this rank's rows, the other those of all ranks", op)
	}
	return nil
}

// ownRows checks that buffers are of this rank's rows.
func (r *Recorder) ownRows(op string, list ...tensor.Buffer) error {
	for _, h := range list {
		if got, ok := r.lookup(h); ok && got.Shared {
			return fmt.Errorf("%s: the buffer is shared, must be of this rank's rows", op)
		}
	}
	return nil
}

// allRows checks that a buffer is of the rows of all ranks.
func (r *Recorder) allRows(op string, h tensor.Buffer) error {
	if got, ok := r.lookup(h); ok && !got.Shared {
		return fmt.Errorf("%s: the buffer is of this rank's rows, must be shared", op)
	}
	return nil
}

// whole checks that a buffer is no view.
func (r *Recorder) whole(op string, h tensor.Buffer) error {
	if got, ok := r.lookup(h); ok && got.Root != h {
		return fmt.Errorf("%s: the buffer is a view, must be a whole one", op)
	}
	return nil
}
