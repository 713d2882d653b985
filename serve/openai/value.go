package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The functions here read one JSON value each and blame param when it is of
// another type or out of range. raw is valid JSON without leading white space.

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func ptr[T any](v T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// rawKind names the JSON type of raw for messages.
func rawKind(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func typeError(param, want string, raw json.RawMessage) error {
	return Invalid(param, "%s must be %s, not %s", param, want, rawKind(raw))
}

func boolOf(param string, raw json.RawMessage) (bool, error) {
	switch string(raw) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, typeError(param, "true or false", raw)
}

func stringOf(param string, raw json.RawMessage) (string, error) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", typeError(param, "a string", raw)
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", Invalid(param, "%s is not a valid JSON string", param)
	}
	return s, nil
}

func wordOf(param string, raw json.RawMessage, words ...string) (string, error) {
	s, err := stringOf(param, raw)
	if err != nil {
		return "", err
	}
	for _, w := range words {
		if s == w {
			return s, nil
		}
	}
	return "", Invalid(param, "%s is %q: use one of %s", param, Cut(s, 64), strings.Join(words, ", "))
}

func isNumber(raw json.RawMessage) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

func floatOf(param string, raw json.RawMessage) (float64, error) {
	if !isNumber(raw) {
		return 0, typeError(param, "a number", raw)
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.IsInf(f, 0) {
		return 0, Invalid(param, "%s is %s, which is too large for a number", param, Cut(string(raw), 40))
	}
	return f, nil
}

func floatIn(param string, raw json.RawMessage, lo, hi float64) (float64, error) {
	f, err := floatOf(param, raw)
	if err != nil {
		return 0, err
	}
	if f < lo || f > hi {
		return 0, Invalid(param, "%s is %s: it must be between %g and %g", param, Cut(string(raw), 40), lo, hi)
	}
	return f, nil
}

// int64Of reads an integer exactly; 1.0 and 1e3 are no integers here.
func int64Of(param string, raw json.RawMessage) (int64, error) {
	if !isNumber(raw) {
		return 0, typeError(param, "an integer", raw)
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, Invalid(param, "%s is %s: it must be a whole number that fits 64 bits", param, Cut(string(raw), 40))
	}
	return n, nil
}

func int64Ptr(param string, raw json.RawMessage) (*int64, error) {
	return ptr(int64Of(param, raw))
}

func intOf(param string, raw json.RawMessage, lo, hi int64) (int, error) {
	n, err := int64Of(param, raw)
	if err != nil {
		return 0, err
	}
	if n < lo {
		return 0, Invalid(param, "%s is %d: it must be at least %d", param, n, lo)
	}
	if n > hi {
		return 0, Invalid(param, "%s is %d: it must be at most %d", param, n, hi)
	}
	return int(n), nil
}

// seedOf accepts -2^63..2^64-1; a negative seed is its two's complement.
func seedOf(param string, raw json.RawMessage) (uint64, error) {
	if !isNumber(raw) {
		return 0, typeError(param, "an integer", raw)
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return uint64(n), nil
	}
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, Invalid(param, "%s is %s: it must be a whole number from -2^63 to 2^64-1", param, Cut(string(raw), 40))
	}
	return n, nil
}

func listOf(param string, raw json.RawMessage) ([]json.RawMessage, error) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, typeError(param, "a list", raw)
	}
	list := []json.RawMessage{}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, Invalid(param, "%s is not a valid JSON list", param)
	}
	return list, nil
}

func objectOf(param string, raw json.RawMessage) (Body, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return Body{}, typeError(param, "an object", raw)
	}
	b, err := ParseBody(raw)
	if err != nil {
		return Body{}, Invalid(param, "%s is not a valid JSON object", param)
	}
	return b, nil
}

func idOf(param string, raw json.RawMessage) (int32, error) {
	n, err := intOf(param, raw, 0, math.MaxInt32)
	return int32(n), err
}

// idsOf reads a list of token ids. It scans the text itself: prompts of a
// hundred thousand ids are common between frontend and worker.
func idsOf(param string, raw json.RawMessage) ([]int32, error) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, typeError(param, "a list of token ids", raw)
	}
	inner := bytes.TrimSpace(raw[1 : len(raw)-1])
	ids := make([]int32, 0, 1+bytes.Count(inner, []byte{','}))
	for i := 0; len(inner) > 0; i++ {
		item, rest, more := bytes.Cut(inner, []byte{','})
		id, err := strconv.ParseInt(string(bytes.TrimSpace(item)), 10, 32)
		if err != nil || id < 0 {
			return nil, Invalid(param, "%s[%d] is %s: token ids are whole numbers from 0 to 2147483647",
				param, i, Cut(string(bytes.TrimSpace(item)), 40))
		}
		ids = append(ids, int32(id))
		inner = rest
		if !more {
			break
		}
	}
	return ids, nil
}

func stringsOf(param string, raw json.RawMessage) ([]string, error) {
	list, err := listOf(param, raw)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(list))
	for i, item := range list {
		if out[i], err = stringOf(fmt.Sprintf("%s[%d]", param, i), item); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func usageOf(param string, raw json.RawMessage) (*Usage, error) {
	body, err := objectOf(param, raw)
	if err != nil {
		return nil, err
	}
	var u Usage
	for _, f := range []struct {
		name string
		dst  *int
	}{
		{"prompt_tokens", &u.PromptTokens},
		{"completion_tokens", &u.CompletionTokens},
		{"total_tokens", &u.TotalTokens},
	} {
		if v, ok := body.Get(f.name); ok && !isNull(v) {
			if *f.dst, err = intOf(param+"."+f.name, v, 0, math.MaxInt32); err != nil {
				return nil, err
			}
		}
	}
	v, ok := body.Get("prompt_tokens_details")
	if !ok || isNull(v) {
		return &u, nil
	}
	at := param + ".prompt_tokens_details"
	details, err := objectOf(at, v)
	if err != nil {
		return nil, err
	}
	u.PromptDetails = &PromptDetails{}
	if c, ok := details.Get("cached_tokens"); ok && !isNull(c) {
		u.PromptDetails.CachedTokens, err = intOf(at+".cached_tokens", c, 0, math.MaxInt32)
	}
	return &u, err
}

// maxConversationID is the most bytes of a conversation id.
const maxConversationID = 512

// conversationID reads a conversation id: trimmed, not empty, at most 512
// bytes; a number counts as its decimal text.
func conversationID(param string, raw json.RawMessage) (*string, error) {
	var s string
	var err error
	if isNumber(raw) {
		s = string(raw)
	} else if s, err = stringOf(param, raw); err != nil {
		return nil, err
	}
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, Invalid(param, "%s is empty: send an id or leave it out", param)
	}
	if len(s) > maxConversationID {
		return nil, Invalid(param, "%s has %d bytes: the limit is %d", param, len(s), maxConversationID)
	}
	return &s, nil
}
