package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Decode returns the text of ids. Bytes that form no character read as U+FFFD.
// Unknown ids and, with skipSpecial, special tokens contribute nothing.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.NewStream(nil, skipSpecial)
	var out strings.Builder
	for _, id := range ids {
		out.WriteString(s.Push(id))
	}
	out.WriteString(s.Flush())
	return out.String()
}

// Stream decodes tokens one by one. What its calls return, put together, equals
// Decode of the same ids. It belongs to one goroutine.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	started     bool    // some token was decoded, the rules for the first one are over
	strip       int     // spaces still to be taken off the start
	pending     string  // bytes of an incomplete character, at most 3
	shown       []int32 // special tokens that are text
}

// NewStream starts decoding what follows promptTail: the last few prompt ids
// (4 suffice) or nil at the start of a text. The tail itself is not returned,
// except for the bytes of a character that it leaves incomplete.
func (t *Tokenizer) NewStream(promptTail []int32, skipSpecial bool) *Stream {
	s := &Stream{t: t, skipSpecial: skipSpecial, strip: t.stripLeft}
	if len(promptTail) == 0 {
		return s
	}
	s.started, s.strip = true, 0
	var tail string
	for _, id := range promptTail[max(0, len(promptTail)-4):] {
		if t.known(id) {
			tail += t.pieces[id]
		}
	}
	s.pending = trailingBytes(tail)
	return s
}

// Show makes text of these special tokens although others are skipped.
func (s *Stream) Show(ids []int32) *Stream {
	s.shown = ids
	return s
}

// Push takes the next id and returns the text that is complete because of it.
func (s *Stream) Push(id int32) string {
	piece := s.piece(id)
	if piece == "" {
		return ""
	}
	if s.pending == "" && utf8.ValidString(piece) {
		return piece
	}
	out, rest := appendValid(nil, s.pending+piece, false, s.t.perByteBad)
	s.pending = rest
	return string(out)
}

// Flush ends the text: an incomplete character becomes U+FFFD.
func (s *Stream) Flush() string {
	out, _ := appendValid(nil, s.pending, true, s.t.perByteBad)
	s.pending = ""
	return string(out)
}

// piece returns the bytes of id at this place of the text.
func (s *Stream) piece(id int32) string {
	t := s.t
	if !t.known(id) || s.skipSpecial && t.special[id] && !slices.Contains(s.shown, id) {
		return ""
	}
	piece := t.pieces[id]
	if !s.started {
		s.started = true
		if t.first != nil {
			piece = t.first[id]
		}
	}
	for s.strip > 0 && piece != "" {
		if piece[0] != ' ' {
			s.strip = 0
			break
		}
		piece = piece[1:]
		s.strip--
	}
	return piece
}
