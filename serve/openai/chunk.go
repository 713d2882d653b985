package openai

import (
	"encoding/json"
	"strconv"
)

// Chunks encodes the events of one streamed reply. The id, object, created and
// model of all chunks are the same; they are encoded once. Its methods append
// the JSON of one event's data, for EventWriter.Data.
type Chunks struct {
	endpoint Endpoint
	head     []byte
}

// NewChunks prepares the stream of one reply.
func NewChunks(e Endpoint, id, model string, created int64) *Chunks {
	h := AppendString(append([]byte(nil), `{"id":`...), id)
	h = AppendString(append(h, `,"object":`...), ObjectOf(e, true))
	h = strconv.AppendInt(append(h, `,"created":`...), created, 10)
	h = AppendString(append(h, `,"model":`...), model)
	h = append(h, `,"choices":[`...)
	return &Chunks{endpoint: e, head: h}
}

// Delta is what one event says.
type Delta struct {
	Choice    int
	Text      string
	Reasoning string          // of chat
	Calls     []ToolCallDelta // of chat
	Logprobs  json.RawMessage // object of this event's tokens, nil = null
	TokenIDs  []int32         // non-nil: sent as token_ids
	Finish    string          // empty = null
	Usage     *Usage          // with continuous_usage_stats
}

// Empty tells that nothing of the answer is in it.
func (d *Delta) Empty() bool { return d.Text == "" && d.Reasoning == "" && len(d.Calls) == 0 }

// AppendRole appends the first event of a choice in a chat stream.
func (c *Chunks) AppendRole(dst []byte, choice int) []byte {
	dst = c.appendHead(dst, choice)
	return append(dst, `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`...)
}

// appendHead begins an event of a choice.
func (c *Chunks) appendHead(dst []byte, choice int) []byte {
	dst = append(append(dst, c.head...), `{"index":`...)
	return append(strconv.AppendInt(dst, int64(choice), 10), ',')
}

// AppendDelta appends an event with text, a finish reason, or both.
func (c *Chunks) AppendDelta(dst []byte, d Delta) []byte {
	dst = c.appendHead(dst, d.Choice)
	if c.endpoint == Chat {
		dst = AppendFirstDelta(append(dst, `"delta":`...), Chat, d)
	} else {
		dst = AppendString(append(dst, `"text":`...), d.Text)
	}
	return c.appendRest(dst, d)
}

// AppendRelayed appends an event whose delta is a ctx worker's first_delta.
func (c *Chunks) AppendRelayed(dst []byte, firstDelta json.RawMessage, d Delta) []byte {
	dst = c.appendHead(dst, d.Choice)
	if c.endpoint == Chat {
		dst = append(append(dst, `"delta":`...), firstDelta...)
	} else {
		var t struct{ Text string }
		_ = json.Unmarshal(firstDelta, &t)
		dst = AppendString(append(dst, `"text":`...), t.Text)
	}
	return c.appendRest(dst, d)
}

func (c *Chunks) appendRest(dst []byte, d Delta) []byte {
	dst = append(dst, `,"logprobs":`...)
	if d.Logprobs == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, d.Logprobs...)
	}
	dst = appendStringOrNull(append(dst, `,"finish_reason":`...), d.Finish)
	if d.TokenIDs != nil {
		dst = AppendIDs(append(dst, `,"token_ids":`...), d.TokenIDs)
	}
	dst = append(dst, `}]`...)
	if d.Usage != nil {
		dst = d.Usage.AppendJSON(append(dst, `,"usage":`...))
	}
	return append(dst, '}')
}

// AppendUsage appends the last chunk of a stream with include_usage: no choices.
func (c *Chunks) AppendUsage(dst []byte, u Usage) []byte {
	dst = append(dst, c.head...)
	dst = u.AppendJSON(append(dst, `],"usage":`...))
	return append(dst, '}')
}

// AppendFirstDelta appends a delta alone: for chat content, reasoning_content and tool_calls, those that are there, and
// {"text"} for completions. It is the value of a ctx reply's first_delta.
func AppendFirstDelta(dst []byte, e Endpoint, d Delta) []byte {
	if e == Completion {
		return append(AppendString(append(dst, `{"text":`...), d.Text), '}')
	}
	dst = append(dst, '{')
	some := 0
	member := func(name string) {
		dst = append(append(comma(dst, some), name...), ':')
		some++
	}
	if d.Reasoning != "" {
		member(`"reasoning_content"`)
		dst = AppendString(dst, d.Reasoning)
	}
	if d.Text != "" {
		member(`"content"`)
		dst = AppendString(dst, d.Text)
	}
	if len(d.Calls) > 0 {
		member(`"tool_calls"`)
		dst = append(dst, '[')
		for i := range d.Calls {
			dst = d.Calls[i].appendJSON(comma(dst, i))
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
