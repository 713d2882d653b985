package shapes

import (
	"context"
	"path/filepath"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/engine/tensor"
	"tandem/engine/tokenizer"
)

// Small files of every architecture and type load, and give finite logits.
func TestWrittenModelsRun(t *testing.T) {
	for _, s := range []Shape{All[0], All[1], All[3]} {
		s.Layers, s.Hidden, s.Heads, s.KVHeads, s.Width, s.Inter, s.Vocab, s.Context = 1, 256, 4, 2, 64, 256, 512, 256
		if s.Experts > 0 {
			s.Experts, s.Used = 4, 2
		}
		for _, kind := range Kinds() {
			t.Run(s.Name+" "+kind, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "m.gguf")
				if err := Write(path, s, kind); err != nil {
					t.Fatal(err)
				}
				l, err := runner.Load(context.Background(), runner.LoadOptions{Path: path, Core: executor.DefaultConfig(), Backend: "cpu", PoolTokens: 256})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				var b tensor.Batch
				b.Reset()
				b.Add([]int32{1, 2, 3}, 0, []int32{0}, true)
				logits, err := l.Backends[0].Run(&b)
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range logits {
					if x != x || x > 1e3 || x < -1e3 {
						t.Fatalf("a logit is %g", x)
					}
				}
				if ids, err := l.Tokenizer.Encode("ab é", tokenizer.EncodeOptions{}); err != nil || len(ids) == 0 {
					t.Errorf("tokens of a text: %d, %v", ids, err)
				}
			})
		}
	}
}

// The shapes have the weights that they are known for.
func TestShapes(t *testing.T) {
	for name, params := range map[string]int{"smollm2-135m": 134_515_008, "qwen3-0.6b": 596_049_920, "llama-3.2-1b": 1_235_814_400} {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, x := range s.tensors("f32") {
			n += x.bytes() / 4
		}
		if n != params {
			t.Errorf("%s has %d weights, must have %d", name, n, params)
		}
	}
	if _, err := Find("none"); err == nil {
		t.Error("an unknown shape")
	}
	if err := Write(filepath.Join(t.TempDir(), "m"), All[0], "f64"); err == nil {
		t.Error("an unknown type")
	}
}
