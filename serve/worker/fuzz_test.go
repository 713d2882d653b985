package worker

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tandem/engine/executor"
)

// FuzzCompletions: whatever the body and the internal headers, the answer is a
// reply, a stream or a whole error object below 500.
func FuzzCompletions(f *testing.F) {
	for _, body := range []string{
		chatHi + `,"logprobs":true,"top_logprobs":2,"return_token_ids":true}`,
		chatHi + `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
		`{"prompt":[1,2],"stop":["a"],"bad_words":["x"],"logit_bias":{"3":1},"max_tokens":3}`,
		`{"prompt":"x","disaggregated_params":{"request_type":"context_only","disagg_request_id":5,"return_prompt_token_ids_b64":true}}`,
		`{"prompt":[1],"logprobs":1,"stream":true,"disaggregated_params":{"request_type":"generation_only","disagg_request_id":5,"first_gen_tokens":[65],"first_gen_log_probs":[[{"token_id":65,"logprob":-1}]],"encoded_opaque_state":"AA==","first_token_emitted":true}}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"refuse me"}]}]}`,
	} {
		f.Add([]byte(body), true, "0;relax")
		f.Add([]byte(body), false, "")
	}
	e := newEngine(executor.Mixed, "aé")
	s := New(Config{Trusted: true, Transceiver: true})
	s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(f), Template: fakeTemplate{}})
	f.Fuzz(func(t *testing.T, body []byte, chat bool, rank string) {
		path := "/v1/completions"
		if chat {
			path = "/v1/chat/completions"
		}
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(body)))
		r.Header.Set("X-Disagg-DP-Rank", rank)
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, r)
		text := rec.Body.String()
		switch {
		case strings.HasPrefix(rec.Header().Get("Content-Type"), "text/event-stream"):
			if !strings.HasSuffix(text, "data: [DONE]\n\n") {
				t.Fatalf("a stream that is not whole: %q", text)
			}
		case rec.Code >= 500 || !json.Valid([]byte(text)):
			t.Fatalf("%d %q", rec.Code, text)
		}
	})
}
