//go:build cuda

package cuda

import (
	"fmt"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// experts is a layer's mixture of experts on the device.
type experts struct {
	*tensor.MoE
	hidden, inter, all, held int
	router                   gpu.Ptr // f32 [experts, hidden]
	gateUp, down             matrix  // of the first expert held; the others follow
	sums                     map[int]sum
	fixed                    int // what per always is, 0 = by rows
}

// sum is the kernels for runs of so many slots.
type sum struct {
	gateUp, down *kernel
	gemm         bool
}

// moeScratch is what experts need between kernels, for the largest layer.
type moeScratch struct {
	logits, expert, weight  gpu.Ptr // [rows, experts], [rows, used], [rows, used]
	slot, slotRow           gpu.Ptr // [rows*used]
	runs, runCount          gpu.Ptr
	mid, out                gpu.Ptr // bf16 [slots, inter], f32 [slots, hidden]
	rows, used, all, widest int     // that there is room for
}

func (b *Backend) moe(op *pass.Op) (step, error) {
	m, err := b.experts(op.MoE)
	if err != nil {
		return nil, err
	}
	norm, err := b.norm(op)
	if err != nil {
		return nil, err
	}
	k := map[string]*kernel{}
	for _, name := range []string{"td_router", "td_router_few", "td_moe_route", "td_moe_sort", "td_moe_combine_f32"} {
		if k[name], err = b.code.find(name); err != nil {
			return nil, err
		}
	}
	x, out, weight := b.buffers[op.In], b.buffers[op.Out], b.vectors[op.Norm]
	if out.view() {
		return nil, fmt.Errorf("experts of a view are not supported on CUDA")
	}
	return func(s *shape) error {
		rows := s.rowsOf(&x)
		if rows == 0 {
			return nil
		}
		if err := norm(s); err != nil {
			return err
		}
		if err := b.route(m, k, x.at, weight, rows); err != nil {
			return err
		}
		if err := b.mix(m, rows); err != nil {
			return err
		}
		add := 0
		if op.In == op.Out {
			add = 1
		}
		t := &b.scratch.moe
		b.args.Reset().Ptr(out.at).Ptr(t.out).Ptr(t.slot).Ptr(t.weight).I32(m.Used).I32(m.hidden).I32(add)
		return b.launch(k["td_moe_combine_f32"], kernels.MoECombine(rows, m.hidden))
	}, nil
}

// route finds the experts of each row and puts the rows in their order.
func (b *Backend) route(m *experts, k map[string]*kernel, x, norm gpu.Ptr, rows int) error {
	t, renorm := &b.scratch.moe, 0
	if m.Renorm {
		renorm = 1
	}
	router := kernels.Router
	if b.cfg.Deterministic {
		router = kernels.RouterAny
	}
	name, l := router(rows, m.all)
	b.args.Reset().Ptr(t.logits).Ptr(x).Ptr(norm).Ptr(m.router).I32(rows).I32(m.all).I32(m.hidden).F32(m.Eps)
	if err := b.launch(k[name], l); err != nil {
		return err
	}
	b.args.Reset().Ptr(t.expert).Ptr(t.weight).Ptr(t.logits).I32(rows).I32(m.all).I32(m.Used).I32(renorm)
	if err := b.launch(k["td_moe_route"], kernels.MoERoute(rows)); err != nil {
		return err
	}
	b.args.Reset().Ptr(t.slot).Ptr(t.slotRow).Ptr(t.runs).Ptr(t.runCount).Ptr(t.expert).I32(rows * m.Used).I32(m.Used).
		I32(m.First).I32(m.held).I32(m.per(rows))
	return b.launch(k["td_moe_sort"], kernels.MoESort())
}

// per is the most rows of an expert that one pass over its weight takes.
func (m *experts) per(rows int) int {
	if m.fixed > 0 {
		return m.fixed
	}
	mean := rows * m.Used / m.all
	if _, ok := m.sums[kernels.GemmRows]; ok && mean > fewRows {
		return kernels.GemmRows
	}
	n, err := kernels.GemvRows(max(1, mean))
	if err != nil {
		return fewRows
	}
	return n
}

// mix computes what the experts make of their rows.
func (b *Backend) mix(m *experts, rows int) error {
	t, per := &b.scratch.moe, m.per(rows)
	sum, most := m.sums[per], kernels.MaxRuns(rows*m.Used, m.held, per)
	for _, p := range []struct {
		k        *kernel
		y, x     gpu.Ptr
		row      gpu.Ptr
		w        *matrix
		mode     int
		n, width int
	}{
		{sum.gateUp, t.mid, b.scratch.normed, t.slotRow, &m.gateUp, kernels.OutGated, 2 * m.inter, m.hidden},
		{sum.down, t.out, t.mid, 0, &m.down, kernels.OutStore, m.hidden, m.inter},
	} {
		b.args.Reset().Ptr(p.y).Ptr(p.w.at).Ptr(p.x).Ptr(p.row).Ptr(t.runs).Ptr(t.runCount).I64(p.w.bytes).I32(p.n).I32(p.width).
			I32(p.mode).I32(kernels.SiLU)
		l := kernels.MoEGemv(p.n, most)
		if sum.gemm {
			l = kernels.MoEGemm(p.n, most)
		}
		if err := b.launch(p.k, l); err != nil {
			return err
		}
	}
	return nil
}

// experts puts the matrices of a layer one behind the other and finds its kernels.
func (b *Backend) experts(moe *tensor.MoE) (*experts, error) {
	router := b.matrices[moe.Router]
	m := &experts{MoE: moe, hidden: router.k, all: router.n, held: len(moe.Down), sums: map[int]sum{}}
	if router.plain == nil {
		return nil, fmt.Errorf("experts: a quantised router is not supported on CUDA")
	}
	var err error
	if m.router, err = b.put(floatBytes(router.plain)); err != nil {
		return nil, err
	}
	b.scratch.owned = append(b.scratch.owned, m.router)
	if m.gateUp, err = b.join(moe.GateUp); err != nil {
		return nil, err
	}
	if m.down, err = b.join(moe.Down); err != nil {
		return nil, err
	}
	m.inter = m.down.k
	if b.cfg.Deterministic {
		m.fixed = fewRows
	}
	sizes := []int{8, 16, 32}
	if m.gateUp.format == kernels.FormatBF16 && m.down.format == kernels.FormatBF16 {
		sizes = append(sizes, kernels.GemmRows)
	}
	for _, n := range sizes {
		one, name := sum{gemm: n == kernels.GemmRows}, "td_moe_gemv_%s_r%d"
		if one.gemm {
			one.gateUp, err = b.large("td_moe_gemm_bf16", kernels.MoEGemm(m.hidden, 1))
			one.down = one.gateUp
		} else if one.gateUp, err = b.code.find(fmt.Sprintf(name, m.gateUp.format, n)); err == nil {
			one.down, err = b.code.find(fmt.Sprintf(name, m.down.format, n))
		}
		if err != nil {
			return nil, err
		}
		m.sums[n] = one
	}
	return m, nil
}

// join moves matrices of one shape and format to one piece of memory.
func (b *Backend) join(list []tensor.Matrix) (matrix, error) {
	first := b.matrices[list[0]]
	at, err := b.alloc(int64(len(list)) * first.bytes)
	if err != nil {
		return matrix{}, fmt.Errorf("experts: %w", err)
	}
	for i, h := range list {
		m := &b.matrices[h]
		if m.format != first.format || m.n != first.n || m.k != first.k {
			return matrix{}, fmt.Errorf("experts: expert %d is [%d, %d] in %s, the first [%d, %d] in %s: they must be alike on CUDA",
				i, m.n, m.k, m.format, first.n, first.k, first.format)
		}
		if err := b.stream.Copy(at.At(int64(i)*first.bytes), m.at, m.bytes); err != nil {
			return matrix{}, err
		}
		if err := b.stream.Sync(); err != nil {
			return matrix{}, err
		}
		if err := b.dev.Free(m.at); err != nil {
			return matrix{}, err
		}
		m.at = 0
	}
	first.at = at
	return first, nil
}

// large finds a kernel that takes more shared memory than the usual.
func (b *Backend) large(name string, l kernels.Launch) (*kernel, error) {
	k, err := b.code.find(name)
	if err != nil {
		return nil, err
	}
	return k, k.AllowShared(l.Shared)
}

// openMoE allocates the scratch for the largest layer of the pass.
func (b *Backend) openMoE(rows int) error {
	t := &b.scratch.moe
	for i := range b.Ops {
		m := b.Ops[i].MoE
		if m == nil {
			continue
		}
		router := b.matrices[m.Router]
		t.rows, t.used, t.all = rows, max(t.used, m.Used), max(t.all, router.n)
		t.widest = max(t.widest, router.k, b.matrices[m.Down[0]].k)
	}
	if t.rows == 0 {
		return nil
	}
	slots := int64(t.rows) * int64(t.used)
	for _, a := range []struct {
		to    *gpu.Ptr
		bytes int64
	}{
		{&t.logits, int64(t.rows) * int64(t.all) * 4},
		{&t.expert, slots * 4},
		{&t.weight, slots * 4},
		{&t.slot, slots * 4},
		{&t.slotRow, slots * 4},
		{&t.runs, int64(kernels.MaxRuns(int(slots), t.all, 8)) * 16},
		{&t.runCount, 4},
		{&t.mid, slots * int64(t.widest) * 2},
		{&t.out, slots * int64(t.widest) * 4},
	} {
		var err error
		if *a.to, err = b.alloc(a.bytes); err != nil {
			return fmt.Errorf("scratch memory of experts: %w; lower max_num_tokens", err)
		}
	}
	return nil
}
