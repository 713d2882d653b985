package openai

import (
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

// messageOf reads one message. It checks the members that templates use and
// leaves their form alone, since only the template knows whether it takes parts
// or text, arguments as text or as an object; but the role developer becomes
// system, because templates know no other name for it.
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
	msg.JSON = raw
	if msg.Role == "developer" {
		msg.Role = "system"
		body.Set("role", json.RawMessage(`"system"`))
		msg.JSON = body.AppendJSON(nil)
	}
	calls, err := checkCalls(p, &body, msg.Role)
	if err != nil {
		return msg, err
	}
	content, ok := body.Get("content")
	if !ok || isNull(content) {
		if !calls {
			err = Invalid(p+".content", "%s.content is missing: send a string", p)
		}
		msg.NoContent = true
		return msg, err
	}
	msg.Content, err = contentOf(p+".content", content)
	return msg, err
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
	body, err := objectOf(p, raw)
	if err != nil {
		return "", err
	}
	kind, _ := body.Get("type")
	s, err := stringOf(p+".type", kind)
	if err != nil {
		return "", err
	}
	if s != "text" {
		return "", Unsupported(p+".type", "%s.type is %q: only text parts are supported", p, Cut(s, 64))
	}
	text, _ := body.Get("text")
	return stringOf(p+".text", text)
}

// checkCalls checks tool_calls and tells whether the message holds any.
func checkCalls(p string, body *Body, role string) (bool, error) {
	raw, ok := body.Get("tool_calls")
	if !ok || isNull(raw) {
		return false, nil
	}
	p += ".tool_calls"
	list, err := listOf(p, raw)
	if err != nil {
		return false, err
	}
	if role != "assistant" {
		return false, Invalid(p, "%s: only an assistant message can hold tool_calls", p)
	}
	for i, c := range list {
		call, err := objectOf(at(p, i), c)
		if err != nil {
			return false, err
		}
		if err := checkCall(at(p, i)+".function", &call); err != nil {
			return false, err
		}
	}
	return len(list) > 0, nil
}

func checkCall(p string, call *Body) error {
	raw, _ := call.Get("function")
	fn, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	name, _ := fn.Get("name")
	if _, err := stringOf(p+".name", name); err != nil {
		return err
	}
	args, ok := fn.Get("arguments")
	if !ok || isNull(args) || args[0] == '{' {
		return nil
	}
	_, err = stringOf(p+".arguments", args)
	return err
}
