package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is cut out of the text before the model sees it.
type addedToken struct {
	id           int32
	content      string
	special      bool // a control token: hidden from output, skipped by PlainSpecial
	singleWord   bool // only where no word character touches it
	left, right  bool // swallow white space on that side
	afterNormals bool // matched in the normalised text
}

// addedSet finds added tokens, the longest at the leftmost place.
type addedSet struct {
	tokens []addedToken
	starts [256]bool        // first bytes of tokens
	next   map[uint64]int32 // node << 8 | byte -> node; 0 is the root
	end    []int32          // node -> index into tokens, -1 = none
}

// newAddedSet returns nil if there are no tokens; empty contents are left out.
func newAddedSet(tokens []addedToken) *addedSet {
	s := &addedSet{next: make(map[uint64]int32), end: []int32{-1}}
	for _, t := range tokens {
		if t.content == "" {
			continue
		}
		s.starts[t.content[0]] = true
		node := int32(0)
		for i := range len(t.content) {
			key := uint64(node)<<8 | uint64(t.content[i])
			child, ok := s.next[key]
			if !ok {
				child = int32(len(s.end))
				s.end = append(s.end, -1)
				s.next[key] = child
			}
			node = child
		}
		if s.end[node] < 0 {
			s.end[node] = int32(len(s.tokens))
			s.tokens = append(s.tokens, t)
		}
	}
	if len(s.tokens) == 0 {
		return nil
	}
	return s
}

// cut walks text and emits, in order, each added token (id set) and each
// non-empty stretch between them (id NoToken). A nil set emits all of text.
func (s *addedSet) cut(text string, plainSpecial bool, emit func(from, to int, id int32)) {
	done := 0 // everything before it was emitted
	for at := 0; s != nil && at < len(text); {
		t, n := s.match(text[at:])
		if t == nil {
			at++
			continue
		}
		from, to := at, at+n
		at = to
		if t.special && plainSpecial || t.singleWord && touchesWord(text, from, to) {
			continue
		}
		if t.left {
			from = max(len(strings.TrimRightFunc(text[:from], unicode.IsSpace)), done)
		}
		if t.right {
			to = len(text) - len(strings.TrimLeftFunc(text[to:], unicode.IsSpace))
		}
		if from < done {
			continue // swallowed by the token before
		}
		if from > done {
			emit(done, from, NoToken)
		}
		emit(from, to, t.id)
		done, at = to, to
	}
	if done < len(text) {
		emit(done, len(text), NoToken)
	}
}

// match returns the longest token that text starts with.
func (s *addedSet) match(text string) (best *addedToken, n int) {
	if !s.starts[text[0]] {
		return nil, 0
	}
	node := int32(0)
	for i := range len(text) {
		child, ok := s.next[uint64(node)<<8|uint64(text[i])]
		if !ok {
			break
		}
		node = child
		if e := s.end[node]; e >= 0 {
			best, n = &s.tokens[e], i+1
		}
	}
	return best, n
}

// touchesWord reports whether a word character borders text[from:to].
func touchesWord(text string, from, to int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:from])
	after, _ := utf8.DecodeRuneInString(text[to:])
	return from > 0 && isWord(before) || to < len(text) && isWord(after)
}

func isWord(r rune) bool {
	return unicode.In(r, unicode.Letter, unicode.Mark, unicode.Nd, unicode.Pc)
}
