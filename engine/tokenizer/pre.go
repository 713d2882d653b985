package tokenizer

import (
	"fmt"
	"slices"
	"strings"
)

// ggufPre is the pre-tokenizer that a GGUF file only names.
type ggufPre struct {
	names        []string
	patterns     []string // each cuts the pieces of the one before, matches isolated
	ignoreMerges bool
	addBOS       bool // when the file has no add_bos_token
}

// The published patterns of the model families.
const (
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	gpt4oPattern  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	deepseekWords = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
	// casedLetters is the class of letters with case that deepseek-llm lists one by one.
	casedLetters = "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b" +
		"-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0" +
		"-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45" +
		"\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0" +
		"-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128" +
		"\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2" +
		"\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a" +
		"\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0" +
		"-\U000118df\U0001e900-\U0001e943]+"
	cjkRun = `[一-龥\u0800-一가-\ud7ff]+`
)

// ggufPres lists the pre-tokenizers by the names files give them.
var ggufPres = []ggufPre{
	{names: []string{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, patterns: []string{`\p{N}`, gpt2Pattern}},
	{
		names:    []string{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"},
		patterns: []string{llama3Pattern}, ignoreMerges: true, addBOS: true,
	},
	{names: []string{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, patterns: []string{llama3Pattern}},
	{names: []string{"qwen2", "qwen2.5", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"}, patterns: []string{qwen2Pattern}},
	{names: []string{"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "gigachat", "jina-v2-code", "roberta-bpe"}, patterns: []string{gpt2Pattern}},
	{names: []string{"gpt-4o", "llama4"}, patterns: []string{gpt4oPattern}},
	{names: []string{"tekken"}, patterns: []string{tekkenPattern}, ignoreMerges: true, addBOS: true},
	{names: []string{"deepseek-v3"}, patterns: []string{`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+", deepseekWords}},
	{names: []string{"deepseek-llm"}, patterns: []string{`[\r\n]`, casedLetters, "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", `\s+$`, cjkRun, `\p{N}+`}},
	{names: []string{"deepseek-coder"}, patterns: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, cjkRun, `\p{N}`}},
	{names: []string{"falcon"}, patterns: []string{"[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2Pattern, `[0-9][0-9][0-9]`}},
	{names: []string{"default", ""}, patterns: []string{`[\p{P}\$\+<=>\^~\|]+`, gpt2Pattern, `\p{N}+`, `[0-9][0-9][0-9]`}},
}

func findPre(name string) (*ggufPre, error) {
	for i := range ggufPres {
		if slices.Contains(ggufPres[i].names, name) {
			return &ggufPres[i], nil
		}
	}
	return nil, fmt.Errorf("%w: tokenizer.ggml.pre %q; known: %s", ErrUnsupported, name, strings.Join(knownPres(), ", "))
}

// knownPres returns the names of all pre-tokenizers, sorted.
func knownPres() []string {
	var names []string
	for _, p := range ggufPres {
		for _, n := range p.names {
			if n != "" {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (p *ggufPre) splitters() ([]splitter, error) {
	var out []splitter
	for _, pattern := range p.patterns {
		s, err := newRegexSplit(pattern, isolated, false)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}
