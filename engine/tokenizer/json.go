package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

type fileJSON struct {
	AddedTokens []struct {
		ID         int64  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         modelJSON       `json:"model"`
}

type modelJSON struct {
	Type          string          `json:"type"`
	Dropout       *float64        `json:"dropout"`
	UnkToken      *string         `json:"unk_token"`
	SubwordPrefix *string         `json:"continuing_subword_prefix"`
	WordSuffix    *string         `json:"end_of_word_suffix"`
	FuseUnk       bool            `json:"fuse_unk"`
	ByteFallback  bool            `json:"byte_fallback"`
	IgnoreMerges  bool            `json:"ignore_merges"`
	Vocab         json.RawMessage `json:"vocab"` // an object, for Unigram a list
	Merges        json.RawMessage `json:"merges"`
}

// FromJSON reads a Hugging Face tokenizer.json and, if not empty, the
// tokenizer_config.json beside it (for the beginning- and end-of-text tokens).
// Errors wrap ErrMalformed or ErrUnsupported and name the part to blame.
func FromJSON(tokenizerJSON, tokenizerConfigJSON []byte) (*Tokenizer, error) {
	var f fileJSON
	if err := json.Unmarshal(tokenizerJSON, &f); err != nil {
		return nil, fmt.Errorf("%w: tokenizer.json: %w", ErrMalformed, err)
	}
	cfg, err := parseConfig(tokenizerConfigJSON)
	if err != nil {
		return nil, err
	}
	t, err := fromFile(&f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := t.applyConfig(cfg); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return t, nil
}

func fromFile(f *fileJSON) (*Tokenizer, error) {
	vocab, err := f.Model.vocabulary()
	if err != nil {
		return nil, err
	}
	pre, err := parsePreTokenizer(f.PreTokenizer)
	if err != nil {
		return nil, err
	}
	model, err := f.Model.build(vocab, pre.byteLevel)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{ids: vocab, model: model, splitters: pre.splitters, cache: newWordCache(), bos: NoToken}
	if t.normalize, err = parseNormalizer(f.Normalizer, 0); err != nil {
		return nil, err
	}
	added, err := f.added(vocab)
	if err != nil {
		return nil, err
	}
	if err := t.addTokens(added, 0); err != nil {
		return nil, err
	}
	dec, err := parseDecoder(f.Decoder)
	if err != nil {
		return nil, err
	}
	if absent(f.Decoder) {
		dec.byteLevel = pre.byteLevel // what the vocabulary spells is what to undo
	}
	t.buildPieces(dec)
	if t.prefix, t.suffix, err = parsePostProcessor(f.PostProcessor, 0); err != nil {
		return nil, err
	}
	return t, t.checkAround()
}

// vocabulary returns the model's tokens, spelling to id.
func (m *modelJSON) vocabulary() (map[string]int32, error) {
	if m.Type != "BPE" && m.Type != "" {
		return nil, fmt.Errorf("%w: model type %q; known: BPE", ErrUnsupported, m.Type)
	}
	if m.Dropout != nil && *m.Dropout != 0 {
		return nil, fmt.Errorf("%w: model.dropout makes ids random; set it to null", ErrUnsupported)
	}
	if m.SubwordPrefix != nil && *m.SubwordPrefix != "" || m.WordSuffix != nil && *m.WordSuffix != "" {
		return nil, fmt.Errorf("%w: model.continuing_subword_prefix and end_of_word_suffix", ErrUnsupported)
	}
	var vocab map[string]int32
	if err := json.Unmarshal(m.Vocab, &vocab); err != nil {
		return nil, fmt.Errorf("%w: model.vocab: %w", ErrMalformed, err)
	}
	if len(vocab) == 0 {
		return nil, fmt.Errorf("%w: model.vocab is empty", ErrMalformed)
	}
	return vocab, nil
}

// build makes the merge table.
func (m *modelJSON) build(vocab map[string]int32, byteLevel bool) (*bpe, error) {
	b := &bpe{
		byteLevel: byteLevel, byteFallback: m.ByteFallback, fuseUnk: m.FuseUnk, unk: NoToken,
		merges: map[uint64]merge{},
	}
	if m.UnkToken != nil {
		id, ok := vocab[*m.UnkToken]
		if !ok {
			return nil, fmt.Errorf("%w: model.unk_token %q is not in the vocabulary", ErrMalformed, *m.UnkToken)
		}
		b.unk = id
	}
	b.seedSymbols(vocab)
	if m.IgnoreMerges {
		b.whole = wholeWords(vocab, byteLevel)
	}
	return b, m.addMerges(b, vocab)
}

// addMerges reads merges written as "a b" or as ["a", "b"].
func (m *modelJSON) addMerges(b *bpe, vocab map[string]int32) error {
	if absent(m.Merges) {
		return nil
	}
	inner := bytes.TrimLeft(m.Merges[1:], " \t\r\n")
	if len(inner) == 0 || inner[0] != '[' {
		var lines []string
		if err := json.Unmarshal(m.Merges, &lines); err != nil {
			return fmt.Errorf("%w: model.merges: %w", ErrMalformed, err)
		}
		return b.addMergeLines(vocab, lines)
	}
	var pairs [][]string
	if err := json.Unmarshal(m.Merges, &pairs); err != nil {
		return fmt.Errorf("%w: model.merges: %w", ErrMalformed, err)
	}
	b.merges = make(map[uint64]merge, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return fmt.Errorf("%w: merge %d has %d parts, want 2", ErrMalformed, i, len(p))
		}
		if err := b.addMerge(vocab, p[0], p[1], i); err != nil {
			return err
		}
	}
	return nil
}

// addMergeLines adds merges written as "left right".
func (m *bpe) addMergeLines(ids map[string]int32, lines []string) error {
	m.merges = make(map[uint64]merge, len(lines))
	for i, line := range lines {
		left, right, ok := strings.Cut(line, " ")
		if !ok || left == "" || right == "" {
			return fmt.Errorf("%w: merge %d is %q, want two tokens with a space between", ErrMalformed, i, line)
		}
		if err := m.addMerge(ids, left, right, i); err != nil {
			return err
		}
	}
	return nil
}

// seedSymbols fills the table of initial symbols: bytes or single characters.
func (m *bpe) seedSymbols(vocab map[string]int32) {
	for b := range 256 {
		spelling := fmt.Sprintf("<0x%02X>", b)
		if m.byteLevel {
			spelling = string(byteToRune[b])
		}
		id, ok := vocab[spelling]
		if !ok {
			id = NoToken
		}
		m.bytes[b] = id
	}
	if m.byteLevel {
		return
	}
	m.chars = make(map[rune]int32)
	for s, id := range vocab {
		if r, n := utf8.DecodeRuneInString(s); n == len(s) && s != "" {
			m.chars[r] = id
		}
	}
}

// wholeWords maps the text of each token to its id.
func wholeWords(vocab map[string]int32, byteLevel bool) map[string]int32 {
	if !byteLevel {
		return vocab
	}
	whole := make(map[string]int32, len(vocab))
	for s, id := range vocab {
		if text, ok := byteLevelBytes(s); ok {
			whole[text] = id
		}
	}
	return whole
}

func (f *fileJSON) added(vocab map[string]int32) ([]addedToken, error) {
	out := make([]addedToken, 0, len(f.AddedTokens))
	for _, a := range f.AddedTokens {
		if id, ok := vocab[a.Content]; ok {
			a.ID = int64(id) // the model's own id wins, as in the reference
		}
		if a.ID < 0 || a.ID > maxID {
			return nil, fmt.Errorf("%w: added token %q has id %d, want 0..%d", ErrMalformed, a.Content, a.ID, maxID)
		}
		out = append(out, addedToken{
			id: int32(a.ID), content: a.Content, special: a.Special, singleWord: a.SingleWord,
			left: a.LStrip, right: a.RStrip, afterNormals: a.Normalized,
		})
	}
	return out, nil
}
