package worker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tokenizer"
	"tandem/serve/openai"
)

// defaultCompletionTokens is the budget of a text completion that names none,
// as OpenAI has it; a chat goes on to the end of the context.
const defaultCompletionTokens = 16

// job is one request on its way through the server.
type job struct {
	*Backend
	wire *openai.Request
	in   internal
	info runner.Info
	req  *request.Request
	// arrived is the engine's time when the headers had come.
	arrived time.Duration
	// opaque is the transfer handle of a gen leg.
	opaque []byte
	// parts are the choices of a stream that goes on here, each a request of its
	// own; nil: req has all choices.
	parts []*request.Request
	// scores are the prompt's tokens after the first, with their log-probabilities.
	scores []request.Token
	id     string // of the reply
	made   int64  // created, unix seconds
}

// kindOf applies the role rules to request_type.
func (s *Server) kindOf(q *openai.Request, role executor.Role) (request.Kind, error) {
	const param = "disaggregated_params.request_type"
	d := q.Disagg
	if d == nil || d.RequestType == "" {
		if role == executor.Ctx {
			return 0, openai.Invalid(param, "this worker has the role context and takes request_type %q only: send whole requests to a generation or mixed worker, or to the frontend", openai.ContextOnly)
		}
		return request.Full, nil
	}
	if !s.cfg.Transceiver {
		return 0, openai.Invalid(param, "this worker has no cache_transceiver_config and takes whole requests only: leave disaggregated_params out, or configure the transceiver")
	}
	if d.DisaggRequestID == nil || *d.DisaggRequestID <= 0 {
		return 0, openai.Invalid("disaggregated_params.disagg_request_id", "disaggregated_params needs a positive disagg_request_id")
	}
	switch {
	case d.RequestType == openai.ContextOnly && role == executor.Gen,
		d.RequestType == openai.GenerationOnly && role == executor.Ctx:
		return 0, openai.Invalid(param, "this worker has the role %s and does not take request_type %q", role, d.RequestType)
	case d.RequestType == openai.ContextOnly && q.Stream:
		return 0, openai.Invalid("stream", "a context_only request cannot be streamed: set stream to false")
	case d.RequestType == openai.ContextOnly:
		return request.ContextOnly, nil
	}
	return request.GenerationOnly, nil
}

// build makes the engine request out of the wire request.
func (j *job) build(ctx context.Context, kind request.Kind) error {
	q := j.wire
	prompt, err := j.prompt(ctx, kind)
	if err != nil {
		return err
	}
	prompt = j.truncate(prompt)
	if err := j.checkPrompt(prompt); err != nil {
		return err
	}
	sampling, err := j.sampling()
	if err != nil {
		return err
	}
	r := &request.Request{
		ID: j.Engine.NewID(), Kind: kind, Prompt: prompt, Choices: q.BestOf, Sampling: sampling,
		Priority: q.Priority, CacheSalt: q.CacheSalt, DPRank: j.in.dpRank, DPRelax: j.in.dpRelax,
	}
	r.MaxTokens = min(max(1, q.MaxTokensOr(j.defaultBudget())), max(1, j.info.MaxSeqLen-len(prompt)))
	if q.Guided != nil {
		if r.Guide, err = j.guides.get(ctx, j.Backend, j.info.Vocab, q.Guided, guideTime); err != nil {
			return err
		}
	}
	if top := q.PromptTop(); top >= 0 {
		r.Score = &request.Score{Top: top}
	}
	r.Retention = retentionOf(q.Retention)
	r.ConversationID = j.in.session
	if c := conversationOf(q); c != nil {
		r.ConversationID = *c
	}
	r.AffinityKey = j.in.routingKey(r.ConversationID)
	if j.in.deadline > 0 {
		r.Deadline = j.arrived + j.in.deadline
	}
	if kind != request.Full {
		r.TransferID, r.GenFirst = *q.Disagg.DisaggRequestID, q.Disagg.ScheduleStyle == openai.GenerationFirst
	}
	switch {
	case r.GenFirst && kind == request.GenerationOnly:
		err = j.meet()
	case kind == request.GenerationOnly:
		err = j.handover(r)
	case q.Whole() && kind != request.Full:
		err = openai.Invalid("disaggregated_params.request_type", "echo and prompt_logprobs need a whole request: send it without request_type")
	case kind == request.Full && q.Disagg != nil && len(q.Disagg.FirstGenTokens)+len(q.Disagg.ChoiceTokens) > 0:
		err = j.goOn(r)
	}
	if err != nil {
		return err
	}
	j.show(r)
	j.req = r
	return nil
}

