package reference

import (
	"math"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

// mixture records a model of width 2 whose layer is a mixture of three experts.
// With unit weights an expert e gives silu(n)*n*(e+1), n the normalised row.
func mixture(t *testing.T, change func(*tensor.MoE)) *Backend {
	t.Helper()
	b, err := New(kv())
	if err != nil {
		t.Fatal(err)
	}
	table, _ := b.Matrix(host("emb", []int{2, 2}, 1, 0, 0, 1))
	ones, _ := b.Vector(host("ones", []int{2}, 1, 1))
	router, _ := b.Matrix(host("router", []int{3, 2}, 1, 0, 0, 1, 1, 0))
	eye := host("eye", []int{2, 2}, 1, 0, 0, 1)
	m := tensor.MoE{Norm: ones, Eps: 1e-6, Router: router, Used: 2, Renorm: true}
	for e := range 3 {
		g, _ := b.GateUp(eye, eye)
		d, _ := b.Matrix(host("down", []int{2, 2}, float32(e+1), 0, 0, float32(e+1)))
		m.GateUp, m.Down = append(m.GateUp, g), append(m.Down, d)
	}
	if change != nil {
		change(&m)
	}
	x, y := b.Buffer(2), b.Buffer(2)
	b.Embed(x, table)
	b.MoE(y, x, m)
	b.add(func(s *step) { s.logits = append(s.logits, b.row(y, 0), b.row(y, 1)) })
	return b
}

func TestMixtureByHand(t *testing.T) {
	silu := math.Sqrt2 / (1 + math.Exp(-math.Sqrt2)) * math.Sqrt2
	e := math.Exp(math.Sqrt2)
	for name, c := range map[string]struct {
		change func(*tensor.MoE)
		row0   float64 // token 0: experts 0 and 2 tie before 1
		row1   float64 // token 1: expert 1, then of 0 and 2 the lower id
	}{
		"sum of one":  {nil, silu * (1 + 3) / 2, silu * (2*e + 1) / (e + 1)},
		"all softmax": {func(m *tensor.MoE) { m.Renorm = false }, silu * 4 * e / (2*e + 1), silu * (2*e + 1) / (e + 2)},
		"share":       {func(m *tensor.MoE) { m.First, m.GateUp, m.Down = 1, m.GateUp[1:2], m.Down[1:2] }, 0, silu * 2 * e / (e + 1)},
	} {
		t.Run(name, func(t *testing.T) {
			var batch tensor.Batch
			batch.Reset()
			batch.Add([]int32{0, 1}, 0, []int32{0}, true)
			got, err := mixture(t, c.change).Run(&batch)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []float64{c.row0, c.row1} {
				if math.Abs(float64(got[i][i])-want) > 1e-5 || got[i][1-i] != 0 {
					t.Errorf("token %d gives %v, want %v", i, got[i], want)
				}
			}
		})
	}
}

func TestMixtureErrors(t *testing.T) {
	for want, change := range map[string]func(*tensor.MoE){
		"0 of 3 experts are used":          func(m *tensor.MoE) { m.Used = 0 },
		"4 of 3 experts are used":          func(m *tensor.MoE) { m.Used = 4 },
		"3 gate and up matrices, 2 down":   func(m *tensor.MoE) { m.Down = m.Down[:2] },
		"experts 1 to 4 of 3":              func(m *tensor.MoE) { m.First = 1 },
		"MoE expert 1: gate and up [2, 2]": func(m *tensor.MoE) { m.GateUp[1] = m.Down[1] },
	} {
		if _, err := mixture(t, change).Run(&tensor.Batch{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
