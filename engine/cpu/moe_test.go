package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

var moeShape = shape{
	layers: 1, hidden: 64, heads: 2, kvHeads: 2, headDim: 16, inter: 48, vocab: 30, dtype: tensor.F32,
	experts: 16, used: 5,
}

func moeConfig(rows int) Config {
	return Config{Threads: 2, MaxRows: rows, KV: tensor.KVShape{BlockTokens: 16, Blocks: 128, DType: tensor.BF16}}
}

func identity(t *testing.T, b *Backend, n int) tensor.Matrix {
	t.Helper()
	values := make([]float32, n*n)
	for i := range n {
		values[i*n+i] = 1
	}
	m, err := b.Matrix(host("one", tensor.F32, values, n, n))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Ranks that hold a part of the experts each add up to the bits of one that
// holds all, when they are added as a tree.
func TestSharesOfExpertsAddUp(t *testing.T) {
	w := newWeights(moeShape, 3)
	rng := rand.New(rand.NewPCG(4, 4))
	tokens, pages := tokensOf(rng, 200, w.vocab), shuffledPages(rng, 13, 128)
	want := alone(t, build(t, w, moeConfig(256)), tokens, pages)
	whole := recordMoE
	defer func() { recordMoE = whole }()
	for _, ranks := range []int{2, 4, 16} {
		recordMoE = func(b *Backend, x tensor.Buffer, m tensor.MoE) {
			one := identity(t, b, w.hidden)
			var shares []tensor.Buffer
			for r := range ranks {
				part, n := m, len(m.Down)/ranks
				part.First, part.GateUp, part.Down = r*n, m.GateUp[r*n:(r+1)*n], m.Down[r*n:(r+1)*n]
				shares = append(shares, b.Buffer(w.hidden))
				b.MoE(shares[r], x, part)
			}
			for ; len(shares) > 1; shares = shares[:len(shares)/2] {
				for i := range len(shares) / 2 {
					b.AddLinear(shares[2*i], shares[2*i+1], one, tensor.None)
					shares[i] = shares[2*i]
				}
			}
			b.AddLinear(x, shares[0], one, tensor.None)
		}
		if got := alone(t, build(t, w, moeConfig(256)), tokens, pages); !slices.Equal(got, want) {
			t.Errorf("the shares of %d ranks give other logits", ranks)
		}
	}
}

// More rows than expert outputs are kept for give the same bits as few.
func TestExpertsInWaves(t *testing.T) {
	s := moeShape
	s.hidden, s.used, s.inter, s.dtype, s.experts = 2048, 8, 32, tensor.Q8_0, 12
	w := newWeights(s, 3)
	rng := rand.New(rand.NewPCG(4, 4))
	tokens, pages := tokensOf(rng, 1100, w.vocab), shuffledPages(rng, 69, 128)
	b := build(t, w, moeConfig(1100))
	want := alone(t, b, tokens, pages)
	for pos := 0; pos < len(tokens); pos += 550 {
		var batch tensor.Batch
		batch.Reset()
		batch.Add(tokens[pos:pos+550], pos, pages, false)
		for i := range 550 {
			batch.LogitRows = append(batch.LogitRows, int32(i))
		}
		got, err := b.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want[pos*w.vocab:(pos+550)*w.vocab]) {
			t.Fatalf("rows %d to %d differ", pos, pos+550)
		}
	}
}

// A row of values that are not numbers stays alone with them.
func TestNaNRowDoesNotSpoilOthers(t *testing.T) {
	w := newWeights(moeShape, 3)
	for i := range w.hidden {
		w.embed[i] = float32(math.NaN()) // token 0
	}
	b := build(t, w, moeConfig(64))
	want := alone(t, b, []int32{3}, []int32{0})
	for _, others := range []int{3, 40} {
		var batch tensor.Batch
		batch.Reset()
		for i := range others {
			batch.Add([]int32{0}, 0, []int32{int32(i + 1)}, true)
		}
		batch.Add([]int32{3}, 0, []int32{0}, true)
		got, err := b.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		if !math.IsNaN(float64(got[1])) {
			t.Errorf("a row of NaN gives %v", got[1])
		}
		if last := got[others*w.vocab:]; !slices.Equal(last[1:], want[1:]) {
			t.Errorf("beside %d rows of NaN: %v, alone %v", others, last[:4], want[:4])
		}
	}
}

