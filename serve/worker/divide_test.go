package worker

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/tokenizer/chat"
	"tandem/serve/openai"
)

const (
	chatTools = `{"messages":[{"role":"user","content":"hi"}],"tools":[` + weatherTool + `,{"type":"function","function":{"name":"now"}}]`

	weatherTool = `{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"$ref":"#/$defs/c"}},"required":["city"],"$defs":{"c":{"type":"string","maxLength":9}}}}}`

	saidCalls = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>"
)

// serveFormat is serveFake with a model whose answers have parts.
func serveFormat(t *testing.T, e *fakeEngine, f chat.Format) *httptest.Server {
	t.Helper()
	e.info.MaxSeqLen = 4096
	s := New(Config{Version: "1.2.3", Trusted: true, Transceiver: true, MaxBody: 1 << 20})
	s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t), Template: fakeTemplate{}, Format: f})
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv
}

var qwen = chat.Format{Calls: chat.Hermes, Thought: chat.MarkedThought}

// divided is an answer as a client puts it together.
type divided struct {
	Reasoning, Content, Finish string
	Calls                      []openai.ToolCall
}

func wholeAnswer(t *testing.T, text string) divided {
	t.Helper()
	c := decode[openai.Response](t, text).Choices[0]
	return divided{c.Message.ReasoningContent, c.Message.Text(), c.FinishReason, c.Message.ToolCalls}
}

