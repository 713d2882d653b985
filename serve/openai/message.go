package openai

import (
	"bytes"
	"encoding/json"
	"strings"
)

var roles = []string{"system", "developer", "user", "assistant", "tool"}

func setMessages(r *Request, p string, raw json.RawMessage) error {
	list, err := listOf(p, raw)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return Invalid(p, "messages is an empty list: send at least one message")
	}
	r.Messages = make([]ChatMessage, len(list))
	for i, m := range list {
		if r.Messages[i], err = messageOf(at(p, i), m); err != nil {
			return err
		}
	}
	return nil
}

// messageOf reads one message and rewrites it for templates: content becomes a
// string, the role developer becomes system (templates know no other name for
// it), and arguments of tool calls become objects; other members stay.
func messageOf(p string, raw json.RawMessage) (ChatMessage, error) {
	var msg ChatMessage
	body, err := objectOf(p, raw)
	if err != nil {
		return msg, err
	}
	role, ok := body.Get("role")
	if !ok {
		return msg, Invalid(p+".role", "%s.role is missing: use one of %s", p, strings.Join(roles, ", "))
	}
	if msg.Role, err = wordOf(p+".role", role, roles...); err != nil {
		return msg, err
	}
	if msg.Role == "developer" {
		msg.Role = "system"
		body.Set("role", json.RawMessage(`"system"`))
	}
	calls, err := templateCalls(p, &body, msg.Role)
	if err != nil {
		return msg, err
	}
	if err := msg.setContent(p, &body, calls); err != nil {
		return msg, err
	}
	msg.JSON = body.AppendJSON(nil)
	return msg, nil
}

func (msg *ChatMessage) setContent(p string, body *Body, calls bool) error {
	content, ok := body.Get("content")
	if !ok || isNull(content) {
		if !calls {
			return Invalid(p+".content", "%s.content is missing: send a string", p)
		}
		msg.NoContent = true
		return nil
	}
	text, err := contentOf(p+".content", content)
	if err != nil {
		return err
	}
	msg.Content = text
	body.Set("content", AppendString(nil, text))
	return nil
}

func contentOf(p string, raw json.RawMessage) (string, error) {
	if raw[0] == '"' {
		return stringOf(p, raw)
	}
	if raw[0] != '[' {
		return "", typeError(p, "a string or a list of text parts", raw)
	}
	parts, err := listOf(p, raw)
	if err != nil {
		return "", err
	}
	texts := make([]string, len(parts))
	for i, part := range parts {
		if texts[i], err = partOf(at(p, i), part); err != nil {
			return "", err
		}
	}
	return strings.Join(texts, "\n"), nil
}

func partOf(p string, raw json.RawMessage) (string, error) {
	if raw[0] == '"' {
		return stringOf(p, raw)
	}
	body, err := objectOf(p, raw)
	if err != nil {
		return "", err
	}
	kind, _ := body.Get("type")
	s, err := stringOf(p+".type", kind)
	if err != nil {
		return "", err
	}
	switch s {
	case "text", "refusal":
		text, _ := body.Get(s)
		return stringOf(p+"."+s, text)
	}
	return "", Unsupported(p+".type", "%s.type is %q: this model reads text parts only", p, Cut(s, 64))
}

// templateCalls checks tool_calls and turns each call's arguments, which
// clients send as a string of JSON, into the object that templates print.
func templateCalls(p string, body *Body, role string) (bool, error) {
	raw, ok := body.Get("tool_calls")
	if !ok || isNull(raw) {
		return false, nil
	}
	at0 := p + ".tool_calls"
	list, err := listOf(at0, raw)
	if err != nil {
		return false, err
	}
	if role != "assistant" {
		return false, Invalid(at0, "%s: only an assistant message can hold tool_calls", at0)
	}
	out := []byte{'['}
	for i, c := range list {
		call, err := objectOf(at(at0, i), c)
		if err != nil {
			return false, err
		}
		if err := inlineArguments(at(at0, i), &call); err != nil {
			return false, err
		}
		out = call.AppendJSON(comma(out, i))
	}
	body.Set("tool_calls", append(out, ']'))
	return len(list) > 0, nil
}

func inlineArguments(p string, call *Body) error {
	raw, _ := call.Get("function")
	fn, err := objectOf(p+".function", raw)
	if err != nil {
		return err
	}
	name, _ := fn.Get("name")
	if _, err := stringOf(p+".function.name", name); err != nil {
		return err
	}
	args, ok := fn.Get("arguments")
	if !ok || isNull(args) || args[0] == '{' {
		return nil
	}
	text, err := stringOf(p+".function.arguments", args)
	if err != nil {
		return err
	}
	inner := bytes.TrimSpace([]byte(text))
	if len(inner) == 0 {
		inner = []byte("{}")
	}
	if inner[0] != '{' || !json.Valid(inner) {
		return nil // what the model wrote was no object: show it as it was
	}
	fn.Set("arguments", inner)
	call.Set("function", fn.AppendJSON(nil))
	return nil
}
