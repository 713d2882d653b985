package chat

import (
	"encoding/json"
	"slices"
	"strings"
)

// Answer is what came of an answer, in its parts. Within one answer reasoning comes before content.
type Answer struct {
	Reasoning, Content string
	Calls              []CallDelta
}

// CallDelta is a piece of a call.
type CallDelta struct {
	Index     int    // of the call in the answer
	Name      string // not empty: the call begins
	Arguments string // the next bytes of a JSON object
}

// ParserOptions say what to look for.
type ParserOptions struct {
	Format
	Thinks   bool            // the prompt has opened the reasoning
	Tools    json.RawMessage // of the request
	Function string          // of OneCall
	MaxCalls int             // further ones are left out; 0 = any number
}

// Parser divides an answer into reasoning, content and calls while it is written. What it has returned after some text does
// not depend on how the text was cut into pieces. What looks like a call and is none is content. It belongs to one goroutine.
type Parser struct {
	o     ParserOptions
	state func(p *Parser, end bool) bool // takes from rest; false: it needs more
	rest  string                         // not divided yet
	raw   []byte                         // of a call that is not told yet, its marker included
	live  []byte                         // arguments on their way out
	json  jsonCalls
	coder coderCall
	tools []function // read when they are needed
	ends  []string   // markers, of content
	calls int
	mute  bool // the call that is read is one too many
	out   Answer
}

// NewParser starts with an answer.
func NewParser(o ParserOptions) *Parser {
	p := &Parser{o: o, state: (*Parser).atStart, ends: o.Calls.markers()}
	if o.Thought == FirstThought || o.Thought == MarkedThought && o.Thinks {
		p.state = (*Parser).atThought
	}
	return p
}

// Calls is how many calls have begun.
func (p *Parser) Calls() int { return p.calls }

// Push takes the next text and returns what is certain because of it.
func (p *Parser) Push(text string) Answer { return p.run(text, false) }

// Close ends the answer and returns what waited.
func (p *Parser) Close() Answer { return p.run("", true) }

func (p *Parser) run(text string, end bool) Answer {
	p.rest += text
	for p.state(p, end) {
	}
	out := p.out
	p.out = Answer{}
	return out
}

// white is what may stand around a marker and is no part of the text.
const white = " \t\r\n"

// maxWhite bounds how much white space waits for a marker behind it.
const maxWhite = 1024

// trimRight takes white space off the end, maxWhite of it at most.
func trimRight(s string) string {
	from := max(0, len(s)-maxWhite)
	return s[:from] + strings.TrimRight(s[from:], white)
}

// certain is the length of the part of s that is text whatever follows: not white space that a marker may follow, nor what
// may be the begin of one.
func certain(s string, markers ...string) int {
	tail := 0
	for _, m := range markers {
		for n := min(len(m)-1, len(s)); n > tail; n-- {
			if strings.HasSuffix(s, m[:n]) {
				tail = n
			}
		}
	}
	return len(trimRight(s[:len(s)-tail]))
}

// begins tells whether s begins with a marker, or may when more has come.
func begins(s, marker string, end bool) (yes, maybe bool) {
	if strings.HasPrefix(s, marker) {
		return true, false
	}
	return false, !end && strings.HasPrefix(marker, s)
}

// atStart looks for reasoning at the begin of the answer.
func (p *Parser) atStart(end bool) bool {
	if p.o.Thought == NoThought {
		return p.enter((*Parser).atAnswer)
	}
	t := strings.TrimLeft(p.rest, white)
	yes, maybe := begins(t, thinkOpen, end)
	switch {
	case yes:
		p.rest = t[len(thinkOpen):]
		return p.enter((*Parser).atThought)
	case maybe:
		return false
	}
	return p.enter((*Parser).atAnswer)
}

func (p *Parser) enter(state func(*Parser, bool) bool) bool {
	p.state = state
	return true
}

// skip takes white space away. It returns false if nothing else is there and more may come.
func (p *Parser) skip(end bool) bool {
	p.rest = strings.TrimLeft(p.rest, white)
	return p.rest != "" || end
}

func (p *Parser) atThought(end bool) bool { return p.skip(end) && p.enter((*Parser).inThought) }

func (p *Parser) inThought(end bool) bool {
	if i := strings.Index(p.rest, thinkClose); i >= 0 {
		p.out.Reasoning += trimRight(p.rest[:i])
		p.rest = p.rest[i+len(thinkClose):]
		return p.enter((*Parser).afterMark)
	}
	n := certain(p.rest, thinkClose)
	if end {
		n = len(p.rest)
	}
	p.out.Reasoning += p.rest[:n]
	p.rest = p.rest[n:]
	return false
}

// afterMark skips what stands between a marker and the text behind it.
func (p *Parser) afterMark(end bool) bool {
	if !p.skip(end) {
		return false
	}
	if p.calls == 0 {
		return p.enter((*Parser).atAnswer)
	}
	return p.enter((*Parser).inContent)
}

