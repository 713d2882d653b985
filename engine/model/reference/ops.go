package reference

import (
	"math"

	"tandem/engine/tensor"
)

// row returns row i of a buffer or view.
func (b *Backend) row(h tensor.Buffer, i int) []float32 {
	x := b.buffers[h]
	if x.view != tensor.None {
		return b.row(x.view, i)[x.first : x.first+x.width]
	}
	return x.data[i*x.width : (i+1)*x.width]
}

// rows returns how many rows a buffer has in a step.
func (b *Backend) rows(s *step, h tensor.Buffer) int {
	if b.buffers[h].shared {
		return sum(s.RankRows)
	}
	return s.Rows()
}

// checkRows verifies that out has a row for each row of in.
func (b *Backend) checkRows(op string, out, in tensor.Buffer) {
	b.check(b.buffers[out].shared == b.buffers[in].shared, "%s: rows of one rank and of all", op)
}

func (b *Backend) add(f func(*step)) { b.steps = append(b.steps, f) }

// Embed implements Ops.
func (b *Backend) Embed(out tensor.Buffer, table tensor.Matrix) {
	m := b.matrices[table]
	b.check(m.cols == b.buffers[out].width, "Embed: table of width %d into %d", m.cols, b.buffers[out].width)
	b.embed = m.rows
	b.add(func(s *step) {
		for i, t := range s.Tokens {
			copy(b.row(out, i), m.data[int(t)*m.cols:])
		}
	})
}

// AttnInput implements Ops.
func (b *Backend) AttnInput(q, x tensor.Buffer, a tensor.AttnInput) {
	qDim, kvDim := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	b.checkLinear("AttnInput", x, a.QKV, qDim+2*kvDim)
	b.checkVector("AttnInput norm", a.Norm, b.buffers[x].width)
	b.checkVector("AttnInput bias", a.Bias, qDim+2*kvDim)
	b.checkVector("AttnInput q norm", a.QNorm, a.HeadDim)
	b.checkVector("AttnInput k norm", a.KNorm, a.HeadDim)
	b.check(b.buffers[q].width == qDim, "AttnInput: q of width %d, want %d", b.buffers[q].width, qDim)
	b.checkCache("AttnInput", a.Layer, a.KVHeads, a.HeadDim)
	r := a.RoPE
	b.check(r.Dims%2 == 0 && r.Dims <= a.HeadDim && len(r.InvFreq) == r.Dims/2, "AttnInput: RoPE over %d of %d dimensions with %d frequencies", r.Dims, a.HeadDim, len(r.InvFreq))
	b.add(func(s *step) {
		for i := range s.Rows() {
			n := rmsNorm(b.row(x, i), b.vectors[a.Norm], a.Eps)
			qkv := linear(n, b.matrices[a.QKV], b.optional(a.Bias))
			for h := range a.Heads + a.KVHeads {
				head, norm := qkv[h*a.HeadDim:(h+1)*a.HeadDim], a.QNorm
				if h >= a.Heads {
					norm = a.KNorm
				}
				if norm != tensor.None {
					copy(head, rmsNorm(head, b.vectors[norm], a.Eps))
				}
				rotate(head, a.RoPE, s.pos[i])
			}
			copy(b.row(q, i), qkv[:qDim])
			for h := range a.KVHeads {
				k := qkv[qDim+h*a.HeadDim:][:a.HeadDim]
				v := qkv[qDim+kvDim+h*a.HeadDim:][:a.HeadDim]
				b.store(b.at(s, s.seq[i], a.Layer, 0, h, s.pos[i]), k)
				b.store(b.at(s, s.seq[i], a.Layer, 1, h, s.pos[i]), v)
			}
		}
	})
}

func (b *Backend) checkCache(op string, layer, kvHeads, headDim int) {
	b.check(layer >= 0 && layer < b.kv.Layers && kvHeads == b.kv.KVHeads && headDim == b.kv.HeadDim,
		"%s: layer %d with %d heads of %d does not fit the cache %+v", op, layer, kvHeads, headDim, b.kv)
}

func (b *Backend) optional(v tensor.Vector) []float32 {
	if v == tensor.None {
		return nil
	}
	return b.vectors[v]
}

// store writes to the cache in its element type.
func (b *Backend) store(dst, src []float32) {
	for i, x := range src {
		if b.kv.DType == tensor.BF16 {
			x = roundBF16(x)
		}
		dst[i] = x
	}
}

// roundBF16 rounds to nearest, ties to even.
func roundBF16(x float32) float32 {
	bits := math.Float32bits(x)
	if bits&0x7fffffff > 0x7f800000 {
		return x // NaN stays NaN
	}
	bits += 0x7fff + bits>>16&1
	return math.Float32frombits(bits &^ 0xffff)
}

// Scale implements Ops.
func (b *Backend) Scale(x tensor.Buffer, factor float32) {
	b.add(func(s *step) {
		for i := range b.rows(s, x) {
			for j, row := 0, b.row(x, i); j < len(row); j++ {
				row[j] *= factor
			}
		}
	})
}

