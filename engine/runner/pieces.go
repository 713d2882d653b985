package runner

import (
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/sampler"
	"tandem/engine/tensor"
)

// A row whose prompt is scored wants logits at many positions, for which devices
// have room for a row of logits for each request of a batch only. So a step with
// such rows runs in pieces: each has as many of their positions as fit, and the
// rows of other requests are in the first. Positions of a row go in order, and
// nothing else reads what they write, so this is like prefill in chunks.

// piece is a part of a step: of row i of the batch the tokens [from, to).
type piece []span

type span struct {
	row, from, to int
	scores        int // positions of it whose logits are wanted, from its first scored one on
	sample        bool
}

// scored reports whether a step scores prompts.
func scored(rows []executor.Row) bool {
	for i := range rows {
		if len(rows[i].Score) > 0 {
			return true
		}
	}
	return false
}

// cut divides a step into pieces with at most most rows of logits. most is at least
// the number of rows.
func cut(rows []executor.Row, most int) (out []piece) {
	at := make([]int, len(rows))
	for left := true; left; {
		left = false
		var p piece
		room := most
		if out == nil {
			for i := range rows {
				if len(rows[i].Score) == 0 {
					p = append(p, span{row: i, to: len(rows[i].Tokens), sample: rows[i].Sample})
					at[i] = len(rows[i].Tokens)
					room--
				}
			}
		}
		for i := range rows {
			r := &rows[i]
			if at[i] == len(r.Tokens) {
				continue
			}
			if s := next(r, i, at[i], room); s.to > s.from {
				p = append(p, s)
				room -= s.scores
				if s.sample {
					room--
				}
				at[i] = s.to
			}
			left = left || at[i] < len(r.Tokens)
		}
		out = append(out, p)
	}
	return out
}

// next is as much of a scored row, from token from on, as room for logits allows.
func next(r *executor.Row, i, from, room int) span {
	s := span{row: i, from: from, to: len(r.Tokens)}
	before := max(0, r.ScoreAt-from) // tokens without logits
	wanted := r.ScoreAt + len(r.Score) - max(from, r.ScoreAt)
	need := wanted
	if r.Sample {
		need++
	}
	if need <= room {
		s.scores, s.sample = wanted, r.Sample
		return s
	}
	s.scores = min(wanted, room)
	s.to = from + before + s.scores
	if s.scores == 0 && before == 0 {
		s.to = from
	}
	return s
}

// fillPiece makes the device's batch of a piece.
func fillPiece(b *tensor.Batch, rows []executor.Row, p piece) {
	b.Reset()
	for _, s := range p {
		r := &rows[s.row]
		first := int32(b.Rows())
		b.Add(r.Tokens[s.from:s.to], r.Pos+s.from, r.Pages, false)
		skip := max(0, r.ScoreAt-s.from)
		for k := range s.scores {
			b.LogitRows = append(b.LogitRows, first+int32(skip+k))
		}
		if s.sample {
			b.LogitRows = append(b.LogitRows, int32(b.Rows()-1))
		}
	}
}

// inPieces runs a step with scored rows. run is given each piece's batch and returns
// the logits of its rows in order; tokens are those of the rows, known to the last.
func (s *sampling) inPieces(rows []executor.Row, most int, batch *tensor.Batch, run func(*tensor.Batch) ([]float32, error)) ([]executor.Sampled, error) {
	out := make([]executor.Sampled, len(rows))
	for _, p := range cut(rows, most) {
		fillPiece(batch, rows, p)
		logits, err := run(batch)
		if err != nil {
			return nil, err
		}
		for _, sp := range p {
			r := &rows[sp.row]
			for range sp.scores {
				next := r.Score[len(out[sp.row].Scores)]
				out[sp.row].Scores = append(out[sp.row].Scores, sampler.Score(logits[:s.vocab], next, r.ScoreTop))
				logits = logits[s.vocab:]
			}
			if sp.sample {
				one := s.drawAll(r, logits[:s.vocab])
				one.Scores = out[sp.row].Scores
				out[sp.row] = one
				logits = logits[s.vocab:]
			}
		}
	}
	return out, nil
}

// hostRules let the host draw for every logit row of a batch.
func hostRules(b *tensor.Batch) []tensor.Pick {
	rules := make([]tensor.Pick, len(b.LogitRows))
	for i := range rules {
		rules[i] = tensor.Pick{Host: true, TopP: 1, Logprobs: -1}
	}
	return rules
}

// knownTokens returns the rows of a step with the tokens that the step before it
// sampled in their place.
func knownTokens(rows []executor.Row, last []executor.Sampled) []executor.Row {
	out := make([]executor.Row, len(rows))
	copy(out, rows)
	for i := range out {
		if f := out[i].Feed; f > 0 {
			if one := &last[f-1]; one.Err == nil { // else the row is in vain
				out[i].Tokens = []int32{one.Token.ID}
			}
		}
	}
	return out
}

var errGuideFar = request.Invalid("response_format", "the ranks of this worker are in several processes: structured output needs one whose ranks are in one")

var errScoresInGroup = request.Invalid("prompt_logprobs", "this worker's ranks run in lockstep (enable_attention_dp): log-probabilities of the prompt need a worker without")
