package guided

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ruleRoot is the rule of an EBNF grammar that the whole output matches.
const ruleRoot = "root"

// Bounds of an EBNF grammar.
const (
	maxRules  = 10_000
	maxGroups = 100     // parentheses inside each other
	maxRepeat = 100_000 // of {m,n}
)

// ebnf reads a grammar as llama.cpp and xgrammar write it: name ::= choices, with "texts",
// [classes], references, groups, the repeats ? * + {m,n}, and comments behind #. A rule
// ends where the next one begins.
type ebnf struct {
	text  string
	at    int
	rules map[string]*expr
	names []string // in their order
	uses  []use
}

// use is a reference to a rule.
type use struct {
	name string
	at   int
}

// grammar returns the rules of an EBNF grammar, by name. stop is asked now and then
// whether to give up.
func grammar(text string, stop func() bool) (map[string]*expr, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("the grammar is not UTF-8")
	}
	p := &ebnf{text: text, rules: map[string]*expr{}}
	for p.space(); p.at < len(p.text); p.space() {
		if err := p.rule(); err != nil {
			return nil, fmt.Errorf("line %d: %w", p.line(), err)
		}
	}
	if p.rules[ruleRoot] == nil {
		return nil, fmt.Errorf("the grammar has no rule %q: write root ::= and what the whole answer is", ruleRoot)
	}
	for _, u := range p.uses {
		if p.rules[u.name] == nil {
			p.at = u.at
			return nil, fmt.Errorf("line %d: the rule %q is not defined", p.line(), cutText(u.name))
		}
	}
	return p.rules, p.leftRecursion(stop)
}

func (p *ebnf) line() int { return 1 + strings.Count(p.text[:min(p.at, len(p.text))], "\n") }

// space skips white space and comments.
func (p *ebnf) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		case '#':
			if i := strings.IndexByte(p.text[p.at:], '\n'); i >= 0 {
				p.at += i
			} else {
				p.at = len(p.text)
			}
		default:
			return
		}
	}
}

// next reports whether s comes next, and takes it.
func (p *ebnf) next(s string) bool {
	if !strings.HasPrefix(p.text[p.at:], s) {
		return false
	}
	p.at += len(s)
	return true
}

// name takes a name, "" = none comes.
func (p *ebnf) name() string {
	from := p.at
	for p.at < len(p.text) {
		c := p.text[p.at]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (p.at == from || c != '-' && c != '.' && (c < '0' || c > '9')) {
			break
		}
		p.at++
	}
	return p.text[from:p.at]
}

func (p *ebnf) rule() error {
	name := p.name()
	if name == "" {
		return fmt.Errorf("a rule is expected (name ::= ...), not %q", cutText(p.text[p.at:]))
	}
	if p.space(); !p.next("::=") {
		return fmt.Errorf("behind the name %q comes no ::=", cutText(name))
	}
	if p.rules[name] != nil {
		return fmt.Errorf("the rule %q is defined twice", cutText(name))
	}
	if len(p.rules) == maxRules {
		return fmt.Errorf("more than %d rules", maxRules)
	}
	e, err := p.choices(0)
	if err != nil {
		return err
	}
	p.rules[name] = e
	p.names = append(p.names, name)
	return nil
}