// Attention implements Ops.
func (b *Backend) Attention(out, q tensor.Buffer, a tensor.Attn) {
	dim := a.Heads * a.HeadDim
	b.check(b.buffers[out].width == dim && b.buffers[q].width == dim, "Attention: buffers of %d and %d, want %d", b.buffers[out].width, b.buffers[q].width, dim)
	b.check(a.KVHeads > 0 && a.Heads%a.KVHeads == 0, "Attention: %d heads over %d", a.Heads, a.KVHeads)
	b.checkCache("Attention", a.Layer, a.KVHeads, a.HeadDim)
	b.add(func(s *step) {
		for i := range s.Rows() {
			for h := range a.Heads {
				from := h * a.HeadDim
				b.attend(s, i, h/(a.Heads/a.KVHeads), a, b.row(q, i)[from:from+a.HeadDim], b.row(out, i)[from:from+a.HeadDim])
			}
		}
	})
}

// attend computes one query head: softmax of scaled dots over the positions up
// to the row's own that it sees, then the weighted sum of values.
func (b *Backend) attend(s *step, row, kvHead int, a tensor.Attn, q, out []float32) {
	seq, last := s.seq[row], s.pos[row]
	first := 0
	if a.Window > 0 {
		first = max(0, last+1-a.Window)
	}
	score := make([]float64, last+1-first)
	top := math.Inf(-1)
	for p := range score {
		score[p] = dot(q, b.at(s, seq, a.Layer, 0, kvHead, first+p)) * float64(a.Scale)
		top = math.Max(top, score[p])
	}
	sum := 0.0
	for p, x := range score {
		score[p] = math.Exp(x - top)
		sum += score[p]
	}
	acc := make([]float64, len(out))
	for p, w := range score {
		for d, v := range b.at(s, seq, a.Layer, 1, kvHead, first+p) {
			acc[d] += w / sum * float64(v)
		}
	}
	for d, x := range acc {
		out[d] = float32(x)
	}
}

// AddLinear implements Ops.
func (b *Backend) AddLinear(x, in tensor.Buffer, w tensor.Matrix, bias tensor.Vector) {
	b.checkLinear("AddLinear", in, w, b.buffers[x].width)
	b.checkVector("AddLinear bias", bias, b.buffers[x].width)
	b.checkRows("AddLinear", x, in)
	b.add(func(s *step) {
		for i := range b.rows(s, x) {
			dst := b.row(x, i)
			for j, y := range linear(b.row(in, i), b.matrices[w], b.optional(bias)) {
				dst[j] += y
			}
		}
	})
}

// Linear implements Ops.
func (b *Backend) Linear(out, in tensor.Buffer, w tensor.Matrix) {
	b.checkLinear("Linear", in, w, b.buffers[out].width)
	b.checkRows("Linear", out, in)
	b.add(func(s *step) {
		for i := range b.rows(s, out) {
			copy(b.row(out, i), linear(b.row(in, i), b.matrices[w], nil))
		}
	})
}

// AddNorm implements Ops.
func (b *Backend) AddNorm(x, in tensor.Buffer, norm tensor.Vector, eps float32) {
	b.check(b.buffers[x].width == b.buffers[in].width, "AddNorm: buffers of %d and %d", b.buffers[x].width, b.buffers[in].width)
	b.checkVector("AddNorm norm", norm, b.buffers[x].width)
	b.checkRows("AddNorm", x, in)
	b.add(func(s *step) {
		for i := range b.rows(s, x) {
			dst := b.row(x, i)
			for j, y := range rmsNorm(b.row(in, i), b.vectors[norm], eps) {
				dst[j] += y
			}
		}
	})
}

// GatedMLP implements Ops.
func (b *Backend) GatedMLP(out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix) {
	b.gated(silu, out, x, norm, eps, gateUp)
}

// GatedGELU implements Ops.
func (b *Backend) GatedGELU(out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix) {
	b.gated(gelu, out, x, norm, eps, gateUp)
}

func (b *Backend) gated(act func(float32) float64, out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix) {
	inter := b.buffers[out].width
	b.checkLinear("GatedMLP", x, gateUp, 2*inter)
	b.checkVector("GatedMLP norm", norm, b.buffers[x].width)
	b.checkRows("GatedMLP", out, x)
	b.add(func(s *step) {
		for i := range b.rows(s, out) {
			y := linear(rmsNorm(b.row(x, i), b.vectors[norm], eps), b.matrices[gateUp], nil)
			dst := b.row(out, i)
			for j := range dst {
				dst[j] = float32(act(y[j]) * float64(y[inter+j]))
			}
		}
	})
}

// Logits implements Ops.
func (b *Backend) Logits(x tensor.Buffer, norm tensor.Vector, eps float32, head tensor.Matrix, cuts []int) {
	b.checkLinear("Logits", x, head, b.matrices[head].rows)
	b.checkVector("Logits norm", norm, b.buffers[x].width)
	rows := func(s *step) {
		for _, r := range s.LogitRows {
			s.logits = append(s.logits, linear(rmsNorm(b.row(x, int(r)), b.vectors[norm], eps), b.matrices[head], nil))
		}
	}
	b.add(rows)
	if cuts == nil {
		return
	}
	b.checkCuts("Logits", cuts, cuts[len(cuts)-1])
	b.collective(func(s *step) (err error) {
		s.logits, err = b.gatherColumns(s.logits, cuts)
		return err
	})
}
