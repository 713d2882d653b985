package disagg

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"tandem/serve/conversation"
	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
	"tandem/serve/trace"
)

// Path says which legs a request takes; it is the value of X-Disagg-Path.
type Path string

// The paths.
const (
	PathCtxGen  Path = "ctx_gen"
	PathGenOnly Path = "gen_only"
	PathCtxOnly Path = "ctx_only"
)

// RoutePlan is all that both legs of one request read. It is built once, before any leg.
type RoutePlan struct {
	Req       *openai.Request
	RequestID string            // X-Request-ID
	Tenant    string            // name of the API key, "" = no keys
	Ctx, Gen  conversation.View // what the legs route by
	Path      Path              // as planned; a finished ctx leg turns ctx_gen into ctx_only
	Arrived   time.Time
	Deadline  time.Time // of the whole answer, or of a stream's first event
	overtime  error     // what its passing means: errTimeout, or errPatience

	trip journey
	last *handoff // of the newest ctx reply, nil = none
	link trace.Link

	kept []chan struct{} // closed when other frontends can know where the conversation lives

	reserved router.Selection // gen worker that was chosen before the ctx leg
	bypass   bool             // it runs the whole request

	tokens  []int32 // prompt ids if the client sent them
	made    bool    // tokens were made here and go to the workers
	learned bool    // tokens are from here or from the ctx worker
	text    string  // else the text that placement hashes
}

// admitted completes the plan of a request that arrived with what was found out about it.
func (p *RoutePlan) admitted(req *openai.Request, rules *conversation.Rules, who *conversation.Resolved, limit time.Duration) {
	p.Req, p.Deadline, p.overtime = req, p.Arrived.Add(limit), errTimeout
	p.Ctx, p.Gen = rules.Views(*who)
	switch {
	case req.PromptIDs != nil:
		p.tokens = req.PromptIDs
	case req.Prompt.IDs != nil:
		p.tokens = req.Prompt.IDs
	case req.Endpoint == openai.Chat:
		p.text = chatText(req.Messages)
	default:
		p.text = req.Prompt.Text
	}
}

// chatText is what placement sees of a chat: "role:content" lines.
func chatText(messages []openai.ChatMessage) string {
	var b strings.Builder
	for i := range messages {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(messages[i].Role)
		b.WriteByte(':')
		b.WriteString(messages[i].Content)
	}
	return b.String()
}

// view returns the leg's view.
func (p *RoutePlan) view(role discovery.Role) conversation.View {
	if role == discovery.Context {
		return p.Ctx
	}
	return p.Gen
}

// routing is the placement question of a leg.
func (p *RoutePlan) routing(role discovery.Role, candidates func() []discovery.Instance, exclude []string) router.Request {
	return router.Request{
		RoutingID: p.routingID(role), ConversationID: p.ownID(role),
		Tokens: p.tokens, Learned: p.learned, Text: p.text, Salt: p.Req.CacheSalt,
		MaxTokens: p.Req.MaxTokensOr(0) * p.Req.BestOf, Generation: role == discovery.Generation, Candidates: candidates, Exclude: exclude,
	}
}

// routingID names what a leg is placed by, and ownID the request's own conversation, "" = none.
func (p *RoutePlan) routingID(role discovery.Role) string {
	return p.ofTenant("\x00", p.view(role).RoutingID())
}

func (p *RoutePlan) ownID(role discovery.Role) string {
	return p.ofTenant("\x00", p.view(role).ConversationID)
}

// base copies the client's body with the resolved conversation id in it.
func (p *RoutePlan) base(role discovery.Role) openai.Body {
	body := p.Req.Body.Clone()
	body.Delete("conversation_params")
	if id := p.view(role).ConversationID; id != "" {
		raw := openai.AppendString([]byte(`{"conversation_id":`), id)
		body.Set("conversation_params", append(raw, '}'))
	}
	return body
}

// ctxBody is the request of a ctx leg: not streamed, with fresh parameters; all else is the client's.
func (p *RoutePlan) ctxBody(id int64, idsAsBytes bool) (legBody, error) {
	body := p.base(discovery.Context)
	body.Set("stream", json.RawMessage("false"))
	body.Delete("stream_options")
	if err := p.putIDs(&body); err != nil {
		return legBody{}, fmt.Errorf("ctx request: %w", err)
	}
	params := openai.DisaggParams{
		RequestType: openai.ContextOnly, ScheduleStyle: p.style(),
		DisaggRequestID: &id, ReturnPromptIDsB64: idsAsBytes,
	}
	if err := body.SetValue("disaggregated_params", params); err != nil {
		return legBody{}, fmt.Errorf("ctx request: %w", err)
	}
	return finish(body, &params), nil
}

// style is the schedule that the legs follow, in the words of the wire.
func (p *RoutePlan) style() string {
	if p.Path == PathGenCtx {
		return openai.GenerationFirst
	}
	return openai.ContextFirst
}

// genBody is the request of a gen leg after a hand-over: the ctx worker's parameters and token ids, so that gen neither
// renders nor tokenises.
func (p *RoutePlan) genBody(h *handoff, strip bool) (legBody, error) {
	body := p.base(discovery.Generation)
	p.putPrompt(&body, h, strip)
	params := *h.params
	params.RequestType, params.ScheduleStyle = openai.GenerationOnly, openai.ContextFirst
	params.CtxUsage, params.FirstTokenEmitted = &h.usage, h.early
	if err := body.SetValue("disaggregated_params", params); err != nil {
		return legBody{}, fmt.Errorf("gen request: %w", err)
	}
	return finish(body, &params), nil
}

// putPrompt replaces the client's prompt by the token ids of the ctx reply.
func (p *RoutePlan) putPrompt(body *openai.Body, h *handoff, strip bool) {
	for _, form := range []string{"prompt", "prompt_token_ids", "prompt_token_ids_b64"} { // the client's own
		body.Delete(form)
	}
	switch {
	case h.idsAsBytes:
		body.Set("prompt_token_ids_b64", h.promptIDs)
	case p.Req.Endpoint == openai.Completion:
		body.Set("prompt", h.promptIDs)
	default:
		body.Set("prompt_token_ids", h.promptIDs)
	}
	if strip {
		p.stripHistory(body)
	}
}

// stripHistory leaves only the last message, for a worker that has the prompt's ids.
func (p *RoutePlan) stripHistory(body *openai.Body) {
	if len(p.Req.Messages) > 1 {
		last := slices.Concat([]byte("["), p.Req.Messages[len(p.Req.Messages)-1].JSON, []byte("]"))
		body.Set("messages", last)
	}
}

// wholeBody is the client's request for a worker that runs it alone.
func (p *RoutePlan) wholeBody() legBody {
	body := p.base(discovery.Generation)
	_ = p.putIDs(&body) // a list of numbers has an encoding
	return finish(body, nil)
}
