package parallel

import (
	"testing"

	"tandem/engine/comm"
	"tandem/engine/model"
	"tandem/engine/model/reference"
	"tandem/engine/tensor"
	"tandem/test/tinymodel"
)

func openReference(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape, p model.Parallel, rank *comm.Rank) tinymodel.Backend {
	t.Helper()
	var group reference.Group
	if rank != nil {
		group = rank
	}
	b, err := reference.NewRank(kv, group)
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Build(b, ck, p); err != nil {
		t.Fatal(err)
	}
	return b
}

// The oracle itself gives the bits of one rank, as its sums round where those of
// ranks do.
func TestReferenceRanks(t *testing.T) {
	modes := []mode{tp(2), tp(3), tp(4), adp(2), attentionDP(3, true)}
	for _, name := range []string{"qwen2-odd", "gguf-qwen3moe-quant", "qwen3moe-mixed"} {
		t.Run(name, func(t *testing.T) {
			check(t, name, modes, openReference, tinymodel.Tolerance{Abs: 1e-4, Rel: 1e-4}, model.AsF32())
		})
	}
}
