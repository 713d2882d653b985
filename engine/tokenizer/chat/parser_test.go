package chat

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var weather = json.RawMessage(`[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
	"city":{"type":"string"},"days":{"type":"integer"},"units":{"type":["string","null"]},"at":{"anyOf":[{"type":"number"},{"type":"null"}]}}}}},
	{"type":"function","function":{"name":"now"}}]`)

// call is a whole call of an answer.
type call struct{ name, args string }

// add appends what came later.
func (a *Answer) add(b Answer) {
	a.Reasoning += b.Reasoning
	a.Content += b.Content
	a.Calls = append(a.Calls, b.Calls...)
}

// gather puts deltas together and checks that they are in order.
func gather(t testing.TB, deltas []CallDelta) (out []call) {
	t.Helper()
	for _, d := range deltas {
		if d.Name != "" {
			out = append(out, call{name: d.Name})
		}
		if d.Index != len(out)-1 {
			t.Fatalf("delta of call %d after %d calls", d.Index, len(out))
		}
		out[d.Index].args += d.Arguments
	}
	return out
}

// parse pushes a text in the given pieces and closes.
func parse(o ParserOptions, pieces ...string) (a Answer) {
	p := NewParser(o)
	for _, s := range pieces {
		a.add(p.Push(s))
	}
	a.add(p.Close())
	return a
}

