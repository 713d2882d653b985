package model

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tandem/engine/model/gguf"
)

// metadata builds a GGUF file without tensors from keys and values.
func metadata(t *testing.T, kv ...any) *gguf.File {
	t.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32([]byte(gguf.Magic), 3)
	b = le.AppendUint64(le.AppendUint64(b, 0), uint64(len(kv)/2))
	str := func(s string) { b = append(le.AppendUint64(b, uint64(len(s))), s...) }
	for i := 0; i < len(kv); i += 2 {
		str(kv[i].(string))
		switch v := kv[i+1].(type) {
		case string:
			b = le.AppendUint32(b, uint32(gguf.String))
			str(v)
		case int:
			b = le.AppendUint64(le.AppendUint32(b, uint32(gguf.Int64)), uint64(v))
		case float64:
			b, _ = binary.Append(le.AppendUint32(b, uint32(gguf.Float64)), le, v)
		case []int32:
			b = le.AppendUint32(le.AppendUint32(b, uint32(gguf.Array)), uint32(gguf.Int32))
			b, _ = binary.Append(le.AppendUint64(b, uint64(len(v))), le, v)
		}
	}
	f, err := gguf.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func llamaKeys(extra ...any) []any {
	keys := []any{
		"general.architecture", "llama", "llama.block_count", 2, "llama.embedding_length", 64, "llama.feed_forward_length", 96,
		"llama.attention.head_count", 4, "llama.context_length", 4096, "llama.attention.layer_norm_rms_epsilon", 1e-5,
	}
	for i := 0; i < len(extra); i += 2 {
		at := slices.IndexFunc(keys, func(k any) bool { return k == extra[i] })
		if at < 0 {
			keys = append(keys, extra[i:i+2]...)
			continue
		}
		keys[at+1] = extra[i+1]
	}
	return keys
}

func TestGGUFConfigErrors(t *testing.T) {
	cases := map[string]struct {
		key   string
		value any
		want  string
	}{
		"arch":        {"general.architecture", "gpt2", `"gpt2" is not supported (supported: llama`},
		"arch type":   {"general.architecture", 7, "general.architecture"},
		"split":       {"split.count", 3, "split over 3 files"},
		"experts":     {"llama.expert_count", 8, "only qwen3moe is supported"},
		"layers":      {"llama.block_count", -1, `"llama.block_count": -1 is negative`},
		"huge layers": {"llama.block_count", 1 << 40, `"llama.block_count"`},
		"heads 0":     {"llama.attention.head_count", 0, "attention heads is 0"},
		"kv layers":   {"llama.attention.head_count_kv", []int32{4, 2}, "layers differ"},
		"kv empty":    {"llama.attention.head_count_kv", []int32{}, "head_count_kv"},
		"value dim":   {"llama.attention.value_length", 8, "value_length"},
		"eps":         {"llama.attention.layer_norm_rms_epsilon", 0.0, "epsilon"},
		"rope type":   {"llama.rope.scaling.type", "longrope", `"longrope"`},
		"rope dims":   {"llama.rope.dimension_count", 17, "RoPE dimensions"},
		"no vocab":    {"x", 1, "vocabulary is 0"},
		"bos":         {"tokenizer.ggml.bos_token_id", 1 << 40, `"tokenizer.ggml.bos_token_id": 1099511627776`},
		"eos":         {"tokenizer.ggml.eos_token_id", -5, `"tokenizer.ggml.eos_token_id": -5`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := ggufConfig(metadata(t, llamaKeys(c.key, c.value)...))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := ggufConfig(metadata(t, "general.architecture", "llama")); err == nil || !strings.Contains(err.Error(), `"llama.block_count" is missing`) {
		t.Errorf("no keys: %v", err)
	}
}

func TestGGUFConfig(t *testing.T) {
	// Without tensors Vocab stays 0, the only thing Validate has against it.
	c, err := ggufConfig(metadata(t, llamaKeys("llama.attention.head_count_kv", []int32{2, 2}, "llama.attention.sliding_window", 512,
		"llama.rope.scaling.type", "yarn", "llama.rope.scaling.factor", 4.0, "llama.rope.scaling.original_context_length", 1024,
		"tokenizer.ggml.eos_token_id", 9, "tokenizer.ggml.eot_token_id", 3, "tokenizer.ggml.eom_token_id", 9, "tokenizer.ggml.bos_token_id", 0xffffffff)...))
	if err == nil || !strings.Contains(err.Error(), "vocabulary") {
		t.Fatal(err)
	}
	if c.KVHeads != 2 || c.HeadDim != 16 || !slices.Equal(c.Windows, []int{512, 512}) || c.BOS != -1 || !slices.Equal(c.EOS, []int32{3, 9}) {
		t.Errorf("config %+v", c)
	}
	s := c.RoPE.Scaling
	if s.Type != ScalingYaRN || s.Factor != 4 || s.OrigContext != 1024 || s.BetaFast != 32 || s.Attn < 1.13 || s.Attn > 1.14 {
		t.Errorf("scaling %+v", s)
	}
}

func TestHFConfigDefaults(t *testing.T) {
	const base = `"num_hidden_layers":1,"hidden_size":64,"intermediate_size":8,"num_attention_heads":4,"vocab_size":64,"max_position_embeddings":8192,"rms_norm_eps":1e-5`
	const gemma = `"model_type":"gemma3_text","num_hidden_layers":2` // the last of two equal keys counts
	cases := map[string]struct {
		extra   string
		hasHead bool
		check   func(Config) bool
	}{
		"heads":          {`"model_type":"llama"`, true, func(c Config) bool { return c.KVHeads == 4 && c.HeadDim == 16 && c.RoPE.Base == 10000 && !c.Tied }},
		"tied by file":   {`"model_type":"llama"`, false, func(c Config) bool { return c.Tied }},
		"tied by key":    {`"model_type":"llama","tie_word_embeddings":true`, true, func(c Config) bool { return c.Tied }},
		"bias":           {`"model_type":"llama","attention_bias":true`, true, func(c Config) bool { return c.QKVBias && c.OutBias }},
		"qwen2":          {`"model_type":"qwen2","sliding_window":32,"use_sliding_window":false`, true, func(c Config) bool { return c.QKVBias && !c.OutBias && c.Context == 8192 }},
		"qwen2 window":   {`"model_type":"qwen2","sliding_window":32,"use_sliding_window":true`, true, func(c Config) bool { return c.Windows == nil }},
		"qwen2 window 0": {`"model_type":"qwen2","sliding_window":32,"use_sliding_window":true,"max_window_layers":0`, true, func(c Config) bool { return slices.Equal(c.Windows, []int{32}) && c.Reach() == 32 }},
		"mistral": {`"model_type":"mistral","sliding_window":4096`, true, func(c Config) bool {
			return c.Context == 8192 && c.Window(0) == 4096 && c.WithinWindow().Context == 4096
		}},
		// As text models of Gemma 3 were written before rope_parameters.
		"gemma3": {gemma + `,"sliding_window":512,"sliding_window_pattern":2,"rope_local_base_freq":100,"rope_scaling":{"rope_type":"linear","factor":8}`, false, func(c Config) bool {
			return c.Context == 8192 && slices.Equal(c.Windows, []int{512, 0}) && c.RoPE.Base == 1e6 && c.RoPE.Scaling.Factor == 8 &&
				c.LocalRoPE.Base == 100 && c.LocalRoPE.Scaling.Type == ScalingNone
		}},
		"gemma3 defaults": {gemma, false, func(c Config) bool {
			return c.Tied && slices.Equal(c.Windows, []int{4096, 4096}) && c.AttnScale == 1./16
		}},
		"gemma3 wide window": {gemma + `,"sliding_window":4294967296`, false, func(c Config) bool { return slices.Equal(c.Windows, []int{8192, 8192}) }},

		"qwen3":         {`"model_type":"qwen3","head_dim":32`, true, func(c Config) bool { return c.QKNorm && c.HeadDim == 32 }},
		"eos list":      {`"model_type":"llama","eos_token_id":[7,3,7]`, true, func(c Config) bool { return slices.Equal(c.EOS, []int32{3, 7}) }},
		"eos null":      {`"model_type":"llama","eos_token_id":null`, true, func(c Config) bool { return len(c.EOS) == 0 }},
		"partial":       {`"model_type":"llama","partial_rotary_factor":0.5`, true, func(c Config) bool { return c.RoPE.Dims == 8 }},
		"yarn context":  {`"model_type":"qwen2","rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":8192}`, true, func(c Config) bool { return c.Context == 32768 }},
		"dynamic":       {`"model_type":"llama","rope_scaling":{"type":"dynamic","factor":4.0}`, true, func(c Config) bool { return c.Context == 8192 && c.RoPE.Scaling.Type == ScalingNone }},
		"scaling null":  {`"model_type":"llama","rope_scaling":null`, true, func(c Config) bool { return c.RoPE.Scaling.Type == ScalingNone }},
		"head_dim null": {`"model_type":"llama","head_dim":null`, true, func(c Config) bool { return c.HeadDim == 16 }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cfg, err := parseHFConfig([]byte("{"+base+","+c.extra+"}"), nil, c.hasHead)
			if err != nil || !c.check(cfg) {
				t.Errorf("config %+v, %v", cfg, err)
			}
		})
	}
}

func FuzzHFConfig(f *testing.F) {
	f.Add([]byte(`{"model_type":"llama","num_hidden_layers":1,"hidden_size":64,"rope_scaling":{"type":"yarn","factor":4}}`), []byte(`{"eos_token_id":[1]}`))
	f.Add([]byte(`{"model_type":"qwen3","num_hidden_layers":1,"hidden_size":64,"intermediate_size":8,"num_attention_heads":4,"vocab_size":64,"max_position_embeddings":8192,"eos_token_id":1,"rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}}`), []byte(nil))
	f.Fuzz(func(t *testing.T, config, generation []byte) {
		c, err := parseHFConfig(config, generation, true)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, x := range c.RoPE.Tensor().InvFreq {
			if x != x || x < 0 {
				t.Fatalf("frequency %v", x)
			}
		}
	})
}

// A GGUF file may say anything; opening it and building it must end in a model
// or an error.
func FuzzGGUFModel(f *testing.F) {
	for _, name := range []string{"gguf-llama3.gguf", "gguf-qwen2.gguf"} {
		data, err := os.ReadFile(filepath.Join(tiny, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:min(len(data), 6000)], 1<<17)
	}
	f.Fuzz(func(t *testing.T, head []byte, pad int) {
		if pad < 0 || pad > 1<<17 {
			return
		}
		// The weights are zeros: only the header is worth mutating.
		ck := &Checkpoint{Format: FormatGGUF, index: map[string]int{}}
		if ck.parseGGUF(append(head, make([]byte, pad)...)) != nil {
			return
		}
		_ = ck.Fingerprint()
		_ = Build(&recorder{}, ck, Parallel{})
	})
}

func TestSamplingDefaults(t *testing.T) {
	var d SamplingDefaults
	if err := json.Unmarshal([]byte(`{"temperature":0.6,"top_k":20,"top_p":0.95}`), &d); err != nil || d.validate() != nil {
		t.Fatal(err, d.validate())
	}
	if *d.Temperature != 0.6 || *d.TopK != 20 || *d.TopP != 0.95 || d.MinP != nil || d.RepetitionPenalty != nil {
		t.Errorf("read %+v", d)
	}
	for _, text := range []string{
		`{"temperature":-1}`, `{"top_p":0}`, `{"top_p":1.5}`, `{"top_k":-1}`, `{"min_p":2}`, `{"repetition_penalty":0}`,
	} {
		var d SamplingDefaults
		if err := json.Unmarshal([]byte(text), &d); err != nil || d.validate() == nil {
			t.Errorf("%s was accepted (%v)", text, err)
		}
	}
}
