package cpu

import (
	"fmt"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// MoE adds the weighted outputs of each row's experts to x, or with another
// buffer sets out to them; see the Ops interface of the models. Experts may
// differ in element type, not in shape.
func (b *Backend) MoE(out, x tensor.Buffer, m tensor.MoE) {
	const op = "experts"
	router, err := b.matrix(op+" router", m.Router, false)
	norm, err1 := b.vector(op, "norm", m.Norm, router.Cols, false)
	gateUp, down, err2 := b.experts(op, router, m)
	index := 0
	if err == nil && err2 == nil && !b.closed && !b.sealed {
		index, err2 = b.prog.Experts(m.Used, m.Renorm, m.First, gateUp, down)
	}
	b.record(kernels.Op{Kind: kernels.MoE, In: int(x), Out: int(out), W: router, Norm: norm, Eps: m.Eps, Experts: index},
		err, err1, err2, b.buffer(op, "input", x, router.Cols), b.buffer(op, "output", out, router.Cols),
		b.sameOrApart(op, x, out), b.sameRows(op, x, out))
}

// experts resolves the matrices and checks them against the router.
func (b *Backend) experts(op string, router *kernels.Matrix, m tensor.MoE) (gateUp, down []*kernels.Matrix, err error) {
	switch {
	case router.Rows > kernels.MaxExperts:
		return nil, nil, fmt.Errorf("%s: %d experts, at most %d are possible", op, router.Rows, kernels.MaxExperts)
	case m.Used < 1 || m.Used > min(router.Rows, kernels.MaxUsed):
		return nil, nil, fmt.Errorf("%s: %d of %d used, must be 1 to %d", op, m.Used, router.Rows, min(router.Rows, kernels.MaxUsed))
	case len(m.GateUp) < 1 || len(m.GateUp) != len(m.Down):
		return nil, nil, fmt.Errorf("%s: %d gate and up matrices and %d down matrices", op, len(m.GateUp), len(m.Down))
	case m.First < 0 || m.First > router.Rows-len(m.Down):
		return nil, nil, fmt.Errorf("%s: %d from %d on are held, there are %d", op, len(m.Down), m.First, router.Rows)
	}
	for i := range m.Down {
		g, err := b.matrix(op, m.GateUp[i], true)
		if err != nil {
			return nil, nil, err
		}
		d, err := b.matrix(op, m.Down[i], false)
		if err != nil {
			return nil, nil, err
		}
		gateUp, down = append(gateUp, g), append(down, d)
		if g.Cols != router.Cols || d.Rows != router.Cols || g.Rows != 2*d.Cols || d.Cols != down[0].Cols {
			return nil, nil, fmt.Errorf("%s: expert %d has gate and up [%d, %d] and down [%d, %d], the first is %d wide, the router %d",
				op, m.First+i, g.Rows, g.Cols, d.Rows, d.Cols, down[0].Cols, router.Cols)
		}
	}
	return gateUp, down, nil
}
