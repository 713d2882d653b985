package openai

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
)

// setter reads one non-null member of a request.
type setter func(r *Request, param string, raw json.RawMessage) error

// fields are the members both endpoints share. Members that are in no table
// are accepted and ignored; those we know and do not do are refused.
var fields = map[string]setter{
	"model": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.Model, err = stringOf(p, raw)
		return err
	},
	"stream": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.Stream, err = boolOf(p, raw)
		return err
	},
	"stream_options": setStreamOptions,
	"max_tokens":     setMaxTokens,
	"temperature": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.Temperature, err = ptr(floatIn(p, raw, 0, 2))
		return err
	},
	"top_p": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.TopP, err = ptr(positive(p, raw, 1))
		return err
	},
	"top_k": func(r *Request, p string, raw json.RawMessage) (err error) {
		if r.TopK, err = ptr(intOf(p, raw, -1, math.MaxInt32)); err == nil {
			*r.TopK = max(*r.TopK, 0)
		}
		return err
	},
	"min_p": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.MinP, err = ptr(floatIn(p, raw, 0, 1))
		return err
	},
	"repetition_penalty": func(r *Request, p string, raw json.RawMessage) (err error) {
		// Less would push logits beyond float32.
		r.RepetitionPenalty, err = ptr(floatIn(p, raw, 1e-3, 100))
		return err
	},
	"presence_penalty": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.PresencePenalty, err = ptr(floatIn(p, raw, -2, 2))
		return err
	},
	"frequency_penalty": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.FrequencyPenalty, err = ptr(floatIn(p, raw, -2, 2))
		return err
	},
	"logit_bias": setLogitBias,
	"seed": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.Seed, err = ptr(seedOf(p, raw))
		return err
	},
	"stop": setStop,
	"stop_token_ids": func(r *Request, p string, raw json.RawMessage) (err error) {
		if r.StopTokenIDs, err = idsOf(p, raw); err == nil && len(r.StopTokenIDs) > MaxStops {
			err = Invalid(p, "stop_token_ids has %d entries: the limit is %d", len(r.StopTokenIDs), MaxStops)
		}
		return err
	},
	"bad_words":              setBadWords,
	"allowed_token_ids":      setAllowed,
	"prompt_logprobs":        setPromptLogprobs,
	"truncate_prompt_tokens": setTruncate,
	"min_tokens": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.MinTokens, err = intOf(p, raw, 0, math.MaxInt32)
		return err
	},
	"ignore_eos": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.IgnoreEOS, err = boolOf(p, raw)
		return err
	},
	"include_stop_str_in_output": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.IncludeStop, err = boolOf(p, raw)
		return err
	},
	"return_token_ids": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.ReturnTokenIDs, err = boolOf(p, raw)
		return err
	},
	"cache_salt": func(r *Request, p string, raw json.RawMessage) (err error) {
		if r.CacheSalt, err = stringOf(p, raw); err == nil && len(r.CacheSalt) > MaxCacheSalt {
			err = Invalid(p, "cache_salt has %d bytes: the limit is %d", len(r.CacheSalt), MaxCacheSalt)
		}
		return err
	},
	"priority": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.Priority, err = floatIn(p, raw, 0, 1)
		return err
	},
	"kv_cache_retention_config": setRetention,
	"conversation_params":       setConversation,
	"disaggregated_params": func(r *Request, _ string, raw json.RawMessage) (err error) {
		r.Disagg, err = DecodeDisaggParams(raw)
		return err
	},
	"prompt_token_ids":     setPromptIDs,
	"prompt_token_ids_b64": setPromptIDs,
	"user": func(_ *Request, p string, raw json.RawMessage) error {
		_, err := stringOf(p, raw)
		return err
	},

	"n": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.N, err = intOf(p, raw, 1, MaxChoices)
		return err
	},
	"best_of": func(r *Request, p string, raw json.RawMessage) (err error) {
		r.BestOf, err = intOf(p, raw, 1, MaxChoices)
		return err
	},
	"use_beam_search":     onlyFalse("beam search is not supported"),
	"guided_json":         setGuidedJSON,
	"guided_regex":        setGuidedRegex,
	"guided_choice":       setGuidedChoice,
	"guided_grammar":      setGuidedGrammar,
	"structured_outputs":  setStructured,
	"response_format":     setResponseFormat,
	"attention_dp_rank":   refuse("a rank cannot be chosen in the body"),
	"attention_dp_relax":  refuse("a rank cannot be chosen in the body"),
	"guided_decoding":     refuse("this form of structured output is not supported: use response_format, guided_json, guided_regex, guided_choice or guided_grammar"),
	"structural_tag":      refuse("this form of structured output is not supported: use response_format, guided_json, guided_regex, guided_choice or guided_grammar"),
	"logits_processors":   refuse("custom logits processors are not supported"),
	"lora_request":        refuse("LoRA adapters are not supported"),
	"skip_special_tokens": onlyTrue("special tokens are never shown in the text"),
	"add_special_tokens":  onlyTrue("the tokenizer always adds its special tokens to a text prompt; send token ids to choose otherwise"),
}

