package chat

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func mustTemplate(t *testing.T, source string) *Template {
	t.Helper()
	tmpl, err := NewTemplate(source, Options{BOS: "<s>", EOS: "</s>"})
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func TestNewTemplateRefuses(t *testing.T) {
	for name, c := range map[string]struct{ source, says string }{
		"no template":     {"", "/v1/completions"},
		"only space":      {" \n ", "/v1/completions"},
		"unclosed tag":    {"a {{ b", "unclosed"},
		"unclosed string": {"{{ 'a }}", "unclosed"},
		"no end":          {"{% for x in y %}", ""},
		"unknown tag":     {"{% frob %}", "frob"},
		"deep":            {"{{ " + strings.Repeat("(", 1000), "brackets"},
		"huge":            {strings.Repeat("x", 2<<20), "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewTemplate(c.source, Options{})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one that says %q", err, c.says)
			}
		})
	}
	if _, err := NewTemplate("", Options{}); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("error %v is not ErrNoTemplate", err)
	}
}

func TestRenderRefuses(t *testing.T) {
	const plain = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
	for name, c := range map[string]struct {
		source, messages, tools, extra string
		param, says                    string
		refused                        bool
	}{
		"raise":         {source: "{{ raise_exception('roles must alternate') }}", param: "messages", says: "roles must alternate", refused: true},
		"raise nothing": {source: "{{ raise_exception() }}", param: "messages", says: "no reason", refused: true},
		"bad filter":    {source: "{{ 1 | frob }}", param: "messages", says: "frob"},
		"huge range":    {source: "{{ range(10000000000) }}", param: "messages", says: "range"},
		"no messages":   {source: plain, messages: "[]", param: "messages", says: "at least one"},
		"no array":      {source: plain, messages: "{}", param: "messages", says: "array"},
		"broken":        {source: plain, messages: `[{"role": `, param: "messages", says: "unexpected"},
		"trailing":      {source: plain, messages: `[{"role":"user"}] 1`, param: "messages", says: "more than one"},
		"no object":     {source: plain, messages: "[1]", param: "messages", says: "message 0"},
		"no role":       {source: plain, messages: `[{"role":"user","content":"x"},{"content":"x"}]`, param: "messages", says: "message 1: role"},
		"bad content":   {source: plain, messages: `[{"role":"user","content":5}]`, param: "messages", says: "content"},
		"image part":    {source: plain, messages: `[{"role":"user","content":[{"type":"image_url"}]}]`, param: "messages", says: "only text"},
		"part no text":  {source: plain, messages: `[{"role":"user","content":[{"type":"text"}]}]`, param: "messages", says: "no text"},
		"deep":          {source: plain, messages: strings.Repeat("[", 2000), param: "messages", says: "deeper"},
		"huge number":   {source: plain, messages: `[1e999]`, param: "messages", says: "range"},
		"tools":         {source: plain, tools: `{"a":1}`, param: "tools", says: "array"},
		"extra":         {source: plain, extra: `[]`, param: "chat_template_kwargs", says: "object"},
		"extra tools":   {source: plain, extra: `{"tools":1}`, param: "chat_template_kwargs", says: "tools"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.messages == "" {
				c.messages = `[{"role":"user","content":"x"}]`
			}
			_, err := mustTemplate(t, c.source).Render(Input{
				Messages: json.RawMessage(c.messages), Tools: json.RawMessage(c.tools), Extra: json.RawMessage(c.extra),
			})
			var re *RenderError
			if !errors.As(err, &re) {
				t.Fatalf("error %v is no RenderError", err)
			}
			if re.Param != c.param || re.Refused != c.refused || !strings.Contains(re.Error(), c.says) {
				t.Errorf("error %+v, want param %q, refused %v, saying %q", re, c.param, c.refused, c.says)
			}
		})
	}
}

// Messages arrive in every form the API allows; each template gets the form it
// understands.
func TestMessagesTakeTheFormTheTemplateKnows(t *testing.T) {
	const (
		concat = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
		parts  = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
		nulls  = "{% for m in messages %}{% if m['content'] is none %}none{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
		dicts  = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
		texts  = "{% for m in messages %}{% for c in m.tool_calls %}{{ 'x' + c['function']['arguments'] }}{% endfor %}{% endfor %}"

		twoParts = `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`
		noText   = `[{"role":"assistant","content":null}]`
		call     = `[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"z\":2.0,\"a\":[1,null]}"}}]}]`
		badCall  = `[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{oops"}}]}]`
	)
	for name, c := range map[string]struct{ source, messages, want string }{
		"parts joined":     {concat, twoParts, "user:a\nb;"},
		"parts kept":       {parts, twoParts, "[a][b]"},
		"null as text":     {concat, noText, "assistant:;"},
		"absent as text":   {concat, `[{"role":"assistant"}]`, "assistant:;"},
		"null kept":        {nulls, noText, "none"},
		"absent as null":   {nulls, `[{"role":"assistant"}]`, "none"},
		"arguments parsed": {dicts, call, `{"z": 2.0, "a": [1, null]}`},
		"arguments kept":   {texts, call, `x{"z":2.0,"a":[1,null]}`},
		"bad arguments":    {dicts, badCall, `"{oops"`},
		"bos and eos":      {"{{ bos_token }}|{{ eos_token }}|{{ pad_token }}", noText, "<s>|</s>|"},
		"no final newline": {"x\n", noText, "x"},
		"generation":       {"{% generation %}x{% endgeneration %}", noText, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mustTemplate(t, c.source).Render(Input{Messages: json.RawMessage(c.messages)})
			if err != nil || got != c.want {
				t.Errorf("rendered %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestEmptyToolsAreNone(t *testing.T) {
	tmpl := mustTemplate(t, "{{ tools is none }}")
	for _, tools := range []string{"", "null", "[]"} {
		got, err := tmpl.Render(Input{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`), Tools: json.RawMessage(tools)})
		if err != nil || got != "True" {
			t.Errorf("tools %q: %q, %v", tools, got, err)
		}
	}
}

func TestStrftime(t *testing.T) {
	now := time.Date(2026, 3, 7, 9, 5, 2, 123456789, time.UTC)
	for format, want := range map[string]string{
		"%d %b %Y": "07 Mar 2026", "%-d/%-m": "7/3", "%H:%M:%S": "09:05:02", "%I %p": "09 AM", "100%%": "100%",
		"%A %j %u %w": "Saturday 066 6 6", "%f": "123456", "%Q": "%Q", "2006 Jan %y": "2006 Jan 26", "%": "%",
	} {
		if got := strftime(now, format); got != want {
			t.Errorf("strftime(%q) = %q, want %q", format, got, want)
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add("{% for m in messages %}{{ m.content }}{% endfor %}", `[{"role":"user","content":"x"}]`, `[]`)
	f.Add("{%- raw -%}{{{% endraw %}{# c #}{{ {'a': [1]}['a'] }}", `[{"role":"user","content":[{"type":"text","text":"t"}]}]`, `null`)
	f.Fuzz(func(t *testing.T, source, messages, tools string) {
		if len(source) > 200 {
			return // the library's loops are not what is under test
		}
		tmpl, err := NewTemplate(source, Options{})
		if err != nil {
			return
		}
		_, err = tmpl.Render(Input{Messages: json.RawMessage(messages), Tools: json.RawMessage(tools)})
		if re := (*RenderError)(nil); err != nil && !errors.As(err, &re) {
			t.Fatalf("error %v is no RenderError", err)
		}
	})
}
