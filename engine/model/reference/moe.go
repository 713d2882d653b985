package reference

import (
	"cmp"
	"math"
	"slices"

	"tandem/engine/tensor"
)

// MoE implements Ops.
func (b *Backend) MoE(out, x tensor.Buffer, m tensor.MoE) {
	width := b.buffers[x].width
	experts := b.matrices[m.Router].rows
	b.checkLinear("MoE router", x, m.Router, experts)
	b.checkVector("MoE norm", m.Norm, width)
	b.check(b.buffers[out].width == width, "MoE: output of width %d, want %d", b.buffers[out].width, width)
	b.check(m.Used > 0 && m.Used <= experts, "MoE: %d of %d experts are used", m.Used, experts)
	b.check(len(m.GateUp) > 0 && len(m.GateUp) == len(m.Down), "MoE: %d gate and up matrices, %d down", len(m.GateUp), len(m.Down))
	b.check(m.First >= 0 && m.First+len(m.GateUp) <= experts, "MoE: experts %d to %d of %d", m.First, m.First+len(m.GateUp), experts)
	for i := range min(len(m.GateUp), len(m.Down)) {
		gateUp, down := b.matrices[m.GateUp[i]], b.matrices[m.Down[i]]
		b.check(gateUp.cols == width && gateUp.rows == 2*down.cols && down.rows == width,
			"MoE expert %d: gate and up [%d, %d], down [%d, %d] for width %d", m.First+i, gateUp.rows, gateUp.cols, down.rows, down.cols, width)
	}
	b.checkRows("MoE", out, x)
	b.add(func(s *step) {
		for i := range b.rows(s, out) {
			y := b.mix(b.row(x, i), m)
			dst := b.row(out, i)
			for j := range dst {
				if out != x {
					dst[j] = 0
				}
				if y != nil {
					dst[j] += y[j]
				}
			}
		}
	})
}

// mix returns one row's weighted sum over its experts that are here, nil if there
// are none.
func (b *Backend) mix(x []float32, m tensor.MoE) []float32 {
	n := rmsNorm(x, b.vectors[m.Norm], m.Eps)
	logits := linear(n, b.matrices[m.Router], nil)
	order := make([]int, len(logits))
	for e := range order {
		order[e] = e
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(logits[j], logits[i]) })
	chosen, total := order[:m.Used], 0.0
	pool := order
	if m.Renorm {
		pool = chosen
	}
	weight := func(e int) float64 { return math.Exp(float64(logits[e]) - float64(logits[order[0]])) }
	for _, e := range pool {
		total += weight(e)
	}
	parts := make([][]float32, len(logits))
	for _, e := range chosen {
		if e >= m.First && e < m.First+len(m.GateUp) {
			parts[e] = b.expert(n, m.GateUp[e-m.First], m.Down[e-m.First], weight(e)/total)
		}
	}
	return treeSum(parts)
}

// expert returns the weighted output of one gated MLP.
func (b *Backend) expert(n []float32, gateUp, down tensor.Matrix, weight float64) []float32 {
	y := linear(n, b.matrices[gateUp], nil)
	h := make([]float32, b.matrices[down].cols)
	for j := range h {
		h[j] = float32(silu(y[j]) * float64(y[len(h)+j]))
	}
	out := linear(h, b.matrices[down], nil)
	for j, v := range out {
		out[j] = float32(weight * float64(v))
	}
	return out
}

// treeSum adds the halves of parts, each rounded to float32 as it would be on
// ranks of its own; nil without any part.
func treeSum(parts [][]float32) []float32 {
	if len(parts) == 1 {
		return parts[0]
	}
	a, b := treeSum(parts[:len(parts)/2]), treeSum(parts[len(parts)/2:])
	if a == nil || b == nil {
		return append(a, b...)
	}
	for i, v := range b {
		a[i] += v
	}
	return a
}
