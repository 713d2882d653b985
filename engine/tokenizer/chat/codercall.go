package chat

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// coderCall is a call whose parameters stand between tags.
type coderCall struct {
	written int                 // parameters
	now     []byte              // of the one that comes, its name included
	types   map[string][]string // of the function's parameters, by name
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
		p.rest, p.coder.now = p.rest[len(paramOpen):], p.coder.now[:0]
		return p.enter((*Parser).inParameter)
	case closes:
		p.rest = p.rest[len(coderClose):]
	case end: // it broke off: so do the arguments
		p.rest = ""
		return false
	}
	p.arguments("}")
	return p.enter((*Parser).closeTag)
}

// inParameter gathers one: how it is to be written shows at its end. If it breaks off, so do the arguments.
func (p *Parser) inParameter(bool) bool {
	c := &p.coder
	at := strings.Index(p.rest, paramClose)
	if at < 0 {
		n := max(0, len(p.rest)-len(paramClose)+1) // the begin of the end may be there
		c.now, p.rest = append(c.now, p.rest[:n]...), p.rest[n:]
		return false
	}
	key, value, _ := strings.Cut(string(append(c.now, p.rest[:at]...)), ">")
	p.rest = p.rest[at+len(paramClose):]
	value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
	if c.written++; c.written > 1 {
		p.arguments(", ")
	}
	p.arguments(quote(key) + ": " + c.encode(key, value))
	return p.enter((*Parser).inCoder)
}

// encode writes a value by the types that the request's function gives it: as text, unless it has another type and reads as such.
func (c *coderCall) encode(key, value string) string {
	types := c.types[key]
	of := func(typ string) bool { return isOf(typ, value) }
	if len(types) == 0 || !json.Valid([]byte(value)) || slices.Contains(types, "string") && !slices.ContainsFunc(types, of) {
		return quote(value)
	}
	return value
}

// isOf tells whether JSON is of a type that is not text: quotes would be part of the text.
func isOf(typ, value string) bool {
	switch strings.TrimLeft(value, white)[0] {
	case '{':
		return typ == "object"
	case '[':
		return typ == "array"
	case 't', 'f':
		return typ == "boolean"
	case 'n':
		return typ == "null"
	case '"':
		return false
	}
	return typ == "number" || typ == "integer"
}

func quote(s string) string {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string can always be encoded
	return strings.TrimSuffix(buf.String(), "\n")
}

// typesOf are the types of a function's parameters, as far as its schema tells them.
func (p *Parser) typesOf(name string) map[string][]string {
	out := map[string][]string{}
	for _, f := range p.functions() {
		var schema struct{ Properties map[string]typed }
		if f.Name != name || json.Unmarshal(f.Parameters, &schema) != nil {
			continue
		}
		for key, v := range schema.Properties {
			out[key] = v.types()
		}
	}
	return out
}

// typed is what of a schema names types.
type typed struct {
	Type         any // a name or a list of them
	AnyOf, OneOf []typed
}

func (t *typed) types() (out []string) {
	list, ok := t.Type.([]any)
	if !ok {
		list = []any{t.Type}
	}
	for _, v := range list {
		if name, ok := v.(string); ok {
			out = append(out, name)
		}
	}
	for _, of := range [][]typed{t.AnyOf, t.OneOf} {
		for i := range of {
			out = append(out, of[i].types()...)
		}
	}
	return out
}
