package executor

import "tandem/engine/request"

// Log-probabilities of the prompt: the rows of a request that wants them yield
// logits at every position, of which the one of the next prompt token is told. K
// and V that exist already have no logits, so such a request shares nothing until
// its prompt is scored; what it computes is shared as ever. A prompt that is
// computed again after a pause is not scored again.

// scoring reports whether positions of the prompt of s are still to be scored.
func (s *sequence) scoring() bool {
	return s.req.Score != nil && s.choice == 0 && s.req.Kind != request.GenerationOnly && len(s.scores) < s.prompt-1
}

// scoreRow sets what a row of s, from position s.Computed on, tells of the prompt.
func (s *sequence) scoreRow(row *Row, end int) {
	if !s.scoring() {
		return
	}
	from, to := max(s.Computed, len(s.scores)), min(end, s.prompt-1)
	if from < to {
		row.ScoreAt, row.Score, row.ScoreTop = from-s.Computed, s.tokens[from+1:to+1:to+1], s.req.Score.Top
	}
}

// scored takes what a row told.
func (s *sequence) scored(row *Row, scores []request.Token) {
	if len(row.Score) > 0 && row.Pos+row.ScoreAt == len(s.scores) {
		s.scores = append(s.scores, scores...)
	}
}

// showScores adds the prompt's log-probabilities to the first output with a token.
func (s *sequence) showScores(out *Output) {
	if len(s.scores) > 0 && !s.told && len(out.Tokens) > 0 && !s.scoring() {
		out.Prompt, s.told = s.scores, true
	}
}

// refuseScore judges a wish for log-probabilities of the prompt.
func (c *Core) refuseScore(r *request.Request) *request.Error {
	if r.Score == nil {
		return nil
	}
	if t := r.Score.Top; t < 0 || t > 20 {
		return request.Invalid("prompt_logprobs", "%d is not in 0..20", t)
	}
	if r.Kind == request.ContextOnly {
		return request.Invalid("prompt_logprobs", "a context_only request has none: send the whole request to a generation or mixed worker")
	}
	return nil
}
