package chat

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/ardanlabs/jinja"
)

// abilities are forms of a message that a template understands, found by how its
// source treats them. The API allows more forms than any one template.
type abilities struct {
	parts      bool // content as a list of parts; else their text is joined by newlines
	nullText   bool // content null; else it becomes ""
	dictToCall bool // tool call arguments as an object; else they stay a JSON string
}

var (
	partsUse = regexp.MustCompile(`\bcontent['"]?\]?\s+is\s+(?:not\s+)?(?:string|iterable|sequence|mapping)\b`)
	partLoop = regexp.MustCompile(`\bfor\s+\w+\s+in\s+\w+(?:\.content\b|\[['"]content['"]\])`)
	nullUse  = regexp.MustCompile(`\bcontent['"]?\]?\s+is\s+(?:not\s+)?none\b`)
	dictUse  = regexp.MustCompile(`\barguments['"]?\]?\s*(?:\|\s*(?:tojson|items|dictsort|string)\b|\.items\(|is\s+(?:not\s+)?mapping\b)`)
)

func abilitiesOf(source string) abilities {
	return abilities{
		parts:      partsUse.MatchString(source) || partLoop.MatchString(source),
		nullText:   nullUse.MatchString(source),
		dictToCall: dictUse.MatchString(source),
	}
}

// messages parses the conversation and brings each message into a form that the
// template understands.
func (t *Template) messages(raw json.RawMessage) (jinja.Value, error) {
	list, err := parseValue(raw)
	if err != nil {
		return list, &RenderError{Param: "messages", Message: err.Error()}
	}
	if !list.IsList() || list.AsList().Len() == 0 {
		return list, &RenderError{Param: "messages", Message: "want an array with at least one message"}
	}
	for i, m := range list.AsList().Items {
		if err := t.adapt(m); err != nil {
			return list, &RenderError{Param: "messages", Message: fmt.Sprintf("message %d: %v", i, err)}
		}
	}
	return list, nil
}

// adapt changes one message in place.
func (t *Template) adapt(m jinja.Value) error {
	if !m.IsDict() {
		return fmt.Errorf("want an object")
	}
	role, _ := m.AsDict().Get("role")
	if !role.IsString() || role.AsString() == "" {
		return fmt.Errorf("role is missing")
	}
	if err := t.adaptContent(m.AsDict()); err != nil {
		return err
	}
	calls, ok := m.AsDict().Get("tool_calls")
	if !ok || !calls.IsList() || !t.takes.dictToCall {
		return nil
	}
	for _, call := range calls.AsList().Items {
		adaptCall(call)
	}
	return nil
}

func (t *Template) adaptContent(m *jinja.Dict) error {
	content, ok := m.Get("content")
	switch {
	case !ok || content.IsNone():
		content = jinja.None()
		if !t.takes.nullText {
			content = jinja.NewString("")
		}
		m.Set("content", content)
	case content.IsString():
	case content.IsList():
		text, err := joinParts(content.AsList())
		if err != nil {
			return err
		}
		if !t.takes.parts {
			m.Set("content", jinja.NewString(text))
		}
	default:
		return fmt.Errorf("content must be a string or an array of parts")
	}
	return nil
}

// joinParts checks that all parts are text and joins them by newlines.
func joinParts(parts *jinja.List) (string, error) {
	var texts []string
	for i, p := range parts.Items {
		if !p.IsDict() {
			return "", fmt.Errorf("content part %d is no object", i)
		}
		kind, _ := p.AsDict().Get("type")
		if !kind.IsString() || kind.AsString() != "text" {
			return "", fmt.Errorf("content part %d has type %q; only text is supported", i, kind.String())
		}
		text, _ := p.AsDict().Get("text")
		if !text.IsString() {
			return "", fmt.Errorf("content part %d has no text", i)
		}
		texts = append(texts, text.AsString())
	}
	return strings.Join(texts, "\n"), nil
}

// adaptCall parses the arguments of a tool call, which the API sends as a JSON
// string, if they are an object.
func adaptCall(call jinja.Value) {
	if !call.IsDict() {
		return
	}
	function, ok := call.AsDict().Get("function")
	if !ok || !function.IsDict() {
		return
	}
	args, ok := function.AsDict().Get("arguments")
	if !ok || !args.IsString() {
		return
	}
	if v, err := parseValue([]byte(args.AsString())); err == nil && v.IsDict() {
		function.AsDict().Set("arguments", v)
	}
}
