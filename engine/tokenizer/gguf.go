package tokenizer

import (
	"fmt"
	"slices"
	"strings"
)

// GGUF is the tokenizer metadata of a GGUF file as plain data. Field comments
// name the keys, without their "tokenizer.ggml." prefix.
type GGUF struct {
	Model  string    // model: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
	Pre    string    // pre: name of the pre-tokenizer, for gpt2
	Tokens []string  // tokens, by id
	Types  []int32   // token_type, by id; may be empty
	Scores []float32 // scores, by id; for llama
	Merges []string  // merges, "left right"; for gpt2

	BOS int32 // bos_token_id, NoToken if absent
	EOS int32 // eos_token_id, NoToken if absent
	EOT int32 // eot_token_id (end of turn), NoToken if absent
	EOM int32 // eom_token_id (end of message), NoToken if absent
	UNK int32 // unknown_token_id, NoToken if absent

	AddBOS         *bool // add_bos_token; nil if absent
	AddEOS         *bool // add_eos_token; nil if absent
	AddSpacePrefix *bool // add_space_prefix; nil if absent
}

// Values of token_type.
const (
	ggufUnknown     = 2
	ggufControl     = 3
	ggufUserDefined = 4
)

// endOfTurn are control tokens that end a generation in every published model
// that has them; many files name only one of several in eos_token_id.
var endOfTurn = []string{
	"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>", "<|return|>", "<|call|>",
}

// FromGGUF builds a tokenizer from GGUF metadata. Errors wrap ErrMalformed or
// ErrUnsupported and name the key to blame.
func FromGGUF(g GGUF) (*Tokenizer, error) {
	t, err := g.build()
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	return t, nil
}

func (g *GGUF) build() (*Tokenizer, error) {
	vocab, err := g.vocabulary()
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{ids: vocab, cache: newWordCache(), bos: g.BOS}
	var dec decoder
	var addBOS bool
	switch g.Model {
	case "gpt2":
		dec.byteLevel = true
		addBOS, err = g.buildByteLevel(t)
	case "llama":
		addBOS = true
		dec, err = g.buildSentencePiece(t)
	default:
		err = fmt.Errorf("%w: tokenizer.ggml.model %q; known: gpt2, llama", ErrUnsupported, g.Model)
	}
	if err != nil {
		return nil, err
	}
	if err := t.addTokens(g.added(t.ids), len(g.Tokens)); err != nil {
		return nil, err
	}
	copy(t.tokens, g.Tokens) // repeated spellings: each id shows its own
	for id, kind := range g.Types {
		t.special[id] = kind == ggufControl || kind == ggufUnknown
	}
	t.buildPieces(dec)
	return t, g.finish(t, addBOS)
}

// vocabulary checks the tables against each other and returns spelling to id;
// the first of repeated spellings counts.
func (g *GGUF) vocabulary() (map[string]int32, error) {
	n := len(g.Tokens)
	switch {
	case n == 0 || n > maxID:
		return nil, fmt.Errorf("%w: tokenizer.ggml.tokens has %d entries, want 1..%d", ErrMalformed, n, maxID)
	case len(g.Types) != 0 && len(g.Types) != n:
		return nil, fmt.Errorf("%w: tokenizer.ggml.token_type has %d entries for %d tokens", ErrMalformed, len(g.Types), n)
	case len(g.Scores) != 0 && len(g.Scores) != n:
		return nil, fmt.Errorf("%w: tokenizer.ggml.scores has %d entries for %d tokens", ErrMalformed, len(g.Scores), n)
	}
	for _, k := range []struct {
		key string
		id  int32
	}{{"bos", g.BOS}, {"eos", g.EOS}, {"eot", g.EOT}, {"eom", g.EOM}, {"unknown", g.UNK}} {
		if k.id < NoToken || int(k.id) >= n {
			return nil, fmt.Errorf("%w: tokenizer.ggml.%s_token_id is %d, the vocabulary has %d tokens", ErrMalformed, k.key, k.id, n)
		}
	}
	vocab := make(map[string]int32, n)
	for id, s := range g.Tokens {
		if _, ok := vocab[s]; !ok {
			vocab[s] = int32(id)
		}
	}
	return vocab, nil
}

