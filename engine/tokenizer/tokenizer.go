package tokenizer

import (
	"fmt"
	"slices"
)

// MaxTextBytes bounds the text of one Encode call. It is far above what any
// context length can hold, and keeps scratch memory bounded.
const MaxTextBytes = 16 << 20

// NoToken stands for an absent token id.
const NoToken int32 = -1

// Tokenizer maps text to token ids and back. It is immutable and safe for
// concurrent use.
type Tokenizer struct {
	tokens  []string         // id -> spelling in the file; "" where the id is unused
	ids     map[string]int32 // spelling -> id, added tokens included
	special []bool           // id -> special (control) token
	pieces  []string         // id -> bytes it decodes to
	first   []string         // id -> bytes when it starts the text; nil = same as pieces

	normalize  normalizer // nil = identity
	splitters  []splitter
	model      *bpe
	addedRaw   *addedSet // matched in the text as given
	addedNorm  *addedSet // matched after normalisation
	cache      *wordCache
	prefix     []int32 // put before the text with AddSpecial
	suffix     []int32 // put after it
	bos        int32
	eos        []int32
	stripLeft  int  // spaces removed from the very start of decoded text
	perByteBad bool // an invalid byte sequence shows one U+FFFD for each byte
}

// EncodeOptions says how special tokens are treated. The zero value parses
// special tokens that occur in the text and adds none: right for a prompt that a
// chat template rendered, which already has its own beginning-of-text token.
type EncodeOptions struct {
	// AddSpecial adds the tokens the tokenizer puts around plain text (usually
	// a beginning-of-text token, for many models nothing).
	AddSpecial bool
	// PlainSpecial treats the spelling of special tokens as ordinary text.
	PlainSpecial bool
}

// VocabSize returns the highest token id plus one. A model may have more rows.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// ID returns the id of the token with this spelling (as the file writes it).
func (t *Tokenizer) ID(token string) (id int32, ok bool) {
	id, ok = t.ids[token]
	return id, ok
}

// Token returns the spelling of an id as the file writes it, "" if unknown.
func (t *Tokenizer) Token(id int32) string {
	if !t.known(id) {
		return ""
	}
	return t.tokens[id]
}

// TokenBytes returns a fresh copy of the bytes an id stands for inside a text;
// they need not be valid UTF-8 on their own. Unknown ids have none.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.known(id) {
		return nil
	}
	return []byte(t.pieces[id])
}

// IsSpecial reports whether an id is a special (control) token.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.known(id) && t.special[id] }

// BOS returns the beginning-of-text id, or NoToken.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS returns a fresh copy of the ids that end a generation, the main one first.
// Empty if the file names none.
func (t *Tokenizer) EOS() []int32 { return slices.Clone(t.eos) }

func (t *Tokenizer) known(id int32) bool { return id >= 0 && int(id) < len(t.tokens) }

// Encode returns the token ids of text. Invalid UTF-8 reads as U+FFFD. It fails
// only with ErrTooLong or ErrPattern.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	if len(text) > MaxTextBytes {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLong, len(text), MaxTextBytes)
	}
	ids := make([]int32, 0, len(text)/3+len(t.prefix)+len(t.suffix)+4)
	if o.AddSpecial {
		ids = append(ids, t.prefix...)
	}
	text = validUTF8(text)
	sc := getScratch()
	defer sc.put()
	ids, err := t.encodeText(ids, text, o, sc)
	if err != nil {
		return nil, err
	}
	if o.AddSpecial {
		ids = append(ids, t.suffix...)
	}
	return ids, nil
}

// encodeText cuts text at the added tokens and encodes what lies between.
func (t *Tokenizer) encodeText(ids []int32, text string, o EncodeOptions, sc *scratch) ([]int32, error) {
	var err error
	t.addedRaw.cut(text, o.PlainSpecial, func(from, to int, id int32) {
		switch {
		case err != nil:
		case id != NoToken:
			ids = append(ids, id)
		default:
			ids, err = t.encodeSegment(ids, text[from:to], from == 0, o, sc)
		}
	})
	return ids, err
}

// encodeSegment normalises one stretch of ordinary text, cuts it at the tokens
// that are matched after normalisation, and encodes the rest.
func (t *Tokenizer) encodeSegment(ids []int32, text string, atStart bool, o EncodeOptions, sc *scratch) ([]int32, error) {
	if t.normalize != nil {
		var err error
		if text, err = t.normalize(text); err != nil {
			return nil, err
		}
	}
	var err error
	t.addedNorm.cut(text, o.PlainSpecial, func(from, to int, id int32) {
		switch {
		case err != nil:
		case id != NoToken:
			ids = append(ids, id)
		default:
			ids, err = t.encodePlain(ids, text[from:to], atStart && from == 0, sc)
		}
	})
	return ids, err
}

// encodePlain pre-tokenises text and encodes each piece.
func (t *Tokenizer) encodePlain(ids []int32, text string, atStart bool, sc *scratch) ([]int32, error) {
	pieces := append(sc.pieces[:0], text)
	next := sc.next[:0]
	var err error
	for _, s := range t.splitters {
		next = next[:0]
		for i, p := range pieces {
			if next, err = s.split(next, p, atStart && i == 0, sc); err != nil {
				return nil, err
			}
		}
		pieces, next = next, pieces
	}
	for _, p := range pieces {
		ids = t.encodeWord(ids, p, sc)
	}
	sc.pieces, sc.next = pieces, next
	return ids, nil
}

// encodeWord encodes one pre-tokenised piece, through the cache if it is short.
func (t *Tokenizer) encodeWord(ids []int32, word string, sc *scratch) []int32 {
	if word == "" {
		return ids
	}
	if len(word) > maxCachedWord {
		return t.model.encode(ids, word, sc)
	}
	if got, ok := t.cache.get(word); ok {
		return append(ids, got...)
	}
	from := len(ids)
	ids = t.model.encode(ids, word, sc)
	t.cache.put(word, ids[from:])
	return ids
}
