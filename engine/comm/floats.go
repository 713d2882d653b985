package comm

import (
	"context"
	"fmt"
)

// AllGather concatenates the rows of all ranks; see Comm.
func (r *Rank) AllGather(ctx context.Context, dst, src []float32, rows []int, width int) error {
	total, err := r.measure(rows, width, r.Size())
	if err != nil {
		return err
	}
	if own := rows[r.id] * width; len(src) != own || len(dst) != total {
		return fmt.Errorf("all-gather of rank %d: src and dst have %d and %d elements, want %d and %d",
			r.id, len(src), len(dst), own, total)
	}
	r.call = call{op: OpAllGather, rows: rows, width: width}
	return r.transfer(ctx, dst, src, r.copyRows)
}

// ReduceScatter sums each rank's part over all ranks; see Comm.
func (r *Rank) ReduceScatter(ctx context.Context, dst, src []float32, rows []int, width int) error {
	total, err := r.measure(rows, width, r.Size())
	if err != nil {
		return err
	}
	if own := rows[r.id] * width; len(dst) != own || len(src) != total {
		return fmt.Errorf("reduce-scatter of rank %d: src and dst have %d and %d elements, want %d and %d",
			r.id, len(src), len(dst), total, own)
	}
	r.call = call{op: OpReduceScatter, rows: rows, width: width}
	return r.transfer(ctx, dst, src, r.reduceParts)
}

// AllToAll brings each row to one rank; see Comm.
func (r *Rank) AllToAll(ctx context.Context, dst, src []float32, rows []int, width int) error {
	size := r.Size()
	if _, err := r.measure(rows, width, size*size); err != nil {
		return err
	}
	do := call{op: OpAllToAll, rows: rows, width: width}
	in, out := 0, do.prefix(r.id, size, size)
	for from := range size {
		in += rows[from*size+r.id] * width
	}
	if len(src) != out || len(dst) != in {
		return fmt.Errorf("all-to-all of rank %d: src and dst have %d and %d elements, want %d and %d",
			r.id, len(src), len(dst), out, in)
	}
	r.call = do
	return r.transfer(ctx, dst, src, r.pickRows)
}

// AllReduce sums x over all ranks; see Comm.
func (r *Rank) AllReduce(ctx context.Context, x []float32) error {
	r.call = call{op: OpAllReduce, n: len(x)}
	return r.transfer(ctx, x, x, r.reduceShare)
}

// measure returns the number of elements of all ranks together. A mistake here
// is the caller's own and leaves the group as it is.
func (r *Rank) measure(rows []int, width, counts int) (total int, err error) {
	if len(rows) != counts || width < 0 {
		return 0, fmt.Errorf("rank %d: %d row counts of width %d for %d ranks", r.id, len(rows), width, r.Size())
	}
	for i, n := range rows {
		if n < 0 {
			return 0, fmt.Errorf("rank %d: row count %d is %d", r.id, i, n)
		}
		total += n * width
	}
	return total, nil
}

// transfer shows the ranks each other's memory, lets each do its share, and
// returns when all are done.
func (r *Rank) transfer(ctx context.Context, dst, src []float32, share func()) error {
	h := r.hub
	if h.bar.over() {
		return h.cause()
	}
	h.src[r.id], h.dst[r.id] = src, dst
	if err := r.meet(ctx); err != nil {
		return err
	}
	if !r.enter() {
		err := h.cause()
		h.quiet()
		return err
	}
	share()
	r.busy.Store(false)
	r.call.second = true
	return r.meet(ctx)
}

// copyRows is a rank's share of an all-gather: everybody's rows into its dst.
func (r *Rank) copyRows() {
	h, dst := r.hub, r.hub.dst[r.id]
	for i, n := range r.call.rows {
		n *= r.call.width
		if n > 0 && &dst[0] != &h.src[i][0] {
			copy(dst, h.src[i])
		}
		dst = dst[n:]
	}
}

// pickRows is a rank's share of an all-to-all: what each rank has for it.
func (r *Rank) pickRows() {
	h, dst, do := r.hub, r.hub.dst[r.id], &r.call
	for from := range h.src {
		begin := 0 // of what lies in src, which from another process is a part
		if h.up != nil && !h.up.reduces() && !h.span.Has(from) {
			begin = do.prefix(from, h.span.First, r.Size())
		}
		lo, hi := do.prefix(from, r.id, r.Size()), do.prefix(from, r.id+1, r.Size())
		dst = dst[copy(dst, h.src[from][lo-begin:hi-begin]):]
	}
}

// reduceShare is a rank's share of an all-reduce: one stretch of the elements,
// summed and written back for everybody. No other rank touches that stretch.
func (r *Rank) reduceShare() {
	h := r.hub
	if h.up != nil && !h.up.reduces() {
		return
	}
	lo, hi := share(r.call.n, r.seat, len(h.ranks))
	r.sumInto(nil, lo, hi)
}

// reduceParts is a rank's share of a reduce-scatter: its own part, and the parts
// of ranks of other processes in turn.
func (r *Rank) reduceParts() {
	h := r.hub
	if h.up != nil && !h.up.reduces() {
		return
	}
	lo := 0
	for i, n := range r.call.rows {
		hi := lo + n*r.call.width
		switch {
		case i == r.id:
			r.sumInto(h.dst[i], lo, hi)
		case !h.span.Has(i) && i%len(h.ranks) == r.seat:
			r.sumInto(h.src[i][lo:hi], lo, hi)
		}
		lo = hi
	}
}
