package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// ToolCall is a function that an answer calls.
type ToolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"` // "function"
	Function FunctionCall `json:"function"`
}

// FunctionCall is what is called, with its arguments as the text of a JSON object. The model wrote it: it may be malformed.
type FunctionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// ToolCallDelta is a piece of a call in a stream. The first of a call has ID and Name.
type ToolCallDelta struct {
	Index     int // of the call in the choice
	ID        string
	Name      string
	Arguments string // the next bytes
}

func (d *ToolCallDelta) appendJSON(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, `{"index":`...), int64(d.Index), 10)
	if d.Name != "" {
		dst = AppendString(append(dst, `,"id":`...), d.ID)
		dst = append(dst, `,"type":"function"`...)
	}
	dst = append(dst, `,"function":{`...)
	if d.Name != "" {
		dst = append(AppendString(append(dst, `"name":`...), d.Name), ',')
	}
	dst = AppendString(append(dst, `"arguments":`...), d.Arguments)
	return append(dst, `}}`...)
}

// ToolCallID names a call of a reply. It is the same wherever the reply is made.
func ToolCallID(replyID string, choice, call int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", replyID, choice, call))
	return "call_" + hex.EncodeToString(sum[:12])
}

// ForcedCall says that the answer has to call: a function, or with an empty name one or several of the tools.
type ForcedCall struct{ Function string }

// finishTools applies tool_choice and parallel_tool_calls.
func (r *Request) finishTools() error {
	if raw, ok := r.Body.Get("parallel_tool_calls"); ok && string(raw) == "false" {
		r.MaxCalls = 1
	}
	raw, ok := r.Body.Get("tool_choice")
	if !ok || isNull(raw) {
		return nil
	}
	if raw[0] != '"' {
		return r.forceOne(raw)
	}
	choice, err := wordOf("tool_choice", raw, "auto", "none", "required")
	switch {
	case err != nil:
		return err
	case choice == "none":
		r.Tools = nil
	case choice == "required":
		if r.Tools == nil {
			return Invalid("tool_choice", "tool_choice is \"required\" and there are no tools: send tools")
		}
		return r.forceAny()
	}
	return nil
}

// tool is one of the request's, as far as it matters here.
type tool struct {
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// schema is that of the arguments. A function without parameters takes none.
func (t *tool) schema() string {
	if p := t.Function.Parameters; len(p) > 0 && !isNull(p) && string(p) != "{}" {
		return string(p)
	}
	return `{"type":"object","properties":{},"additionalProperties":false}`
}

func (r *Request) tools() (list []tool, err error) {
	if r.Tools == nil {
		return nil, nil
	}
	if err := json.Unmarshal(r.Tools, &list); err != nil {
		return nil, Invalid("tools", "tools is malformed: %s", Cut(err.Error(), 200))
	}
	return list, nil
}

// forceOne takes {"type": "function", "function": {"name": …}}.
func (r *Request) forceOne(raw json.RawMessage) error {
	const at = "tool_choice"
	body, err := objectOf(at, raw)
	if err != nil {
		return err
	}
	kind, _ := body.Get("type")
	if _, err := wordOf(at+".type", kind, "function"); err != nil {
		return err
	}
	inner, _ := body.Get("function")
	fn, err := objectOf(at+".function", inner)
	if err != nil {
		return err
	}
	raw, _ = fn.Get("name")
	name, err := stringOf(at+".function.name", raw)
	if err != nil {
		return err
	}
	list, err := r.tools()
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Function.Name == name {
			r.Forced, r.MaxCalls = &ForcedCall{Function: name}, 1
			return r.guide("json_schema", list[i].schema(), fmt.Sprintf("tools[%d].function.parameters", i))
		}
	}
	return Invalid(at+".function.name", "tool_choice names the function %q, which is not among the tools", Cut(name, 64))
}

// rootRef is a reference within a schema, from its root.
var rootRef = regexp.MustCompile(`"\$ref"\s*:\s*"#`)

// forceAny makes the answer a list of calls.
func (r *Request) forceAny() error {
	list, err := r.tools()
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(`{"type":"array","minItems":1,`)
	if r.MaxCalls > 0 {
		fmt.Fprintf(&b, `"maxItems":%d,`, r.MaxCalls)
	}
	b.WriteString(`"items":{"anyOf":[`)
	for i := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		schema := rootRef.ReplaceAllLiteralString(list[i].schema(), fmt.Sprintf(`"$ref":"#/items/anyOf/%d/properties/parameters`, i))
		fmt.Fprintf(&b, `{"type":"object","properties":{"name":{"const":%s},"parameters":%s},"required":["name","parameters"],"additionalProperties":false}`,
			AppendString(nil, list[i].Function.Name), schema)
	}
	b.WriteString(`]}}`)
	r.Forced = &ForcedCall{}
	return r.guide("json_schema", b.String(), "tools")
}
