package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"tandem/engine/model/gguf"
)

// TokenizerData is what a checkpoint says about its tokenizer, unparsed: GGUF
// metadata, or the files of a folder. One of Tokens and JSON is set.
type TokenizerData struct {
	// From GGUF metadata.
	Model  string // "gpt2", "llama", …
	Pre    string // name of the pre-tokenizer
	Tokens []string
	Types  []int32   // kind of each token as GGUF numbers them; may be nil
	Scores []float32 // may be nil
	Merges []string
	UNK    int32 // -1 when absent, as the next three
	PAD    int32
	EOT    int32 // end of turn
	EOM    int32 // end of message
	AddBOS *bool // nil when the file does not say, as the other two
	AddEOS *bool
	// AddSpacePrefix is for sentencepiece-like tokenizers.
	AddSpacePrefix *bool

	// From the files of a folder.
	JSON          []byte // tokenizer.json
	ConfigJSON    []byte // tokenizer_config.json; may be nil
	SpecialTokens []byte // special_tokens_map.json; may be nil

	// From either.
	BOS           int32             // -1 when absent; from config.json in a folder
	EOS           int32             // the first of Config.EOS in a folder, -1 when absent
	ChatTemplate  string            // empty when the model has none
	ChatTemplates map[string]string // further templates by name, such as "tool_use"
}

func ggufTokenizer(f *gguf.File) (TokenizerData, error) {
	var t TokenizerData
	var err error
	optional := func(e error) {
		if err == nil && !errors.Is(e, gguf.ErrMissing) {
			err = e
		}
	}
	str := func(key string) string { s, e := f.String(key); optional(e); return s }
	flag := func(key string) *bool {
		b, e := f.Bool(key)
		optional(e)
		if e != nil {
			return nil
		}
		return &b
	}
	const p = "tokenizer.ggml."
	t.Model, t.Pre = str(p+"model"), str(p+"pre")
	var e error
	t.Tokens, e = f.Strings(p + "tokens")
	optional(e)
	t.Merges, e = f.Strings(p + "merges")
	optional(e)
	t.Scores, e = f.Floats(p + "scores")
	optional(e)
	types, e := f.Ints(p + "token_type")
	optional(e)
	for _, n := range types {
		t.Types = append(t.Types, int32(n))
	}
	t.AddBOS, t.AddEOS, t.AddSpacePrefix = flag(p+"add_bos_token"), flag(p+"add_eos_token"), flag(p+"add_space_prefix")
	r := &ggufReader{f: f}
	t.BOS, t.EOS = r.tokenID(p+"bos_token_id"), r.tokenID(p+"eos_token_id")
	t.UNK, t.PAD = r.tokenID(p+"unknown_token_id"), r.tokenID(p+"padding_token_id")
	t.EOT, t.EOM = r.tokenID(p+"eot_token_id"), r.tokenID(p+"eom_token_id")
	optional(r.err)
	t.ChatTemplate = str("tokenizer.chat_template")
	names, e := f.Strings("tokenizer.chat_templates")
	optional(e)
	for _, name := range names {
		t.addTemplate(name, str("tokenizer.chat_template."+name))
	}
	if err != nil {
		return t, err
	}
	if t.Types != nil && len(t.Types) != len(t.Tokens) {
		return t, fmt.Errorf("GGUF key %q: %d entries for %d tokens", p+"token_type", len(t.Types), len(t.Tokens))
	}
	if t.Scores != nil && len(t.Scores) != len(t.Tokens) {
		return t, fmt.Errorf("GGUF key %q: %d entries for %d tokens", p+"scores", len(t.Scores), len(t.Tokens))
	}
	return t, nil
}

func (t *TokenizerData) addTemplate(name, text string) {
	if name == "default" {
		t.ChatTemplate = text
		return
	}
	if t.ChatTemplates == nil {
		t.ChatTemplates = map[string]string{}
	}
	t.ChatTemplates[name] = text
}

// maxSideFile bounds the JSON files of a folder; the largest known
// tokenizer.json has about 40 MB.
const maxSideFile = 256 << 20

// readSide reads a small file of the folder; nil when it is absent.
func readSide(dir, name string) ([]byte, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSideFile {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", path, maxSideFile)
	}
	return os.ReadFile(path)
}

func hfTokenizer(dir string, c *Config) (TokenizerData, error) {
	t := TokenizerData{UNK: -1, PAD: -1, EOT: -1, EOM: -1, BOS: c.BOS, EOS: -1}
	if len(c.EOS) > 0 {
		t.EOS = c.EOS[0]
	}
	var jinja []byte
	for name, dst := range map[string]*[]byte{
		"tokenizer.json": &t.JSON, "tokenizer_config.json": &t.ConfigJSON,
		"special_tokens_map.json": &t.SpecialTokens, "chat_template.jinja": &jinja,
	} {
		var err error
		if *dst, err = readSide(dir, name); err != nil {
			return t, err
		}
	}
	if err := t.templates(); err != nil {
		return t, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	if jinja != nil { // newer folders keep it in a file, which wins
		t.ChatTemplate = string(jinja)
	}
	return t, nil
}

// templates reads chat_template of tokenizer_config.json: a string, or a list
// of named templates.
func (t *TokenizerData) templates() error {
	if len(t.ConfigJSON) == 0 {
		return nil
	}
	var raw struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if err := json.Unmarshal(t.ConfigJSON, &raw); err != nil {
		return err
	}
	if len(raw.Template) == 0 || raw.Template[0] != '[' {
		if len(raw.Template) == 0 {
			return nil
		}
		if err := json.Unmarshal(raw.Template, &t.ChatTemplate); err != nil {
			return fmt.Errorf("chat_template: %w", err)
		}
		return nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw.Template, &list); err != nil {
		return fmt.Errorf("chat_template: %w", err)
	}
	for _, e := range list {
		t.addTemplate(e.Name, e.Template)
	}
	return nil
}
