package guided

import (
	"encoding/json"
	"fmt"
)

// Kind is a kind of grammar.
type Kind string

// The kinds of grammar, and what their text is.
const (
	Regex  Kind = "regex"       // a regular expression that the whole output matches
	Choice Kind = "choice"      // a JSON list of strings, one of which is the output
	JSON   Kind = "json_object" // any JSON object; no text
	Schema Kind = "json_schema" // a JSON schema
	EBNF   Kind = "grammar"     // rules, of which root is the whole output
)

// Bounds of a grammar's text.
const (
	MaxText    = 256 << 10
	maxChoices = 4096
)

// Compile makes a grammar of the outputs that text describes. stop is asked now and
// then whether to give up. An error names what is wrong or not supported.
func Compile(kind Kind, text string, v *Vocab, stop func() bool) (*Grammar, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("the grammar has %d bytes: the limit is %d", len(text), MaxText)
	}
	start, body, err := rulesOf(kind, text, stop)
	if err != nil {
		return nil, err
	}
	net, err := build(start, body, stop)
	if err != nil {
		return nil, err
	}
	return newGrammar(net, v, stop)
}

const ruleOutput = "output"

func rulesOf(kind Kind, text string, stop func() bool) (start string, body func(string) (*expr, error), err error) {
	plain := func(e *expr) func(string) (*expr, error) {
		return func(name string) (*expr, error) {
			if name == ruleOutput {
				return e, nil
			}
			return basics(name), nil
		}
	}
	switch kind {
	case Regex:
		e, err := regex(text, false)
		return ruleOutput, plain(e), err
	case Choice:
		e, err := choice(text)
		return ruleOutput, plain(e), err
	case JSON:
		return ruleObject, plain(nil), nil
	case Schema:
		s := &schema{root: json.RawMessage(text), extra: map[string]*expr{}, known: map[string][]member{}, stop: stop}
		if !json.Valid(s.root) {
			return "", nil, fmt.Errorf("the schema is not JSON")
		}
		return "#", s.rule, nil
	case EBNF:
		rules, err := grammar(text, stop)
		return ebnfRule + ruleRoot, func(name string) (*expr, error) { return rules[name[len(ebnfRule):]], nil }, err
	}
	return "", nil, fmt.Errorf("there is no kind of grammar %q", kind)
}

func choice(text string) (*expr, error) {
	var list []string
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) == 0 || len(list) > maxChoices {
		return nil, fmt.Errorf("choices must be a list of 1 to %d strings", maxChoices)
	}
	var subs []*expr
	for _, s := range list {
		if s == "" {
			return nil, fmt.Errorf("a choice is empty")
		}
		subs = append(subs, lit(s))
	}
	return alt(subs...), nil
}