// An expert whose router weights are not numbers is chosen last.
func TestNaNExpertIsAvoided(t *testing.T) {
	s := moeShape
	s.renorm = true
	w := newWeights(s, 3)
	w.layers[0].router[2*w.hidden] = float32(math.NaN())
	for _, x := range alone(t, build(t, w, moeConfig(64)), []int32{3, 4}, []int32{0}) {
		if math.IsNaN(float64(x)) {
			t.Fatal("the logits are not numbers")
		}
	}
}

func TestExpertsDoNotAllocate(t *testing.T) {
	b := build(t, newWeights(moeShape, 1), moeConfig(64))
	for _, rows := range []int{1, 3, 50} {
		var batch tensor.Batch
		batch.Reset()
		batch.Add(make([]int32, rows), 0, []int32{1, 2, 3, 4}, true)
		if n := testing.AllocsPerRun(10, func() { _, _ = b.Run(&batch) }); n != 0 {
			t.Errorf("%g allocations a step of %d rows", n, rows)
		}
	}
}

func TestExpertErrors(t *testing.T) {
	for want, spoil := range map[string]func(b *Backend, m *tensor.MoE, out *tensor.Buffer){
		"router: not a matrix":                    func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.Router = 99 },
		"norm is not a vector":                    func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.Norm = tensor.None },
		"0 of 4 used, must be 1 to 4":             func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.Used = 0 },
		"5 of 4 used":                             func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.Used = 5 },
		"0 gate and up matrices and 2 down":       func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.GateUp = nil },
		"2 from 3 on are held, there are 4":       func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.First = 3 },
		"2 from -1 on":                            func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.First = -1 },
		"loaded for another use":                  func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.GateUp[1] = m.Down[1] },
		"experts: not a matrix":                   func(_ *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.Down[1] = -1 },
		"output is 8 wide, must be 32":            func(b *Backend, _ *tensor.MoE, out *tensor.Buffer) { *out = b.Buffer(8) },
		"expert 2 has gate and up [32, 32] and d": func(b *Backend, m *tensor.MoE, _ *tensor.Buffer) { m.Down[0] = m.Router },
	} {
		t.Run(want, func(t *testing.T) {
			b, err := New(tinyConfig())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			matrix := func(rows, cols int) tensor.Matrix {
				h, _ := b.Matrix(host("w", tensor.F32, make([]float32, rows*cols), rows, cols))
				return h
			}
			half := host("g", tensor.F32, make([]float32, 16*32), 16, 32)
			g, _ := b.GateUp(half, half)
			d := matrix(32, 16)
			norm, _ := b.Vector(host("v", tensor.F32, make([]float32, 32), 32))
			m := tensor.MoE{
				Norm: norm, Router: matrix(4, 32), Used: 2, First: 2,
				GateUp: []tensor.Matrix{g, g}, Down: []tensor.Matrix{d, d},
			}
			x := b.Buffer(32)
			out := x
			b.MoE(out, x, m)
			if b.Err() != nil {
				t.Fatalf("before it is spoiled: %v", b.Err())
			}
			spoil(b, &m, &out)
			b.MoE(out, x, m)
			if err := b.Seal(1); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("want %q, got %v", want, err)
			}
		})
	}
}

// Decode reads the experts that rows have chosen and no others, each once.
func TestExpertsReadOnlyTheChosen(t *testing.T) {
	s := shape{layers: 1, hidden: 64, heads: 4, kvHeads: 2, headDim: 16, inter: 32, vocab: 128, experts: 64, used: 8}
	e := layerBackend(t, s)
	defer e.Close()
	expert := e.matrices[3].Bytes() + e.matrices[4].Bytes()
	rest := -s.experts * expert
	for _, m := range e.matrices {
		rest += m.Bytes() // the embedding is the output matrix too
	}
	for rows := 1; rows <= 2; rows++ {
		var b tensor.Batch
		b.Reset()
		for i := range rows {
			b.Add([]int32{int32(7 * i)}, 0, []int32{int32(i)}, true)
		}
		before := e.WeightsRead()
		if _, err := e.Run(&b); err != nil {
			t.Fatal(err)
		}
		read := int(e.WeightsRead()-before) - rest
		if chosen := read / expert; read%expert != 0 || chosen < s.used || chosen > rows*s.used {
			t.Errorf("%d rows read %d bytes of experts, an expert has %d and a row %d", rows, read, expert, s.used)
		}
	}
}
