package cpu

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
)

// packed is what Pack makes of one part of each element type, and of a pair.
func packed(t *testing.T, w *Weights, release func([]byte)) []*Matrix {
	t.Helper()
	pool, err := NewPool(2, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r, list := rand.New(rand.NewPCG(5, 5)), []*Matrix(nil)
	add := func(gateUp bool, parts ...Part) {
		m, err := w.Pack(pool, parts, 512, gateUp)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	part := func(dtype, rows int) Part {
		return Part{DType: dtype, Rows: rows, Data: randomFile(r, dtype, rows, 512), Release: release}
	}
	for _, f := range formats {
		add(false, part(f.dtype, 37))
	}
	add(false, part(q4_0, 16), part(q8_0, 3), part(f32, 40))
	add(true, part(q4K, 40), part(q4K, 40))
	return list
}

// The packed form is kept in files: whoever changes it must raise Layout, or
// those files would be read as something else. Then this sum is renewed, too.
func TestLayoutIsWhatItsNumberSays(t *testing.T) {
	var w Weights
	defer w.Close()
	h := sha256.New()
	for _, m := range packed(t, &w, nil) {
		h.Write(m.Data())
	}
	const layout, want = 3, "81a0aa5fe1899adf"
	if got := fmt.Sprintf("%x", h.Sum(nil)[:8]); Layout != layout || got != want {
		t.Errorf("layout %d has sum %s, layout %d has %s: a changed layout needs a new number", Layout, got, layout, want)
	}
}

// A mapped matrix is the packed one, and releasing pieces changes nothing.
func TestMapGivesThePackedMatrix(t *testing.T) {
	var w, again Weights
	defer w.Close()
	defer again.Close()
	released := 0
	list := packed(t, &w, func(b []byte) { released += len(b) })
	all := 0
	for i, m := range list {
		parts := []Part{}
		dtypes, rows := m.Parts()
		for j := range rows {
			parts = append(parts, Part{DType: dtypes[j], Rows: rows[j]})
			all += rows[j] * RowBytes(dtypes[j], 512)
		}
		other, err := again.Map(parts, m.Cols, m.Interleaved, m.Data())
		if err != nil {
			t.Fatal(err)
		}
		if other.Rows != m.Rows || !bytes.Equal(other.Data(), m.Data()) {
			t.Errorf("matrix %d: %d rows, packed %d", i, other.Rows, m.Rows)
		}
		if _, err := again.Map(parts, m.Cols, m.Interleaved, m.Data()[64:]); err == nil {
			t.Errorf("matrix %d mapped to too few bytes", i)
		}
	}
	if released != all {
		t.Errorf("%d bytes released, the parts have %d", released, all)
	}
	if _, err := again.Map([]Part{{DType: q4_0, Rows: 1}}, 33, false, nil); err == nil {
		t.Error("mapped 33 columns of Q4_0")
	}
}