// endpointFields are the members whose meaning depends on the endpoint.
var endpointFields = [2]map[string]setter{
	Chat: {
		"messages": setMessages,
		"tools":    setTools,
		"tool_choice": func(*Request, string, json.RawMessage) error {
			return nil // finishTools
		},
		"parallel_tool_calls": func(_ *Request, p string, raw json.RawMessage) error {
			_, err := boolOf(p, raw)
			return err
		},
		"max_completion_tokens": setMaxTokens,
		"logprobs": func(r *Request, p string, raw json.RawMessage) error {
			on, err := boolOf(p, raw)
			if on {
				r.Logprobs = 0
			}
			return err
		},
		"top_logprobs": func(_ *Request, p string, raw json.RawMessage) error {
			_, err := intOf(p, raw, 0, MaxLogprobs)
			return err
		},
		"chat_template": func(r *Request, p string, raw json.RawMessage) (err error) {
			r.ChatTemplate, err = stringOf(p, raw)
			return err
		},
		"chat_template_kwargs":   setTemplateKwargs,
		"add_generation_prompt":  onlyTrue("the template always adds the generation prompt"),
		"continue_final_message": onlyFalse("continuing the last message is not supported"),
		"modalities":             setModalities,
		"functions":              refuse("functions is deprecated and not supported: use tools"),
		"function_call":          refuse("function_call is deprecated and not supported: use tools"),
		"audio":                  refuse("audio output is not supported"),
		"web_search_options":     refuse("web search is not supported"),
		"documents":              refuse("documents are not supported: put them in a message"),
		"echo":                   onlyFalse("echo is not supported"),
	},
	Completion: {
		"prompt": func(r *Request, p string, raw json.RawMessage) (err error) {
			r.Prompt, err = promptOf(p, raw)
			return err
		},
		"logprobs": func(r *Request, p string, raw json.RawMessage) (err error) {
			r.Logprobs, err = intOf(p, raw, 0, MaxLogprobs)
			return err
		},
		"echo": func(r *Request, p string, raw json.RawMessage) (err error) {
			r.Echo, err = boolOf(p, raw)
			return err
		},
		"suffix": func(_ *Request, p string, raw json.RawMessage) error {
			s, err := stringOf(p, raw)
			if err == nil && s != "" {
				err = Unsupported(p, "suffix (insertion) is not supported: leave it out")
			}
			return err
		},
		"prompt_embeds": refuse("embeddings as a prompt are not supported"),
	},
}

func refuse(why string) setter {
	return func(_ *Request, p string, raw json.RawMessage) error {
		return Unsupported(p, "%s: %s; leave the field out", p, why)
	}
}

