package tinymodel

import (
	"errors"
	"slices"
	"testing"

	"tandem/engine/hub"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

// The default model, as a stranger gets it, must know the capital of France.
func TestDefaultModelOnReference(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("runs 135 million weights in plain Go: too slow for -short and -race")
	}
	path, err := hub.Locate(hub.DefaultModel)
	if errors.Is(err, hub.ErrNotPulled) {
		t.Skip("the default model is not in the cache; `make test` fetches it")
	}
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	c := ck.Config
	if c.Layers != 30 || c.Hidden != 576 || c.Heads != 9 || c.KVHeads != 3 || c.HeadDim != 64 || c.Vocab != 49152 || c.Context != 8192 || !c.Tied {
		t.Errorf("config %+v", c)
	}
	var prompt []int32
	for _, word := range []string{"The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"} {
		prompt = append(prompt, int32(slices.Index(ck.Tokenizer.Tokens, word)))
	}
	backend := openReference(t, ck, KVShape(ck, 1, tensor.BF16))
	var batch tensor.Batch
	batch.Reset()
	batch.Add(prompt, 0, []int32{0}, true)
	logits, err := backend.Run(&batch)
	if err != nil {
		t.Fatal(err)
	}
	best := slices.Index(logits[0], slices.Max(logits[0]))
	if got := ck.Tokenizer.Tokens[best]; got != "ĠParis" {
		t.Errorf("the capital of France is %q", got)
	}
}