var parserCases = []struct {
	name               string
	o                  ParserOptions
	text               string
	reasoning, content string
	calls              []call
}{
	{name: "no format", text: " a <think>b</think> <tool_call>{}", content: " a <think>b</think> <tool_call>{}", o: ParserOptions{Format: Format{Calls: NoCalls}}},
	{name: "reasoning", o: marked(Hermes), text: "<think>\nwhy not\n</think>\n\nYes. ", reasoning: "why not", content: "Yes. "},
	{name: "reasoning that the prompt opened", o: opened(Hermes), text: "\nwhy not\n</think>\n\nYes", reasoning: "why not", content: "Yes"},
	{name: "reasoning that does not end", o: marked(Hermes), text: "<think>why </thin", reasoning: "why </thin"},
	{name: "empty reasoning", o: marked(Hermes), text: "<think>\n\n</think>\n\nYes", content: "Yes"},
	{name: "no reasoning", o: marked(Hermes), text: " <thing> a", content: " <thing> a"},
	{name: "reasoning from the start", o: ParserOptions{Format: Format{Calls: NoCalls, Thought: FirstThought}}, text: "hm</think>so", reasoning: "hm", content: "so"},
	{
		name: "hermes", o: marked(Hermes), text: "<think>x</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Łódź }\\\"\", \"days\": 2}}\n</tool_call>",
		reasoning: "x", content: "Let me see.", calls: []call{{"weather", `{"city": "Łódź }\"", "days": 2}`}},
	},
	{
		name: "hermes, two", o: marked(Hermes), text: "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {\"b\": 2}]}, \"name\": \"now\"}\n</tool_call>\n",
		calls: []call{{"weather", `{}`}, {"now", `{"a": [1, {"b": 2}]}`}},
	},
	{
		name: "hermes, one too many", o: ParserOptions{Format: Format{Calls: Hermes}, MaxCalls: 1},
		text:  "<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"now\", \"arguments\": {\"x\":1}}</tool_call>",
		calls: []call{{"weather", `{}`}},
	},
	{
		name: "hermes, a list", o: marked(Hermes), text: `<tool_call>[{"name": "weather", "arguments": {"city": "x"}}, {"name": "now"}]</tool_call>`,
		calls: []call{{"weather", `{"city": "x"}`}, {"now", `{}`}},
	},
	{name: "hermes, no calls in a list", o: marked(Hermes), text: `<tool_call>[ ]</tool_call> x`, content: `<tool_call>[ ]</tool_call> x`},
	{name: "hermes without the end", o: marked(Hermes), text: `<tool_call>{"name": "now", "arguments": null} that was it`, calls: []call{{"now", `{}`}}, content: "that was it"},
	{name: "hermes cut", o: marked(Hermes), text: `<tool_call>{"name": "now", "arguments": {"a": "b`, calls: []call{{"now", `{"a": "b`}}},
	{name: "hermes cut before the name", o: marked(Hermes), text: "a\n<tool_call>{\"na", content: "a\n<tool_call>{\"na"},
	{name: "hermes, arguments as text", o: marked(Hermes), text: `<tool_call>{"name": "now", "arguments": "{\"a\": 1}"}</tool_call>`, calls: []call{{"now", `{"a": 1}`}}},
	{name: "hermes, other members", o: marked(Hermes), text: `<tool_call>{"id": 17, "ok": true, "name": "now", "x": [{"name": "y"}], "parameters": {}}</tool_call>`, calls: []call{{"now", `{}`}}},
	{name: "hermes, no JSON", o: marked(Hermes), text: "a <tool_call> is a tag </tool_call> b", content: "a <tool_call> is a tag </tool_call> b"},
	{name: "hermes, no name", o: marked(Hermes), text: `<tool_call>{"arguments": {}}</tool_call>`, content: `<tool_call>{"arguments": {}}</tool_call>`},
	{name: "begins of markers", o: marked(Hermes), text: "a < b <tool_ \n <tool_calx  ", content: "a < b <tool_ \n <tool_calx  "},
	{name: "much white space", o: marked(Hermes), text: "a" + strings.Repeat(" ", 2000) + `<tool_call>{"name":"now"}`, content: "a" + strings.Repeat(" ", 2000-maxWhite), calls: []call{{"now", "{}"}}},
	{
		name: "llama", o: marked(Llama3), text: "{\"name\": \"weather\", \"parameters\": {\"city\": \"x\"}}; {\"name\": \"now\", \"parameters\": {}}",
		calls: []call{{"weather", `{"city": "x"}`}, {"now", `{}`}},
	},
	{name: "llama with its tag", o: marked(Llama3), text: "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", calls: []call{{"now", `{}`}}},
	{name: "llama, unknown", o: marked(Llama3), text: `{"name": "Bob", "age": 3}`, content: `{"name": "Bob", "age": 3}`},
	{name: "llama, text", o: marked(Llama3), text: ` it is {"name": "now"}`, content: ` it is {"name": "now"}`},
	{
		name: "mistral, a list", o: marked(Mistral), text: `[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "x"}, "id": "VvvODy9mT"}, {"name": "now", "arguments": {}}]`,
		calls: []call{{"weather", `{"city": "x"}`}, {"now", `{}`}},
	},
	{
		name: "mistral, names", o: marked(Mistral), text: `Wait. [TOOL_CALLS]weather[ARGS]{"city": "{x"}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}`,
		content: "Wait.", calls: []call{{"weather", `{"city": "{x"}`}, {"now", `{}`}},
	},
	{name: "mistral, old names", o: marked(Mistral), text: `[TOOL_CALLS]weather{"city": "x"}`, calls: []call{{"weather", `{"city": "x"}`}}},
	{name: "mistral, no calls", o: marked(Mistral), text: `[TOOL_CALLS][ ]`, content: `[TOOL_CALLS][ ]`},
	{name: "mistral, nothing", o: marked(Mistral), text: `[TOOL_CALLS]`, content: `[TOOL_CALLS]`},
	{
		name: "coder", o: marked(QwenCoder),
		text:    "Sure.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\n\"York\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=units>\nnull\n</parameter>\n<parameter=other>\n5\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
		content: "Sure.", calls: []call{{"weather", `{"city": "New\n\"York\"", "days": 3, "units": null, "other": "5"}`}, {"now", `{}`}},
	},
	{name: "coder without the tag", o: marked(QwenCoder), text: "<function=now></function> so", calls: []call{{"now", `{}`}}, content: "so"},
	{name: "coder, a number that is none", o: marked(QwenCoder), text: "<function=weather><parameter=days>few</parameter></function>", calls: []call{{"weather", `{"days": "few"}`}}},
	{
		name: "coder, types by choice", o: marked(QwenCoder),
		text:  "<function=weather><parameter=units>5</parameter><parameter=at>5.5</parameter><parameter=city>\"x\"</parameter></function>",
		calls: []call{{"weather", `{"units": "5", "at": 5.5, "city": "\"x\""}`}},
	},
	{name: "coder cut", o: marked(QwenCoder), text: "<tool_call>\n<function=weather>\n<parameter=city>\nNew", calls: []call{{"weather", `{`}}},
	{name: "coder, no function", o: marked(QwenCoder), text: "<tool_call>\n{}", content: "<tool_call>\n{}"},
	{name: "any", o: ParserOptions{Format: Format{Calls: AnyCalls}}, text: `[{"name": "now", "parameters": {"a":1}}, {"name":"now","parameters":{}}]`, calls: []call{{"now", `{"a":1}`}, {"now", "{}"}}},
	{name: "one", o: ParserOptions{Format: Format{Calls: OneCall}, Function: "now"}, text: `{"a": 1}`, calls: []call{{"now", `{"a": 1}`}}},
}

func marked(c CallFormat) ParserOptions {
	return ParserOptions{Format: Format{Calls: c, Thought: MarkedThought}, Tools: weather}
}

func opened(c CallFormat) ParserOptions {
	o := marked(c)
	o.Thinks = true
	return o
}

