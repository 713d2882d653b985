package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

const tiny = "../../test/tinymodel/testdata"

func open(t *testing.T, name string, opts ...Option) *Checkpoint {
	t.Helper()
	ck, err := Open(filepath.Join(tiny, name), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	return ck
}

// copyModel copies a tiny folder, so that a test can spoil it.
func copyModel(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(tiny, name))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// edit changes keys of a JSON file; a nil value removes the key.
func edit(t *testing.T, dir, name string, changes map[string]any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	for k, v := range changes {
		if v == nil {
			delete(m, k)
			continue
		}
		m[k] = v
	}
	raw, _ = json.Marshal(m)
	write(t, dir, name, string(raw))
}

func TestOpenGGUF(t *testing.T) {
	ck := open(t, "gguf-llama-quant.gguf")
	c := ck.Config
	if ck.Format != FormatGGUF || c.Arch != "llama" || c.Layers != 2 || c.Hidden != 32 || c.Heads != 4 || c.KVHeads != 2 ||
		c.HeadDim != 32 || c.Inter != 32 || c.Vocab != 64 || c.Context != 256 || !c.Tied || !c.RoPE.Adjacent || c.RoPE.Dims != 32 ||
		c.BOS != 1 || !slices.Equal(c.EOS, []int32{2}) {
		t.Errorf("config %+v", c)
	}
	k := ck.Tokenizer
	if k.Model != "gpt2" || k.Pre != "smollm" || len(k.Tokens) != 64 || k.Types[0] != 3 || len(k.Merges) != 2 || k.BOS != 1 ||
		k.EOS != 2 || k.UNK != -1 || k.EOT != -1 || k.AddBOS == nil || *k.AddBOS || k.AddEOS != nil || k.ChatTemplate == "" {
		t.Errorf("tokenizer %+v", k)
	}
	q, err := ck.Tensor("blk.0.attn_q.weight", 128, 32)
	if err != nil || q.DType != tensor.Q4_0 {
		t.Errorf("attn_q %v %v, %v", q.DType, q.Shape, err)
	}
	if got := c.KVBytesPerToken(tensor.BF16); got != 2*2*2*32*2 {
		t.Errorf("KV bytes per token %d", got)
	}
	if ck.Params() == 0 || ck.Bytes() == 0 || len(ck.Tensors()) != 20 {
		t.Errorf("%d weights, %d bytes, %d tensors", ck.Params(), ck.Bytes(), len(ck.Tensors()))
	}
}

func TestOpenFolder(t *testing.T) {
	dir := copyModel(t, "llama-tied-linear") // two shards
	write(t, dir, "tokenizer.json", `{"x":1}`)
	write(t, dir, "tokenizer_config.json", `{"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"}]}`)
	ck, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	c := ck.Config
	if ck.Format != FormatSafetensors || !c.Tied || c.RoPE.Adjacent || c.RoPE.Scaling.Type != ScalingLinear || c.Context != 1024 ||
		!slices.Equal(c.EOS, []int32{2, 5}) || c.BOS != 1 {
		t.Errorf("config %+v", c)
	}
	if string(ck.Tokenizer.JSON) != `{"x":1}` || ck.Tokenizer.ChatTemplate != "D" || ck.Tokenizer.ChatTemplates["tool_use"] != "T" {
		t.Errorf("tokenizer %+v", ck.Tokenizer)
	}
	if _, err := ck.Tensor("blk.1.ffn_down.weight", 32, 32); err != nil {
		t.Error(err)
	}
	write(t, dir, "chat_template.jinja", "J")
	again, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Tokenizer.ChatTemplate != "J" {
		t.Errorf("template %q", again.Tokenizer.ChatTemplate)
	}
}

func TestOpenFolderWithOneGGUF(t *testing.T) {
	dir := t.TempDir()
	raw, err := os.ReadFile(filepath.Join(tiny, "gguf-qwen2.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a.gguf", string(raw))
	ck, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ck.Path != filepath.Join(dir, "a.gguf") || ck.Close() != nil || ck.Close() != nil {
		t.Errorf("path %s, or closing failed", ck.Path)
	}
	write(t, dir, "b.gguf", string(raw))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "2 GGUF files") {
		t.Errorf("two files: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "notes.txt", "hello")
	write(t, dir, "empty", "")
	write(t, dir, "model.safetensors", "xxxxxxxxxxxx")
	write(t, dir, "cut.gguf", "GGUF\x03\x00\x00\x00\x01")
	for name, want := range map[string]string{
		"nothing": "does not exist", "notes.txt": "is not a model: expected a GGUF file", "empty": "is not a model",
		"sub": "is not a model", "model.safetensors": "give the folder", "cut.gguf": "cut.gguf: GGUF",
	} {
		if _, err := Open(filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	}
	if _, err := Open(filepath.Join(dir, "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v is no os.ErrNotExist", err)
	}
	if _, err := Open(filepath.Join(dir, "notes.txt")); !errors.Is(err, ErrNotModel) {
		t.Errorf("error %v is no ErrNotModel", err)
	}
}

func TestFolderErrors(t *testing.T) {
	cases := map[string]struct {
		file   string
		change map[string]any
		want   string
	}{
		"arch":          {"config.json", map[string]any{"model_type": "mamba"}, `"mamba" is not supported (supported: llama, mistral, qwen2, qwen3, qwen3moe, gemma3)`},
		"no arch":       {"config.json", map[string]any{"model_type": nil}, "model_type"},
		"task":          {"config.json", map[string]any{"architectures": []string{"LlamaForSequenceClassification"}}, "LlamaForSequenceClassification"},
		"mlp bias":      {"config.json", map[string]any{"mlp_bias": true}, "mlp_bias"},
		"quantised":     {"config.json", map[string]any{"quantization_config": map[string]any{"quant_method": "gptq"}}, "quantization_config"},
		"act":           {"config.json", map[string]any{"hidden_act": "gelu"}, "hidden_act"},
		"no layers":     {"config.json", map[string]any{"num_hidden_layers": nil}, "layers is 0"},
		"huge hidden":   {"config.json", map[string]any{"hidden_size": 1 << 40}, "hidden size"},
		"heads":         {"config.json", map[string]any{"num_key_value_heads": 3}, "no multiple"},
		"string layers": {"config.json", map[string]any{"num_hidden_layers": "two"}, "num_hidden_layers"},
		"rope":          {"config.json", map[string]any{"rope_parameters": map[string]any{"rope_type": "longrope", "factor": 2}}, `"longrope"`},
		"linear":        {"config.json", map[string]any{"rope_parameters": map[string]any{"rope_type": "linear"}}, "factor is 0"},
		"partial":       {"config.json", map[string]any{"partial_rotary_factor": 1e300}, "RoPE dimensions"},
		"layers":        {"config.json", map[string]any{"num_hidden_layers": 1}, "but there is a tensor"},
		"eos":           {"generation_config.json", map[string]any{"eos_token_id": 64}, "id 64 is outside"},
		"bos":           {"config.json", map[string]any{"bos_token_id": 64}, "beginning-of-sequence id 64"},
		"eos type":      {"generation_config.json", map[string]any{"eos_token_id": "x"}, "generation_config.json"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t, "qwen3")
			edit(t, dir, c.file, c.change)
			if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestShardErrors(t *testing.T) {
	const index = "model.safetensors.index.json"
	dir := copyModel(t, "llama-tied-linear")
	raw, _ := os.ReadFile(filepath.Join(dir, index))
	var ix struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &ix); err != nil {
		t.Fatal(err)
	}
	change := func(name, shard string) {
		m := maps.Clone(ix.WeightMap)
		m[name] = shard
		edit(t, dir, index, map[string]any{"weight_map": m})
	}
	fails := func(want string) {
		t.Helper()
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	change("model.extra", "model-00001-of-00002.safetensors")
	fails(`tensor "model.extra" is not in model-00001-of-00002.safetensors`)
	change("model.extra", "model-00003-of-00003.safetensors")
	fails("model-00003-of-00003.safetensors")
	change("model.extra", "../other.safetensors")
	fails("is no file name")
	if err := os.Remove(filepath.Join(dir, index)); err != nil {
		t.Fatal(err)
	}
	fails("neither model.safetensors nor model.safetensors.index.json")
}

func TestTensorErrors(t *testing.T) {
	for name, want := range map[string][2]string{
		"gguf-qwen3.gguf": {`tensor "blk.7.attn_q.weight" is missing`, `tensor "blk.0.attn_q.weight" has shape [128 32], the model's configuration asks for [1 2]`},
		"qwen3":           {`tensor "model.layers.7.self_attn.q_proj.weight" is missing`, `tensor "model.layers.0.self_attn.q_proj.weight" has shape`},
	} {
		ck := open(t, name)
		if _, err := ck.Tensor("blk.7.attn_q.weight", 1, 2); err == nil || err.Error() != want[0] {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ck.Tensor("blk.0.attn_q.weight", 1, 2); err == nil || !strings.HasPrefix(err.Error(), want[1]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAsF32(t *testing.T) {
	ck := open(t, "gguf-llama-quant.gguf", AsF32())
	h, err := ck.Tensor("blk.0.attn_q.weight", 128, 32)
	if err != nil || h.DType != tensor.F32 || h.Validate() != nil {
		t.Errorf("%v, %v", h.DType, err)
	}
	if !ck.F32() || ck.Fingerprint() == open(t, "gguf-llama-quant.gguf").Fingerprint() {
		t.Error("the decoded model has the fingerprint of the quantised one")
	}
}

// A token id that the embedding table does not have must not reach a backend.
func TestMoreTokensThanRows(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(tiny, "gguf-llama-quant.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	// The embedding's dimensions follow its name: count (4 bytes), 32, rows.
	at := bytes.Index(raw, []byte("token_embd.weight")) + len("token_embd.weight") + 4 + 8
	raw[at] = 63
	dir := t.TempDir()
	write(t, dir, "a.gguf", string(raw))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), `"tokenizer.ggml.tokens": 64 tokens for an embedding table of 63`) {
		t.Errorf("error %v", err)
	}
}
