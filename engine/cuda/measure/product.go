//go:build cuda

package measure

import (
	"fmt"
	"slices"

	"tandem/engine/cuda/gemm"
	"tandem/engine/cuda/gpu"
	kernels "tandem/kernels/cuda"
)

// weight is a linear layer of the model, [n, k].
type weight struct {
	name string
	n, k int
}

func (m Model) weights() []weight {
	return []weight{
		{"q, k and v", (m.Heads + 2*m.KVHeads) * m.HeadDim, m.Hidden},
		{"attention output", m.Hidden, m.Heads * m.HeadDim},
		{"gate and up", 2 * m.Inter, m.Hidden},
		{"down", m.Hidden, m.Inter},
		{"logits", m.Vocab, m.Hidden},
	}
}

// fewRows is the most rows for which the engine takes its own kernels.
const fewRows = 32

// turns are places for weights of so many bytes in the first buffer, of which call i takes the next.
func (b *bench) turns(bytes int64) (func(i int) gpu.Ptr, error) {
	bytes = (bytes + 255) &^ 255
	n := b.Bytes / bytes
	if n < 1 {
		return nil, fmt.Errorf("a weight of %d bytes does not fit %d", bytes, b.Bytes)
	}
	return func(i int) gpu.Ptr { return b.x.At(int64(i) % n * bytes) }, nil
}

// gemvs reads the largest weight of a layer in every format.
func (b *bench) gemvs() error {
	w := b.Model.weights()[2]
	for f := kernels.FormatBF16; f <= kernels.FormatF8; f++ {
		for _, rows := range []int{1, 8, fewRows} {
			if err := b.gemv("product, "+f.String()+" weight", f, w, rows); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) gemv(name string, f kernels.Format, w weight, rows int) error {
	r, err := kernels.GemvRows(rows)
	if err != nil {
		return err
	}
	k, err := b.kernel(fmt.Sprintf("td_gemv_%s_r%d", f, r))
	if err != nil {
		return err
	}
	at, err := b.turns(f.Bytes(w.n, w.k))
	if err != nil {
		return err
	}
	in := (int64(2*rows*w.k) + 255) &^ 255
	return b.report(product(name, rows, w, f.Bytes(w.n, w.k)), func(i int) error {
		b.args.Reset().Ptr(b.y.At(in)).Ptr(at(i)).Ptr(b.y).Ptr(0).I32(rows).I32(w.n).I32(w.k).I32(kernels.OutStore).I32(kernels.SiLU).I32(0)
		return b.launch(k, kernels.Gemv(w.n))
	})
}

func product(name string, rows int, w weight, bytes int64) Result {
	return Result{
		Name: name, Rows: rows, N: w.n, K: w.k, Flop: 2 * float64(rows) * float64(w.n) * float64(w.k),
		Bytes: float64(bytes) + float64(rows)*(2*float64(w.k)+4*float64(w.n)),
	}
}

// products runs those of the model's layers as the engine does, then the cube.
func (b *bench) products() error {
	for _, w := range b.Model.weights() {
		for _, rows := range b.Rows {
			if w.n == b.Model.Vocab && rows > slices.Max(b.Batches) && rows > fewRows {
				continue // only one token of a prompt needs logits
			}
			if err := b.layer(w, rows); err != nil {
				return fmt.Errorf("%s, %d rows: %w", w.name, rows, err)
			}
		}
	}
	w := weight{"", b.Cube, b.Cube}
	if err := b.own("product, cube, own kernel", w, b.Cube); err != nil || b.multi == nil {
		return err
	}
	op := gemm.Op{M: b.Cube, N: b.Cube, K: b.Cube, In: gemm.BF16, Out: gemm.BF16}
	size := int64(b.Cube) * int64(b.Cube) * 2
	if _, err := b.multi.Tune(b.s, op, b.y.At(size), b.y, b.x, 0); err != nil {
		return err
	}
	return b.report(product(Cube, b.Cube, w, size), func(int) error { return b.multi.Multiply(b.s, op, b.y.At(size), b.y, b.x, 0) })
}

func (b *bench) layer(w weight, rows int) error {
	name := "product, " + w.name
	switch {
	case rows <= fewRows:
		return b.gemv(name, kernels.FormatBF16, w, rows)
	case b.multi == nil:
		return b.own(name, w, rows)
	}
	at, err := b.turns(2 * int64(w.n) * int64(w.k))
	if err != nil {
		return err
	}
	in := (int64(2*rows*w.k) + 255) &^ 255
	op := gemm.Op{M: rows, N: w.n, K: w.k, In: gemm.BF16, Out: gemm.F32}
	return b.report(product(name, rows, w, 2*int64(w.n)*int64(w.k)), func(i int) error {
		return b.multi.Multiply(b.s, op, b.y.At(in), b.y, at(i), 0)
	})
}

// own measures the kernel that stands in where there is no cuBLASLt.
func (b *bench) own(name string, w weight, rows int) error {
	k, err := b.kernel("td_gemm_bf16")
	if err != nil {
		return err
	}
	l := kernels.Gemm(rows, w.n)
	if err := k.AllowShared(l.Shared); err != nil {
		return err
	}
	in := (int64(2*rows*w.k) + 255) &^ 255
	return b.report(product(name, rows, w, 2*int64(w.n)*int64(w.k)), func(int) error {
		b.args.Reset().Ptr(b.y.At(in)).Ptr(b.x).Ptr(b.y).Ptr(0).I32(rows).I32(w.n).I32(w.k).I32(kernels.OutStore).I32(kernels.SiLU).I32(0)
		return b.launch(k, l)
	})
}