func TestParser(t *testing.T) {
	for _, c := range parserCases {
		t.Run(c.name, func(t *testing.T) {
			a := parse(c.o, c.text)
			if a.Reasoning != c.reasoning || a.Content != c.content {
				t.Errorf("reasoning %q, content %q", a.Reasoning, a.Content)
			}
			if calls := gather(t, a.Calls); !reflect.DeepEqual(calls, c.calls) {
				t.Errorf("calls %q", calls)
			}
		})
	}
}

// whole puts all that came until now into one text.
func whole(t testing.TB, a *Answer) string {
	return fmt.Sprintf("%q %q %q", a.Reasoning, a.Content, gather(t, a.Calls))
}

// TestParserCuts: what is known after some text does not depend on how it came. A stream that another worker goes on with is
// built on that.
func TestParserCuts(t *testing.T) {
	var texts []string
	for _, c := range parserCases {
		texts = append(texts, c.text)
	}
	bits := []string{"<think>", "</think>", "<tool_call>", "</tool_call>", `{"name": "now", "arguments": {`, "}}", "\n", " ", "<", "[TOOL_CALLS]", "now[ARGS]{", "[", "]", "{", "}", `"`, "<function=now>", "<parameter=a>", "</parameter>", "</function>", "ä", "x", ";", ",", `\`}
	rapid.Check(t, func(r *rapid.T) {
		o := rapid.SampledFrom([]ParserOptions{marked(Hermes), opened(Hermes), marked(Llama3), marked(Mistral), marked(QwenCoder), marked(AnyCalls), marked(NoCalls)}).Draw(r, "options")
		o.MaxCalls = rapid.IntRange(0, 2).Draw(r, "most")
		text := rapid.SampledFrom(texts).Draw(r, "text")
		if rapid.Bool().Draw(r, "random") {
			text = strings.Join(rapid.SliceOfN(rapid.SampledFrom(bits), 0, 20).Draw(r, "bits"), "")
		}
		one, two := NewParser(o), NewParser(o)
		var a, b Answer
		for text != "" {
			n := rapid.IntRange(1, len(text)).Draw(r, "n")
			for n < len(text) && !utf8.RuneStart(text[n]) {
				n++
			}
			a.add(one.Push(text[:n]))
			for _, c := range text[:n] {
				b.add(two.Push(string(c)))
			}
			text = text[n:]
			if x, y := whole(t, &a), whole(t, &b); x != y {
				r.Fatalf("%s in one piece, %s in many", x, y)
			}
		}
		a.add(one.Close())
		b.add(two.Close())
		if x, y := whole(t, &a), whole(t, &b); x != y {
			r.Fatalf("at the end %s in one piece, %s in many", x, y)
		}
	})
}

// FuzzParser: any text is divided, and none that is no call is lost.
func FuzzParser(f *testing.F) {
	for _, c := range parserCases {
		f.Add(c.text, uint8(1))
	}
	formats := []CallFormat{NoCalls, Hermes, Llama3, Mistral, QwenCoder, AnyCalls}
	f.Fuzz(func(t *testing.T, text string, format uint8) {
		o := ParserOptions{Format: Format{Calls: formats[int(format)%len(formats)]}, Tools: weather}
		a := parse(o, text)
		if calls := gather(t, a.Calls); len(calls) == 0 && a.Content != text {
			t.Fatalf("%q became %q without a call", text, a.Content)
		}
	})
}

func TestFormatOf(t *testing.T) {
	for source, want := range map[string]Format{
		"{{ messages }}": {Calls: NoCalls},
		"<tool_call>\n{\"name\": <function-name>} <think>":                      {Calls: Hermes, Thought: MarkedThought},
		"<tool_call>\n<function=example>\n<parameter=x>":                        {Calls: QwenCoder},
		"{{ '[TOOL_CALLS] [' }}":                                                {Calls: Mistral},
		`<|start_header_id|> {"name": function name, "parameters": dictionary}`: {Calls: Llama3},
	} {
		if got := formatOf(source); got != want {
			t.Errorf("%q: %+v", source, got)
		}
	}
	if !Thinks("<|im_start|>assistant\n<think>\n") || Thinks("<think>\n\n</think>\n\n") || Thinks("") {
		t.Error("the end of a prompt is misread")
	}
}

// BenchmarkParser divides an answer of 64 KiB of arguments that comes token by token.
func BenchmarkParser(b *testing.B) {
	text := `<tool_call>{"name": "now", "arguments": {"text": "` + strings.Repeat("word ", 13000) + `"}}</tool_call>`
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		p := NewParser(marked(Hermes))
		for i := 0; i < len(text); i += 4 {
			p.Push(text[i:min(i+4, len(text))])
		}
		p.Close()
	}
}