// atAnswer is where a format can begin that has the whole answer.
func (p *Parser) atAnswer(end bool) bool {
	switch p.o.Calls {
	case OneCall:
		p.begin(p.o.Function)
		return p.enter((*Parser).inArguments)
	case AnyCalls:
		return p.readJSON()
	case Llama3:
		return p.atLlama(end)
	}
	return p.enter((*Parser).inContent)
}

func (p *Parser) atLlama(end bool) bool {
	t := strings.TrimLeft(p.rest, white)
	yes, maybe := begins(t, pythonTag, end)
	switch {
	case maybe:
		return false
	case yes:
		p.raw, p.rest = append(p.raw[:0], p.rest[:len(p.rest)-len(t)+len(pythonTag)]...), t[len(pythonTag):]
		return p.readJSON()
	case strings.HasPrefix(t, "{"):
		return p.readJSON()
	}
	return p.enter((*Parser).inContent)
}

// inContent is text, until a marker.
func (p *Parser) inContent(end bool) bool {
	if len(p.ends) == 0 {
		p.out.Content += p.rest
		p.rest = ""
		return false
	}
	at, mark := -1, ""
	for _, m := range p.ends {
		if i := strings.Index(p.rest, m); i >= 0 && (at < 0 || i < at) {
			at, mark = i, m
		}
	}
	if at < 0 {
		n := certain(p.rest, p.ends...)
		if end {
			n = len(p.rest)
		}
		p.out.Content += p.rest[:n]
		p.rest = p.rest[n:]
		return false
	}
	text := trimRight(p.rest[:at])
	p.out.Content += text
	p.raw = append(p.raw[:0], p.rest[len(text):at+len(mark)]...)
	p.rest = p.rest[at+len(mark):]
	switch {
	case p.o.Calls == Mistral:
		return p.enter((*Parser).atMistral)
	case mark == coderOpen:
		return p.enter((*Parser).atCoderName)
	case p.o.Calls == QwenCoder:
		return p.enter((*Parser).atCoder)
	}
	return p.readJSON()
}

// inArguments passes everything on: the grammar has seen to its form.
func (p *Parser) inArguments(bool) bool {
	p.arguments(p.rest)
	p.rest = ""
	return false
}

// maxName bounds the name of a function.
const maxName = 256

// atMistral decides between the two forms behind the marker.
func (p *Parser) atMistral(end bool) bool {
	t := strings.TrimLeft(p.rest, white)
	switch {
	case t == "" && !end:
		return false
	case strings.HasPrefix(t, "[{"), strings.HasPrefix(t, "{"), strings.HasPrefix(t, "[") && len(t) > 1 && strings.ContainsRune(white, rune(t[1])):
		return p.readJSON()
	case t == "[" && !end:
		return false
	}
	at := strings.IndexByte(p.rest, '{')
	if at < 0 && !end && len(p.rest) <= maxName {
		return false
	}
	name := ""
	if at >= 0 && at <= maxName {
		name, _, _ = strings.Cut(p.rest[:at], "[")
		name = strings.Trim(name, white)
	}
	if name == "" {
		return p.refuse()
	}
	p.rest = p.rest[at:]
	p.begin(name)
	p.json = jsonCalls{step: atValue, named: true, bare: true, key: "arguments"}
	return p.enter((*Parser).inJSON)
}

// begin tells a call.
func (p *Parser) begin(name string) {
	p.raw = p.raw[:0]
	if p.mute = p.o.MaxCalls > 0 && p.calls >= p.o.MaxCalls; p.mute {
		return
	}
	p.out.Calls = append(p.out.Calls, CallDelta{Index: p.calls, Name: name})
	p.calls++
}

// arguments tells more of the last call's arguments.
func (p *Parser) arguments(s string) {
	if p.mute || s == "" {
		return
	}
	if n := len(p.out.Calls); n > 0 {
		p.out.Calls[n-1].Arguments += s
		return
	}
	p.out.Calls = append(p.out.Calls, CallDelta{Index: p.calls - 1, Arguments: s})
}

// refuse takes what looked like a call for text.
func (p *Parser) refuse() bool {
	p.out.Content += string(p.raw)
	p.raw = p.raw[:0]
	return p.enter((*Parser).inContent)
}

// known tells whether the request has a function of this name.
func (p *Parser) known(name string) bool {
	return slices.ContainsFunc(p.functions(), func(f function) bool { return f.Name == name })
}

// function is one that the model may call.
type function struct {
	Name       string
	Parameters json.RawMessage // JSON schema, nil = none
}

// functions reads the request's tools, which are long, and of no use to most answers.
func (p *Parser) functions() []function {
	if p.tools == nil {
		var list []struct{ Function function }
		_ = json.Unmarshal(p.o.Tools, &list) // they were checked; of what they lack the parser makes text
		p.tools = make([]function, len(list))
		for i := range list {
			p.tools[i] = list[i].Function
		}
	}
	return p.tools
}