func retentionOf(q *openai.Retention) *request.Retention {
	if q == nil {
		return nil
	}
	keep := func(k openai.RetentionRange) request.Keep {
		return request.Keep{From: k.From, To: k.To, Priority: uint8(k.Priority), For: k.For}
	}
	out := &request.Retention{}
	for _, k := range q.Ranges {
		out.Prompt = append(out.Prompt, keep(k))
	}
	if q.Decode != nil {
		k := keep(*q.Decode)
		out.Output = &k
	}
	return out
}

func (j *job) defaultBudget() int {
	if j.wire.Endpoint == openai.Completion {
		return defaultCompletionTokens
	}
	return j.info.MaxSeqLen
}

// prompt returns the prompt's ids. A gen leg does not tokenise: its ids must be
// those the ctx worker used. Only one that starts together with its ctx leg may
// have to; that the ids are equal is proved when the two meet.
func (j *job) prompt(ctx context.Context, kind request.Kind) ([]int32, error) {
	q := j.wire
	switch {
	case q.PromptIDs != nil:
		return q.PromptIDs, nil
	case q.Endpoint == openai.Completion && q.Prompt.IDs != nil:
		return q.Prompt.IDs, nil
	case kind == request.GenerationOnly && q.Disagg.ScheduleStyle != openai.GenerationFirst:
		return nil, openai.Invalid("prompt_token_ids", "a generation_only request needs the prompt's token ids: send prompt_token_ids or prompt_token_ids_b64 from the ctx reply")
	case q.Endpoint == openai.Completion:
		return j.encode("prompt", q.Prompt.Text, tokenizer.EncodeOptions{AddSpecial: true})
	case q.ChatTemplate != "" && j.Foreign == nil:
		return nil, openai.Unsupported("chat_template", "a chat template in the request is refused: leave chat_template out, the model's own is used")
	case j.Template == nil && q.ChatTemplate == "":
		return nil, openai.Invalid("messages", "this model has no chat template: use /v1/completions")
	}
	text, err := j.render(ctx)
	var wire *openai.Error
	if errors.As(err, &wire) {
		return nil, wire // it names the field to blame
	}
	if err != nil {
		return nil, openai.Invalid("messages", "%s", openai.Cut(err.Error(), openai.MaxErrorText))
	}
	return j.encode("messages", text, tokenizer.EncodeOptions{})
}

// render writes the chat by the model's template, or by the request's own.
func (j *job) render(ctx context.Context) (string, error) {
	q := j.wire
	if q.ChatTemplate != "" {
		return j.Foreign(ctx, q.ChatTemplate, q.MessagesJSON(), q.Tools, q.ChatTemplateKwargs)
	}
	return j.Template.Render(q.MessagesJSON(), q.Tools, q.ChatTemplateKwargs)
}

func (j *job) encode(param, text string, o tokenizer.EncodeOptions) ([]int32, error) {
	ids, err := j.Tokenizer.Encode(text, o)
	if err != nil {
		return nil, openai.Invalid(param, "%s cannot be tokenised: %v", param, err)
	}
	if len(ids) == 0 {
		return nil, openai.Invalid(param, "%s gives no tokens: send some text", param)
	}
	return ids, nil
}

func (j *job) checkPrompt(ids []int32) error {
	param := "messages"
	switch {
	case j.wire.PromptIDs != nil:
		param = "prompt_token_ids"
	case j.wire.Endpoint == openai.Completion:
		param = "prompt"
	}
	if limit := j.info.MaxSeqLen; len(ids) >= limit {
		return openai.PromptTooLong(param, len(ids), limit)
	}
	if i := slices.IndexFunc(ids, func(id int32) bool { return id < 0 || int(id) >= j.info.Vocab }); i >= 0 {
		return openai.Invalid(param, "token id %d at index %d of the prompt is outside the vocabulary of %d", ids[i], i, j.info.Vocab)
	}
	return nil
}

// handover fills in what a gen leg carries over from the ctx reply.
func (j *job) handover(r *request.Request) error {
	const at = "disaggregated_params."
	d, n, wants := j.wire.Disagg, r.Answers(), j.wire.WantsLogprobs()
	if len(d.FirstGenTokens) != n {
		return openai.Invalid(at+"first_gen_tokens", "first_gen_tokens has %d tokens: a generation_only request needs the one that ctx sampled for each of the %d choices",
			len(d.FirstGenTokens), n)
	}
	if wants && len(d.FirstGenLogProbs) != n {
		return openai.Invalid(at+"first_gen_log_probs", "first_gen_log_probs has %d positions: a request with logprobs needs that of the first token of each of the %d choices",
			len(d.FirstGenLogProbs), n)
	}
	opaque, err := opaqueOf(d)
	if err != nil {
		return err
	}
	if r.FirstTokens, err = j.tokensOf(at+"first_gen_tokens", d.FirstGenTokens); err != nil {
		return err
	}
	for i := range r.FirstTokens {
		if !wants {
			break
		}
		if err := firstLogprob(&r.FirstTokens[i], d.FirstGenLogProbs[i], max(j.wire.Logprobs, 0)); err != nil {
			return err
		}
	}
	j.opaque, r.FirstEmitted = opaque, d.FirstTokenEmitted
	return nil
}