func onlyFalse(why string) setter {
	return func(_ *Request, p string, raw json.RawMessage) error {
		on, err := boolOf(p, raw)
		if err == nil && on {
			err = Unsupported(p, "%s: true is refused: %s", p, why)
		}
		return err
	}
}

func onlyTrue(why string) setter {
	return func(_ *Request, p string, raw json.RawMessage) error {
		on, err := boolOf(p, raw)
		if err == nil && !on {
			err = Unsupported(p, "%s: false is refused: %s", p, why)
		}
		return err
	}
}

func positive(param string, raw json.RawMessage, hi float64) (float64, error) {
	f, err := floatIn(param, raw, 0, hi)
	if err == nil && f == 0 {
		err = Invalid(param, "%s is 0: it must be above 0 and at most %g", param, hi)
	}
	return f, err
}

// setMaxTokens takes max_tokens and its newer name; two different values are
// an error, since either choice would surprise somebody.
func setMaxTokens(r *Request, p string, raw json.RawMessage) error {
	n, err := intOf(p, raw, 1, math.MaxInt32)
	if r.Endpoint == Completion && string(raw) == "0" { // for echo
		n, err = 0, nil
	}
	if err != nil {
		return err
	}
	if r.MaxTokens != nil && *r.MaxTokens != n {
		return Invalid(p, "max_tokens and max_completion_tokens differ (%d and %d): send one of them", *r.MaxTokens, n)
	}
	r.MaxTokens = &n
	return nil
}

