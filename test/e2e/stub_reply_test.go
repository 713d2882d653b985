//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// or is s, or def if s is empty.
func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// ctxReply is the answer of a ctx stub; zero values give text "A", token 65,
// not_finished, and a prompt of five tokens.
type ctxReply struct {
	finish   string
	text     string // "-" = empty
	usage    string
	logprobs string // first_gen_log_probs
	choice   string // further members of the choice, each with a comma behind it
	echo     int64  // disagg_request_id in the reply, 0 = the leg's
}

const (
	ctxUsage = `{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":0}}`
	genUsage = `{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":5}}`
)

func (r ctxReply) script(c *call) {
	id := c.params.ID
	if r.echo != 0 {
		id = r.echo
	}
	if r.finish == "" || r.finish == "not_finished" {
		c.mu.Lock()
		if !c.dead[id] {
			c.pinned[id] = true
		}
		c.mu.Unlock()
	}
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(c.w, r.body(c.leg, id))
}

func (r ctxReply) body(l *leg, id int64) string {
	params := fmt.Sprintf(`{"request_type":"context_only","disagg_request_id":%d,"ctx_request_id":%d,"ctx_dp_rank":0,`+
		`"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":"b3BhcXVl","first_gen_tokens":[65],"first_gen_log_probs":%s}`,
		id, id, or(r.logprobs, "null"))
	text := or(r.text, "A")
	if text == "-" {
		text = ""
	}
	return fmt.Sprintf(`{"id":"up-1","object":%q,"created":7,"model":"tiny","prompt_token_ids":[1,2,3,4,5],"choices":[{"index":0,%s,`+
		`"logprobs":null,"finish_reason":%q,%s"disaggregated_params":%s}],"usage":%s}`,
		objectOf(l, false), choiceText(l, text), or(r.finish, "not_finished"), r.choice, params, or(r.usage, ctxUsage))
}

// objectOf names the kind of reply.
func objectOf(l *leg, chunk bool) string {
	switch {
	case l.path == textPath:
		return "text_completion"
	case chunk:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

// choiceText is the member of a choice that has the text.
func choiceText(l *leg, text string) string {
	if l.path == textPath {
		return fmt.Sprintf(`"text":%q`, text)
	}
	return fmt.Sprintf(`"message":{"role":"assistant","content":%q}`, text)
}

// genReply is the answer of a gen stub: "ABC", tokens 65 66 67, stop.
type genReply struct {
	usage    string
	logprobs string // of the whole choice, not streamed
}

func (r genReply) script(c *call) {
	if c.stream() {
		c.send(r.stream(c.leg))
		return
	}
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(c.w, `{"id":"up-2","object":%q,"created":7,"model":"tiny","choices":[{"index":0,%s,"logprobs":%s,"finish_reason":"stop"}],"usage":%s}`,
		objectOf(c.leg, false), choiceText(c.leg, "ABC"), or(r.logprobs, "null"), or(r.usage, genUsage))
}

// stream is the text of the whole stream.
func (r genReply) stream(l *leg) string {
	var list []string
	if l.path == chatPath {
		list = append(list, chunk(l, `"delta":{"role":"assistant"},"finish_reason":null`))
	}
	for i, text := range []string{"A", "B", "C"} {
		if i > 0 || !l.params.Emitted {
			list = append(list, textChunk(l, text))
		}
	}
	end := `"text":"","finish_reason":"stop"`
	if l.path == chatPath {
		end = `"delta":{},"finish_reason":"stop"`
	}
	list = append(list, chunk(l, end))
	if strings.Contains(string(l.body["stream_options"]), "include_usage") {
		list = append(list, fmt.Sprintf(`{"id":"up-2","object":%q,"created":7,"model":"tiny","choices":[],"usage":%s}`, objectOf(l, true), or(r.usage, genUsage)))
	}
	return events(append(list, "[DONE]")...)
}

// chunk is an event with one choice.
func chunk(l *leg, members string) string {
	return fmt.Sprintf(`{"id":"up-2","object":%q,"created":7,"model":"tiny","choices":[{"index":0,%s}]}`, objectOf(l, true), members)
}

func textChunk(l *leg, text string) string {
	raw, _ := json.Marshal(text)
	if l.path == chatPath {
		return chunk(l, `"delta":{"content":`+string(raw)+`},"finish_reason":null`)
	}
	return chunk(l, `"text":`+string(raw)+`,"finish_reason":null`)
}
