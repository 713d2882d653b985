package worker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/serve/openai"
)

// streamedReply is what a client has of a stream that may have broken, as a frontend sees it.
type streamedReply struct {
	text     string
	logprobs []string
	finish   string
	usage    *openai.Usage
	ids      []int32 // behind the text
}

// readEvents reads the first events of a stream and returns the ids behind them: those of a comment count once the event
// behind them is there.
func readEvents(stream string, events int, each func(data string)) (ids []int32) {
	reader := openai.NewEventReader(strings.NewReader(stream), 0)
	var waiting []int32
	for events > 0 {
		ev, err := reader.Next()
		if err != nil {
			return ids
		}
		data, ok := openai.EventData(ev)
		switch _, list, isIDs := openai.IDsComment(ev); {
		case isIDs:
			waiting = append(waiting, list...)
			continue
		case !ok || string(data) == "[DONE]":
			continue
		}
		events--
		ids, waiting = append(ids, waiting...), nil
		each(string(data))
	}
	return ids
}

func readReply(t *testing.T, stream string, events int) (r streamedReply) {
	t.Helper()
	r.ids = readEvents(stream, events, func(data string) {
		c := decode[struct {
			Choices []struct {
				Text     string
				Logprobs *struct {
					Tokens  []string `json:"tokens"`
					Offsets []int    `json:"text_offset"`
				}
				Finish string `json:"finish_reason"`
			}
			Usage *openai.Usage
		}](t, data)
		if c.Usage != nil {
			r.usage = c.Usage
		}
		for _, ch := range c.Choices {
			r.text += ch.Text
			r.finish += ch.Finish
			if ch.Logprobs != nil {
				for i, tok := range ch.Logprobs.Tokens {
					r.logprobs = append(r.logprobs, fmt.Sprint(tok, ch.Logprobs.Offsets[i]))
				}
			}
		}
	})
	return r
}

// A stream cut behind any of its events goes on at another worker so that the client cannot tell.
func TestStreamGoesOnElsewhere(t *testing.T) {
	const all = 1 << 20
	for _, tc := range []struct{ name, say, body string }{
		{"plain", "Paris", `{"prompt":"x","max_tokens":20`},
		{"halves of characters", "aéb€c", `{"prompt":"x","max_tokens":20`},
		{"a stop string", "one tw two three", `{"prompt":"x","max_tokens":40,"stop":["two"]`},
		{"the budget", "abcdef", `{"prompt":"x","max_tokens":4`},
		{"logprobs", "aébc", `{"prompt":"x","max_tokens":20,"logprobs":1`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := serveFake(t, newEngine(executor.Gen, tc.say), nil)
			body := tc.body + `,"stream":true,"stream_options":{"include_usage":true}`
			_, _, text := post(t, srv.URL+"/v1/completions", body+"}", openai.HeaderReturnTokenIDs, "1")
			whole := readReply(t, text, all)
			data, _ := eventsOf(t, text)
			for cut := 1; cut < len(data)-2; cut++ { // not behind the finish reason
				had := readReply(t, text, cut)
				e := newEngine(executor.Gen, tc.say)
				e.cached = 77
				other := serveFake(t, e, nil)
				ids, _ := json.Marshal(had.ids)
				params := fmt.Sprintf(`,"disaggregated_params":{"disagg_request_id":%d,"first_gen_tokens":%s,"first_token_emitted":true,`+
					`"ctx_usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"prompt_tokens_details":{"cached_tokens":2}}}}`, attempt, ids)
				status, _, rest := post(t, other.URL+"/v1/completions", body+params, openai.HeaderReturnTokenIDs, "1")
				if status != 200 {
					t.Fatalf("cut %d: %s", cut, rest)
				}
				if r := e.last(t); r.Kind != request.Full || !r.FirstEmitted || len(r.FirstTokens) != len(had.ids) {
					t.Fatalf("cut %d: engine got %+v", cut, r)
				}
				got := readReply(t, rest, all)
				if had.text+got.text != whole.text || got.finish != whole.finish ||
					fmt.Sprint(append(had.logprobs, got.logprobs...)) != fmt.Sprint(whole.logprobs) {
					t.Errorf("cut %d: had %+v, got %+v, want %+v", cut, had, got, whole)
				}
				if got.usage.CompletionTokens != whole.usage.CompletionTokens || got.usage.PromptTokens != whole.usage.PromptTokens || got.usage.Cached() != 2 {
					t.Errorf("cut %d: usage %+v, want %+v", cut, got.usage, whole.usage)
				}
			}
		})
	}
}

func TestStreamGoesOnOnlyWhenAskedProperly(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Gen, "Paris"), nil)
	for params, param := range map[string]string{
		`{"first_gen_tokens":[80]}`:                               "first_gen_tokens",
		`{"first_gen_tokens":[99999],"first_token_emitted":true}`: "first_gen_tokens",
		`{"first_gen_tokens":[-1],"first_token_emitted":true}`:    "first_gen_tokens",
		`{"first_gen_tokens":["a"],"first_token_emitted":true}`:   "first_gen_tokens",
	} {
		status, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x","stream":true,"disaggregated_params":`+params+`}`)
		if status != 400 || !strings.Contains(wireErr(t, status, text).Param, param) {
			t.Errorf("%s: %d %s", params, status, text)
		}
	}
}