// meet fills in how a gen leg finds the ctx leg that starts together with it.
func (j *job) meet() (err error) {
	const at = "disaggregated_params."
	if d := j.wire.Disagg; len(d.FirstGenTokens) > 0 || d.FirstTokenEmitted {
		return openai.Invalid(at+"first_gen_tokens", "a generation_first request has no first token yet: it comes with the KV blocks")
	}
	j.opaque, err = opaqueOf(j.wire.Disagg)
	return err
}

// tokensOf makes tokens of ids that another worker sampled.
func (j *job) tokensOf(param string, ids []int32) ([]request.Token, error) {
	out := make([]request.Token, len(ids))
	for i, id := range ids {
		if id < 0 || int(id) >= j.info.Vocab {
			return nil, openai.Invalid(param, "token id %d at index %d is outside the vocabulary of %d", id, i, j.info.Vocab)
		}
		out[i].ID = id
	}
	return out, nil
}

// goOn fills in the tokens that another worker decoded before its stream broke. The client has them, so decoding goes on
// after them and only what follows is sent. Each of several choices becomes a request of its own, which find the prompt's
// blocks in the index: they have got differently far.
func (j *job) goOn(r *request.Request) (err error) {
	const at = "disaggregated_params."
	d, n := j.wire.Disagg, r.Answers()
	if !j.wire.Stream || !d.FirstTokenEmitted {
		return openai.Invalid(at+"first_gen_tokens", "first_gen_tokens or choice_tokens without a request_type go on with a broken stream: set stream and first_token_emitted")
	}
	r.FirstEmitted, r.Score = true, nil
	if n == 1 && d.ChoiceTokens == nil {
		r.FirstTokens, err = j.tokensOf(at+"first_gen_tokens", d.FirstGenTokens)
		return err
	}
	if len(d.ChoiceTokens) != n || len(d.FirstGenTokens) > 0 {
		return openai.Invalid(at+"choice_tokens", "choice_tokens has %d lists and first_gen_tokens %d tokens: a stream of %d choices goes on with one list for each",
			len(d.ChoiceTokens), len(d.FirstGenTokens), n)
	}
	for i, ids := range d.ChoiceTokens {
		q := *r
		q.Choices, q.Sampling.Stream = 1, uint32(i)
		if q.FirstTokens, err = j.tokensOf(at+"choice_tokens", ids); err != nil {
			return err
		}
		if i > 0 {
			q.ID = j.Engine.NewID()
		}
		j.show(&q)
		j.parts = append(j.parts, &q)
	}
	return nil
}

// shown returns the tokens that the client has of a choice already.
func (j *job) shown(choice int) []request.Token {
	switch r := j.req; {
	case !r.FirstEmitted:
		return nil
	case j.parts != nil:
		return j.parts[choice].FirstTokens
	case r.Answers() > 1:
		return r.FirstTokens[choice : choice+1]
	default:
		return r.FirstTokens
	}
}

// show sets how the request's tokens become text: as a rule, for a rank in
// another process, and made of it for this one.
func (j *job) show(r *request.Request) {
	hidden := slices.Clone(r.Sampling.StopTokenIDs)
	if !r.Sampling.IgnoreEOS {
		hidden = append(hidden, j.EOS...)
	}
	r.Shown = &request.Shown{Stop: j.wire.Stop, IncludeStop: j.wire.IncludeStop, Hidden: hidden, Special: j.markers()}
	r.Text = runner.TextOf(j.Tokenizer, r)
	for range r.Answers() - 1 {
		r.ForkTexts = append(r.ForkTexts, runner.TextOf(j.Tokenizer, r))
	}
}

// checkModel refuses a name that is not served; no name means the only model.
func checkModel(q *openai.Request, served string) error {
	if q.Model == "" || q.Model == served {
		return nil
	}
	e := openai.NewError(http.StatusNotFound, openai.CodeModelNotFound,
		"the model %q does not exist here: use %q", openai.Cut(q.Model, 200), served)
	e.Param = "model"
	return e
}
