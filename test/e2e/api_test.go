//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// client keeps connections for all tests; tests bound each call by a context.
// It closes those that rest long before servers do, after two minutes: a request must not meet the end of its connection.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}}

type object = map[string]any

// result is an answer in the form in which answers of all kinds are compared.
type result struct {
	Text       string
	IDs        []int32
	Finish     string
	Prompt     int
	Completion int
	Total      int
	Logprobs   []string // an entry per token, as JSON

	streamed  bool
	promptIDs []int32 // never of a stream
	cached    int
	header    http.Header
}

// statusError is an answer that is not 200.
type statusError struct {
	status int
	header http.Header
	apiError
	body string
}

// apiError is an OpenAI error object.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// eventError is an error event within a stream.
type eventError struct{ apiError }

func (e *eventError) Error() string { return "error event: " + e.Message }

// errNoDone is a stream that ended without [DONE] and without an error event.
var errNoDone = errors.New("the stream ended without [DONE]")

// post sends a body and returns the response if it is a 200.
func post(ctx context.Context, url string, body any, headers ...string) (*http.Response, error) {
	data, ok := body.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	e := &statusError{status: resp.StatusCode, header: resp.Header, body: string(text)}
	var obj struct{ Error *apiError }
	if json.Unmarshal(text, &obj) == nil && obj.Error != nil {
		e.apiError = *obj.Error
	}
	return nil, e
}

// reply is the part of an answer or a chunk that is looked at.
type reply struct {
	ID, Object, Model string
	Created           int64
	Choices           []struct {
		Text    string
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		// Absent in chunks that say nothing.
		FinishReason string          `json:"finish_reason"`
		TokenIDs     []int32         `json:"token_ids"`
		Logprobs     json.RawMessage `json:"logprobs"`
		Internal     json.RawMessage `json:"disaggregated_params"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		TotalTokens      int `json:"total_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	PromptIDs []int32 `json:"prompt_token_ids"`
	Error     *apiError
}

// ask sends a request and reads the whole answer, streamed or not.
func ask(ctx context.Context, base, path string, body object, headers ...string) (*result, error) {
	resp, err := post(ctx, base+path, body, headers...)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	r := &result{header: resp.Header}
	if body["stream"] == true {
		r.streamed = true
		return r, r.readStream(resp, path)
	}
	if err := r.readWhole(resp.Body); err != nil {
		return nil, err
	}
	return r, nil
}

// readWhole reads an answer that is not streamed.
func (r *result) readWhole(body io.Reader) error {
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var a reply
	if err := json.Unmarshal(data, &a); err != nil {
		return fmt.Errorf("%w in %s", err, data)
	}
	if len(a.Choices) != 1 || a.Usage == nil {
		return fmt.Errorf("the answer needs one choice and usage: %s", data)
	}
	if a.Choices[0].Internal != nil || bytes.Contains(data, []byte("disaggregated_params")) {
		return fmt.Errorf("the answer shows internals: %s", data)
	}
	r.promptIDs = a.PromptIDs
	return r.add(&a)
}

// streamOf calls each for every event of a stream and tells how it ended.
func streamOf(resp *http.Response, each func(a *reply) error) error {
	if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		return fmt.Errorf("content type %q", ct)
	}
	in := bufio.NewReader(resp.Body)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return errors.Join(errNoDone, err)
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			if rest, err := io.ReadAll(in); err != nil || strings.TrimSpace(string(rest)) != "" {
				return fmt.Errorf("after [DONE]: %q %w", rest, err)
			}
			return nil
		}
		var a reply
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			return fmt.Errorf("%w in %s", err, data)
		}
		if a.Error != nil {
			rest, _ := io.ReadAll(in)
			if strings.Contains(string(rest), "[DONE]") {
				return fmt.Errorf("[DONE] after the error event %s", data)
			}
			return &eventError{*a.Error}
		}
		if err := each(&a); err != nil {
			return err
		}
	}
}

// readStream adds up a stream and checks the rules of its form.
func (r *result) readStream(resp *http.Response, path string) error {
	var first reply
	chunks := 0
	err := streamOf(resp, func(a *reply) error {
		chunks++
		if chunks == 1 {
			first = *a
			if chat(path) && (len(a.Choices) != 1 || a.Choices[0].Delta.Role != "assistant") {
				return errors.New("the first chunk has no role")
			}
		}
		if a.ID != first.ID || a.Created != first.Created || a.Model != first.Model || a.Object != first.Object {
			return fmt.Errorf("id, created, model or object changed: %+v, then %+v", first, *a)
		}
		if r.Finish != "" && len(a.Choices) > 0 {
			return errors.New("a choice after finish_reason")
		}
		return r.add(a)
	})
	if err == nil && (r.Finish == "" || r.Total == 0) {
		err = errors.New("the stream has no finish_reason or no usage chunk")
	}
	return err
}

// add takes over what one answer or chunk says.
func (r *result) add(a *reply) error {
	if u := a.Usage; u != nil {
		r.Prompt, r.Completion, r.Total, r.cached = u.PromptTokens, u.CompletionTokens, u.TotalTokens, u.Details.Cached
	}
	for i := range a.Choices {
		c := &a.Choices[i]
		r.Text += c.Text + c.Message.Content + c.Delta.Content
		r.IDs = append(r.IDs, c.TokenIDs...)
		r.Finish += c.FinishReason
		entries, err := logprobEntries(c.Logprobs)
		if err != nil {
			return err
		}
		r.Logprobs = append(r.Logprobs, entries...)
	}
	return nil
}

// logprobEntries cuts both forms of log-probabilities into one JSON text a token.
func logprobEntries(raw json.RawMessage) (out []string, err error) {
	var lp struct {
		Content []json.RawMessage
		Tokens  []json.RawMessage
		Chosen  []json.RawMessage `json:"token_logprobs"`
		Top     []json.RawMessage `json:"top_logprobs"`
		Offset  []json.RawMessage `json:"text_offset"`
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if err := json.Unmarshal(raw, &lp); err != nil {
		return nil, err
	}
	for _, c := range lp.Content {
		out = append(out, string(c))
	}
	if len(lp.Chosen) != len(lp.Tokens) || len(lp.Top) != len(lp.Tokens) || len(lp.Offset) != len(lp.Tokens) {
		return nil, fmt.Errorf("uneven log-probabilities: %s", raw)
	}
	for i := range lp.Tokens {
		out = append(out, fmt.Sprintf("%s %s %s %s", lp.Tokens[i], lp.Chosen[i], lp.Top[i], lp.Offset[i]))
	}
	return out, nil
}

const (
	chatPath = "/v1/chat/completions"
	textPath = "/v1/completions"
)

func chat(path string) bool { return path == chatPath }
