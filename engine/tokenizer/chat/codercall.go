package chat

import (
	"bytes"
	"encoding/json"
	"strings"
)

// coderCall is a call whose parameters stand between tags.
type coderCall struct {
	written int            // parameters
	seen    int            // of rest, up to which no end of a parameter is
	types   map[string]any // of the function's parameters, by name
}

const (
	paramOpen  = "<parameter="
	paramClose = "</parameter>"
	coderClose = "</function>"
)

// atCoder wants the function behind the tag of a call.
func (p *Parser) atCoder(end bool) bool {
	t := strings.TrimLeft(p.rest, white)
	yes, maybe := begins(t, coderOpen, end)
	if maybe {
		return false
	}
	if !yes {
		return p.refuse()
	}
	p.raw = append(p.raw, p.rest[:len(p.rest)-len(t)+len(coderOpen)]...)
	p.rest = t[len(coderOpen):]
	return p.enter((*Parser).atCoderName)
}

func (p *Parser) atCoderName(end bool) bool {
	at := strings.IndexByte(p.rest, '>')
	if at < 0 && !end && len(p.rest) <= maxName {
		return false
	}
	if at <= 0 || at > maxName {
		return p.refuse()
	}
	name := strings.Trim(p.rest[:at], white)
	if name == "" {
		return p.refuse()
	}
	p.rest = p.rest[at+1:]
	p.begin(name)
	p.arguments("{")
	p.coder = coderCall{types: p.typesOf(name)}
	return p.enter((*Parser).inCoder)
}

// inCoder stands before a parameter or the end.
func (p *Parser) inCoder(end bool) bool {
	if !p.skip(end) {
		return false
	}
	param, maybeParam := begins(p.rest, paramOpen, end)
	closes, maybeCloses := begins(p.rest, coderClose, end)
	switch {
	case maybeParam || maybeCloses:
		return false
	case param:
		return p.parameter(end)
	case closes:
		p.rest = p.rest[len(coderClose):]
	case end: // it broke off: so do the arguments
		p.rest = ""
		return false
	}
	p.arguments("}")
	return p.enter((*Parser).closeTag)
}

// parameter takes one that is complete.
func (p *Parser) parameter(end bool) bool {
	from := max(p.coder.seen-len(paramClose), len(paramOpen))
	at := strings.Index(p.rest[from:], paramClose)
	if at < 0 {
		p.coder.seen = len(p.rest)
		if end {
			p.rest = ""
		}
		return false
	}
	key, value, _ := strings.Cut(p.rest[len(paramOpen):from+at], ">")
	p.rest, p.coder.seen = p.rest[from+at+len(paramClose):], 0
	value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
	if p.coder.written++; p.coder.written > 1 {
		p.arguments(", ")
	}
	p.arguments(quote(key) + ": " + p.coder.encode(key, value))
	return true
}

// encode writes a value by the type that the request's function gives it: text, unless it is of another type and reads as such.
func (c *coderCall) encode(key, value string) string {
	if t := c.types[key]; t != nil && t != "string" && json.Valid([]byte(value)) {
		return value
	}
	return quote(value)
}

func quote(s string) string {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string can always be encoded
	return strings.TrimSuffix(buf.String(), "\n")
}

// typesOf are the types of a function's parameters, as far as its schema tells them.
func (p *Parser) typesOf(name string) map[string]any {
	out := map[string]any{}
	for _, f := range p.o.Functions {
		var schema struct {
			Properties map[string]struct{ Type any }
		}
		if f.Name != name || json.Unmarshal(f.Parameters, &schema) != nil {
			continue
		}
		for key, v := range schema.Properties {
			out[key] = v.Type
		}
	}
	return out
}
