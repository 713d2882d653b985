package openai

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

// Usage counts the tokens of one reply.
type Usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	PromptDetails    *PromptDetails `json:"prompt_tokens_details,omitempty"`
}

// PromptDetails breaks prompt_tokens down.
type PromptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// Sane tells whether the counts can be true: what a worker says goes into answers, loads and counters.
func (u *Usage) Sane() bool {
	for _, n := range []int{u.PromptTokens, u.CompletionTokens, u.TotalTokens, u.Cached()} {
		if n < 0 || n > math.MaxInt32 {
			return false
		}
	}
	return true
}

// NewUsage makes a usage object with its details and total.
func NewUsage(prompt, completion, cached int) Usage {
	return Usage{
		PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion,
		PromptDetails: &PromptDetails{CachedTokens: cached},
	}
}

// Cached returns the cached prompt tokens; absent details count as 0.
func (u *Usage) Cached() int {
	if u == nil || u.PromptDetails == nil {
		return 0
	}
	return u.PromptDetails.CachedTokens
}

// AppendJSON appends the object, always with details.
func (u *Usage) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.CompletionTokens), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.TotalTokens), 10)
	dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Cached()), 10)
	return append(dst, `}}`...)
}

// Response is a whole, non-streamed reply of either endpoint.
type Response struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	Choices           []Choice        `json:"choices"`
	Usage             *Usage          `json:"usage,omitempty"`
	PromptTokenIDs    []int32         `json:"prompt_token_ids,omitempty"`
	PromptTokenIDsB64 string          `json:"prompt_token_ids_b64,omitempty"`
	PromptLogprobs    json.RawMessage `json:"prompt_logprobs,omitempty"` // of chat; see AppendPromptLogprobs
}

// Choice is one alternative of a Response. Message is set for chat, Text for
// completions.
type Choice struct {
	Index          int             `json:"index"`
	Message        *Message        `json:"message,omitempty"`
	Text           *string         `json:"text,omitempty"`
	Logprobs       json.RawMessage `json:"logprobs"` // null, ChatLogprobs or CompletionLogprobs
	FinishReason   string          `json:"finish_reason"`
	TokenIDs       []int32         `json:"token_ids,omitempty"` // with return_token_ids
	Disagg         *DisaggParams   `json:"disaggregated_params,omitempty"`
	PromptLogprobs json.RawMessage `json:"prompt_logprobs,omitempty"` // of completions
	// FirstDelta is what a stream may show of the first token, in the shape of a
	// chat delta or {"text"}; absent when nothing can be shown yet.
	FirstDelta json.RawMessage `json:"first_delta,omitempty"`
}

// Message is the assistant's answer in a chat reply.
type Message struct {
	Role             string     `json:"role"`
	Content          *string    `json:"content"` // null: it only calls tools
	ReasoningContent string     `json:"reasoning_content,omitempty"`
	ToolCalls        []ToolCall `json:"tool_calls,omitempty"`
	Refusal          *string    `json:"refusal"`
}

// Text is the content, empty if there is none.
func (m *Message) Text() string {
	if m == nil || m.Content == nil {
		return ""
	}
	return *m.Content
}

// ChatObject and its kin are the values of "object".
const (
	ChatObject       = "chat.completion"
	ChatChunkObject  = "chat.completion.chunk"
	CompletionObject = "text_completion"
)

// ObjectOf returns the "object" of a whole reply or of a stream's chunks.
func ObjectOf(e Endpoint, chunk bool) string {
	switch {
	case e == Chat && chunk:
		return ChatChunkObject
	case e == Chat:
		return ChatObject
	}
	return CompletionObject
}

// TokenLogprob is the log-probability of one output token with alternatives,
// as the encoders of both endpoints take it. Text is the token's own text,
// Bytes its exact bytes (a token may be half a character).
type TokenLogprob struct {
	ID      int32
	Text    string
	Bytes   []byte
	Logprob float64
	Offset  int            // characters of the reply's text before the token; completions only
	Top     []TokenLogprob // best first; Top and Offset of an entry are unused
	Null    bool           // nothing comes before it, so it has no log-probability
}

// AppendChatLogprobs appends {"content":[...]} of a chat choice or delta.
func AppendChatLogprobs(dst []byte, tokens []TokenLogprob) []byte {
	dst = append(dst, `{"content":[`...)
	for i := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		t := &tokens[i]
		dst = appendChatToken(append(dst, '{'), t)
		dst = append(dst, `,"top_logprobs":[`...)
		for j := range t.Top {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendChatToken(append(dst, '{'), &t.Top[j]), '}')
		}
		dst = append(dst, `]}`...)
	}
	return append(dst, `],"refusal":null}`...)
}

func appendChatToken(dst []byte, t *TokenLogprob) []byte {
	dst = AppendString(append(dst, `"token":`...), t.Text)
	dst = AppendFloat(append(dst, `,"logprob":`...), t.Logprob)
	dst = append(dst, `,"bytes":[`...)
	for i, b := range t.Bytes {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(b), 10)
	}
	return append(dst, ']')
}

// AppendCompletionLogprobs appends the logprobs object of a completions choice.
func AppendCompletionLogprobs(dst []byte, tokens []TokenLogprob) []byte {
	dst = append(dst, `{"tokens":[`...)
	for i := range tokens {
		dst = AppendString(comma(dst, i), tokens[i].Text)
	}
	dst = append(dst, `],"token_logprobs":[`...)
	for i := range tokens {
		dst = comma(dst, i)
		if tokens[i].Null {
			dst = append(dst, "null"...)
			continue
		}
		dst = AppendFloat(dst, tokens[i].Logprob)
	}
	dst = append(dst, `],"top_logprobs":[`...)
	for i := range tokens {
		dst = comma(dst, i)
		if tokens[i].Null {
			dst = append(dst, "null"...)
			continue
		}
		dst = appendTopMap(dst, &tokens[i])
	}
	dst = append(dst, `],"text_offset":[`...)
	for i := range tokens {
		dst = strconv.AppendInt(comma(dst, i), int64(tokens[i].Offset), 10)
	}
	return append(dst, `]}`...)
}

// appendTopMap writes alternatives as an object keyed by text. Tokens whose text
// is the same as JSON, as that of two halves of characters is, keep the best one;
// the chosen token is always in it.
func appendTopMap(dst []byte, t *TokenLogprob) []byte {
	dst = append(dst, '{')
	var keys [][]byte
	add := func(e *TokenLogprob) {
		key := AppendString(nil, e.Text)
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
			return
		}
		dst = append(comma(dst, len(keys)), key...)
		dst = AppendFloat(append(dst, ':'), e.Logprob)
		keys = append(keys, key)
	}
	for i := range t.Top {
		add(&t.Top[i])
	}
	add(t)
	return append(dst, '}')
}

func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}
