package disagg

import (
	"encoding/json"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// captureRequest adds a finished request to the trace for replay: lengths, times and salted hashes, and nothing that it said.
func (s *Server) captureRequest(p *RoutePlan) {
	j := &p.trip
	if !s.capture.On() || j.id == 0 || p.Req == nil {
		return
	}
	prompt := p.tokens
	if len(prompt) == 0 {
		prompt = p.last.prompt()
	}
	r := trace.Captured{
		RequestID: decimalID(j.id), Conversation: s.capture.Name(p.Ctx.ConversationID), Parent: s.capture.Name(p.Ctx.AffinityKey),
		Input: max(j.tokens.Prompt, len(prompt)), Output: j.tokens.Completion, Model: p.Req.Model, Priority: p.Req.Priority,
		Observed: &trace.Observed{
			E2EMs: millis(j.finished.Sub(p.Arrived)), Cached: j.tokens.Cached, Path: string(p.Path),
			CtxServer: j.ctx.ID, GenServer: j.gen.ID, Outcome: j.outcome,
		},
	}
	if r.Input == 0 {
		return // nothing to replay
	}
	if !j.first.IsZero() {
		r.Observed.TTFTMs = millis(j.first.Sub(p.Arrived))
	}
	for _, in := range []discovery.Instance{j.ctx, j.gen} {
		if r.BlockSize == 0 && in.Info != nil { // nil: the leg did not run
			r.BlockSize = in.Info.TokensPerBlock
		}
	}
	r.HashIDs = s.capture.Hashes(prompt, r.BlockSize, p.Req.CacheSalt)
	s.capture.Add(r, p.Arrived)
}

// prompt decodes the prompt's ids, nil if the reply had none.
func (h *handoff) prompt() (ids []int32) {
	if h == nil {
		return nil
	}
	if h.idsAsBytes {
		var text string
		if json.Unmarshal(h.promptIDs, &text) != nil {
			return nil
		}
		ids, _ = openai.DecodeIDs(text) // unreadable: none
		return ids
	}
	_ = json.Unmarshal(h.promptIDs, &ids) // the same
	return ids
}

// millis is a duration as records and log lines have it.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
