package openai

import (
	"encoding/json"
	"fmt"
)

// Endpoint says which schema a request follows.
type Endpoint uint8

// The endpoints.
const (
	Chat Endpoint = iota
	Completion
)

// Limits of one request; beyond them it is a 400.
const (
	MaxLogprobs    = 20
	MaxChoices     = 128
	MaxStops       = 64
	MaxStopBytes   = 1024
	MaxLogitBias   = 4096
	MaxBadWords    = 256
	MaxBadWord     = 1024 // bytes of one
	MaxFields      = 4096 // known or not: each takes more memory than its bytes, for as long as the request runs
	MaxCacheSalt   = 512
	MaxUserOptions = 64 << 10 // bytes of chat_template_kwargs
)

// Request is a decoded and validated request of either endpoint. A pointer is
// nil when the client sent nothing or null, so that the model's own defaults
// can apply.
type Request struct {
	Endpoint Endpoint
	Body     Body // every member as it came

	Model string // empty = the only model

	// Chat.
	Messages           []ChatMessage
	Tools              json.RawMessage // list, nil = none or tool_choice "none"
	Forced             *ForcedCall     // tool_choice that forces a call; Guided has its form
	MaxCalls           int             // calls of a choice, 0 = any number
	ChatTemplate       string
	ChatTemplateKwargs json.RawMessage // object, nil = none

	// Completion.
	Prompt Prompt

	// PromptIDs are prompt_token_ids or prompt_token_ids_b64 of the body: ids
	// that somebody has tokenised already. Nil = none.
	PromptIDs []int32

	Stream          bool
	IncludeUsage    bool // stream_options.include_usage
	ContinuousUsage bool // stream_options.continuous_usage_stats

	N         int  // choices in the answer, >= 1
	BestOf    int  // candidates that the N are the best of, >= N
	MaxTokens *int // max_completion_tokens or max_tokens of each choice, >= 1, or 0 with Echo

	Temperature       *float64 // [0,2]
	TopP              *float64 // (0,1]
	TopK              *int     // >= 0; -1 became 0
	MinP              *float64 // [0,1]
	RepetitionPenalty *float64 // > 0
	PresencePenalty   *float64 // [-2,2]
	FrequencyPenalty  *float64 // [-2,2]
	LogitBias         []Bias   // sorted by token
	Seed              *uint64
	Logprobs          int  // -1 = none, else the number of alternatives
	PromptLogprobs    int  // the same of the prompt's tokens; see PromptTop
	Echo              bool // the prompt is shown before the answer
	TruncatePrompt    int  // tokens at the end of the prompt that are kept, -1 = as many as fit, 0 = all

	Stop          []string
	StopTokenIDs  []int32
	BadWords      []string
	BadTokens     [][]int32 // bad_words that are given as ids
	AllowedTokens []int32   // sorted; nil = all
	Guided        *Guided   // structured output, nil = free
	MinTokens     int
	IgnoreEOS     bool
	IncludeStop   bool // include_stop_str_in_output

	ReturnTokenIDs bool
	CacheSalt      string
	Priority       float64 // 0..1, higher first
	Retention      *Retention
	ConversationID *string // conversation_params.conversation_id
	Disagg         *DisaggParams
}

// Bias is one entry of logit_bias.
type Bias struct {
	Token int32
	Value float64 // [-100,100]
}

// Prompt is the prompt of a completions request: text, or ids when IDs is not nil.
type Prompt struct {
	Text string
	IDs  []int32
}

// ChatMessage is one message in the form chat templates expect.
type ChatMessage struct {
	Role string
	// Content is the text; parts are joined by a line break. Meaningless when
	// NoContent is set (an assistant message that only calls tools).
	Content   string
	NoContent bool
	JSON      json.RawMessage // the message as an object for the template, members in order
}

// DecodeRequest reads and validates a request. Every error is an *Error with
// status 400 that names the field and the remedy.
func DecodeRequest(e Endpoint, data []byte) (*Request, error) {
	body, err := ParseBody(data)
	if err != nil {
		return nil, err
	}
	if n := len(body.members); n > MaxFields {
		return nil, Invalid("", "the request body has %d fields: the limit is %d", n, MaxFields)
	}
	r := &Request{Endpoint: e, Body: body, Logprobs: -1, PromptLogprobs: -1, N: 1}
	for i := range body.members {
		m := &body.members[i]
		if isNull(m.raw) {
			continue
		}
		set := fields[m.name]
		if own := endpointFields[e][m.name]; own != nil {
			set = own
		}
		if set == nil {
			continue // clients send new fields before servers know them
		}
		if err := set(r, m.name, m.raw); err != nil {
			return nil, err
		}
	}
	if err := r.finish(); err != nil {
		return nil, err
	}
	return r, nil
}

// finish checks what depends on more than one field.
func (r *Request) finish() error {
	if err := r.finishPrompt(); err != nil {
		return err
	}
	if err := r.finishBudget(); err != nil {
		return err
	}
	if err := r.finishChoices(); err != nil {
		return err
	}
	if r.Guided != nil && r.IgnoreEOS {
		return Invalid("ignore_eos", "ignore_eos with structured output would never let the answer end: leave one of them out")
	}
	if err := r.finishScores(); err != nil {
		return err
	}
	if r.Endpoint == Chat {
		if err := r.finishChatLogprobs(); err != nil {
			return err
		}
		if err := r.finishTools(); err != nil {
			return err
		}
	}
	if raw, ok := r.Body.Get("stream_options"); ok && !isNull(raw) && !r.Stream {
		return Invalid("stream_options", "stream_options is only allowed with stream: true: set stream, or leave stream_options out")
	}
	return nil
}

