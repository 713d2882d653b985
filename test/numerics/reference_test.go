package numerics

import (
	"encoding/binary"
	"math"
	"os"
	"testing"
)

// text is one entry of the reference file.
type text struct {
	ids   []int32
	first int // first position with stored probabilities
	top   [][]entry
}

// entry is a token with its natural log-probability.
type entry struct {
	id   int
	logp float64
}

// readReference parses the file that test/fixtures/logits/make.py writes.
func readReference(t *testing.T) []text {
	t.Helper()
	b, err := os.ReadFile("../fixtures/logits/reference.bin")
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	u32 := func() int { v := le.Uint32(b); b = b[4:]; return int(v) }
	u16 := func() int { v := le.Uint16(b); b = b[2:]; return int(v) }
	texts := make([]text, u32())
	k := u32()
	for i := range texts {
		n := u32()
		texts[i].first = u32()
		for range n {
			texts[i].ids = append(texts[i].ids, int32(u16()))
		}
		for range n - texts[i].first {
			row := make([]entry, k)
			for j := range row {
				row[j].id = u16()
			}
			for j := range row {
				row[j].logp = float64(math.Float32frombits(uint32(u32())))
			}
			texts[i].top = append(texts[i].top, row)
		}
	}
	if len(b) != 0 {
		t.Fatalf("%d bytes left in the reference file", len(b))
	}
	return texts
}

// divergence returns the KL divergence of ours from the reference over its top
// entries and one bin for all the rest. Joining outcomes can only lower a
// divergence, by less than the mass of the rest.
func divergence(ref []entry, logits []float32) float64 {
	norm := logSumExp(logits)
	kl, rest, ourRest := 0.0, 1.0, 1.0
	for _, e := range ref {
		p, lq := math.Exp(e.logp), float64(logits[e.id])-norm
		kl += p * (e.logp - lq)
		rest -= p
		ourRest -= math.Exp(lq)
	}
	if rest > 1e-9 && ourRest > 0 {
		kl += rest * math.Log(rest/ourRest)
	}
	return kl
}

func logSumExp(l []float32) float64 {
	top := l[argmax(l)]
	sum := 0.0
	for _, v := range l {
		sum += math.Exp(float64(v - top))
	}
	return float64(top) + math.Log(sum)
}

func argmax(l []float32) int {
	best := 0
	for i, v := range l {
		if v > l[best] {
			best = i
		}
	}
	return best
}
