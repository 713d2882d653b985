package openai

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

// MaxAllowed bounds allowed_token_ids.
const MaxAllowed = 65536

func setPromptLogprobs(r *Request, p string, raw json.RawMessage) (err error) {
	r.PromptLogprobs, err = intOf(p, raw, 0, MaxLogprobs)
	return err
}

func setTruncate(r *Request, p string, raw json.RawMessage) (err error) {
	if r.TruncatePrompt, err = intOf(p, raw, -1, math.MaxInt32); err == nil && r.TruncatePrompt == 0 {
		err = Invalid(p, "truncate_prompt_tokens is 0: send how many tokens at the end of the prompt to keep, or -1 for as many as fit")
	}
	return err
}

func setAllowed(r *Request, p string, raw json.RawMessage) (err error) {
	if r.AllowedTokens, err = idsOf(p, raw); err != nil {
		return err
	}
	switch n := len(r.AllowedTokens); {
	case n == 0:
		return Invalid(p, "allowed_token_ids is empty: name at least one token, or leave it out")
	case n > MaxAllowed:
		return Invalid(p, "allowed_token_ids has %d entries: the limit is %d", n, MaxAllowed)
	}
	slices.Sort(r.AllowedTokens)
	r.AllowedTokens = slices.Compact(r.AllowedTokens)
	return nil
}

// PromptTop returns how many alternatives of each prompt token are asked for, -1 if
// not even the log-probability of the token itself is: by prompt_logprobs, or by
// echo with logprobs.
func (r *Request) PromptTop() int {
	if r.Echo {
		return max(r.PromptLogprobs, r.Logprobs)
	}
	return r.PromptLogprobs
}

// EchoOnly reports whether nothing but the prompt is wanted: echo with max_tokens 0.
func (r *Request) EchoOnly() bool { return r.Echo && r.MaxTokens != nil && *r.MaxTokens == 0 }

// Whole reports whether one worker has to run the request: what is told of its
// prompt is not handed over.
func (r *Request) Whole() bool { return r.PromptTop() >= 0 || r.Echo }

// finishScores checks what depends on these fields.
func (r *Request) finishScores() error {
	switch {
	case r.Stream && r.PromptTop() >= 0:
		p := "prompt_logprobs"
		if r.PromptLogprobs < 0 {
			p = "echo"
		}
		return Invalid(p, "log-probabilities of the prompt cannot be streamed: set stream to false")
	case r.MaxTokens != nil && *r.MaxTokens == 0 && !r.Echo:
		return Invalid("max_tokens", "max_tokens is 0: it must be at least 1, unless echo asks for the prompt")
	case r.EchoOnly() && r.Stream:
		return Invalid("max_tokens", "max_tokens 0 cannot be streamed: set stream to false")
	}
	return nil
}

// AppendPromptLogprobs appends the list of prompt_logprobs: null for the first token,
// then an object for each with the token and its alternatives by id. ranks[i] is the
// rank of tokens[i] among all.
func AppendPromptLogprobs(dst []byte, tokens []TokenLogprob, ranks []int) []byte {
	dst = append(dst, '[')
	for i := range tokens {
		dst = comma(dst, i)
		if tokens[i].Null {
			dst = append(dst, "null"...)
			continue
		}
		dst = appendPromptEntry(append(dst, '{'), &tokens[i], ranks[i])
		for j := range tokens[i].Top {
			if alt := &tokens[i].Top[j]; alt.ID != tokens[i].ID {
				dst = appendPromptEntry(append(dst, ','), alt, j+1)
			}
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

func appendPromptEntry(dst []byte, t *TokenLogprob, rank int) []byte {
	dst = append(strconv.AppendInt(append(dst, '"'), int64(t.ID), 10), `":{"logprob":`...)
	dst = append(AppendFloat(dst, t.Logprob), `,"rank":`...)
	dst = append(strconv.AppendInt(dst, int64(rank), 10), `,"decoded_token":`...)
	return append(AppendString(dst, t.Text), '}')
}
