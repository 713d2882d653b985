package stub

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Model is the name of the stub's model.
const Model = "stub"

// Server answers requests. Set the fields before it serves.
type Server struct {
	TTFT, ITL time.Duration // from a request to its first token, and between tokens
	// PerToken is added to TTFT for each token of the prompt.
	PerToken time.Duration
	Word     string // each token's text; empty = " word"
	Tokens   int    // of an answer to a request that names no limit; 0 = 16
	Overhead int    // tokens that it claims its template adds
	NoUsage  bool
	// Fail is asked for each request; a status other than 0 is the answer.
	Fail func(n int64) int
	// Seen is told the headers and body of each request.
	Seen func(h http.Header, body []byte)

	n atomic.Int64
}

// ask is the part of a request that the stub reads.
type ask struct {
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Max           int  `json:"max_tokens"`
	Newer         int  `json:"max_completion_tokens"`
	Stream        bool `json:"stream"`
	StreamOptions struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// ServeHTTP answers both endpoints, /v1/models and /health.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"`+Model+`","object":"model","created":0,"owned_by":"test"}]}`)
	case "/health":
		_, _ = io.WriteString(w, "{}")
	case "/v1/chat/completions":
		s.answer(w, r, true)
	case "/v1/completions":
		s.answer(w, r, false)
	default:
		http.NotFound(w, r)
	}
}

// words counts the words of what may be a text, a list of parts or a list of ids.
func words(raw json.RawMessage) int {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return len(strings.Fields(text))
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) == nil {
		n := 0
		for _, p := range parts {
			n += len(strings.Fields(p.Text))
		}
		return n
	}
	var ids []int
	_ = json.Unmarshal(raw, &ids) // what it cannot read it counts as nothing
	return len(ids)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, chat bool) {
	arrived := time.Now()
	body, err := io.ReadAll(r.Body)
	var q ask
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	if err != nil {
		http.Error(w, `{"error":{"message":"bad request"}}`, http.StatusBadRequest)
		return
	}
	if s.Seen != nil {
		s.Seen(r.Header, body)
	}
	n := s.n.Add(1)
	if s.Fail != nil {
		if status := s.Fail(n); status != 0 {
			http.Error(w, `{"error":{"message":"refused on purpose"}}`, status)
			return
		}
	}
	in := words(q.Prompt) + s.Overhead
	for _, m := range q.Messages {
		in += words(m.Content)
	}
	out := max(q.Max, q.Newer)
	if out == 0 {
		out = max(s.Tokens, 16)
	}
	a := reply{s: s, w: w, chat: chat, usage: fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, out, in+out)}
	first := arrived.Add(s.TTFT + time.Duration(in)*s.PerToken)
	w.Header().Set("X-Request-Id", "stub-"+strconv.FormatInt(n, 10))
	if q.Stream {
		a.stream(r, first, out, q.StreamOptions.Usage && !s.NoUsage)
		return
	}
	if wait(r, first.Add(time.Duration(out-1)*s.ITL)) {
		a.whole(out)
	}
}

// wait sleeps until a time; false if the client has left.
func wait(r *http.Request, until time.Time) bool {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// reply is an answer under way.
type reply struct {
	s     *Server
	w     http.ResponseWriter
	chat  bool
	usage string
}

func (a *reply) word() string {
	if a.s.Word == "" {
		return " word"
	}
	return a.s.Word
}

func (a *reply) head() string {
	object := "text_completion"
	if a.chat {
		object = "chat.completion.chunk"
	}
	return `{"id":"stub","object":"` + object + `","created":7,"model":"` + Model + `",`
}

// stream sends a token at each of its times, late ones at once.
func (a *reply) stream(r *http.Request, at time.Time, out int, usage bool) {
	a.w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(a.w)
	head, part, end := "data: "+a.head()+`"choices":[{"index":0,`, `"text":"`+a.word()+`","finish_reason":null}]}`+"\n\n", `"text":"","finish_reason":"length"}]}`+"\n\n"
	if a.chat {
		part = `"delta":{"content":"` + a.word() + `"},"finish_reason":null}]}` + "\n\n"
		end = `"delta":{},"finish_reason":"length"}]}` + "\n\n"
		_, _ = io.WriteString(a.w, head+`"delta":{"role":"assistant","content":""},"finish_reason":null}]}`+"\n\n")
	}
	_ = flush.Flush() // the head tells that the request is accepted
	token := []byte(head + part)
	for i := range out {
		if !wait(r, at.Add(time.Duration(i)*a.s.ITL)) {
			return
		}
		if i == out-1 {
			token = append(token, head+end...)
			if usage {
				token = append(token, "data: "+a.head()+`"choices":[],"usage":`+a.usage+"}\n\n"...)
			}
			token = append(token, "data: [DONE]\n\n"...)
		}
		if _, err := a.w.Write(token); err != nil {
			return
		}
		_ = flush.Flush() // an error shows with the next write
	}
}

// whole sends an answer that is not streamed.
func (a *reply) whole(out int) {
	text := strings.Repeat(a.word(), out)
	choice := `"text":"` + text + `"`
	object := "text_completion"
	if a.chat {
		choice, object = `"message":{"role":"assistant","content":"`+text+`"}`, "chat.completion"
	}
	a.w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(a.w, `{"id":"stub","object":"%s","created":7,"model":"%s","choices":[{"index":0,%s,"finish_reason":"length"}],"usage":%s}`, object, Model, choice, a.usage)
}
