package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// A machine with AMX gives the bits of one without: all of a pass, with rows of
// prompts that fill tiles and decode steps that do not.
func TestTilesChangeNoBit(t *testing.T) {
	if level, err := (Config{ISA: "amx-model"}).level(); err != nil || level != kernels.AMXModel {
		t.Skip("tile kernels need AVX-512 beside the tiles: ", err)
	}
	dense, experts := bitsShape, bitsShape
	experts.inter, experts.experts, experts.used = 64, 9, 4
	for name, s := range map[string]shape{"dense": dense, "experts": experts} {
		for _, acts := range []Activations{Activations16, Activations8} {
			without, with := bitsConfig(1, "avx512", tensor.BF16), bitsConfig(2, "amx-model", tensor.BF16)
			without.Activations, with.Activations = acts, acts
			t.Run(fmt.Sprintf("%s/%d", name, acts), func(t *testing.T) {
				w := newWeights(s, 3)
				checkTiles(t, w.vocab, build(t, w, without), build(t, w, with))
			})
		}
	}
}

// checkTiles compares passes of backends without tiles and with them.
func checkTiles(t *testing.T, vocab int, without, with *Backend) {
	t.Helper()
	rng := rand.New(rand.NewPCG(6, 6))
	pages := shuffledPages(rng, 20, 256)
	tokens := tokensOf(rng, 300, vocab)
	for at, n := range []int{1, 15, 16, 17, 100, 151} {
		from := []int{0, 1, 16, 32, 49, 149}[at]
		var batch tensor.Batch
		batch.Reset()
		batch.Add(tokens[from:from+n], from, pages, false)
		for i := range n {
			batch.LogitRows = append(batch.LogitRows, int32(i))
		}
		want, err := without.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		got, err := with.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%d rows: logit %d is %v, without tiles %v", n, i, got[i], want[i])
			}
		}
	}
}
