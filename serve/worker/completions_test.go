package worker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/serve/openai"
)

const chatHi = `{"model":"tiny","messages":[{"role":"user","content":"hi"}]`

func TestChatReply(t *testing.T) {
	e := newEngine(executor.Mixed, "Paris é!")
	srv := serveFake(t, e, nil)
	status, h, text := post(t, srv.URL+"/v1/chat/completions",
		chatHi+`,"temperature":0.5,"seed":-1,"logit_bias":{"7":-5},"stop_token_ids":[9],"top_p":0.9,"cache_salt":"s","conversation_params":{"conversation_id":"c1"},"tools":[{"type":"function","function":{"name":"f"}}]}`,
		"X-Request-ID", "abc", "X-Disagg-Deadline-Ms", "1500")
	if status != 200 || h.Get("X-Request-ID") != "abc" {
		t.Fatalf("%d %v %s", status, h, text)
	}
	res := decode[openai.Response](t, text)
	c := res.Choices[0]
	if res.ID != "chatcmpl-abc" || res.Object != "chat.completion" || res.Model != "tiny" || c.Message.Text() != "Paris é!" || c.FinishReason != "stop" {
		t.Errorf("reply %s", text)
	}
	if u := res.Usage; u.PromptTokens != 17 || u.CompletionTokens != 10 || u.TotalTokens != 27 || u.Cached() != 2 {
		t.Errorf("usage %+v", u)
	}
	if c.TokenIDs != nil || res.PromptTokenIDs != nil || c.Disagg != nil || strings.Contains(text, "disaggregated") {
		t.Errorf("internal members in %s", text)
	}
	r := e.last(t)
	if r.Kind != request.Full || r.Sampling.Temperature != 0.5 || r.Sampling.TopP != 0.9 || !r.Sampling.Seeded || r.Sampling.Seed != 1<<64-1 ||
		r.CacheSalt != "s" || r.ConversationID != "c1" || r.DPRank != -1 || !slices.Equal(r.Sampling.StopTokenIDs, []int32{9}) {
		t.Errorf("engine request %+v", r)
	}
	if r.MaxTokens != 128-17 || r.Deadline != time.Hour+1500*time.Millisecond || !slices.Equal(r.Sampling.EOS, []int32{eosID}) {
		t.Errorf("budget %d deadline %v eos %v", r.MaxTokens, r.Deadline, r.Sampling.EOS)
	}
	if got := string(bytesOf(r.Prompt)); got != "user: hi\n[tools]\n" {
		t.Errorf("prompt %q", got)
	}
}

func bytesOf(ids []int32) []byte {
	var b []byte
	for _, id := range ids {
		b = append(b, byte(id))
	}
	return b
}

func TestChatStream(t *testing.T) {
	e := newEngine(executor.Mixed, "aéb")
	srv := serveFake(t, e, nil)
	_, h, text := post(t, srv.URL+"/v1/chat/completions",
		chatHi+`,"stream":true,"stream_options":{"include_usage":true}}`, "X-Request-ID", "r1", "X-Disagg-Return-Token-Ids", "1")
	if !strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") {
		t.Errorf("content type %q", h.Get("Content-Type"))
	}
	data, comments := eventsOf(t, text)
	var deltas []string
	for _, d := range data[:len(data)-1] {
		ev := decode[struct {
			ID      string
			Choices []struct {
				Delta  map[string]string
				Finish *string `json:"finish_reason"`
			}
			Usage *openai.Usage
		}](t, d)
		if ev.ID != "chatcmpl-r1" {
			t.Errorf("id %q", ev.ID)
		}
		switch {
		case len(ev.Choices) == 0:
			deltas = append(deltas, "usage")
			if ev.Usage.CompletionTokens != 5 {
				t.Errorf("usage %+v", ev.Usage)
			}
		case ev.Choices[0].Finish != nil:
			deltas = append(deltas, "finish:"+*ev.Choices[0].Finish)
		case ev.Choices[0].Delta["role"] != "":
			deltas = append(deltas, "role")
		default:
			deltas = append(deltas, ev.Choices[0].Delta["content"])
		}
	}
	if want := []string{"role", "a", "é", "b", "finish:stop", "usage"}; !slices.Equal(deltas, want) {
		t.Errorf("got %v, want %v\n%s", deltas, want, text)
	}
	if data[len(data)-1] != "[DONE]" {
		t.Errorf("last event %q", data[len(data)-1])
	}
	if want := []string{": ids 97", ": ids 195", ": ids 169", ": ids 98", ": ids 256"}; !slices.Equal(comments, want) {
		t.Errorf("comments %v", comments)
	}
}

