package tokenizer

import (
	"strings"
	"unicode/utf8"
)

const replacement = "\uFFFD"

// validUTF8 returns text with invalid bytes read as U+FFFD.
func validUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	out, _ := appendValid(nil, text, true, false)
	return string(out)
}

// appendValid appends src to dst as valid UTF-8. An ill-formed sequence becomes
// one U+FFFD for its longest prefix that could begin a character, or one for
// each of that prefix's bytes with perByte. Unless final is set, a prefix at the
// end of src that more bytes may complete is left over: it is returned as rest
// (at most 3 bytes).
func appendValid(dst []byte, src string, final, perByte bool) (out []byte, rest string) {
	for len(src) > 0 {
		r, n := utf8.DecodeRuneInString(src)
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, src[:n]...)
			src = src[n:]
			continue
		}
		n, open := brokenPrefix(src)
		if open && !final {
			return dst, src
		}
		marks := 1
		if perByte {
			marks = n
		}
		for range marks {
			dst = append(dst, replacement...)
		}
		src = src[n:]
	}
	return dst, ""
}

// brokenPrefix returns the length of the longest prefix of s that begins a
// well-formed sequence without completing it (at least 1), and whether that
// prefix reaches the end of s and could still be completed. s must start with an
// ill-formed sequence.
func brokenPrefix(s string) (n int, open bool) {
	lo, hi := byte(0x80), byte(0xbf)
	need := 0
	switch c := s[0]; {
	case c >= 0xc2 && c <= 0xdf:
		need = 1
	case c >= 0xe0 && c <= 0xef:
		need = 2
		switch c {
		case 0xe0:
			lo = 0xa0 // shorter forms are ill-formed
		case 0xed:
			hi = 0x9f // surrogates are ill-formed
		}
	case c >= 0xf0 && c <= 0xf4:
		need = 3
		switch c {
		case 0xf0:
			lo = 0x90
		case 0xf4:
			hi = 0x8f // beyond U+10FFFF
		}
	default:
		return 1, false
	}
	for n = 1; n <= need; n++ {
		if n == len(s) {
			return n, true
		}
		if s[n] < lo || s[n] > hi {
			return n, false
		}
		lo, hi = 0x80, 0xbf
	}
	return n, false
}

// trailingBytes returns the incomplete character at the end of s, "" if none.
func trailingBytes(s string) string {
	from := max(0, len(s)-3)
	for i := from; i < len(s); i++ {
		if !utf8.RuneStart(s[i]) || s[i] < utf8.RuneSelf || utf8.FullRuneInString(s[i:]) {
			continue
		}
		if n, open := brokenPrefix(s[i:]); open && i+n == len(s) {
			return strings.Clone(s[i:])
		}
	}
	return ""
}
