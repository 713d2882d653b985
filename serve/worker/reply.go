package worker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// answer gathers the outputs of one choice that is not streamed.
type answer struct {
	text   []byte
	tokens []request.Token
	last   runner.Output
}

// reply answers a request in one piece.
func (x *exchange) reply(s Stream) {
	all := make([]answer, x.job.req.Answers())
	t := tally{open: len(all)}
	for done := false; !done; {
		o, err := x.next(x.r.Context(), s)
		if err != nil {
			x.fail(err)
			return
		}
		a := &all[o.Choice]
		a.text = append(a.text, o.Text...)
		a.tokens = append(a.tokens, o.Tokens...)
		a.last = o
		x.job.scores = append(x.job.scores, o.Prompt...)
		done = t.add(&o)
	}
	res, err := x.job.response(all, t.usage)
	if err != nil {
		x.fail(err)
		return
	}
	x.finished(t.finish, *res.Usage)
	if t := x.timing(); t != "" {
		x.w.Header().Set(trace.HeaderTiming, t)
	}
	writeJSON(x.w, res)
}

func (j *job) response(all []answer, used request.Usage) (*openai.Response, error) {
	if j.wire.EchoOnly() { // the engine has to choose a token, which nobody wants
		used.CompletionTokens = 0
		for i := range all {
			all[i].text, all[i].tokens = nil, nil
		}
	}
	usage := j.usage(used)
	res := &openai.Response{
		ID: j.id, Object: openai.ObjectOf(j.wire.Endpoint, false), Created: j.made, Model: j.info.Model, Usage: &usage,
	}
	goesOn := slices.ContainsFunc(all, func(a answer) bool { return a.last.Finish == request.FinishNotFinished })
	shown := all
	if !goesOn && len(all) > j.wire.N {
		shown = best(all, j.wire.N)
	}
	for i := range shown {
		res.Choices = append(res.Choices, j.choice(i, &shown[i]))
	}
	if j.wire.PromptLogprobs >= 0 && j.wire.Endpoint == openai.Chat {
		res.PromptLogprobs = j.promptLogprobs()
	}
	if j.wire.ReturnTokenIDs {
		res.PromptTokenIDs = j.req.Prompt
	}
	if j.req.Kind == request.ContextOnly {
		if err := j.contextReply(res, all, goesOn); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// choice is the reply's choice number i.
func (j *job) choice(i int, a *answer) openai.Choice {
	divide := j.divide(i)
	goesOn := a.last.Finish == request.FinishNotFinished
	var d openai.Delta
	divide.next(&d, j.echoed()+string(a.text), !goesOn)
	c := openai.Choice{Index: i, FinishReason: divide.finish(a.last.Finish)}
	if j.wire.Endpoint == openai.Chat {
		c.Message = message(&d)
	} else {
		c.Text = &d.Text
	}
	if j.wire.Logprobs >= 0 {
		lp := logprobs{job: j}
		c.Logprobs = lp.append(nil, a.tokens)
	}
	if j.wire.PromptLogprobs >= 0 && j.wire.Endpoint == openai.Completion {
		c.PromptLogprobs = j.promptLogprobs()
	}
	if j.wire.ReturnTokenIDs {
		c.TokenIDs = idsOf(a.tokens)
	}
	if goesOn && !d.Empty() {
		c.FirstDelta = openai.AppendFirstDelta(nil, j.wire.Endpoint, d)
	}
	return c
}

// contextReply adds what the gen leg will need, if a choice goes on.
func (j *job) contextReply(res *openai.Response, all []answer, goesOn bool) error {
	d := j.wire.Disagg
	id := *d.DisaggRequestID
	out := &openai.DisaggParams{
		RequestType: openai.ContextOnly, ScheduleStyle: d.ScheduleStyle, DisaggRequestID: &id, CtxRequestID: &id,
	}
	if j.wire.WantsLogprobs() {
		out.FirstGenLogProbs = [][]openai.TokenLog{}
	}
	for i := range all {
		out.FirstGenTokens = append(out.FirstGenTokens, idsOf(all[i].tokens)...)
		for _, t := range all[i].tokens {
			if j.wire.WantsLogprobs() {
				out.FirstGenLogProbs = append(out.FirstGenLogProbs, tokenLogs(t))
			}
		}
	}
	if goesOn {
		first := &all[0].last
		h := first.Handle
		if h == nil || len(first.Opaque) == 0 || len(out.FirstGenTokens) != len(all) {
			return request.Errorf(request.Internal, "the engine left the hand-over incomplete (%d tokens)", len(out.FirstGenTokens))
		}
		rank, endpoint := h.Rank, h.Endpoint
		state := base64.StdEncoding.EncodeToString(first.Opaque)
		out.CtxDPRank, out.CtxInfoEndpoint, out.EncodedOpaqueState = &rank, &endpoint, &state
	}
	res.Choices[0].Disagg = out
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

// wholeWrite is how long a client has to take a piece of an answer that is no stream.
const wholeWrite = 30 * time.Second

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
	_ = openai.WriteBody(w, http.StatusOK, buf.Bytes(), wholeWrite) // a client that is gone needs no answer
}