func TestCompletionLogprobsAndIDs(t *testing.T) {
	e := newEngine(executor.Mixed, "aéb<")
	srv := serveFake(t, e, nil)
	body := `{"prompt":"hi","logprobs":2,"return_token_ids":true,"max_tokens":4,"stop":["zz"]}`
	_, _, text := post(t, srv.URL+"/v1/completions", body)
	res := decode[openai.Response](t, text)
	c := res.Choices[0]
	if *c.Text != "aéb" || c.FinishReason != "length" || !slices.Equal(c.TokenIDs, []int32{'a', 0xC3, 0xA9, 'b'}) || !slices.Equal(res.PromptTokenIDs, []int32{'h', 'i'}) {
		t.Errorf("reply %s", text)
	}
	lp := decode[struct {
		Tokens      []string             `json:"tokens"`
		Logprobs    []float64            `json:"token_logprobs"`
		Top         []map[string]float64 `json:"top_logprobs"`
		TextOffsets []int                `json:"text_offset"`
	}](t, string(c.Logprobs))
	if !slices.Equal(lp.TextOffsets, []int{0, 1, 1, 2}) || !slices.Equal(lp.Logprobs, []float64{-0.5, -1.5, -2.5, -3.5}) {
		t.Errorf("logprobs %s", c.Logprobs)
	}
	if len(lp.Top[0]) != 2 || lp.Top[0]["a"] != -0.5 || lp.Top[0]["1"] != -1.5 || lp.Tokens[3] != "b" {
		t.Errorf("logprobs %s", c.Logprobs)
	}
	_, _, stream := post(t, srv.URL+"/v1/completions", strings.Replace(body, `"prompt"`, `"stream":true,"prompt"`, 1))
	data, _ := eventsOf(t, stream)
	var ids []int32
	var offsets []int
	for _, d := range data[:len(data)-1] {
		ev := decode[struct {
			Choices []struct {
				IDs []int32 `json:"token_ids"`
				LP  struct {
					Offsets []int `json:"text_offset"`
				} `json:"logprobs"`
			}
		}](t, d)
		ids = append(ids, ev.Choices[0].IDs...)
		offsets = append(offsets, ev.Choices[0].LP.Offsets...)
	}
	if !slices.Equal(ids, c.TokenIDs) || !slices.Equal(offsets, lp.TextOffsets) {
		t.Errorf("streamed ids %v offsets %v", ids, offsets)
	}
}

func TestChatLogprobs(t *testing.T) {
	e := newEngine(executor.Mixed, "a")
	srv := serveFake(t, e, nil)
	_, _, text := post(t, srv.URL+"/v1/chat/completions", chatHi+`,"logprobs":true,"top_logprobs":1}`)
	res := decode[openai.Response](t, text)
	want := `{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]}]},` +
		`{"token":"<eos>","logprob":-1.5,"bytes":[60,101,111,115,62],"top_logprobs":[{"token":"<eos>","logprob":-1.5,"bytes":[60,101,111,115,62]}]}],"refusal":null}`
	if got := string(res.Choices[0].Logprobs); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestStopString(t *testing.T) {
	e := newEngine(executor.Mixed, "one END two")
	srv := serveFake(t, e, nil)
	for _, tc := range []struct{ extra, want string }{
		{`"stop":"END"`, "one "},
		{`"stop":["x","END"],"include_stop_str_in_output":true`, "one END"},
		{`"stop":"END","min_tokens":9`, "one END two"},
	} {
		_, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"p","max_tokens":50,`+tc.extra+`}`)
		if got := *decode[openai.Response](t, text).Choices[0].Text; got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.extra, got, tc.want)
		}
	}
}

func TestEOSIsNotShown(t *testing.T) {
	e := newEngine(executor.Mixed, "a!b")
	s := New(Config{})
	s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t), EOS: []int32{'!'}})
	srv := newServer(t, s)
	for extra, want := range map[string]string{"": "ab", `,"ignore_eos":true,"max_tokens":3`: "a!b", `,"stop_token_ids":[98]`: "a"} {
		_, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":[1]`+extra+`}`)
		if got := *decode[openai.Response](t, text).Choices[0].Text; got != want {
			t.Errorf("%s: got %q, want %q", extra, got, want)
		}
	}
}

func TestDefaults(t *testing.T) {
	e := newEngine(executor.Mixed, "a")
	s := New(Config{Trusted: true})
	temp, topK := 0.3, 7
	s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t), EOS: []int32{1, 2}, Defaults: Defaults{Temperature: &temp, TopK: &topK}})
	srv := newServer(t, s)
	post(t, srv.URL+"/v1/completions", `{"prompt":[1,2],"temperature":1.5,"bad_words":["x"]}`)
	r := e.last(t)
	if r.Sampling.Temperature != 1.5 || r.Sampling.TopK != 7 || r.Sampling.TopP != 1 || r.MaxTokens != 16 || !slices.Equal(r.Sampling.EOS, []int32{1, 2}) {
		t.Errorf("request %+v", r)
	}
	if len(r.Sampling.BadWords) != 2 || !slices.Equal(r.Sampling.BadWords[1], []int32{' ', 'x'}) {
		t.Errorf("bad words %v", r.Sampling.BadWords)
	}
}
