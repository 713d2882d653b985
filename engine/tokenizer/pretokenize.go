package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// splitter cuts a piece into smaller ones (it may also rewrite it) and appends
// them to dst. first says that the piece starts the text.
type splitter interface {
	split(dst []string, piece string, first bool, sc *scratch) ([]string, error)
}

// behaviour says what becomes of the delimiters of a split.
type behaviour uint8

const (
	isolated behaviour = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func parseBehaviour(name string) (behaviour, error) {
	switch name {
	case "Isolated":
		return isolated, nil
	case "Removed":
		return removed, nil
	case "MergedWithPrevious":
		return mergedWithPrevious, nil
	case "MergedWithNext":
		return mergedWithNext, nil
	case "Contiguous":
		return contiguous, nil
	}
	return 0, fmt.Errorf("%w: split behavior %q; known: Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous", ErrUnsupported, name)
}

// span is a stretch of a piece: a delimiter or what lies between two of them.
type span struct {
	from, to int
	delim    bool
}

// appendSpans appends the pieces that spans, which tile piece, amount to.
func appendSpans(dst []string, piece string, spans []span, b behaviour) []string {
	if b == mergedWithNext {
		return appendMergedWithNext(dst, piece, spans)
	}
	start, prev := 0, span{}
	open := false // piece[start:prev.to] waits for a possible continuation
	for _, s := range spans {
		joins := open && (b == mergedWithPrevious && s.delim && !prev.delim ||
			b == contiguous && s.delim == prev.delim)
		if !joins {
			if open {
				dst = append(dst, piece[start:prev.to])
			}
			start = s.from
		}
		prev, open = s, true
		if b == removed && s.delim {
			open = false
		}
	}
	if open {
		dst = append(dst, piece[start:prev.to])
	}
	return dst
}

func appendMergedWithNext(dst []string, piece string, spans []span) []string {
	from := len(dst)
	nextDelim, end := true, -1
	for _, s := range slices.Backward(spans) {
		if s.delim && !nextDelim && end >= 0 {
			dst[len(dst)-1] = piece[s.from:end]
		} else {
			dst = append(dst, piece[s.from:s.to])
			end = s.to
		}
		nextDelim = s.delim
	}
	slices.Reverse(dst[from:])
	return dst
}

// regexSplit cuts at the matches of a pattern.
type regexSplit struct {
	re     *regexp2.Regexp
	b      behaviour
	invert bool // the stretches between matches are the delimiters
}

const (
	maxPatternBytes   = 64 << 10
	maxBacktrackSlots = 1 << 20 // 8 MiB of stack for one match attempt
)

func newRegexSplit(pattern string, b behaviour, invert bool) (*regexSplit, error) {
	if len(pattern) > maxPatternBytes {
		return nil, fmt.Errorf("%w: split pattern of %d bytes, the limit is %d", ErrUnsupported, len(pattern), maxPatternBytes)
	}
	re, err := regexp2.Compile(pattern, regexp2.OptionMaxBacktrackingStackSize(maxBacktrackSlots))
	if err != nil {
		return nil, fmt.Errorf("%w: split pattern %q: %w", ErrMalformed, pattern, err)
	}
	return &regexSplit{re: re, b: b, invert: invert}, nil
}

func (s *regexSplit) split(dst []string, piece string, _ bool, sc *scratch) ([]string, error) {
	runes := sc.runes[:0]
	for _, r := range piece {
		runes = append(runes, r)
	}
	spans := sc.spans[:0]
	at, atRune := 0, 0 // byte and rune offset of what was looked at
	skipTo := func(r int) int {
		for ; atRune < r; atRune++ {
			at += utf8.RuneLen(runes[atRune])
		}
		return at
	}
	done := 0
	err := s.re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		i, n, ok := m.GroupRange(0)
		if !ok || n == 0 {
			return true
		}
		from := skipTo(i)
		to := skipTo(i + n)
		if from > done {
			spans = append(spans, span{done, from, s.invert})
		}
		spans = append(spans, span{from, to, !s.invert})
		done = to
		return true
	})
	if err != nil {
		return dst, patternError(err)
	}
	if done < len(piece) {
		spans = append(spans, span{done, len(piece), s.invert})
	}
	sc.runes, sc.spans = runes, spans
	return appendSpans(dst, piece, spans, s.b), nil
}

func patternError(err error) error {
	if errors.Is(err, regexp2.ErrBacktrackingStackLimit) {
		return fmt.Errorf("%w: the text needs too much backtracking", ErrPattern)
	}
	return fmt.Errorf("%w: %w", ErrPattern, err)
}

// runeSplit cuts at single characters.
type runeSplit struct {
	delim func(rune) bool
	b     behaviour
}

func (s *runeSplit) split(dst []string, piece string, _ bool, sc *scratch) ([]string, error) {
	spans := sc.spans[:0]
	done := 0
	for i, r := range piece {
		if !s.delim(r) {
			continue
		}
		if i > done {
			spans = append(spans, span{done, i, false})
		}
		done = i + utf8.RuneLen(r)
		spans = append(spans, span{i, done, true})
	}
	if done < len(piece) {
		spans = append(spans, span{done, len(piece), false})
	}
	sc.spans = spans
	return appendSpans(dst, piece, spans, s.b), nil
}

func isPunctuation(r rune) bool {
	ascii := r >= '!' && r <= '/' || r >= ':' && r <= '@' || r >= '[' && r <= '`' || r >= '{' && r <= '~'
	return ascii || unicode.IsPunct(r)
}

// prefixSpace puts a space before a piece that has none.
type prefixSpace struct{}

func (prefixSpace) split(dst []string, piece string, _ bool, _ *scratch) ([]string, error) {
	if !strings.HasPrefix(piece, " ") {
		piece = " " + piece
	}
	return append(dst, piece), nil
}

// metaspace writes spaces as a visible mark and may put one before the text.
type metaspace struct {
	mark         string
	always, once bool // before every piece; before the first only
	cut          bool // cut before each mark
}

func (m *metaspace) split(dst []string, piece string, first bool, sc *scratch) ([]string, error) {
	piece = strings.ReplaceAll(piece, " ", m.mark)
	if (m.always || m.once && first) && !strings.HasPrefix(piece, m.mark) {
		piece = m.mark + piece
	}
	if !m.cut {
		return append(dst, piece), nil
	}
	spans := sc.spans[:0]
	for rest, at := piece, 0; rest != ""; {
		i := strings.Index(rest, m.mark)
		if i != 0 {
			if i < 0 {
				i = len(rest)
			}
			spans = append(spans, span{at, at + i, false})
		} else {
			i = len(m.mark)
			spans = append(spans, span{at, at + i, true})
		}
		rest, at = rest[i:], at+i
	}
	sc.spans = spans
	return appendSpans(dst, piece, spans, mergedWithNext), nil
}
