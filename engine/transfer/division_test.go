package transfer

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Every byte of a block is read from exactly one rank that has it, and written to
// every one.
func TestDivisionCoversEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Layout{
			Layers: rapid.IntRange(1, 5).Draw(t, "layers"), KVHeads: rapid.IntRange(1, 6).Draw(t, "heads"), HeadDim: 2, DType: "F16", BlockTokens: 2,
		}
		var parts []Part
		stages, ranks := rapid.IntRange(1, l.Layers).Draw(t, "pp"), rapid.IntRange(1, 8).Draw(t, "tp")
		for stage := range stages {
			for rank := range ranks {
				parts = append(parts, gridPart(l, stages, stage, ranks, rank))
			}
		}
		d, err := Divide(l, parts)
		if err != nil {
			t.Fatal(err)
		}
		id := ID(rapid.Int64().Draw(t, "id"))
		read, written := make([]int, l.BlockBytes()), make([]int, l.BlockBytes())
		for rank := range parts {
			own := make([]bool, d.PartBytes(rank))
			count(read, nil, d.Reads(id)[rank])
			count(written, own, d.Writes()[rank])
			if slices.Contains(own, false) {
				t.Fatalf("rank %d does not get all of its part: %v", rank, d.Writes()[rank])
			}
		}
		for i := range read {
			if read[i] != 1 || written[i] < 1 {
				t.Fatalf("byte %d is read %d times and written %d times", i, read[i], written[i])
			}
		}
	})
}

// count adds the runs to the bytes of a whole block, and marks the own ones.
func count(whole []int, own []bool, runs []Run) {
	for _, r := range runs {
		for i := range r.Bytes {
			whole[r.Whole+i]++
			if own != nil {
				own[r.Own+i] = true
			}
		}
	}
}

// gridPart is the part of a rank of a stage, as engine-core §9.2 has it.
func gridPart(l Layout, stages, stage, ranks, rank int) Part {
	p := Part{FirstLayer: stage * l.Layers / stages, FirstHead: rank * l.KVHeads / ranks, Heads: 1}
	p.Layers = (stage+1)*l.Layers/stages - p.FirstLayer
	if ranks < l.KVHeads {
		p.Heads = (rank+1)*l.KVHeads/ranks - p.FirstHead
	}
	return p
}

func TestEqualPartsAreOneRun(t *testing.T) {
	l := Layout{Layers: 3, KVHeads: 2, HeadDim: 4, DType: "F32", BlockTokens: 4}
	whole := Run{Bytes: l.BlockBytes()}
	d, err := Divide(l, []Part{{Layers: 3, Heads: 2}})
	if err != nil || !slices.Equal(d.Reads(9)[0], []Run{whole}) || !slices.Equal(d.Writes()[0], []Run{whole}) {
		t.Errorf("%+v, %v", d, err)
	}
	// Two copies of everything are read in turn.
	if d, err = Divide(l, []Part{{Layers: 3, Heads: 2}, {Layers: 3, Heads: 2}}); err != nil {
		t.Fatal(err)
	}
	for id := range ID(4) {
		if r := d.Reads(id); len(r[id%2]) != 1 || len(r[1-id%2]) != 0 {
			t.Errorf("transfer %d reads %v", id, r)
		}
	}
}

func TestDivisionsThatCannotBe(t *testing.T) {
	l := Layout{Layers: 2, KVHeads: 2, HeadDim: 4, DType: "F32", BlockTokens: 4}
	for want, parts := range map[string][]Part{
		"no rank has head 1 of layer 0":     {{Layers: 2, Heads: 1}},
		"no rank has head 0 of layer 1":     {{Layers: 1, Heads: 2}},
		"rank 0 has 3 layers":               {{Layers: 3, Heads: 2}},
		"rank 1 has 2 layers from 0 and 2 ": {{Layers: 2, Heads: 2}, {Layers: 2, FirstHead: 1, Heads: 2}},
		"rank 0 has 0 layers":               {{}},
	} {
		if _, err := Divide(l, parts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", parts, err, want)
		}
	}
	if _, err := Divide(Layout{}, nil); err == nil {
		t.Error("no layers were divided")
	}
}
