package sampler

import (
	"math"

	"tandem/engine/request"
)

// Limits of request fields that the engine bounds.
const (
	MaxLogprobs = 20    // top_logprobs
	maxBias     = 100.0 // |logit_bias|
)

// Validate checks the sampling fields of a request against their ranges and a
// vocabulary of vocab tokens. The error names the field as clients write it and
// the allowed range.
func Validate(s *request.Sampling, vocab int) *request.Error {
	switch {
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0):
		return outOfRange("temperature", s.Temperature, "at least 0")
	case s.TopK < 0:
		return outOfRange("top_k", s.TopK, "at least 0 (0 turns it off)")
	case !(s.TopP > 0 && s.TopP <= 1):
		return outOfRange("top_p", s.TopP, "above 0 and at most 1")
	case !(s.MinP >= 0 && s.MinP <= 1):
		return outOfRange("min_p", s.MinP, "between 0 and 1")
	case !(s.RepetitionPenalty > 0) || math.IsInf(s.RepetitionPenalty, 0):
		return outOfRange("repetition_penalty", s.RepetitionPenalty, "above 0 (1 turns it off)")
	case !(math.Abs(s.PresencePenalty) <= 2):
		return outOfRange("presence_penalty", s.PresencePenalty, "between -2 and 2")
	case !(math.Abs(s.FrequencyPenalty) <= 2):
		return outOfRange("frequency_penalty", s.FrequencyPenalty, "between -2 and 2")
	case s.Logprobs < -1 || s.Logprobs > MaxLogprobs:
		return outOfRange("top_logprobs", s.Logprobs, "between 0 and 20")
	case s.MinTokens < 0:
		return outOfRange("min_tokens", s.MinTokens, "at least 0")
	}
	return validateIDs(s, vocab)
}

func validateIDs(s *request.Sampling, vocab int) *request.Error {
	for _, b := range s.LogitBias {
		if err := checkID("logit_bias", b.Token, vocab); err != nil {
			return err
		}
		if !(math.Abs(b.Value) <= maxBias) {
			return outOfRange("logit_bias", b.Value, "between -100 and 100")
		}
	}
	for _, id := range s.Allowed {
		if err := checkID("allowed_token_ids", id, vocab); err != nil {
			return err
		}
	}
	for _, word := range s.BadWords {
		if len(word) == 0 {
			return request.Invalid("bad_words", "a bad word has no tokens; remove the empty entry")
		}
		for _, id := range word {
			if err := checkID("bad_words", id, vocab); err != nil {
				return err
			}
		}
	}
	for _, id := range s.StopTokenIDs {
		if err := checkID("stop_token_ids", id, vocab); err != nil {
			return err
		}
	}
	return nil
}

func checkID(field string, id int32, vocab int) *request.Error {
	if id < 0 || int(id) >= vocab {
		return request.Invalid(field, "token id %d is not in the vocabulary; ids go from 0 to %d", id, vocab-1)
	}
	return nil
}

func outOfRange(field string, got any, allowed string) *request.Error {
	return request.Invalid(field, "%v is out of range; must be %s", got, allowed)
}