func (r *Request) finishPrompt() error {
	has := func(name string) bool {
		raw, ok := r.Body.Get(name)
		return ok && !isNull(raw)
	}
	if has("prompt_token_ids") && has("prompt_token_ids_b64") {
		return Invalid("prompt_token_ids_b64", "send either prompt_token_ids or prompt_token_ids_b64, not both")
	}
	switch {
	case r.PromptIDs != nil:
		return nil
	case r.Endpoint == Chat && !has("messages"):
		return Invalid("messages", "messages is missing: send a list with at least one message")
	case r.Endpoint == Completion && !has("prompt"):
		return Invalid("prompt", "prompt is missing: send a string or a list of token ids")
	}
	return nil
}

func (r *Request) finishBudget() error {
	if r.MaxTokens != nil && r.MinTokens > *r.MaxTokens {
		return Invalid("min_tokens", "min_tokens is %d, more than max_tokens %d: lower it", r.MinTokens, *r.MaxTokens)
	}
	return nil
}

// finishChoices checks n and best_of.
func (r *Request) finishChoices() error {
	switch {
	case r.BestOf == 0:
		r.BestOf = r.N
	case r.BestOf < r.N:
		return Invalid("best_of", "best_of is %d, less than n %d: raise it, or leave it out", r.BestOf, r.N)
	case r.BestOf > r.N && r.Endpoint == Chat:
		return Unsupported("best_of", "best_of is for /v1/completions: leave it out and choose among the n choices")
	case r.BestOf > r.N && r.Stream:
		return Invalid("best_of", "best_of %d cannot be streamed, since the best is known at the end: set stream to false, or best_of to n", r.BestOf)
	}
	return nil
}

// WantsLogprobs reports whether the engine has to tell log-probabilities: for the
// client, or to find the best of several choices.
func (r *Request) WantsLogprobs() bool { return r.Logprobs >= 0 || r.BestOf > r.N }

// finishChatLogprobs joins logprobs (a boolean in chat) and top_logprobs.
func (r *Request) finishChatLogprobs() error {
	top, hasTop := r.Body.Get("top_logprobs")
	hasTop = hasTop && !isNull(top)
	if r.Logprobs < 0 {
		if hasTop && string(top) != "0" {
			return Invalid("top_logprobs", "top_logprobs needs logprobs: true")
		}
		return nil
	}
	if hasTop {
		n, err := intOf("top_logprobs", top, 0, MaxLogprobs)
		if err != nil {
			return err
		}
		r.Logprobs = n
	}
	return nil
}

// MaxTokensOr returns the budget or a default.
func (r *Request) MaxTokensOr(def int) int {
	if r.MaxTokens != nil {
		return *r.MaxTokens
	}
	return def
}

// MessagesJSON returns the messages as the list a chat template takes.
func (r *Request) MessagesJSON() json.RawMessage {
	out := []byte{'['}
	for i := range r.Messages {
		out = append(comma(out, i), r.Messages[i].JSON...)
	}
	return append(out, ']')
}

// String names the endpoint's path.
func (e Endpoint) String() string {
	if e == Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// promptOf reads the prompt forms: a string, a list holding exactly one string,
// a list of integers, a list holding exactly one list of integers.
func promptOf(param string, raw json.RawMessage) (Prompt, error) {
	if raw[0] == '"' {
		s, err := stringOf(param, raw)
		if err == nil && s == "" {
			err = Invalid(param, "prompt is an empty string: send some text")
		}
		return Prompt{Text: s}, err
	}
	list, err := promptList(param, raw)
	if err != nil {
		return Prompt{}, err
	}
	switch list[0][0] {
	case '"', '[':
		if len(list) > 1 {
			return Prompt{}, Unsupported(param, "prompt holds %d prompts: send one request for each", len(list))
		}
		if list[0][0] == '"' {
			return promptOf(param, list[0])
		}
		raw = list[0]
		if inner, err := promptList(param, raw); err != nil || !isNumber(inner[0]) {
			return Prompt{}, Invalid(param, "the list inside prompt must hold at least one token id and nothing else")
		}
	}
	ids, err := idsOf(param, raw)
	return Prompt{IDs: ids}, err
}

func promptList(param string, raw json.RawMessage) ([]json.RawMessage, error) {
	if raw[0] != '[' {
		return nil, typeError(param, "a string or a list of token ids", raw)
	}
	list, err := listOf(param, raw)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, Invalid(param, "prompt is an empty list: send a string or at least one token id")
	}
	kind := rawKind(list[0])
	for i := range list {
		if k := rawKind(list[i]); k != kind {
			return nil, Invalid(param, "prompt mixes %s and %s (index %d): send a string or a list of token ids", kind, k, i)
		}
	}
	if kind != "a string" && kind != "a number" && kind != "a list" {
		return nil, Invalid(param, "prompt must hold a string or token ids, not %s", kind)
	}
	return list, nil
}

// at names an element for messages.
func at(param string, i int) string { return fmt.Sprintf("%s[%d]", param, i) }
