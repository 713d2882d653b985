package tokenizer

import (
	"fmt"
	"slices"
	"strings"
)

const (
	maxID      = 1 << 24 // far above any published vocabulary
	maxIDHoles = 1 << 16 // unused ids that a vocabulary may have beyond its tokens
)

// addTokens registers added tokens, then builds the id tables and the matchers.
// t.ids holds the model's vocabulary on entry; the tables get at least size
// entries.
func (t *Tokenizer) addTokens(added []addedToken, size int) error {
	for _, a := range added {
		t.ids[a.content] = a.id
	}
	top := int32(-1)
	for s, id := range t.ids {
		if id < 0 || id > maxID {
			return fmt.Errorf("%w: token %q has id %d, want 0..%d", ErrMalformed, s, id, maxID)
		}
		top = max(top, id)
	}
	if int(top) >= 2*len(t.ids)+maxIDHoles {
		return fmt.Errorf("%w: highest token id is %d, but there are only %d tokens", ErrMalformed, top, len(t.ids))
	}
	size = max(size, int(top)+1)
	t.tokens, t.special = make([]string, size), make([]bool, size)
	for s, id := range t.ids {
		// Two spellings of one id happen in the wild; the added one is shown.
		if old := t.tokens[id]; old == "" || s < old {
			t.tokens[id] = s
		}
	}
	for _, a := range added {
		t.tokens[a.id] = a.content
		t.special[a.id] = a.special
	}
	return t.buildMatchers(added)
}

func (t *Tokenizer) buildMatchers(added []addedToken) error {
	var raw, after []addedToken
	for _, a := range added {
		if !a.afterNormals {
			raw = append(raw, a)
			continue
		}
		if t.normalize != nil {
			text, err := t.normalize(a.content)
			if err != nil {
				return fmt.Errorf("added token %q: %w", a.content, err)
			}
			a.content = text
		}
		after = append(after, a)
	}
	t.addedRaw, t.addedNorm = newAddedSet(raw), newAddedSet(after)
	return nil
}

// checkAround verifies that the ids put around a text exist.
func (t *Tokenizer) checkAround() error {
	for _, id := range slices.Concat(t.prefix, t.suffix) {
		if !t.known(id) {
			return fmt.Errorf("%w: post_processor adds id %d, which is not in the vocabulary", ErrMalformed, id)
		}
	}
	return nil
}

// buildPieces computes what each id decodes to.
func (t *Tokenizer) buildPieces(d decoder) {
	t.pieces = make([]string, len(t.tokens))
	for id, s := range t.tokens {
		t.pieces[id] = d.piece(s)
	}
	t.stripLeft, t.perByteBad = d.stripLeft, d.byteFallback
	if d.dropMark == "" {
		return
	}
	t.first = make([]string, len(t.tokens))
	for id, s := range t.tokens {
		t.first[id] = d.piece(strings.ReplaceAll(s, d.dropMark, ""))
	}
}
