package disagg

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"tandem/serve/discovery"
)

// says makes a worker that answers legs with a status and a body.
func says(t *testing.T, role discovery.Role, status int, body string) *stub {
	return newStub(t, role, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		if status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		if status != http.StatusNoContent {
			_, _ = io.WriteString(w, body)
		}
	})
}

// What a worker says and cannot be is the worker's failure: no client takes it for an answer, and nothing breaks.
func TestAnswersThatCannotBe(t *testing.T) {
	const choice = `{"index":0,"text":"ABC","logprobs":null,"finish_reason":"stop"}`
	whole := func(choices, usage string) string {
		return `{"id":"x","choices":` + choices + `,"usage":` + usage + `}`
	}
	const usage = `{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}`
	for name, c := range map[string]struct {
		status  int
		body    string
		says    string
		forBoth bool // of a ctx leg as of a gen leg
	}{
		"no content":      {status: 204, says: "status 204", forBoth: true},
		"accepted":        {status: 202, body: whole("["+choice+"]", usage), says: "status 202", forBoth: true},
		"redirect":        {status: 307, says: "status 307", forBoth: true},
		"an error as 200": {status: 200, body: `{"error":{"message":"boom"}}`, says: "0 choices", forBoth: true},
		"no choices":      {status: 200, body: whole("[]", usage), says: "0 choices", forBoth: true},
		"too many":        {status: 200, body: whole("["+choice+","+choice+"]", usage), says: "2 choices, not 1"},
		"null":            {status: 200, body: whole("[null]", usage), says: "choices[0]", forBoth: true},
		"negative counts": {status: 200, body: whole("["+choice+"]", `{"prompt_tokens":5,"completion_tokens":-3,"total_tokens":2}`), says: "cannot be", forBoth: true},
		"absurd counts":   {status: 200, body: whole("["+choice+"]", `{"prompt_tokens":5,"completion_tokens":9000000000000,"total_tokens":2}`), says: "cannot be"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{says(t, discovery.Generation, c.status, c.body)})
			r.post(completions, hello).wantError(t, http.StatusBadGateway, c.says)
			if !c.forBoth {
				return
			}
			r = newRig(t, []*stub{says(t, discovery.Context, c.status, c.body)}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
			r.post(completions, hello).wantError(t, http.StatusBadGateway, c.says)
		})
	}
	lies := ctxReply{usage: `{"prompt_tokens":-5,"completion_tokens":1,"total_tokens":-4}`}
	one(t, lies, genReply{}).post(completions, hello).wantError(t, http.StatusBadGateway, "cannot be")
	one(t, lies, genReply{}).post(completions, streamed).wantError(t, http.StatusBadGateway, "cannot be")
}

// An event that no client could read is the worker's failure too, wherever it comes.
func TestEventsThatCannotBe(t *testing.T) {
	for _, data := range []string{"", "hello", `[1]`, `{"choices":[`, `"{}"`} {
		g := newStub(t, discovery.Generation, func(n int, _ seen, w http.ResponseWriter, _ *http.Request) {
			if n == 0 {
				stream(w, data)
				return
			}
			stream(w, chunkText("A"), data, "[DONE]")
		})
		r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g}, withConfig(func(c *Config) { c.NoRetry = true }))
		r.post(completions, streamed).wantError(t, http.StatusBadGateway, "no JSON object")
		a := r.post(completions, streamed)
		if len(a.events) != 2 || !strings.Contains(a.events[1], "no JSON object") || a.err == nil {
			t.Errorf("%q: the client got %q, %v", data, a.events, a.err)
		}
	}
}
