package disagg

import (
	"encoding/json"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// able keeps the workers that can run all choices of the request; it overwrites list.
func (p *RoutePlan) able(list []discovery.Instance) []discovery.Instance {
	if p.Req.BestOf == 1 {
		return list
	}
	out := list[:0]
	for _, in := range list {
		if in.Info.Fork {
			out = append(out, in)
		}
	}
	return out
}

// needsFork is the answer to a request of several choices that no worker can run.
func needsFork(q *openai.Request) error {
	param, n := "n", q.N
	if q.BestOf > q.N {
		param, n = "best_of", q.BestOf
	}
	return openai.Unsupported(param, "%s is %d: these workers give one choice only; send the request several times", param, n)
}

// finishOf joins the finish reasons of a ctx reply's choices: the request goes on as long as one does.
func finishOf(choices []openai.Body) (finish string) {
	for i := range choices {
		var f string
		if raw, ok := choices[i].Get("finish_reason"); ok {
			_ = json.Unmarshal(raw, &f) // null and foreign types stay empty, which verify refuses
		}
		switch {
		case f == "" || f == openai.FinishCancelled || f == openai.FinishError:
			return f
		case i == 0 || f == openai.FinishNotFinished || f == openai.FinishLength && finish != openai.FinishNotFinished:
			finish = f
		}
	}
	return finish
}

// eventOf is what relaying needs of an event of a stream with several choices: the choice it is of, -1 for none.
func eventOf(data []byte) (choice int) {
	var chunk struct {
		Choices []struct {
			Index int `json:"index"`
		} `json:"choices"`
	}
	if json.Unmarshal(data, &chunk) != nil || len(chunk.Choices) == 0 {
		return -1
	}
	return max(0, min(chunk.Choices[0].Index, openai.MaxChoices-1))
}

// roles are the choices of a chat whose opening event went out.
type roles map[int]bool

// emitFirst sends roles and first deltas from the ctx reply while the gen worker still fetches blocks.
func (r *relay) emitFirst() error {
	h, req, out := r.g.h, r.g.p.Req, r.g.out
	out.early = true
	r.g.p.trip.first = r.s.now()
	enc := openai.NewChunks(req.Endpoint, openai.ReplyID(req.Endpoint, r.g.p.RequestID), h.model, openai.Created(h.id, r.s.now()))
	for i := range h.choices {
		out.have.at(i).ids = h.params.FirstGenTokens[i : i+1 : i+1]
		out.roles[i] = true
		if req.Endpoint != openai.Chat {
			continue
		}
		if err := out.holdData(enc.AppendRole(nil, i)); err != nil {
			return err
		}
	}
	for i := range h.choices {
		if err := r.emitDelta(enc, i); err != nil {
			return err
		}
	}
	return out.events.Flush() // the caller says what an error means
}

// emitDelta sends what can be shown of the first token of a choice. What it holds back, and how it ends, comes from the gen
// worker.
func (r *relay) emitDelta(enc *openai.Chunks, i int) error {
	h, req, choice := r.g.h, r.g.p.Req, &r.g.h.choices[i]
	d := openai.Delta{Choice: i}
	if raw, ok := choice.Get("logprobs"); ok && string(raw) != "null" && req.Logprobs >= 0 {
		d.Logprobs = raw
	}
	if req.ReturnTokenIDs {
		d.TokenIDs = h.params.FirstGenTokens[i : i+1]
	}
	if req.ContinuousUsage {
		u := openai.NewUsage(h.usage.PromptTokens, i+1, h.usage.Cached())
		d.Usage = &u
	}
	if delta := firstDelta(choice); delta != nil {
		return r.g.out.holdData(enc.AppendRelayed(nil, delta, d))
	}
	if d.Text = choiceText(req.Endpoint, choice); d.Text == "" && d.Logprobs == nil && d.TokenIDs == nil && d.Usage == nil {
		return nil
	}
	return r.g.out.holdData(enc.AppendDelta(nil, d))
}

// firstDelta is what a stream may show of a choice's first token, nil = nothing yet.
func firstDelta(choice *openai.Body) json.RawMessage {
	raw, ok := choice.Get("first_delta")
	if !ok || string(raw) == "null" {
		return nil
	}
	return raw
}

// showsEarly tells that some choice of a ctx reply has something to show.
func (h *handoff) showsEarly() bool {
	for i := range h.choices {
		if firstDelta(&h.choices[i]) != nil {
			return true
		}
	}
	return false
}
