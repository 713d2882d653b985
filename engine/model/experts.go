package model

import (
	"fmt"

	"tandem/engine/tensor"
)

func (l *loader) expert(name string, expert, experts, rows, cols int) tensor.Host {
	if l.err != nil {
		return tensor.Host{}
	}
	h, err := l.ck.Expert(name, expert, experts, rows, cols)
	l.err = err
	return h
}

// router fetches a layer's router decoded if it is quantised: which experts a
// row gets must not depend on rounded activations.
func (l *loader) router(name string, experts, hidden int) tensor.Host {
	h := l.tensor(name, experts, hidden)
	if l.err == nil && h.DType.GroupElems() > 1 {
		h, l.err = toF32(h)
	}
	return h
}

// loadExperts loads the experts of a layer that the rank holds.
func (l *llama) loadExperts(layer int, norm tensor.Vector) *tensor.MoE {
	c, m := l.c, &l.c.MoE
	name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", layer, part) }
	first, n := l.p.experts(m.Experts)
	y := &tensor.MoE{Norm: norm, Eps: c.Eps, Used: m.Used, Renorm: m.Renorm, First: first}
	y.Router = l.matrix(l.router(name("ffn_gate_inp"), m.Experts, c.Hidden))
	for e := first; e < first+n; e++ {
		y.GateUp = append(y.GateUp, l.gateUp(
			l.expert(name("ffn_gate_exps"), e, m.Experts, m.Inter, c.Hidden),
			l.expert(name("ffn_up_exps"), e, m.Experts, m.Inter, c.Hidden)))
		y.Down = append(y.Down, l.matrix(l.expert(name("ffn_down_exps"), e, m.Experts, c.Hidden, m.Inter)))
		if l.err != nil {
			break
		}
	}
	return y
}
