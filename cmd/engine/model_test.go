package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tandem/engine/tensor"
	"tandem/test/tinymodel"
)

func TestByLayer(t *testing.T) {
	var all []tensor.Host
	for _, name := range []string{"token_embd.weight", "blk.0.b", "blk.10.a", "blk.2.a", "blk.0.a", "a.weight"} {
		all = append(all, tensor.Host{Name: name})
	}
	var got []string
	for _, h := range byLayer(all) {
		got = append(got, h.Name)
	}
	if want := []string{"a.weight", "blk.0.a", "blk.0.b", "blk.2.a", "blk.10.a", "token_embd.weight"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if all[1].Name != "blk.0.b" {
		t.Error("the checkpoint's own list was sorted")
	}
}

func TestInspectShowsExperts(t *testing.T) {
	for name, want := range map[string]string{
		"qwen3moe-mixed":           "7 a layer, 3 a token, feed-forward 32 each; dense layers: 0\n",
		"gguf-qwen3moe-quant.gguf": "7 a layer, 3 a token, feed-forward 32 each; dense layers: none\n",
	} {
		var out bytes.Buffer
		if err := inspect(&out, filepath.Join(tinymodel.Dir(), name)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: no %q in\n%s", name, want, out.String())
		}
	}
}
