package chat

import (
	"encoding/json"
	"strings"
)

// step is a place in the JSON of calls.
type step uint8

const (
	atTop     step = iota // before [ or {
	inList                // before { of a further call, or ]
	atKey                 // before a key or }
	inKey                 // in a key
	atColon               // behind it
	atValue               // before a value
	inValue               // in it
	afterItem             // before , or }
	finished              // behind the whole
)

// jsonCalls reads {"name": …, "arguments": {…}}, or a list of such objects, byte by byte.
type jsonCalls struct {
	step  step
	list  bool
	bare  bool   // it is the arguments alone
	named bool   // the call was told
	given bool   // so were its arguments, or their begin
	live  bool   // the value goes out as it comes
	key   string // whose value comes
	buf   []byte // of the key or value
	args  string // came before the name, as JSON
	scan  scan
}

// scan finds the end of a JSON value.
type scan struct {
	depth           int
	quoted, escaped bool
}

// next takes a byte and tells whether the value ends with it. Of a number or a word that is never known: see inJSON.
func (s *scan) next(b byte) bool {
	switch {
	case s.escaped:
		s.escaped = false
	case s.quoted && b == '\\':
		s.escaped = true
	case b == '"':
		s.quoted = !s.quoted
		return !s.quoted && s.depth == 0
	case s.quoted:
	case b == '{' || b == '[':
		s.depth++
	case b == '}' || b == ']':
		s.depth--
		return s.depth == 0
	}
	return false
}

// readJSON begins with calls as JSON.
func (p *Parser) readJSON() bool {
	p.json = jsonCalls{}
	return p.enter((*Parser).inJSON)
}

func (p *Parser) inJSON(end bool) bool {
	defer p.flush()
	for i := 0; i < len(p.rest); {
		again, ok := p.feed(p.rest[i])
		if !ok {
			p.rest = p.rest[i:]
			p.flush()
			return p.refuse()
		}
		if again {
			continue
		}
		if !p.json.named {
			p.raw = append(p.raw, p.rest[i])
		}
		if i++; p.json.step == finished {
			p.rest = p.rest[i:]
			return p.enter((*Parser).afterJSON)
		}
	}
	p.rest = ""
	return end && p.refuse()
}

// flush tells the arguments that have come.
func (p *Parser) flush() {
	p.arguments(string(p.live))
	p.live = p.live[:0]
}

// feed takes a byte. again: it is to be taken once more, now that the step is another.
func (p *Parser) feed(b byte) (again, ok bool) {
	c := &p.json
	if strings.IndexByte(white, b) >= 0 && c.step != inKey && c.step != inValue {
		return false, true
	}
	switch c.step {
	case atTop:
		c.list = b == '['
		c.step = inList
		return b == '{', c.list || b == '{'
	case inList:
		switch {
		case b == '{':
			*c = jsonCalls{step: atKey, list: c.list}
		case b == ']' && c.list: // without any call it is text
			c.step = finished
			return false, c.named
		default:
			return false, b == ',' && c.list
		}
	case atKey:
		switch b {
		case '"':
			c.step, c.buf, c.scan = inKey, append(c.buf[:0], b), scan{quoted: true}
		case '}':
			return false, p.endCall()
		default:
			return false, false
		}
	case inKey:
		c.buf = append(c.buf, b)
		if c.scan.next(b) {
			c.step = atColon
			return false, json.Unmarshal(c.buf, &c.key) == nil
		}
	case atColon:
		c.step = atValue
		return false, b == ':'
	case atValue:
		c.step, c.buf, c.scan = inValue, c.buf[:0], scan{}
		c.live = c.named && !c.given && b == '{' && isArguments(c.key)
		return true, true
	case inValue:
		return p.feedValue(b)
	case afterItem:
		switch b {
		case ',':
			c.step = atKey
		case '}':
			return false, p.endCall()
		default:
			return false, false
		}
	}
	return false, true
}

func isArguments(key string) bool { return key == "arguments" || key == "parameters" }

// feedValue takes a byte of a value, or the one behind a number or a word.
func (p *Parser) feedValue(b byte) (again, ok bool) {
	c := &p.json
	if c.scan == (scan{}) && len(c.buf) > 0 && strings.IndexByte(",}]"+white, b) >= 0 {
		return true, p.value()
	}
	ended := c.scan.next(b)
	if c.scan.depth < 0 {
		return false, false
	}
	if c.live {
		c.given = true
		p.live = append(p.live, b)
	} else {
		c.buf = append(c.buf, b)
	}
	if ended {
		return false, p.value()
	}
	return false, true
}

// value ends one.
func (p *Parser) value() bool {
	c := &p.json
	c.step = afterItem
	if c.bare {
		c.step = finished
	}
	switch {
	case c.live:
		c.live = false
		p.flush()
	case c.key == "name" && !c.named:
		var name string
		if json.Unmarshal(c.buf, &name) != nil || name == "" || p.o.Calls == Llama3 && !p.known(name) {
			return false
		}
		c.named = true
		p.begin(name)
		if c.args != "" {
			c.given = true
			p.arguments(c.args)
		}
	case isArguments(c.key) && !c.given:
		if !json.Valid(c.buf) {
			return false
		}
		c.args = argumentsOf(c.buf)
		if c.named {
			c.given = true
			p.arguments(c.args)
		}
	}
	return true
}

// argumentsOf is a value as arguments: some models write the object as a string.
func argumentsOf(raw []byte) string {
	var s string
	switch {
	case raw[0] == '"' && json.Unmarshal(raw, &s) == nil:
		return s
	case string(raw) == "null":
		return "{}"
	}
	return string(raw)
}

// endCall ends an object. It is a call if it had a name.
func (p *Parser) endCall() bool {
	c := &p.json
	if !c.named {
		return false
	}
	if !c.given {
		p.arguments("{}")
	}
	if c.step = finished; c.list {
		c.step = inList
	}
	return true
}

// afterJSON takes what closes a call.
func (p *Parser) afterJSON(end bool) bool {
	if p.o.Calls == Llama3 { // further calls stand behind semicolons
		if p.rest = strings.TrimLeft(p.rest, white+";"); p.rest == "" {
			return false
		}
		return p.enter((*Parser).atLlama)
	}
	return p.closeTag(end)
}

// closeTag takes the tag behind a call, which some models forget.
func (p *Parser) closeTag(end bool) bool {
	if p.o.Calls != Hermes && p.o.Calls != QwenCoder {
		return p.enter((*Parser).afterMark)
	}
	if !p.skip(end) {
		return false
	}
	yes, maybe := begins(p.rest, callClose, end)
	if maybe {
		return false
	}
	if yes {
		p.rest = p.rest[len(callClose):]
	}
	return p.enter((*Parser).afterMark)
}
