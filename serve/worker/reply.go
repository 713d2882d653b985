package worker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"

	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// answer gathers the outputs of a request that is not streamed.
type answer struct {
	text   []byte
	tokens []request.Token
	last   runner.Output
}

// reply answers a request in one piece.
func (x *exchange) reply(s Stream) {
	var a answer
	for a.last.Finish == request.Running {
		o, err := x.next(x.r.Context(), s)
		if err != nil {
			x.fail(err)
			return
		}
		a.text = append(a.text, o.Text...)
		a.tokens = append(a.tokens, o.Tokens...)
		a.last = o
	}
	res, err := x.job.response(&a)
	if err != nil {
		x.fail(err)
		return
	}
	x.finished(a.last.Finish, *res.Usage)
	if t := x.timing(); t != "" {
		x.w.Header().Set(trace.HeaderTiming, t)
	}
	writeJSON(x.w, res)
}

func (j *job) response(a *answer) (*openai.Response, error) {
	usage := j.usage(a.last.Usage)
	choice := openai.Choice{FinishReason: string(a.last.Finish)}
	text := string(a.text)
	if j.wire.Endpoint == openai.Chat {
		choice.Message = &openai.Message{Role: "assistant", Content: text}
	} else {
		choice.Text = &text
	}
	if j.wire.Logprobs >= 0 {
		lp := logprobs{job: j}
		choice.Logprobs = lp.append(nil, a.tokens)
	}
	res := &openai.Response{
		ID: j.id, Object: openai.ObjectOf(j.wire.Endpoint, false), Created: j.made, Model: j.info.Model, Usage: &usage,
	}
	if j.wire.ReturnTokenIDs {
		choice.TokenIDs = idsOf(a.tokens)
		res.PromptTokenIDs = j.req.Prompt
	}
	if j.req.Kind == request.ContextOnly {
		if err := j.contextReply(res, &choice, a); err != nil {
			return nil, err
		}
	}
	res.Choices = []openai.Choice{choice}
	return res, nil
}

// contextReply adds what the gen leg will need.
func (j *job) contextReply(res *openai.Response, choice *openai.Choice, a *answer) error {
	d := j.wire.Disagg
	id := *d.DisaggRequestID
	out := &openai.DisaggParams{
		RequestType: openai.ContextOnly, ScheduleStyle: d.ScheduleStyle,
		DisaggRequestID: &id, CtxRequestID: &id, FirstGenTokens: idsOf(a.tokens),
	}
	if j.wire.Logprobs >= 0 {
		out.FirstGenLogProbs = [][]openai.TokenLog{}
		for _, t := range a.tokens {
			out.FirstGenLogProbs = append(out.FirstGenLogProbs, tokenLogs(t))
		}
	}
	if a.last.Finish == request.FinishNotFinished {
		h := a.last.Handle
		if h == nil || len(a.last.Opaque) == 0 || len(a.tokens) != 1 {
			return request.Errorf(request.Internal, "the engine left the hand-over incomplete (%d tokens)", len(a.tokens))
		}
		rank, endpoint := h.Rank, h.Endpoint
		state := base64.StdEncoding.EncodeToString(a.last.Opaque)
		out.CtxDPRank, out.CtxInfoEndpoint, out.EncodedOpaqueState = &rank, &endpoint, &state
		if len(a.text) > 0 {
			choice.FirstDelta = openai.AppendFirstDelta(nil, j.wire.Endpoint, string(a.text))
		}
	}
	choice.Disagg = out
	res.PromptTokenIDs = j.req.Prompt
	if d.ReturnPromptIDsB64 {
		res.PromptTokenIDs, res.PromptTokenIDsB64 = nil, openai.EncodeIDs(j.req.Prompt)
	}
	return nil
}

func idsOf(tokens []request.Token) []int32 {
	ids := make([]int32, len(tokens))
	for i := range tokens {
		ids[i] = tokens[i].ID
	}
	return ids
}

// writeJSON answers 200 with v.
func writeJSON(w http.ResponseWriter, v any) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		openai.WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(buf.Bytes())
}
