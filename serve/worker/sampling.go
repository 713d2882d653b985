package worker

import (
	"math/rand/v2"

	"tandem/engine/request"
	"tandem/engine/tokenizer"
	"tandem/serve/openai"
)

// sampling makes the engine's sampling rules: request, else the model's
// defaults, else OpenAI's.
func (j *job) sampling() (request.Sampling, error) {
	q, def := j.wire, &j.Defaults
	s := request.DefaultSampling()
	s.Temperature = pick(s.Temperature, def.Temperature, q.Temperature)
	s.TopP = pick(s.TopP, def.TopP, q.TopP)
	s.TopK = pick(s.TopK, def.TopK, q.TopK)
	s.MinP = pick(s.MinP, def.MinP, q.MinP)
	s.RepetitionPenalty = pick(s.RepetitionPenalty, def.RepetitionPenalty, q.RepetitionPenalty)
	s.PresencePenalty = pick(0, nil, q.PresencePenalty)
	s.FrequencyPenalty = pick(0, nil, q.FrequencyPenalty)
	if s.Seed = rand.Uint64(); q.Seed != nil { // a draw that nobody can repeat, else
		s.Seed, s.Seeded = *q.Seed, true
	}
	if s.Logprobs = q.Logprobs; q.WantsLogprobs() {
		s.Logprobs = max(s.Logprobs, 0)
	}
	s.StopTokenIDs, s.EOS = q.StopTokenIDs, j.EOS
	s.MinTokens, s.IgnoreEOS = q.MinTokens, q.IgnoreEOS
	for _, b := range q.LogitBias {
		if int(b.Token) >= j.info.Vocab {
			return s, openai.Invalid("logit_bias", "logit_bias has the token id %d, outside the vocabulary of %d", b.Token, j.info.Vocab)
		}
		s.LogitBias = append(s.LogitBias, request.Bias{Token: b.Token, Value: b.Value})
	}
	for _, id := range q.AllowedTokens {
		if int(id) >= j.info.Vocab {
			return s, openai.Invalid("allowed_token_ids", "allowed_token_ids has the token id %d, outside the vocabulary of %d", id, j.info.Vocab)
		}
	}
	s.Allowed = q.AllowedTokens
	var err error
	s.BadWords, err = j.badWords()
	return s, err
}

// badWords tokenises each word as it stands and with a space before it, since
// most vocabularies have another token inside a sentence.
func (j *job) badWords() (out [][]int32, err error) {
	for _, ids := range j.wire.BadTokens {
		for _, id := range ids {
			if int(id) >= j.info.Vocab {
				return nil, openai.Invalid("bad_words", "bad_words has the token id %d, outside the vocabulary of %d", id, j.info.Vocab)
			}
		}
		out = append(out, ids)
	}
	for _, w := range j.wire.BadWords {
		for _, text := range []string{w, " " + w} {
			ids, err := j.Tokenizer.Encode(text, tokenizer.EncodeOptions{})
			if err != nil {
				return nil, openai.Invalid("bad_words", "bad_words cannot be tokenised: %v", err)
			}
			if len(ids) > 0 {
				out = append(out, ids)
			}
		}
	}
	return out, nil
}

// pick returns the last value that is given.
func pick[T any](base T, over ...*T) T {
	for _, v := range over {
		if v != nil {
			base = *v
		}
	}
	return base
}
