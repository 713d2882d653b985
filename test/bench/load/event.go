package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxLine bounds one line of a stream.
const maxLine = 16 << 20

var errLine = errors.New("a line of the stream is longer than 16 MiB")

// lines cuts a stream into lines. What has not ended yet waits for the next piece.
type lines struct{ rest []byte }

// feed calls yield for each line that a piece completes, without its end. A line is valid during the call only.
func (l *lines) feed(piece []byte, yield func(line []byte) error) error {
	for len(piece) > 0 {
		at := bytes.IndexByte(piece, '\n')
		if at < 0 {
			if len(l.rest)+len(piece) > maxLine {
				return errLine
			}
			l.rest = append(l.rest, piece...)
			return nil
		}
		line := piece[:at]
		if len(l.rest) > 0 {
			l.rest = append(l.rest, line...)
			line = l.rest
			l.rest = l.rest[:0]
		}
		piece = piece[at+1:]
		if err := yield(bytes.TrimSuffix(line, []byte("\r"))); err != nil {
			return err
		}
	}
	return nil
}

// message is what an assistant says, or a piece of it.
type message struct {
	Content   string            `json:"content"`
	Reasoning string            `json:"reasoning_content"`
	Thinking  string            `json:"reasoning"`
	Tools     []json.RawMessage `json:"tool_calls"`
}

// chunk is what is read of an event, or of a whole answer, of either API.
type chunk struct {
	ID      string `json:"id"`
	Choices []struct {
		Text    string  `json:"text"`
		Delta   message `json:"delta"`
		Message message `json:"message"` // of an answer that is no stream
		Finish  string  `json:"finish_reason"`
		PerIter float64 `json:"avg_decoded_tokens_per_iter"` // TensorRT-LLM, in the last chunk
	} `json:"choices"`
	Usage *usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// usage is what a server counted.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// odd tells whether the counts are none that a request can have: then the server has not told.
func (u *usage) odd() bool {
	const most = 1 << 40
	wrong := func(n int) bool { return n < 0 || n > most }
	return wrong(u.Prompt) || wrong(u.Completion) || u.Details != nil && wrong(u.Details.Cached)
}

// parse reads an event's data into c, which is emptied first.
func (c *chunk) parse(data []byte) error {
	*c = chunk{}
	if err := json.Unmarshal(data, c); err != nil {
		return fmt.Errorf("event %s: %w", short(data), err)
	}
	return nil
}

// content tells whether the chunk carries any, and whether any of it is no reasoning.
func (c *chunk) content() (any, answer bool) {
	for i := range c.Choices {
		answer = answer || c.Choices[i].Text != ""
		for _, d := range []*message{&c.Choices[i].Delta, &c.Choices[i].Message} {
			answer = answer || d.Content != "" || len(d.Tools) > 0
			any = any || d.Reasoning != "" || d.Thinking != ""
		}
	}
	return any || answer, answer
}

// short cuts what is shown of a server's words.
func short(data []byte) string {
	const most = 200
	data = bytes.ToValidUTF8(bytes.TrimSpace(data), []byte("?"))
	if len(data) > most {
		return string(bytes.ToValidUTF8(data[:most], nil)) + "..."
	}
	return string(data)
}

// errorText finds the message in an error body of the OpenAI shape; other bodies are shown as they are.
func errorText(data []byte) string {
	var body struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(data, &body) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(body.Error, &inner) == nil && inner.Message != "":
			return short([]byte(inner.Message))
		case body.Message != "":
			return short([]byte(body.Message))
		}
	}
	return short(data)
}