// choices reads sequences with | between them.
func (p *ebnf) choices(depth int) (*expr, error) {
	if depth > maxGroups {
		return nil, fmt.Errorf("more than %d groups inside each other", maxGroups)
	}
	var all []*expr
	for {
		one, err := p.sequence(depth)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
		if !p.next("|") {
			break
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return alt(all...), nil
}

// sequence reads what follows each other, to |, ), the next rule or the end.
func (p *ebnf) sequence(depth int) (*expr, error) {
	var all []*expr
	for {
		p.space()
		before := p.at
		e, err := p.element(depth)
		if err != nil {
			return nil, err
		}
		if e == nil {
			p.at = before
			return seq(all...), nil
		}
		if e, err = p.repeats(e); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
}

// element reads one, nil = none comes.
func (p *ebnf) element(depth int) (*expr, error) {
	if p.at == len(p.text) {
		return nil, nil
	}
	switch {
	case p.next(`"`):
		return p.literal()
	case p.next("["):
		return p.class()
	case p.next("."):
		return &expr{op: opClass, ranges: []rune{0, utf8.MaxRune}}, nil
	case p.next("("):
		if p.next("=") {
			return nil, errors.New("look-ahead (= ...) is not supported")
		}
		e, err := p.choices(depth + 1)
		if err == nil && !p.next(")") {
			err = errors.New("a group is not closed: ) is missing")
		}
		return e, err
	case p.text[p.at] == '|' || p.text[p.at] == ')' && depth > 0:
		return nil, nil
	}
	name := p.name()
	if name == "" {
		return nil, fmt.Errorf("%q is not understood", cutText(p.text[p.at:]))
	}
	end := p.at
	if p.space(); strings.HasPrefix(p.text[p.at:], "::=") {
		return nil, nil // the next rule
	}
	p.at = end
	p.uses = append(p.uses, use{name, end})
	return ref(ebnfRule + name), nil
}

// ebnfRule is in front of names, which JSON's rules have too.
const ebnfRule = "="

// repeats reads the marks behind an element.
func (p *ebnf) repeats(e *expr) (*expr, error) {
	for n := 0; p.at < len(p.text); n++ {
		lo, hi := 0, -1
		switch p.text[p.at] {
		case '?':
			hi = 1
		case '*':
		case '+':
			lo = 1
		case '{':
			var err error
			if lo, hi, err = p.times(); err != nil {
				return nil, err
			}
		default:
			return e, nil
		}
		if n == maxGroups {
			return nil, fmt.Errorf("more than %d repeats of one another", maxGroups)
		}
		p.at++
		e = rep(e, lo, hi)
	}
	return e, nil
}

// times reads {m}, {m,} or {m,n} up to its }.
func (p *ebnf) times() (lo, hi int, err error) {
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 {
		return 0, 0, errors.New("a repeat is not closed: } is missing")
	}
	inner := p.text[p.at+1 : p.at+end]
	p.at += end
	from, to, two := strings.Cut(inner, ",")
	from, to = strings.TrimSpace(from), strings.TrimSpace(to)
	lo, err = strconv.Atoi(from)
	switch {
	case err != nil:
	case !two:
		hi = lo
	case to == "":
		hi = -1
	default:
		hi, err = strconv.Atoi(to)
	}
	if err != nil || lo < 0 || hi > maxRepeat || lo > maxRepeat || hi >= 0 && hi < lo || two && to != "" && hi < 0 {
		return 0, 0, fmt.Errorf("the repeat {%s} is not {m}, {m,} or {m,n} with numbers of at most %d", cutText(inner), maxRepeat)
	}
	return lo, hi, nil
}

func (p *ebnf) literal() (*expr, error) {
	var out []rune
	for !p.next(`"`) {
		if p.at == len(p.text) || p.text[p.at] == '\n' {
			return nil, errors.New(`a text is not closed: " is missing`)
		}
		r, err := p.char()
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return lit(string(out)), nil
}

// class reads a class behind its [.
func (p *ebnf) class() (*expr, error) {
	not := p.next("^")
	var ranges []rune
	for !p.next("]") {
		if p.at == len(p.text) || p.text[p.at] == '\n' {
			return nil, errors.New("a class is not closed: ] is missing")
		}
		lo, err := p.char()
		if err != nil {
			return nil, err
		}
		hi := lo
		if rest := p.text[p.at:]; len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			p.at++
			if hi, err = p.char(); err != nil {
				return nil, err
			}
		}
		if hi < lo {
			return nil, fmt.Errorf("the range %c-%c of a class is empty", lo, hi)
		}
		ranges = append(ranges, lo, hi)
	}
	if len(ranges) == 0 {
		return nil, errors.New("a class is empty")
	}
	if not {
		all := []rune{0, utf8.MaxRune}
		for i := 0; i < len(ranges); i += 2 {
			all = without(all, ranges[i], ranges[i+1])
		}
		if ranges = all; len(ranges) == 0 {
			return nil, errors.New("a class leaves no character")
		}
	}
	return &expr{op: opClass, ranges: ranges}, nil
}

// escapes are those of one character.
var escapes = map[byte]rune{'n': '\n', 'r': '\r', 't': '\t', '\\': '\\', '"': '"', '\'': '\'', '[': '[', ']': ']', '-': '-', '^': '^', '/': '/'}

// char reads a character of a text or class. More must come.
func (p *ebnf) char() (rune, error) {
	r, n := utf8.DecodeRuneInString(p.text[p.at:])
	p.at += n
	if r != '\\' || p.at == len(p.text) {
		return r, nil
	}
	kind := p.text[p.at]
	p.at++
	if r, ok := escapes[kind]; ok {
		return r, nil
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[kind]
	if digits == 0 || p.at+digits > len(p.text) {
		return 0, fmt.Errorf(`the escape \%c is not known`, kind)
	}
	hex := p.text[p.at : p.at+digits]
	v, err := strconv.ParseUint(hex, 16, 32)
	if err != nil || v > utf8.MaxRune || !utf8.ValidRune(rune(v)) {
		return 0, fmt.Errorf(`\%c%q is no character`, kind, hex)
	}
	p.at += digits
	return rune(v), nil
}
