package pass

import (
	"fmt"

	"tandem/engine/tensor"
)

// MoE adds the weighted outputs of each row's experts to x, or with another
// buffer sets out to them; see the Ops interface of the models. Experts may
// differ in element type, not in shape.
func (r *Recorder) MoE(out, x tensor.Buffer, m tensor.MoE) {
	const op = "experts"
	router, err := r.matrix(op+" router", m.Router, false)
	r.record(Op{Kind: MoE, In: x, Out: out, W: m.Router, Norm: m.Norm, Bias: tensor.None, Eps: m.Eps, MoE: &m},
		err, r.vector(op, "norm", m.Norm, router.Cols, false), r.experts(op, router, m),
		r.buffer(op, "input", x, router.Cols), r.buffer(op, "output", out, router.Cols),
		r.sameOrApart(op, x, out), r.sameRows(op, x, out))
}

// experts checks the matrices against the router.
func (r *Recorder) experts(op string, router Matrix, m tensor.MoE) error {
	switch {
	case router.Rows > r.cfg.MaxExperts:
		return fmt.Errorf("%s: %d experts, at most %d are possible", op, router.Rows, r.cfg.MaxExperts)
	case m.Used < 1 || m.Used > min(router.Rows, r.cfg.MaxUsed):
		return fmt.Errorf("%s: %d of %d used, must be 1 to %d", op, m.Used, router.Rows, min(router.Rows, r.cfg.MaxUsed))
	case len(m.GateUp) < 1 || len(m.GateUp) != len(m.Down):
		return fmt.Errorf("%s: %d gate and up matrices and %d down matrices", op, len(m.GateUp), len(m.Down))
	case m.First < 0 || m.First > router.Rows-len(m.Down):
		return fmt.Errorf("%s: %d from %d on are held, there are %d", op, len(m.Down), m.First, router.Rows)
	}
	inter := 0 // of the first expert
	for i := range m.Down {
		g, err := r.matrix(op, m.GateUp[i], true)
		if err != nil {
			return err
		}
		d, err := r.matrix(op, m.Down[i], false)
		if err != nil {
			return err
		}
		if i == 0 {
			inter = d.Cols
		}
		if g.Cols != router.Cols || d.Rows != router.Cols || g.Rows != 2*d.Cols || d.Cols != inter {
			return fmt.Errorf("%s: expert %d has gate and up [%d, %d] and down [%d, %d], the first is %d wide, the router %d",
				op, m.First+i, g.Rows, g.Cols, d.Rows, d.Cols, inter, router.Cols)
		}
	}
	return nil
}
