package openai

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func chatBody(extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + extra + `}`
}

func textBody(extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return `{"model":"m","prompt":"hi"` + extra + `}`
}

func TestDecodeRequestBadInput(t *testing.T) {
	for _, tc := range []struct{ name, body, param, says string }{
		{"empty", ``, "", "empty"},
		{"not json", `{"model":`, "", "too early"},
		{"syntax", `{"model":"m",}`, "", "not valid JSON at byte"},
		{"list", `[1]`, "", "must be a JSON object, not a list"},
		{"string", `"x"`, "", "must be a JSON object, not a string"},
		{"trailing", chatBody("") + "x", "", "more text after"},
		{"two objects", chatBody("") + "{}", "", "more text after"},
		{"duplicate", `{"model":"a","model":"b"}`, "", "twice"},
		{"invalid utf8", "{\"model\":\"\xff\"}", "", "UTF-8 at byte 10"},
		{"model type", `{"model":5,"messages":[{"role":"user","content":"x"}]}`, "model", "must be a string, not a number"},
		{"no messages", `{"model":"m"}`, "messages", "missing"},
		{"null messages", `{"model":"m","messages":null}`, "messages", "missing"},
		{"empty messages", `{"model":"m","messages":[]}`, "messages", "at least one"},
		{"messages type", `{"model":"m","messages":"hi"}`, "messages", "must be a list, not a string"},
		{"message type", `{"model":"m","messages":["hi"]}`, "messages[0]", "must be an object"},
		{"role missing", `{"model":"m","messages":[{"content":"x"}]}`, "messages[0].role", "missing"},
		{"role unknown", `{"model":"m","messages":[{"role":"root","content":"x"}]}`, "messages[0].role", "use one of"},
		{"content missing", `{"model":"m","messages":[{"role":"user"}]}`, "messages[0].content", "missing"},
		{"content number", `{"model":"m","messages":[{"role":"user","content":3}]}`, "messages[0].content", "must be a string"},
		{"image part", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, "messages[0].content[0].type", "only text parts"},
		{"part without text", `{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`, "messages[0].content[0].text", "must be a string"},
		{"max_tokens 0", chatBody(`"max_tokens":0`), "max_tokens", "at least 1"},
		{"max_tokens negative", chatBody(`"max_tokens":-4`), "max_tokens", "at least 1"},
		{"max_tokens float", chatBody(`"max_tokens":1.5`), "max_tokens", "whole number"},
		{"max_tokens string", chatBody(`"max_tokens":"5"`), "max_tokens", "must be an integer, not a string"},
		{"max_completion_tokens", chatBody(`"max_completion_tokens":0`), "max_completion_tokens", "at least 1"},
		{"budgets differ", chatBody(`"max_tokens":5,"max_completion_tokens":6`), "max_completion_tokens", "differ"},
		{"temperature high", chatBody(`"temperature":2.1`), "temperature", "between 0 and 2"},
		{"temperature low", chatBody(`"temperature":-0.1`), "temperature", "between 0 and 2"},
		{"temperature huge", chatBody(`"temperature":1e999`), "temperature", "too large"},
		{"temperature type", chatBody(`"temperature":"hot"`), "temperature", "must be a number"},
		{"top_p 0", chatBody(`"top_p":0`), "top_p", "above 0"},
		{"top_p", chatBody(`"top_p":1.1`), "top_p", "between 0 and 1"},
		{"top_k", chatBody(`"top_k":-2`), "top_k", "at least -1"},
		{"min_p", chatBody(`"min_p":2`), "min_p", "between"},
		{"repetition", chatBody(`"repetition_penalty":0`), "repetition_penalty", "between 0.001 and 100"},
		{"repetition too small", chatBody(`"repetition_penalty":1e-38`), "repetition_penalty", "between 0.001 and 100"},
		{"presence", chatBody(`"presence_penalty":2.5`), "presence_penalty", "between -2 and 2"},
		{"frequency", chatBody(`"frequency_penalty":-3`), "frequency_penalty", "between -2 and 2"},
		{"seed", chatBody(`"seed":18446744073709551616`), "seed", "2^64-1"},
		{"seed float", chatBody(`"seed":1.5`), "seed", "whole number"},
		{"n", chatBody(`"n":129`), "n", "128"},
		{"no choice", chatBody(`"n":0`), "n", "1"},
		{"best_of of a chat", chatBody(`"best_of":2`), "best_of", "/v1/completions"},
		{"n 0", chatBody(`"n":0`), "n", "at least 1"},
		{"best_of below n", textBody(`"n":3,"best_of":2`), "best_of", "less than n 3"},
		{"best_of in a stream", textBody(`"best_of":3,"stream":true`), "best_of", "cannot be streamed"},
		{"beam", textBody(`"use_beam_search":true`), "use_beam_search", "beam search"},
		{"bias type", chatBody(`"logit_bias":[1]`), "logit_bias", "must be an object"},
		{"bias key", chatBody(`"logit_bias":{"hello":1}`), "logit_bias", "token ids"},
		{"bias key sign", chatBody(`"logit_bias":{"-5":1}`), "logit_bias", "token ids"},
		{"bias key zero", chatBody(`"logit_bias":{"05":1}`), "logit_bias", "token ids"},
		{"bias value", chatBody(`"logit_bias":{"5":101}`), "logit_bias.5", "between -100 and 100"},
		{"stop type", chatBody(`"stop":5`), "stop", "string or a list"},
		{"stop element", chatBody(`"stop":["a",1]`), "stop[1]", "must be a string"},
		{"stop empty", chatBody(`"stop":""`), "stop", "empty string"},
		{"stop ids", chatBody(`"stop_token_ids":[1,-1]`), "stop_token_ids", "token ids"},
		{"stream type", chatBody(`"stream":"yes"`), "stream", "true or false"},
		{"stream_options alone", chatBody(`"stream_options":{"include_usage":true}`), "stream_options", "stream: true"},
		{"stream_options type", chatBody(`"stream":true,"stream_options":{"include_usage":1}`), "stream_options.include_usage", "true or false"},
		{"top_logprobs alone", chatBody(`"top_logprobs":2`), "top_logprobs", "logprobs: true"},
		{"top_logprobs", chatBody(`"logprobs":true,"top_logprobs":21`), "top_logprobs", "at most 20"},
		{"chat logprobs int", chatBody(`"logprobs":3`), "logprobs", "true or false"},
		{"text logprobs bool", textBody(`"logprobs":true`), "logprobs", "integer"},
		{"echo of a chat", chatBody(`"echo":true`), "echo", "not supported"},
		{"echo with logprobs in a stream", textBody(`"echo":true,"logprobs":1,"stream":true`), "echo", "cannot be streamed"},
		{"prompt_logprobs", textBody(`"prompt_logprobs":21`), "prompt_logprobs", "at most 20"},
		{"prompt_logprobs below", textBody(`"prompt_logprobs":-1`), "prompt_logprobs", "at least 0"},
		{"prompt_logprobs in a stream", chatBody(`"prompt_logprobs":0,"stream":true`), "prompt_logprobs", "cannot be streamed"},
		{"max_tokens 0", textBody(`"max_tokens":0`), "max_tokens", "unless echo"},
		{"max_tokens 0 of a chat", chatBody(`"max_tokens":0`), "max_tokens", "at least 1"},
		{"max_tokens 0 in a stream", textBody(`"max_tokens":0,"echo":true,"stream":true`), "max_tokens", "cannot be streamed"},
		{"truncate", textBody(`"truncate_prompt_tokens":0`), "truncate_prompt_tokens", "-1"},
		{"truncate below", textBody(`"truncate_prompt_tokens":-2`), "truncate_prompt_tokens", "at least -1"},
		{"allowed", textBody(`"allowed_token_ids":[]`), "allowed_token_ids", "at least one"},
		{"bad words", textBody(`"bad_words":"x"`), "bad_words", "list"},
		{"bad word ids", textBody(`"bad_words":["x",[]]`), "bad_words", "bad_words[1] has 0 token ids"},
		{"bad word type", textBody(`"bad_words":[7]`), "bad_words[0]", "string"},
		{"suffix", textBody(`"suffix":"x"`), "suffix", "not supported"},
		{"response format", chatBody(`"response_format":{"type":"xml"}`), "response_format", "not supported"},
		{"json schema", chatBody(`"response_format":{"type":"json_schema","json_schema":{}}`), "response_format.json_schema.schema", "needs schema"},
		{"guided", chatBody(`"guided_json":5`), "guided_json", "object"},
		{"guided twice", chatBody(`"guided_json":{},"guided_regex":"a"`), "guided_regex", "both ask"},
		{"guided grammar", chatBody(`"guided_grammar":["x"]`), "guided_grammar", "must be a string"},
		{"functions", chatBody(`"functions":[]`), "functions", "use tools"},
		{"tool_choice without tools", chatBody(`"tool_choice":"required"`), "tool_choice", "there are no tools"},
		{"tool_choice of another function", chatBody(`"tools":[{"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"function","function":{"name":"f"}}`), "tool_choice.function.name", "not among the tools"},
		{"tool_choice of another type", chatBody(`"tool_choice":{"type":"custom"}`), "tool_choice.type", "use one of"},
		{"tool_choice without a name", chatBody(`"tool_choice":{"type":"function","function":{}}`), "tool_choice.function.name", "must be a string"},
		{"tool_choice and a structure", chatBody(`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required","guided_regex":"a"`), "tools", "both ask for a structure"},
		{"tool_choice type", chatBody(`"tool_choice":"maybe"`), "tool_choice", "use one of"},
		{"tool without name", chatBody(`"tools":[{"type":"function","function":{}}]`), "tools[0].function.name", "must be a string"},
		{"tool calls role", `{"messages":[{"role":"user","content":"x","tool_calls":[]}]}`, "messages[0].tool_calls", "assistant"},
		{"modalities", chatBody(`"modalities":["audio"]`), "modalities", "only \"text\""},
		{"min_tokens", chatBody(`"min_tokens":9,"max_tokens":3`), "min_tokens", "lower it"},
		{"priority", chatBody(`"priority":2`), "priority", "between 0 and 1"},
		{"conversation extra", chatBody(`"conversation_params":{"conversation_id":"a","subagent_affinity_id":"b"}`), "conversation_params.subagent_affinity_id", "only conversation_id"},
		{"conversation blank", chatBody(`"conversation_params":{"conversation_id":"  "}`), "conversation_params.conversation_id", "empty"},
		{"conversation null", chatBody(`"conversation_params":{"conversation_id":null}`), "conversation_params.conversation_id", "null"},
		{"conversation none", chatBody(`"conversation_params":{}`), "conversation_params", "needs conversation_id"},
		{"dp rank in body", chatBody(`"attention_dp_rank":0`), "attention_dp_rank", "leave the field out"},
		{"prompt empty", `{"prompt":""}`, "prompt", "empty string"},
		{"prompt list empty", `{"prompt":[]}`, "prompt", "empty list"},
		{"prompt inner empty", `{"prompt":[[]]}`, "prompt", "at least one token id"},
		{"prompt strings", `{"prompt":["a","b"]}`, "prompt", "one request for each"},
		{"prompt lists", `{"prompt":[[1],[2]]}`, "prompt", "one request for each"},
		{"prompt mixed", `{"prompt":[1,"a"]}`, "prompt", "mixes"},
		{"prompt object", `{"prompt":{}}`, "prompt", "a string or a list"},
		{"prompt float", `{"prompt":[1.5]}`, "prompt", "whole numbers"},
		{"prompt negative", `{"prompt":[-1]}`, "prompt", "whole numbers"},
		{"prompt nested strings", `{"prompt":[["a"]]}`, "prompt", "nothing else"},
		{"prompt ids b64", textBody(`"prompt_token_ids_b64":"AQ=="`), "prompt_token_ids_b64", "int32"},
		{"prompt ids both", textBody(`"prompt_token_ids_b64":"AQAAAA==","prompt_token_ids":[1]`), "prompt_token_ids_b64", "not both"},
		{"request_type", textBody(`"disaggregated_params":{"request_type":"prefill"}`), "disaggregated_params.request_type", "context_only"},
		{"id float", textBody(`"disaggregated_params":{"disagg_request_id":1.0}`), "disaggregated_params.disagg_request_id", "whole number"},
		{"logprobs shape", textBody(`"disaggregated_params":{"first_gen_log_probs":[{}]}`), "disaggregated_params.first_gen_log_probs[0]", "must be a list"},
		{"logprobs key", textBody(`"disaggregated_params":{"first_gen_log_probs":[[{"token_id":1}]]}`), "disaggregated_params.first_gen_log_probs[0][0]", "needs token_id and logprob"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			endpoint := Chat
			if strings.Contains(tc.body, `"prompt"`) {
				endpoint = Completion
			}
			_, err := DecodeRequest(endpoint, []byte(tc.body))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if e.Status != 400 || e.Type != TypeInvalidRequest || e.Param != tc.param || !strings.Contains(e.Message, tc.says) {
				t.Errorf("got %d %s param %q: %s; want param %q, text with %q", e.Status, e.Type, e.Param, e.Message, tc.param, tc.says)
			}
			if !json.Valid(e.AppendJSON(nil)) {
				t.Errorf("error body is no JSON: %s", e.AppendJSON(nil))
			}
		})
	}
}

