package chat

import (
	"fmt"
	"strings"
	"unicode"
)

// The template library looks past neighbouring tags when it strips white space,
// which loses line ends that belong to the prompt. So white-space control is done
// here, by the rules that published templates rely on (trim_blocks and
// lstrip_blocks on), and the library gets a source with nothing left to strip.

// resolver rewrites a template source.
type resolver struct {
	src         string
	pos         int
	out         strings.Builder
	skipSpace   bool // the last tag strips the white space that follows
	skipNewline bool // the last tag swallows one line end that follows
}

// resolveWhitespace returns an equivalent source without white-space control.
func resolveWhitespace(source string) (string, error) {
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	source = strings.TrimSuffix(source, "\n") // one final line end is not output
	r := &resolver{src: source}
	for r.pos < len(r.src) {
		if err := r.next(); err != nil {
			return "", err
		}
	}
	return r.out.String(), nil
}

// next handles the text up to the next tag, and the tag.
func (r *resolver) next() error {
	r.skip()
	start := r.pos
	open := r.findOpen()
	text := r.src[start:open]
	if open == len(r.src) {
		r.pos = open
		r.text(text, false)
		return nil
	}
	kind := r.src[open+1]
	r.pos = open + 2
	sign := r.sign()
	if raw, ok := r.rawBlock(kind); ok {
		r.text(r.strip(text, start, sign, kind), true)
		r.raw(raw)
		return nil
	}
	content, end, err := r.tag(kind)
	if err != nil {
		return fmt.Errorf("tag at byte %d: %w", open, err)
	}
	r.text(r.strip(text, start, sign, kind), true)
	r.skipSpace = end == '-'
	r.skipNewline = kind != '{' && end == 0
	switch kind {
	case '{':
		r.out.WriteString("{{ " + content + " }}")
	case '%':
		r.out.WriteString("{%+ " + content + " +%}")
	}
	return nil
}

// skip drops the white space that the tag before strips.
func (r *resolver) skip() {
	rest := r.src[r.pos:]
	switch {
	case r.skipSpace:
		r.pos += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case r.skipNewline && strings.HasPrefix(rest, "\n"):
		r.pos++
	}
	r.skipSpace, r.skipNewline = false, false
}

// findOpen returns the offset of the next tag, or the end.
func (r *resolver) findOpen() int {
	for i := r.pos; i+1 < len(r.src); i++ {
		if r.src[i] == '{' && strings.IndexByte("{%#", r.src[i+1]) >= 0 {
			return i
		}
	}
	return len(r.src)
}

// sign reads the mark after an opener: '-', '+' or 0.
func (r *resolver) sign() byte {
	if r.pos < len(r.src) && (r.src[r.pos] == '-' || r.src[r.pos] == '+') {
		r.pos++
		return r.src[r.pos-1]
	}
	return 0
}

// strip applies a tag's opener to the text before it, which begins at start.
func (r *resolver) strip(text string, start int, sign, kind byte) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || kind == '{':
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	atStart := line > 0 || r.startsLine(start)
	if atStart && strings.TrimLeftFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

// startsLine reports whether the text at start begins a line: at the beginning,
// or after a line end that a tag swallowed.
func (r *resolver) startsLine(start int) bool {
	return start == 0 || r.src[start-1] == '\n'
}

// text writes literal text; beforeTag says that a tag follows it, which a brace
// at its end must not run into.
func (r *resolver) text(s string, beforeTag bool) {
	if beforeTag && strings.HasSuffix(s, "{") {
		r.out.WriteString(s[:len(s)-1] + "{{ '{' }}")
		return
	}
	r.out.WriteString(s)
}

// tag reads to the end of a tag and returns what is inside and the mark before
// its closer.
func (r *resolver) tag(kind byte) (content string, end byte, err error) {
	if kind == '#' {
		n := strings.Index(r.src[r.pos:], "#}")
		if n < 0 {
			return "", 0, fmt.Errorf("unclosed comment")
		}
		content = r.src[r.pos : r.pos+n]
		r.pos += n + 2
		return "", lastSign(content), nil
	}
	closer := map[byte]string{'{': "}}", '%': "%}"}[kind]
	start, depth := r.pos, 0
	for r.pos < len(r.src) {
		c := r.src[r.pos]
		if depth == 0 && strings.HasPrefix(r.src[r.pos:], closer) {
			content = r.src[start:r.pos]
			r.pos += 2
			end = lastSign(content)
			if end == '+' && kind == '{' {
				end = 0
			}
			if end != 0 {
				content = content[:len(content)-1]
			}
			return content, end, nil
		}
		switch c {
		case '\'', '"':
			if err := r.skipString(c); err != nil {
				return "", 0, err
			}
			continue
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		r.pos++
	}
	return "", 0, fmt.Errorf("unclosed tag")
}

func lastSign(content string) byte {
	if content != "" {
		if c := content[len(content)-1]; c == '-' || c == '+' {
			return c
		}
	}
	return 0
}

// skipString moves past a string literal.
func (r *resolver) skipString(quote byte) error {
	for r.pos++; r.pos < len(r.src); r.pos++ {
		switch r.src[r.pos] {
		case '\\':
			r.pos++
		case quote:
			r.pos++
			return nil
		}
	}
	return fmt.Errorf("unclosed string")
}

// rawBlock recognises {% raw %} after the opener and its sign; it returns the
// text up to {% endraw %} with white space resolved and moves past it.
func (r *resolver) rawBlock(kind byte) (text string, ok bool) {
	if kind != '%' {
		return "", false
	}
	rest := r.src[r.pos:]
	inner, after, found := strings.Cut(rest, "%}")
	if !found {
		return "", false
	}
	mark := lastSign(inner)
	if strings.TrimSpace(strings.TrimRight(inner, "-+")) != "raw" {
		return "", false
	}
	body := after
	if mark == '-' {
		body = strings.TrimLeftFunc(body, isSpace)
	}
	for at := 0; ; {
		i := strings.Index(body[at:], "{%")
		if i < 0 {
			return "", false
		}
		at += i
		tag, tail, found := strings.Cut(body[at+2:], "%}")
		name := strings.TrimSpace(strings.Trim(tag, "-+"))
		if found && name == "endraw" {
			r.pos = len(r.src) - len(tail)
			return r.endRaw(body[:at], tag), true
		}
		at += 2
	}
}

// endRaw strips the raw text by the marks of its closing tag.
func (r *resolver) endRaw(text, tag string) string {
	var sign byte
	if tag[0] == '-' || tag[0] == '+' {
		sign = tag[0]
	}
	end := lastSign(tag)
	r.skipSpace, r.skipNewline = end == '-', end == 0
	switch sign {
	case '-':
		return strings.TrimRightFunc(text, isSpace)
	case '+':
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if line > 0 && strings.TrimLeftFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

// raw writes raw text so that no brace of it opens a tag.
func (r *resolver) raw(text string) {
	r.out.WriteString(strings.ReplaceAll(text, "{", "{{ '{' }}"))
}

// isSpace is white space as Python sees it.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
