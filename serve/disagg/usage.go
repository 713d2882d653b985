package disagg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"tandem/serve/openai"
)

// rewriteUsage puts the ctx worker's prompt and cached tokens into the usage of a reply or event. It returns what the
// client is told, nil when there is no usage, and whether the body changed. want nil leaves it alone, and ownPrompt the
// count of the prompt.
func rewriteUsage(body *openai.Body, want *openai.Usage) (*openai.Usage, bool, error) {
	raw, ok := body.Get("usage")
	if !ok || string(raw) == "null" {
		return nil, false, nil
	}
	var got openai.Usage
	if err := json.Unmarshal(raw, &got); err != nil {
		return nil, false, fmt.Errorf("the reply's usage is unreadable: %w", err)
	}
	if !got.Sane() {
		return nil, false, errors.New("the reply's usage has counts of tokens that cannot be")
	}
	if want == nil {
		return &got, false, nil
	}
	prompt := want.PromptTokens
	if prompt == ownPrompt {
		prompt = got.PromptTokens
	}
	told := openai.NewUsage(prompt, got.CompletionTokens, want.Cached())
	if got.PromptTokens == told.PromptTokens && got.TotalTokens == told.TotalTokens && got.Cached() == told.Cached() &&
		got.PromptDetails != nil {
		return &told, false, nil
	}
	obj, err := openai.ParseBody(raw)
	if err != nil {
		return nil, false, fmt.Errorf("the reply's usage is unreadable: %w", err)
	}
	obj.Set("prompt_tokens", number(told.PromptTokens))
	obj.Set("total_tokens", number(told.TotalTokens))
	details := openai.Body{}
	if raw, ok := obj.Get("prompt_tokens_details"); ok && string(raw) != "null" {
		if details, err = openai.ParseBody(raw); err != nil {
			return nil, false, fmt.Errorf("the reply's usage is unreadable: %w", err)
		}
	}
	details.Set("cached_tokens", number(told.Cached()))
	obj.Set("prompt_tokens_details", details.AppendJSON(nil))
	body.Set("usage", obj.AppendJSON(nil))
	return &told, true, nil
}

// checkChoices tells what is wrong with the choices of a whole reply that should have n.
func checkChoices(body *openai.Body, n int) error {
	raw, _ := body.Get("choices")
	var choices []json.RawMessage
	if err := json.Unmarshal(raw, &choices); err != nil || len(choices) != n {
		return fmt.Errorf("the reply has %d choices, not %d", len(choices), n)
	}
	for i, c := range choices {
		if len(c) == 0 || c[0] != '{' {
			return fmt.Errorf("choices[%d] of the reply is no object", i)
		}
	}
	return nil
}

// ownPrompt stands for a number of prompt tokens that only the reply itself knows.
const ownPrompt = -1

// hasUsage tells whether an event may bear usage.
func hasUsage(data []byte) bool { return bytes.Contains(data, []byte(`"usage"`)) }

func number(n int) json.RawMessage { return strconv.AppendInt(nil, int64(n), 10) }

// stripInternal removes what no client sees and tells whether it found any. keepIDs is set for clients that asked for
// token ids: the prompt's ids stay then, as a worker by itself sends them.
func stripInternal(body *openai.Body, keepIDs bool) (changed bool) {
	var text string
	if raw, ok := body.Get("prompt_token_ids_b64"); ok {
		body.Delete("prompt_token_ids_b64")
		changed = true
		if json.Unmarshal(raw, &text) == nil && keepIDs {
			if ids, err := openai.DecodeIDs(text); err == nil {
				body.Set("prompt_token_ids", openai.AppendIDs(nil, ids))
			}
		}
	}
	if _, ok := body.Get("prompt_token_ids"); ok && !keepIDs {
		body.Delete("prompt_token_ids")
		changed = true
	}
	raw, _ := body.Get("choices")
	var choices []json.RawMessage
	if json.Unmarshal(raw, &choices) != nil {
		return changed
	}
	cut := false
	for i := range choices {
		choice, err := openai.ParseBody(choices[i])
		if err != nil {
			continue
		}
		before := len(choice.Names())
		choice.Delete("disaggregated_params")
		choice.Delete("first_delta")
		if len(choice.Names()) != before {
			choices[i] = choice.AppendJSON(nil)
			cut = true
		}
	}
	if cut {
		body.Set("choices", joinList(choices))
	}
	return changed || cut
}

func joinList(items []json.RawMessage) json.RawMessage {
	out := json.RawMessage{'['}
	for i, it := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, it...)
	}
	return append(out, ']')
}

// checkLogprobs refuses a reply that lacks exactly the entry of each choice's first token, which would shift every other one.
func checkLogprobs(body *openai.Body, e openai.Endpoint, completion int) error {
	raw, _ := body.Get("choices")
	var choices []struct {
		Logprobs *struct {
			Content []json.RawMessage `json:"content"`
			Tokens  []json.RawMessage `json:"tokens"`
		} `json:"logprobs"`
	}
	if err := json.Unmarshal(raw, &choices); err != nil || len(choices) == 0 {
		return nil // another shape of reply: nothing to compare
	}
	n := 0
	for i := range choices {
		switch lp := choices[i].Logprobs; {
		case lp == nil:
			return fmt.Errorf("the request asked for logprobs and choice %d of the reply has none", i)
		case e == openai.Chat:
			n += len(lp.Content)
		default:
			n += len(lp.Tokens)
		}
	}
	if n == completion-len(choices) {
		return fmt.Errorf("the reply has logprobs for %d of %d tokens", n, completion)
	}
	return nil
}