func TestDecodeRequestGood(t *testing.T) {
	r, err := DecodeRequest(Chat, []byte(`{
	 "model" : "m", "stream": true, "stream_options": {"include_usage": true, "x": 1},
	 "messages" : [ {"role":"developer","content":"be kind"},
	   {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"bob"},
	   {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 2.0}"}}]},
	   {"role":"tool","tool_call_id":"c1","content":"42"} ],
	 "max_completion_tokens": 7, "max_tokens": 7, "temperature": 0, "top_k": -1, "seed": -1, "stop": "END",
	 "logit_bias": {"9": -100, "3": 5.5}, "logprobs": true, "top_logprobs": 2, "n": 1, "brand_new": {"a":[1]},
	 "tools": [{"type":"function","function":{"name":"f","parameters":{}}}], "tool_choice": "auto", "user": null,
	 "conversation_params": {"conversation_id": 12}, "response_format": {"type":"text"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Stream || !r.IncludeUsage || *r.MaxTokens != 7 || *r.Temperature != 0 || *r.TopK != 0 || *r.Seed != 1<<64-1 {
		t.Errorf("scalars are wrong: %+v", r)
	}
	if r.Logprobs != 2 || !slices.Equal(r.Stop, []string{"END"}) || *r.ConversationID != "12" || r.TopP != nil {
		t.Errorf("scalars are wrong: %+v", r)
	}
	if !slices.Equal(r.LogitBias, []Bias{{3, 5.5}, {9, -100}}) {
		t.Errorf("logit_bias %v", r.LogitBias)
	}
	want := `[{"role":"system","content":"be kind"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"bob"},` +
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 2.0}"}}]},` +
		`{"role":"tool","tool_call_id":"c1","content":"42"}]`
	if got := string(r.MessagesJSON()); got != want {
		t.Errorf("messages\n got %s\nwant %s", got, want)
	}
	if m := r.Messages; m[1].Content != "a\nb" || !m[2].NoContent || m[0].Role != "system" {
		t.Errorf("messages %+v", m)
	}
	if r.Tools == nil {
		t.Error("tools were lost")
	}
	if raw, ok := r.Body.Get("brand_new"); !ok || string(raw) != `{"a":[1]}` {
		t.Errorf("an unknown member was not kept: %s", raw)
	}
}

func TestToolChoiceNone(t *testing.T) {
	for choice, want := range map[string]bool{`"none"`: false, `"auto"`: true, `null`: true} {
		r, err := DecodeRequest(Chat, []byte(chatBody(`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":`+choice)))
		if err != nil || (r.Tools != nil) != want {
			t.Errorf("%s: tools %s, %v", choice, r.Tools, err)
		}
	}
}

func TestDecodePromptForms(t *testing.T) {
	for body, want := range map[string]Prompt{
		`{"prompt":"hé"}`:        {Text: "hé"},
		`{"prompt":[ "a" ]}`:     {Text: "a"},
		`{"prompt":[1, 2 ,3]}`:   {IDs: []int32{1, 2, 3}},
		`{"prompt":[ [1, 2 ] ]}`: {IDs: []int32{1, 2}},
	} {
		r, err := DecodeRequest(Completion, []byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if r.Prompt.Text != want.Text || !slices.Equal(r.Prompt.IDs, want.IDs) {
			t.Errorf("%s: got %+v", body, r.Prompt)
		}
	}
}

func TestDisaggParamsExact(t *testing.T) {
	const body = `{"prompt_token_ids_b64":"AQAAAAIAAAADAAAAcBEBAA==","disaggregated_params":{"request_type":"generation_only",` +
		`"disagg_request_id":687865856000134148,"ctx_request_id":687865856000134147,"ctx_info_endpoint":["tcp://a:1","tcp://b:2"],` +
		`"first_gen_tokens":[65],"first_gen_log_probs":[[{"token_id":65,"logprob":-0.1,"rank":1},{"token_id":66,"logprob":-2.3,"rank":null}]],` +
		`"ctx_usage":{"prompt_tokens":101,"completion_tokens":1,"total_tokens":102,"prompt_tokens_details":{"cached_tokens":7}},` +
		`"conversation_id":"old","multimodal_hashes":null,"weird":1}}`
	r, err := DecodeRequest(Chat, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	p := r.Disagg
	if *p.DisaggRequestID != 687865856000134148 || *p.CtxRequestID != 687865856000134147 || *p.CtxInfoEndpoint != "tcp://a:1" {
		t.Errorf("ids or endpoint are wrong: %+v", p)
	}
	if !slices.Equal(r.PromptIDs, []int32{1, 2, 3, 70000}) || EncodeIDs(r.PromptIDs) != "AQAAAAIAAAADAAAAcBEBAA==" {
		t.Errorf("prompt ids %v", r.PromptIDs)
	}
	if p.CtxUsage.Cached() != 7 || *p.LegacyConversationID != "old" || !slices.Equal(p.Ignored, []string{"weird"}) {
		t.Errorf("params %+v", p)
	}
	out, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeDisaggParams(out)
	if err != nil || *back.DisaggRequestID != *p.DisaggRequestID || len(back.FirstGenLogProbs[0]) != 2 || *back.FirstGenLogProbs[0][0].Rank != 1 {
		t.Errorf("round trip: %v %s", err, out)
	}
	empty, err := DecodeDisaggParams([]byte(`{"first_gen_log_probs":[]}`))
	if err != nil || empty.FirstGenLogProbs == nil {
		t.Errorf("an empty list became null: %v", err)
	}
	if out, _ := json.Marshal(empty); string(out) != `{"first_gen_log_probs":[]}` {
		t.Errorf("an empty list is written as %s", out)
	}
}

func TestBodyEdit(t *testing.T) {
	b, err := ParseBody([]byte(`{"a":1, "stream":true,"z\"":{"k":[1, 2]},"id":687865856000134148}`))
	if err != nil {
		t.Fatal(err)
	}
	leg := b.Clone()
	leg.Set("stream", json.RawMessage("false"))
	leg.Delete("a")
	if err := leg.SetValue("new", "é"); err != nil {
		t.Fatal(err)
	}
	if got, want := string(leg.AppendJSON(nil)), `{"stream":false,"z\"":{"k":[1, 2]},"id":687865856000134148,"new":"é"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if raw, _ := b.Get("stream"); string(raw) != "true" || len(b.Names()) != 4 {
		t.Error("editing a clone changed the original")
	}
}
