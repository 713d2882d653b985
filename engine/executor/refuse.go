package executor

import (
	"math"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Precheck returns why Submit would refuse r, or nil if it would take it. It
// takes nothing and does not look at the length of the queue. Ids are compared
// with those of this rank only.
func (c *Core) Precheck(r *request.Request, h *transfer.Handle) *request.Error {
	if err := c.refuseID(r); err != nil {
		return err
	}
	return c.refuse(r, h)
}

func (c *Core) refuseID(r *request.Request) *request.Error {
	if _, ok := c.byID[r.ID]; ok {
		return request.Invalid("request_id", "id %d is in use", r.ID)
	}
	return nil
}

// refuse judges a request at arrival: nothing that can never run, or that this
// worker does not do, is queued.
func (c *Core) refuse(r *request.Request, h *transfer.Handle) *request.Error {
	if c.fatal != nil || c.draining {
		return request.Errorf(request.EngineDead, "this worker is shutting down")
	}
	if err := c.refuseRole(r, h); err != nil {
		return err
	}
	if err := c.checkChoices(r); err != nil {
		return err
	}
	if err := c.refuseTokens(r); err != nil {
		return err
	}
	if err := c.refuseScore(r); err != nil {
		return err
	}
	if err := refuseRetention(r.Retention); err != nil {
		return err
	}
	if err := checkSampling(&r.Sampling, c.cfg.Vocab); err != nil {
		return err
	}
	if n := c.needs(r); n > c.cfg.Blocks {
		return request.Errorf(request.CapacityNever,
			"prompt and max_tokens of %d choices need %d KV blocks, this worker has %d: lower one of them", r.Answers(), n, c.cfg.Blocks)
	}
	if r.TransferID != 0 && r.Kind != request.Full && c.recent.refused(transfer.ID(r.TransferID), c.now) {
		if r.Kind == request.GenerationOnly { // the frontend tries again after a broken connection: a new hand-over helps
			return request.Errorf(request.UnknownTransfer, "this worker was told to give the hand-over up")
		}
		return request.Errorf(request.Cancelled, "aborted before it came")
	}
	return nil
}

func (c *Core) refuseRole(r *request.Request, h *transfer.Handle) *request.Error {
	const param = "disaggregated_params"
	ok := c.cfg.Role == Mixed || (c.cfg.Role == Ctx) == (r.Kind == request.ContextOnly)
	if !ok {
		return request.Invalid(param+".request_type", "a %s worker does not take this type of request", c.cfg.Role)
	}
	side := c.byCtx
	switch r.Kind {
	case request.Full:
		return nil
	case request.ContextOnly:
	case request.GenerationOnly:
		side = c.byGen
		if h == nil {
			return request.Invalid(param+".encoded_opaque_state", "the hand-over handle is missing")
		}
		if h.GenFirst != r.GenFirst {
			return request.Invalid(param+".encoded_opaque_state", "the hand-over handle is not one of this schedule_style")
		}
		if r.GenFirst {
			if len(r.FirstTokens) > 0 || int64(h.ID) != r.TransferID {
				return request.Invalid(param, "a generation-first leg has the id of its transfer, and no first token yet")
			}
			break
		}
		if len(r.FirstTokens) == 0 {
			return request.Invalid(param+".first_gen_tokens", "the first token is missing")
		}
		if h.PromptTokens != len(r.Prompt) || int64(h.ID) != r.TransferID {
			return request.Invalid(param, "the handle is for transfer %d with %d prompt tokens, the request for %d with %d",
				h.ID, h.PromptTokens, r.TransferID, len(r.Prompt))
		}
	default:
		return request.Invalid(param+".request_type", "unknown type %d", r.Kind)
	}
	if r.GenFirst && r.Answers() > 1 {
		return request.Invalid("n", "several choices need schedule_style context_first: they fork off what the context worker sampled")
	}
	if r.TransferID == 0 {
		return request.Invalid(param+".disagg_request_id", "the id is missing")
	}
	id := transfer.ID(r.TransferID)
	if r.Kind == request.GenerationOnly && c.byGen[id] != nil {
		// Its connection broke, and this side has not noticed yet, or its blocks are still being written.
		return request.Errorf(request.UnknownTransfer, "an earlier attempt of the hand-over is still here")
	}
	if side[id] != nil || r.Kind == request.GenerationOnly && c.borrows[id] != nil {
		return request.Invalid(param+".disagg_request_id", "id %d is in use", r.TransferID)
	}
	return nil
}

func (c *Core) refuseTokens(r *request.Request) *request.Error {
	p := len(r.Prompt)
	known := p
	if r.Kind == request.Full {
		known += len(r.FirstTokens)
	}
	switch {
	case p == 0:
		return request.Invalid("prompt", "the prompt is empty")
	case p >= c.cfg.MaxSeqLen:
		return request.Invalid("prompt", "the prompt has %d tokens; at most %d fit the context of %d", p, c.cfg.MaxSeqLen-1, c.cfg.MaxSeqLen)
	case r.MaxTokens < 1:
		return request.Invalid("max_tokens", "%d is not at least 1", r.MaxTokens)
	case !c.cfg.ChunkPrefill && known > c.cfg.MaxNumTokens:
		return request.Invalid("prompt", "the prompt has %d tokens; without chunked prefill at most %d can be run", known, c.cfg.MaxNumTokens)
	case len(r.FirstTokens) > 0 && r.Kind == request.ContextOnly:
		return request.Invalid("disaggregated_params.first_gen_tokens", "a context_only request has none yet")
	case !(r.Priority >= 0 && r.Priority <= 1): // a NaN has no place in a queue
		return request.Invalid("priority", "%v is not in [0, 1]", r.Priority)
	case len(r.FirstTokens)/r.Answers() > c.maxTokens(r):
		return request.Invalid("max_tokens", "%d is less than the tokens generated already", r.MaxTokens)
	}
	if err := checkIDs("prompt", r.Prompt, c.cfg.Vocab); err != nil {
		return err
	}
	for _, t := range r.FirstTokens {
		if t.ID < 0 || int(t.ID) >= c.cfg.Vocab {
			return request.Invalid("disaggregated_params.first_gen_tokens", "token id %d is not in the vocabulary of %d", t.ID, c.cfg.Vocab)
		}
	}
	return nil
}

// checkIDs reports the first token id that is not in the vocabulary.
func checkIDs(param string, ids []int32, vocab int) *request.Error {
	for _, t := range ids {
		if t < 0 || int(t) >= vocab {
			return request.Invalid(param, "token id %d is not in the vocabulary of %d", t, vocab)
		}
	}
	return nil
}

// checkSampling reports the first parameter outside its range.
func checkSampling(s *request.Sampling, vocab int) *request.Error {
	finite := func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
	switch {
	case !finite(s.Temperature) || s.Temperature < 0:
		return request.Invalid("temperature", "%v is not a number of at least 0", s.Temperature)
	case s.TopK < 0:
		return request.Invalid("top_k", "%d is negative", s.TopK)
	case !(s.TopP > 0 && s.TopP <= 1):
		return request.Invalid("top_p", "%v is not in (0, 1]", s.TopP)
	case !(s.MinP >= 0 && s.MinP <= 1):
		return request.Invalid("min_p", "%v is not in [0, 1]", s.MinP)
	case !finite(s.RepetitionPenalty) || s.RepetitionPenalty <= 0:
		return request.Invalid("repetition_penalty", "%v is not above 0", s.RepetitionPenalty)
	case !(s.PresencePenalty >= -2 && s.PresencePenalty <= 2):
		return request.Invalid("presence_penalty", "%v is not in [-2, 2]", s.PresencePenalty)
	case !(s.FrequencyPenalty >= -2 && s.FrequencyPenalty <= 2):
		return request.Invalid("frequency_penalty", "%v is not in [-2, 2]", s.FrequencyPenalty)
	case s.Logprobs < -1 || s.Logprobs > 20:
		return request.Invalid("top_logprobs", "%d is not in 0..20", s.Logprobs)
	case s.MinTokens < 0:
		return request.Invalid("min_tokens", "%d is negative", s.MinTokens)
	}
	for _, b := range s.LogitBias {
		if b.Token < 0 || int(b.Token) >= vocab || !finite(b.Value) {
			return request.Invalid("logit_bias", "token id %d with bias %v is not valid", b.Token, b.Value)
		}
	}
	if err := checkIDs("stop_token_ids", s.StopTokenIDs, vocab); err != nil {
		return err
	}
	if err := checkIDs("allowed_token_ids", s.Allowed, vocab); err != nil {
		return err
	}
	for _, w := range s.BadWords {
		if len(w) == 0 {
			return request.Invalid("bad_words", "a word without tokens")
		}
		if err := checkIDs("bad_words", w, vocab); err != nil {
			return err
		}
	}
	return nil
}