// buildByteLevel sets up a gpt2 model; addBOS is what the pre-tokenizer's family
// does when the file does not say.
func (g *GGUF) buildByteLevel(t *Tokenizer) (addBOS bool, err error) {
	pre, err := findPre(g.Pre)
	if err != nil {
		return false, err
	}
	if t.splitters, err = pre.splitters(); err != nil {
		return false, err
	}
	if g.AddSpacePrefix != nil && *g.AddSpacePrefix {
		t.splitters = slices.Insert(t.splitters, 0, splitter(prefixSpace{}))
	}
	t.model = &bpe{byteLevel: true, unk: NoToken}
	t.model.seedSymbols(t.ids)
	if pre.ignoreMerges {
		t.model.whole = wholeWords(t.ids, true)
	}
	return pre.addBOS, t.model.addMergeLines(t.ids, g.Merges)
}

// added lists the tokens that are cut out of the text; of repeated spellings the
// first.
func (g *GGUF) added(vocab map[string]int32) []addedToken {
	var out []addedToken
	for id, kind := range g.Types {
		if vocab[g.Tokens[id]] != int32(id) {
			continue
		}
		switch kind {
		case ggufControl, ggufUnknown, ggufUserDefined:
			out = append(out, addedToken{id: int32(id), content: g.Tokens[id], special: kind != ggufUserDefined})
		}
	}
	return out
}

// finish sets the tokens around a text and those that end one.
func (g *GGUF) finish(t *Tokenizer, addBOS bool) error {
	if g.AddBOS != nil {
		addBOS = *g.AddBOS
	}
	if addBOS && g.BOS != NoToken {
		t.prefix = []int32{g.BOS}
	}
	if g.AddEOS != nil && *g.AddEOS && g.EOS != NoToken {
		t.suffix = []int32{g.EOS}
	}
	ends := []int32{g.EOS, g.EOT, g.EOM}
	for _, s := range endOfTurn {
		if id, ok := t.ids[s]; ok && t.special[id] {
			ends = append(ends, id)
		}
	}
	for _, id := range ends {
		if id != NoToken && !slices.Contains(t.eos, id) {
			t.eos = append(t.eos, id)
		}
	}
	return t.checkAround()
}

// spaceMark stands for a space in SentencePiece vocabularies.
const spaceMark = "\u2581"

// buildSentencePiece sets up a llama model: characters, byte fallback, and
// merges in the order of the scores of what they make.
func (g *GGUF) buildSentencePiece(t *Tokenizer) (decoder, error) {
	if len(g.Scores) == 0 {
		return decoder{}, fmt.Errorf("%w: tokenizer.ggml.scores is missing, model llama needs it", ErrMalformed)
	}
	prefix := g.AddSpacePrefix == nil || *g.AddSpacePrefix
	t.normalize = plain(func(s string) string {
		if prefix && s != "" {
			s = " " + s
		}
		return strings.ReplaceAll(s, " ", spaceMark)
	})
	t.model = &bpe{byteFallback: true, unk: g.UNK}
	t.model.seedSymbols(t.ids)
	t.model.mergesFromScores(g.mergeable(t.ids), g.Scores)
	dec := decoder{byteFallback: true, steps: []func(string) string{
		func(s string) string { return strings.ReplaceAll(s, spaceMark, " ") },
	}}
	if prefix {
		dec.stripLeft = 1
	}
	return dec, nil
}

// mergeable returns the spellings that merges may use and make: ordinary tokens.
func (g *GGUF) mergeable(vocab map[string]int32) map[string]int32 {
	out := make(map[string]int32, len(vocab))
	for s, id := range vocab {
		if len(g.Types) == 0 || g.Types[id] == 1 || g.Types[id] == ggufUserDefined {
			out[s] = id
		}
	}
	return out
}

// mergesFromScores adds, for each token, every way to make it from two tokens;
// its rank is that of the token's score, best first.
func (m *bpe) mergesFromScores(vocab map[string]int32, scores []float32) {
	ids := make([]int32, 0, len(vocab))
	for _, id := range vocab {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b int32) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	ranks := make(map[int32]int32, len(ids))
	for i, id := range ids {
		ranks[id] = int32(i)
		if i > 0 && scores[id] == scores[ids[i-1]] {
			ranks[id] = ranks[ids[i-1]]
		}
	}
	m.merges = make(map[uint64]merge, len(ids))
	for s, id := range vocab {
		for at := range s {
			left, ok := vocab[s[:at]]
			if !ok || at == 0 {
				continue
			}
			if right, ok := vocab[s[at:]]; ok {
				m.merges[pairKey(left, right)] = merge{rank: ranks[id], id: id}
			}
		}
	}
}