// add puts the events of a stream to what is there, at most so many, and returns the ids that stand for them.
func (d *divided) add(t *testing.T, stream string, events int) (ids []int32) {
	t.Helper()
	return readEvents(stream, events, func(data string) {
		c := decode[struct {
			Choices []struct {
				Delta struct {
					Content   string
					Reasoning string `json:"reasoning_content"`
					Calls     []struct {
						Index int
						openai.ToolCall
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
		}](t, data)
		for _, ch := range c.Choices {
			d.Reasoning += ch.Delta.Reasoning
			d.Content += ch.Delta.Content
			d.Finish += ch.Finish
			for _, call := range ch.Delta.Calls {
				if call.ID != "" {
					d.Calls = append(d.Calls, call.ToolCall)
				} else {
					d.Calls[call.Index].Function.Arguments += call.Function.Arguments
				}
			}
		}
	})
}

func TestAnswersWithParts(t *testing.T) {
	const all = 1 << 20
	for _, c := range []struct {
		name, say, body string
		f               chat.Format
		want            divided
		calls           string
	}{
		{
			name: "calls", say: saidCalls, f: qwen, body: chatTools + `,"max_tokens":500`,
			want: divided{Reasoning: "Hm.", Content: "I look.", Finish: "tool_calls"}, calls: `weather{"city": "Rome"} now{}`,
		},
		{
			name: "one call at most", say: saidCalls, f: qwen, body: chatTools + `,"max_tokens":500,"parallel_tool_calls":false`,
			want: divided{Reasoning: "Hm.", Content: "I look.", Finish: "tool_calls"}, calls: `weather{"city": "Rome"}`,
		},
		{
			name: "a call that is cut", say: saidCalls, f: qwen, body: chatTools + `,"max_tokens":` + strconv.Itoa(strings.Index(saidCalls, "ty\": \"Rome")),
			want: divided{Reasoning: "Hm.", Content: "I look.", Finish: "length"}, calls: `weather{"ci`,
		},
		{
			name: "no tools", say: saidCalls, f: qwen, body: chatHi + `,"max_tokens":500`,
			want: divided{Reasoning: "Hm.", Content: strings.SplitN(saidCalls, "\n\n", 2)[1], Finish: "stop"},
		},
		{
			name: "no tools to be used", say: saidCalls, f: qwen, body: chatTools + `,"max_tokens":500,"tool_choice":"none"`,
			want: divided{Reasoning: "Hm.", Content: strings.SplitN(saidCalls, "\n\n", 2)[1], Finish: "stop"},
		},
		{
			name: "a model without parts", say: "<think>x", f: chat.Format{}, body: chatTools + `,"max_tokens":500`,
			want: divided{Content: "<think>x", Finish: "stop"},
		},
		{
			name: "a structure", say: `{"a":"<think>"}`, f: qwen, body: chatTools + `,"max_tokens":500,"response_format":{"type":"json_object"}`,
			want: divided{Content: `{"a":"<think>"}`, Finish: "stop"},
		},
		{
			name: "a forced call", say: `{"city": "Rome"}`, f: qwen, body: chatTools + `,"max_tokens":500,"tool_choice":{"type":"function","function":{"name":"weather"}}`,
			want: divided{Finish: "tool_calls"}, calls: `weather{"city": "Rome"}`,
		},
		{
			name: "some call", say: `[{"name": "now", "parameters": {}},{"name": "weather", "parameters": {"city": "Rome"}}]`, body: chatTools + `,"max_tokens":500,"tool_choice":"required"`,
			want: divided{Finish: "tool_calls"}, calls: `now{} weather{"city": "Rome"}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := serveFormat(t, newEngine(executor.Mixed, c.say), c.f)
			const path = "/v1/chat/completions"
			status, _, text := post(t, srv.URL+path, c.body+"}", "X-Request-ID", "r1")
			if status != 200 {
				t.Fatal(text)
			}
			got := wholeAnswer(t, text)
			var calls []string
			for _, call := range got.Calls {
				calls = append(calls, call.Function.Name+call.Function.Arguments)
			}
			if s := strings.Join(calls, " "); s != c.calls || got.Reasoning != c.want.Reasoning || got.Content != c.want.Content || got.Finish != c.want.Finish {
				t.Errorf("%+v %s", got, s)
			}
			if c.want.Content == "" && !strings.Contains(text, `"content":null`) {
				t.Errorf("an answer of calls alone has content: %s", text)
			}
			body := c.body + `,"stream":true`
			_, _, stream := post(t, srv.URL+path, body+"}", "X-Request-ID", "r1", openai.HeaderReturnTokenIDs, "1")
			var streamed divided
			streamed.add(t, stream, all)
			if !reflect.DeepEqual(streamed, got) {
				t.Errorf("streamed %+v, whole %+v", streamed, got)
			}
			data, _ := eventsOf(t, stream)
			for cut := 2; cut < len(data)-1; cut += 1 + len(data)/12 { // the role comes first
				var went divided
				ids, _ := json.Marshal(went.add(t, stream, cut))
				params := fmt.Sprintf(`,"disaggregated_params":{"disagg_request_id":%d,"first_gen_tokens":%s,"first_token_emitted":true}}`, attempt, ids)
				_, _, rest := post(t, srv.URL+path, body+params, "X-Request-ID", "r1", openai.HeaderReturnTokenIDs, "1")
				if went.add(t, rest, all); !reflect.DeepEqual(went, got) {
					t.Errorf("cut %d: %+v, whole %+v", cut, went, got)
				}
			}
		})
	}
}

// TestFirstTokenOfAPart: a ctx worker shows of the first token what a stream would, in its part, and nothing of a mark.
func TestFirstTokenOfAPart(t *testing.T) {
	id := openai.ToolCallID(openai.ReplyID(openai.Chat, "r1"), 0, 0)
	for _, c := range []struct{ say, more, delta, content string }{
		{"<think>", "}", "", ""},
		{"Hello", "}", `{"content":"H"}`, "H"},
		{"Hello", `,"resolved_thinking":true}`, `{"reasoning_content":"H"}`, ""},
		{
			"{}", `},"tool_choice":{"type":"function","function":{"name":"now"}}`,
			`{"tool_calls":[{"index":0,"id":"` + id + `","type":"function","function":{"name":"now","arguments":"{"}}]}`, "",
		},
	} {
		srv := serveFormat(t, newEngine(executor.Ctx, c.say), qwen)
		body := chatTools + `,"max_tokens":50,"disaggregated_params":{"request_type":"context_only","disagg_request_id":77` + c.more + "}"
		status, _, text := post(t, srv.URL+"/v1/chat/completions", body, "X-Request-ID", "r1")
		if status != 200 {
			t.Fatal(text)
		}
		if ch := decode[openai.Response](t, text).Choices[0]; string(ch.FirstDelta) != c.delta || ch.Message.Text() != c.content {
			t.Errorf("%s: first_delta %s, content %q", c.say, ch.FirstDelta, ch.Message.Text())
		}
	}
}

// TestThoughtOfThePrompt: whether the prompt has opened the reasoning shows in its ids, too.
func TestThoughtOfThePrompt(t *testing.T) {
	srv := serveFormat(t, newEngine(executor.Mixed, "why</think>so"), qwen)
	body := `{"messages":[{"role":"user","content":"say <think>"}],"max_tokens":50}` // the last line of the fake template
	_, _, text := post(t, srv.URL+"/v1/chat/completions", body)
	if got := wholeAnswer(t, text); got.Reasoning != "why" || got.Content != "so" {
		t.Errorf("%+v", got)
	}
}

// TestForcedCallsAreConfined: a forced call can have no other form.
func TestForcedCallsAreConfined(t *testing.T) {
	e := newEngine(executor.Mixed, "{}")
	srv := serveFormat(t, e, qwen)
	for _, c := range []struct{ choice, good, bad string }{
		{`{"type":"function","function":{"name":"weather"}}`, `{"city":"Rome"}`, `{"city":"Constantinople"}`},
		{`{"type":"function","function":{"name":"now"}}`, `{}`, `{"a":1}`},
		{`"required"`, `[{"name":"weather","parameters":{"city":"Rome"}}]`, `[{"name":"weather","parameters":{"city":"Constantinople"}}]`},
		{`"required"`, `[{"name":"now","parameters":{}}, {"name":"now","parameters":{}}]`, `[]`},
		{`"required"`, `[{"name":"now","parameters":{}}]`, `[{"name":"then","parameters":{}}]`},
		{`"required","parallel_tool_calls":false`, `[{"name":"now","parameters":{}}]`, `[{"name":"now","parameters":{}}, {"name":"now","parameters":{}}]`},
	} {
		status, _, text := post(t, srv.URL+"/v1/chat/completions", chatTools+`,"max_tokens":3,"tool_choice":`+c.choice+`}`)
		if status != 200 {
			t.Errorf("%s: %s", c.choice, text)
			continue
		}
		if g := e.last(t).Guide; g == nil || !follow(g, c.good) || follow(g, c.bad) {
			t.Errorf("%s takes not %s, or takes %s", c.choice, c.good, c.bad)
		}
	}
}