func setStreamOptions(r *Request, p string, raw json.RawMessage) error {
	body, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	for _, m := range body.members {
		if isNull(m.raw) {
			continue
		}
		switch m.name {
		case "include_usage":
			r.IncludeUsage, err = boolOf(p+"."+m.name, m.raw)
		case "continuous_usage_stats":
			r.ContinuousUsage, err = boolOf(p+"."+m.name, m.raw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func setLogitBias(r *Request, p string, raw json.RawMessage) error {
	body, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	if len(body.members) > MaxLogitBias {
		return Invalid(p, "logit_bias has %d entries: the limit is %d", len(body.members), MaxLogitBias)
	}
	for _, m := range body.members {
		id, err := strconv.ParseInt(m.name, 10, 32)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != m.name {
			return Invalid(p, "logit_bias has the key %q: keys are token ids as decimal text", Cut(m.name, 64))
		}
		v, err := floatIn(p+"."+m.name, m.raw, -100, 100)
		if err != nil {
			return err
		}
		r.LogitBias = append(r.LogitBias, Bias{Token: int32(id), Value: v})
	}
	slices.SortFunc(r.LogitBias, func(a, b Bias) int { return int(a.Token) - int(b.Token) })
	return nil
}

func setStop(r *Request, p string, raw json.RawMessage) (err error) {
	switch raw[0] {
	case '"':
		var s string
		s, err = stringOf(p, raw)
		r.Stop = []string{s}
	case '[':
		r.Stop, err = stringsOf(p, raw)
	default:
		err = typeError(p, "a string or a list of strings", raw)
	}
	if err != nil {
		return err
	}
	if len(r.Stop) > MaxStops {
		return Invalid(p, "stop has %d strings: the limit is %d", len(r.Stop), MaxStops)
	}
	for i, s := range r.Stop {
		if s == "" {
			return Invalid(p, "stop holds an empty string, which would end every answer at once: leave it out")
		}
		if len(s) > MaxStopBytes {
			return Invalid(p, "stop[%d] has %d bytes: the limit is %d", i, len(s), MaxStopBytes)
		}
	}
	return nil
}

func setBadWords(r *Request, p string, raw json.RawMessage) (err error) {
	list, err := listOf(p, raw)
	if err != nil {
		return err
	}
	if len(list) > MaxBadWords {
		return Invalid(p, "bad_words has %d entries: the limit is %d", len(list), MaxBadWords)
	}
	for i, entry := range list {
		if entry[0] == '[' {
			ids, err := idsOf(at(p, i), entry)
			if err == nil && (len(ids) == 0 || len(ids) > MaxBadWord) {
				err = Invalid(p, "bad_words[%d] has %d token ids: it must have 1 to %d", i, len(ids), MaxBadWord)
			}
			if err != nil {
				return err
			}
			r.BadTokens = append(r.BadTokens, ids)
			continue
		}
		word, err := stringOf(at(p, i), entry)
		if err != nil {
			return err
		}
		r.BadWords = append(r.BadWords, word)
	}
	if slices.Contains(r.BadWords, "") {
		return Invalid(p, "bad_words holds an empty string: leave it out")
	}
	if i := slices.IndexFunc(r.BadWords, func(w string) bool { return len(w) > MaxBadWord }); i >= 0 {
		return Invalid(p, "bad_words[%d] has %d bytes: the limit is %d", i, len(r.BadWords[i]), MaxBadWord)
	}
	return nil
}

func setConversation(r *Request, p string, raw json.RawMessage) error {
	body, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	for _, m := range body.members {
		if m.name != "conversation_id" {
			return Invalid(p+"."+m.name, "conversation_params has the unknown member %s: only conversation_id is allowed", Cut(m.name, 64))
		}
		if isNull(m.raw) {
			return Invalid(p+"."+m.name, "conversation_params.conversation_id is null: send an id or leave conversation_params out")
		}
		if r.ConversationID, err = conversationID(p+"."+m.name, m.raw); err != nil {
			return err
		}
	}
	if r.ConversationID == nil {
		return Invalid(p, "conversation_params needs conversation_id")
	}
	return nil
}

func setPromptIDs(r *Request, p string, raw json.RawMessage) (err error) {
	if p == "prompt_token_ids_b64" {
		var s string
		if s, err = stringOf(p, raw); err != nil {
			return err
		}
		if r.PromptIDs, err = DecodeIDs(s); err != nil {
			return Invalid(p, "prompt_token_ids_b64 is %v: send little-endian int32 ids in base64", err)
		}
	} else if r.PromptIDs, err = idsOf(p, raw); err != nil {
		return err
	}
	if len(r.PromptIDs) == 0 {
		return Invalid(p, "%s is empty: send at least one token id", p)
	}
	return nil
}

func setModalities(_ *Request, p string, raw json.RawMessage) error {
	list, err := stringsOf(p, raw)
	if err != nil {
		return err
	}
	for _, m := range list {
		if m != "text" {
			return Unsupported(p, "modalities has %q: only \"text\" is supported", Cut(m, 64))
		}
	}
	return nil
}

func setTools(r *Request, p string, raw json.RawMessage) error {
	list, err := listOf(p, raw)
	if err != nil {
		return err
	}
	for i, t := range list {
		if err := checkTool(at(p, i), t); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		r.Tools = raw
	}
	return nil
}

func checkTool(p string, raw json.RawMessage) error {
	body, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	kind, _ := body.Get("type")
	if s, err := stringOf(p+".type", kind); err != nil {
		return err
	} else if s != "function" {
		return Unsupported(p+".type", "%s.type is %q: only \"function\" is supported", p, Cut(s, 64))
	}
	fn, _ := body.Get("function")
	fnBody, err := objectOf(p+".function", fn)
	if err != nil {
		return err
	}
	name, _ := fnBody.Get("name")
	s, err := stringOf(p+".function.name", name)
	if err == nil && strings.TrimSpace(s) == "" {
		err = Invalid(p+".function.name", "%s.function.name is empty: name the function", p)
	}
	return err
}

func setTemplateKwargs(r *Request, p string, raw json.RawMessage) error {
	if _, err := objectOf(p, raw); err != nil {
		return err
	}
	if len(raw) > MaxUserOptions {
		return Invalid(p, "chat_template_kwargs has %d bytes: the limit is %d", len(raw), MaxUserOptions)
	}
	r.ChatTemplateKwargs = raw
	return nil
}
