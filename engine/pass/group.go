package pass

import (
	"fmt"

	"tandem/engine/tensor"
)

// begin is ok for a collective op, which needs a group.
func (r *Recorder) begin(checks ...error) bool {
	r.fail(r.open())
	if r.cfg.Ranks == 0 {
		r.fail(ErrNoGroup)
	}
	return r.ok(checks...)
}

// cuts checks column cuts; own is how many columns this rank must have, or -1.
func (r *Recorder) cuts(op string, cuts []int, own int) error {
	n := r.cfg.Ranks
	if n == 0 {
		return ErrNoGroup
	}
	if len(cuts) != n+1 || cuts[0] != 0 || cuts[n] > maxWidth {
		return fmt.Errorf("%s: cuts %v, must be %d from 0 to at most %d", op, cuts, n+1, maxWidth)
	}
	for i := range n {
		if cuts[i+1] < cuts[i] {
			return fmt.Errorf("%s: cuts %v, must ascend", op, cuts)
		}
	}
	if has := cuts[r.cfg.Rank+1] - cuts[r.cfg.Rank]; own >= 0 && has != own {
		return fmt.Errorf("%s: cuts %v give rank %d %d rows, its matrix has %d", op, cuts, r.cfg.Rank, has, own)
	}
	return nil
}

// GatherColumns completes a buffer of which each rank has written its columns.
func (r *Recorder) GatherColumns(h tensor.Buffer, cuts []int) {
	const op = "gather columns"
	if !r.begin() || !r.begin(r.cuts(op, cuts, -1)) || !r.begin(r.buffer(op, "it", h, cuts[len(cuts)-1])) {
		return
	}
	if !r.Buffers[h].Shared {
		r.EqualRows = true
	}
	r.collective(GatherColumns, h, h, append([]int(nil), cuts...))
}

// GatherRows sets out, which is shared, to the rows that all ranks have in x.
func (r *Recorder) GatherRows(out, x tensor.Buffer) {
	const op = "gather rows"
	to, _ := r.lookup(out)
	if r.begin(r.buffer(op, "output", out, to.Width), r.buffer(op, "input", x, to.Width),
		r.allRows(op, out), r.whole(op, out), r.ownRows(op, x), r.whole(op, x)) {
		r.collective(GatherRows, out, x, nil)
	}
}

// OwnRows sets x to this rank's rows of in, which is shared.
func (r *Recorder) OwnRows(x, in tensor.Buffer) {
	const op = "own rows"
	from, _ := r.lookup(in)
	if r.begin(r.buffer(op, "input", in, from.Width), r.buffer(op, "output", x, from.Width), r.ownRows(op, x), r.allRows(op, in)) {
		r.collective(OwnRows, x, in, nil)
	}
}

// AddShares adds to each own row of x the sum over the ranks' values of that row
// in share, which is lost by it. share is shared, or of own rows where all ranks
// have the same.
func (r *Recorder) AddShares(x, share tensor.Buffer) {
	const op = "add shares"
	from, _ := r.lookup(share)
	if !r.begin(r.buffer(op, "share", share, from.Width), r.buffer(op, "output", x, from.Width),
		r.ownRows(op, x), r.whole(op, share), r.apart(op, x, share)) {
		return
	}
	if !from.Shared {
		r.EqualRows = true
	}
	r.collective(AddShares, x, share, nil)
}

func (r *Recorder) collective(kind Kind, out, in tensor.Buffer, cuts []int) {
	r.record(Op{Kind: kind, In: in, Out: out, W: tensor.None, Norm: tensor.None, Bias: tensor.None, Cuts: cuts})
}
