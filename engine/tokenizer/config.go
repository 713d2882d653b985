package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// configJSON is the part of tokenizer_config.json that ids depend on.
type configJSON struct {
	BOS    tokenName `json:"bos_token"`
	EOS    tokenName `json:"eos_token"`
	AddBOS *bool     `json:"add_bos_token"`
	AddEOS *bool     `json:"add_eos_token"`
	Class  string    `json:"tokenizer_class"`
}

// tokenName is a token written as "text", {"content": "text"} or null.
type tokenName string

// UnmarshalJSON implements json.Unmarshaler.
func (n *tokenName) UnmarshalJSON(raw []byte) error {
	var s *string
	if json.Unmarshal(raw, &s) == nil {
		if s != nil {
			*n = tokenName(*s)
		}
		return nil
	}
	var o struct {
		Content string `json:"content"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("want a string or an object with content: %w", err)
	}
	*n = tokenName(o.Content)
	return nil
}

func parseConfig(raw []byte) (configJSON, error) {
	var c configJSON
	if len(raw) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("%w: tokenizer_config.json: %w", ErrMalformed, err)
	}
	return c, nil
}

// applyConfig sets the special tokens. add_bos_token and add_eos_token overrule
// the post-processor of tokenizer.json, as the reference does for the classes
// that know these keys.
func (t *Tokenizer) applyConfig(c configJSON) error {
	bos, err := t.named("bos_token", c.BOS)
	if err != nil {
		return err
	}
	eos, err := t.named("eos_token", c.EOS)
	if err != nil {
		return err
	}
	t.bos = bos
	if eos != NoToken {
		t.eos = []int32{eos}
	}
	removes := strings.Contains(c.Class, "Llama") || strings.Contains(c.Class, "Gemma") || strings.Contains(c.Class, "Cohere")
	t.prefix = around(t.prefix, bos, c.AddBOS, removes)
	t.suffix = around(t.suffix, eos, c.AddEOS, removes)
	return nil
}

// around adds id to the ids put on one side of a text, or removes it.
func around(side []int32, id int32, want *bool, removes bool) []int32 {
	if id == NoToken || want == nil {
		return side
	}
	at := slices.Index(side, id)
	switch {
	case *want && at < 0:
		return append([]int32{id}, side...)
	case !*want && at >= 0 && removes:
		return slices.Delete(side, at, at+1)
	}
	return side
}

func (t *Tokenizer) named(key string, name tokenName) (int32, error) {
	if name == "" {
		return NoToken, nil
	}
	id, ok := t.ids[string(name)]
	if !ok {
		return NoToken, fmt.Errorf("%w: %s %q is not in the vocabulary", ErrMalformed, key, string(name))
	}
	return id, nil
}
