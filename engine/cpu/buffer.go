package cpu

import (
	"fmt"

	"tandem/engine/tensor"
)

// buffer is an activation, or a view of columns of one.
type buffer struct {
	width  int
	root   int // itself, or what it is a view of
	first  int // its first column there
	shared bool
}

const maxWidth = 1 << 24

// Buffer declares an activation of width floats a row.
func (b *Backend) Buffer(width int) tensor.Buffer { return b.declare(width, false) }

// Shared declares an activation of width floats for the rows of all ranks, rank
// 0's first.
func (b *Backend) Shared(width int) tensor.Buffer {
	if b.cfg.Group == nil {
		b.fail(errNoGroup)
		return tensor.None
	}
	b.sharesRows = true
	return b.declare(width, true)
}

func (b *Backend) declare(width int, shared bool) tensor.Buffer {
	if b.closed || b.sealed || width < 1 || width > maxWidth {
		b.fail(fmt.Errorf("buffer of width %d: must be 1 to %d, before the seal", width, maxWidth))
		return tensor.None
	}
	i, err := b.prog.Buffer(width, shared)
	if err != nil {
		b.fail(err)
		return tensor.None
	}
	b.buffers = append(b.buffers, buffer{width: width, root: i, shared: shared})
	return tensor.Buffer(i)
}

// Columns is a view of the columns [first, first+width) of a buffer or view. The
// recording fails if there are none such.
func (b *Backend) Columns(of tensor.Buffer, first, width int) tensor.Buffer {
	switch from, ok := b.lookup(of); {
	case b.closed || b.sealed || !ok:
		b.fail(fmt.Errorf("columns: not a buffer"))
	case first < 0 || width < 1 || width > from.width || first > from.width-width:
		b.fail(fmt.Errorf("columns: %d from %d on of a buffer of %d", width, first, from.width))
	default:
		i, err := b.prog.View(int(of), first, width)
		if err != nil {
			b.fail(err)
			break
		}
		b.buffers = append(b.buffers, buffer{width: width, root: from.root, first: from.first + first, shared: from.shared})
		return tensor.Buffer(i)
	}
	return tensor.None
}

func (b *Backend) lookup(h tensor.Buffer) (buffer, bool) {
	if int(h) < 0 || int(h) >= len(b.buffers) {
		return buffer{}, false
	}
	return b.buffers[h], true
}

// The checks below say nothing about handles that are not buffers: buffer does.

// buffer checks that a handle names a buffer of the given width.
func (b *Backend) buffer(op, name string, h tensor.Buffer, width int) error {
	got, ok := b.lookup(h)
	if !ok {
		return fmt.Errorf("%s: %s is not a buffer", op, name)
	}
	if got.width != width {
		return fmt.Errorf("%s: %s is %d wide, must be %d", op, name, got.width, width)
	}
	return nil
}

// apart checks that two buffers have no column in common.
func (b *Backend) apart(op string, x, y tensor.Buffer) error {
	p, ok := b.lookup(x)
	q, ok2 := b.lookup(y)
	if ok && ok2 && p.root == q.root && p.first < q.first+q.width && q.first < p.first+p.width {
		return fmt.Errorf("%s: input and output are the same buffer", op)
	}
	return nil
}

func (b *Backend) sameOrApart(op string, x, y tensor.Buffer) error {
	if x == y {
		return nil
	}
	return b.apart(op, x, y)
}

// sameRows checks that both buffers are of the same rows.
func (b *Backend) sameRows(op string, x, y tensor.Buffer) error {
	p, ok := b.lookup(x)
	q, ok2 := b.lookup(y)
	if ok && ok2 && p.shared != q.shared {
		return fmt.Errorf("%s: one buffer has this rank's rows, the other those of all ranks", op)
	}
	return nil
}

// ownRows checks that buffers are of this rank's rows.
func (b *Backend) ownRows(op string, list ...tensor.Buffer) error {
	for _, h := range list {
		if got, ok := b.lookup(h); ok && got.shared {
			return fmt.Errorf("%s: the buffer is shared, must be of this rank's rows", op)
		}
	}
	return nil
}

// allRows checks that a buffer is of the rows of all ranks.
func (b *Backend) allRows(op string, h tensor.Buffer) error {
	if got, ok := b.lookup(h); ok && !got.shared {
		return fmt.Errorf("%s: the buffer is of this rank's rows, must be shared", op)
	}
	return nil
}

// whole checks that a buffer is no view.
func (b *Backend) whole(op string, h tensor.Buffer) error {
	if got, ok := b.lookup(h); ok && got.root != int(h) {
		return fmt.Errorf("%s: the buffer is a view, must be a whole one", op)
	}
	return nil
}
