package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// joiner is U+034F, which the norm package inserts into runs of more than 30
// combining marks (the stream-safe format). References do not, so such texts
// take the plain algorithm below.
const joiner = "\u034f"

// form returns the normaliser of a Unicode normal form.
func form(f norm.Form) normalizer {
	return plain(func(s string) string {
		out := f.String(s)
		if strings.Count(out, joiner) == strings.Count(s, joiner) {
			return out
		}
		runes := decompose(s, f)
		if f == norm.NFC || f == norm.NFKC {
			runes = compose(runes)
		}
		return string(runes)
	})
}

// decompose returns the full decomposition with marks in canonical order.
func decompose(s string, f norm.Form) []rune {
	by := norm.NFD
	if f == norm.NFKC || f == norm.NFKD {
		by = norm.NFKD
	}
	out := make([]rune, 0, len(s))
	for _, r := range s {
		out = append(out, []rune(by.String(string(r)))...)
	}
	for i := 0; i < len(out); i++ {
		start := i
		for i < len(out) && class(out[i]) != 0 {
			i++
		}
		slices.SortStableFunc(out[start:i], func(a, b rune) int { return int(class(a)) - int(class(b)) })
	}
	return out
}

// compose joins, in place, each character with the starter before it where a
// composed form exists and nothing between them blocks it.
func compose(in []rune) []rune {
	out := in[:0]
	starter, last := -1, uint8(0) // index of the last starter; class of the last rune kept after it
	for _, r := range in {
		c := class(r)
		adjacent := starter == len(out)-1
		if starter >= 0 && (adjacent || last != 0 && last < c) {
			if joined, ok := composePair(out[starter], r); ok {
				out[starter] = joined
				continue
			}
		}
		if c == 0 {
			starter = len(out)
		}
		last = c
		out = append(out, r)
	}
	return out
}

func composePair(a, b rune) (rune, bool) {
	s := norm.NFC.String(string(a) + string(b))
	r, n := utf8.DecodeRuneInString(s)
	return r, n == len(s)
}

// class returns the canonical combining class.
func class(r rune) uint8 { return norm.NFC.PropertiesString(string(r)).CCC() }
