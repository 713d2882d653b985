package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Options are the values a template may refer to besides the conversation.
type Options struct {
	BOS, EOS, Pad, Unk string           // special tokens; empty = undefined
	Now                func() time.Time // for strftime_now; nil = time.Now
}

// Template is a compiled chat template. It is immutable and safe for concurrent
// use.
type Template struct {
	compiled *jinja.Template
	o        Options
	takes    abilities
	format   Format
}

// Input is one conversation to render.
type Input struct {
	Messages            json.RawMessage // array of message objects
	Tools               json.RawMessage // array of tool objects; empty or null = none
	AddGenerationPrompt bool            // end with the opening of the assistant's turn
	Extra               json.RawMessage // object of further template variables; empty = none
}

const (
	maxSource  = 1 << 20 // bytes of template text
	maxNesting = 200     // open brackets in it
	maxRange   = 100_000 // items of range()
)

// NewTemplate compiles a chat template. It returns ErrNoTemplate for an empty
// source, and an error that says where a malformed one is wrong.
func NewTemplate(source string, o Options) (*Template, error) {
	if strings.TrimSpace(source) == "" {
		return nil, ErrNoTemplate
	}
	if len(source) > maxSource {
		return nil, fmt.Errorf("chat template has %d bytes, the limit is %d", len(source), maxSource)
	}
	if err := checkNesting(source); err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	compiled, err := compile(source)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	return &Template{compiled: compiled, o: o, takes: abilitiesOf(source), format: formatOf(source)}, nil
}

// Options returns the values that the template was made with.
func (t *Template) Options() Options { return t.o }

// compile guards against panics of the template library: the source is foreign.
func compile(source string) (t *jinja.Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot be compiled: %v", p)
		}
	}()
	source, err = resolveWhitespace(source)
	if err != nil {
		return nil, err
	}
	return jinja.Compile(source)
}

// checkNesting keeps the library's recursive parser off absurd sources.
func checkNesting(source string) error {
	depth := 0
	for i := range len(source) {
		switch source[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth = max(depth-1, 0)
		}
		if depth > maxNesting {
			return fmt.Errorf("chat template nests more than %d brackets at byte %d", maxNesting, i)
		}
	}
	return nil
}

// Render returns the prompt text. Errors are of type *RenderError.
func (t *Template) Render(in Input) (string, error) {
	vars, err := t.variables(in)
	if err != nil {
		return "", err
	}
	var refused string
	vars["raise_exception"] = jinja.NewCallable("raise_exception", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		refused = "no reason given"
		if len(args) > 0 {
			refused = args[0].String()
		}
		return jinja.None(), errors.New(refused)
	})
	text, err := t.execute(vars)
	switch {
	case refused != "":
		return "", &RenderError{Param: "messages", Message: refused, Refused: true}
	case err != nil:
		return "", &RenderError{Param: "messages", Message: "the chat template cannot render this conversation: " + err.Error()}
	}
	return text, nil
}

func (t *Template) execute(vars map[string]jinja.Value) (text string, err error) {
	defer func() {
		if p := recover(); p != nil {
			text, err = "", fmt.Errorf("%v", p)
		}
	}()
	return t.compiled.RenderValues(vars)
}

// variables builds the template's name space.
func (t *Template) variables(in Input) (map[string]jinja.Value, error) {
	vars := map[string]jinja.Value{"documents": jinja.None()}
	if err := addExtra(vars, in.Extra); err != nil {
		return nil, err
	}
	messages, err := t.messages(in.Messages)
	if err != nil {
		return nil, err
	}
	tools, err := parseTools(in.Tools)
	if err != nil {
		return nil, err
	}
	vars["messages"], vars["tools"] = messages, tools
	vars["add_generation_prompt"] = jinja.NewBool(in.AddGenerationPrompt)
	for name, token := range map[string]string{
		"bos_token": t.o.BOS, "eos_token": t.o.EOS, "pad_token": t.o.Pad, "unk_token": t.o.Unk,
	} {
		if token != "" {
			vars[name] = jinja.NewString(token)
		}
	}
	vars["strftime_now"] = jinja.NewCallable("strftime_now", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		if len(args) != 1 || !args[0].IsString() {
			return jinja.None(), errors.New("strftime_now wants one format string")
		}
		return jinja.NewString(strftime(t.o.Now(), args[0].AsString())), nil
	})
	vars["range"] = jinja.NewCallable("range", boundedRange)
	return vars, nil
}

func addExtra(vars map[string]jinja.Value, raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	extra, err := parseValue(raw)
	if err == nil && !extra.IsDict() {
		err = errors.New("want an object")
	}
	if err != nil {
		return &RenderError{Param: "chat_template_kwargs", Message: err.Error()}
	}
	for _, key := range extra.AsDict().OrderedKeys() {
		if key == "messages" || key == "tools" || key == "add_generation_prompt" {
			return &RenderError{Param: "chat_template_kwargs", Message: fmt.Sprintf("%q has its own request field", key)}
		}
		vars[key], _ = extra.AsDict().Get(key)
	}
	return nil
}

func parseTools(raw json.RawMessage) (jinja.Value, error) {
	if len(raw) == 0 {
		return jinja.None(), nil
	}
	tools, err := parseValue(raw)
	if err == nil && !tools.IsList() && !tools.IsNone() {
		err = errors.New("want an array")
	}
	if err != nil {
		return tools, &RenderError{Param: "tools", Message: err.Error()}
	}
	if tools.IsList() && tools.AsList().Len() == 0 {
		return jinja.None(), nil
	}
	return tools, nil
}

// boundedRange is Python's range with a limit on its length, so that no template
// can ask for the memory of the machine.
func boundedRange(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	n := [3]int64{0, 0, 1}
	for i, a := range args {
		if i > 2 || !a.IsInt() {
			return jinja.None(), errors.New("range wants one to three integers")
		}
		n[i] = a.AsInt()
	}
	switch {
	case len(args) == 0:
		return jinja.None(), errors.New("range wants one to three integers")
	case len(args) == 1:
		n[0], n[1] = 0, n[0]
	case n[2] == 0:
		return jinja.None(), errors.New("range wants a step other than 0")
	}
	var items []jinja.Value
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
		if len(items) == maxRange {
			return jinja.None(), fmt.Errorf("range of more than %d items", maxRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}
