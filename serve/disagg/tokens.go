package disagg

import (
	"context"
	"encoding/json"

	"tandem/engine/tokenizer"
	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

// Template renders a chat into the text of a prompt.
type Template interface {
	// Render takes JSON texts: messages a list, tools a list or nil, kwargs an object or nil.
	Render(messages, tools, kwargs json.RawMessage) (string, error)
}

// Prompts turns prompts into token ids as the workers do, so that routers can see blocks. Its ids go on to the workers,
// which then need not tokenise again.
type Prompts struct {
	Tokenizer   *tokenizer.Tokenizer
	Template    Template // nil: the model has none
	Fingerprint string   // of the model whose tokenizer this is, "" = unknown and trusted
}

// ids returns the prompt's token ids, nil if they cannot be told: the worker then judges the request.
func (t *Prompts) ids(q *openai.Request) []int32 {
	text, opts := q.Prompt.Text, tokenizer.EncodeOptions{AddSpecial: true}
	if q.Endpoint == openai.Chat {
		if t.Template == nil {
			return nil
		}
		var err error
		if text, err = t.Template.Render(q.MessagesJSON(), q.Tools, q.ChatTemplateKwargs); err != nil {
			return nil
		}
		opts = tokenizer.EncodeOptions{}
	}
	ids, err := t.Tokenizer.Encode(text, opts)
	if err != nil || len(ids) == 0 {
		return nil
	}
	return ids
}

// tokenise gives the plan its token ids, if the frontend can and the workers use the same model.
func (s *Server) tokenise(ctx context.Context, p *RoutePlan) {
	if s.prompts == nil || p.tokens != nil || p.Req.ChatTemplate != "" { // which only workers render
		return
	}
	if want := s.prompts.Fingerprint; want != "" {
		for _, in := range s.reg.Candidates(discovery.Context, p.Req.Model) {
			if in.Info.Fingerprint != want {
				return
			}
		}
	}
	leave, err := s.heavy.Enter(ctx, promptBytes(p.Req))
	if err != nil {
		return // the request has ended, as its first leg will say
	}
	defer leave()
	if ids := s.prompts.ids(p.Req); ids != nil {
		p.tokens, p.made, p.learned = ids, true, true
	}
}

// promptBytes is about how many bytes of text a prompt has.
func promptBytes(q *openai.Request) int {
	n := len(q.Prompt.Text)
	for i := range q.Messages {
		n += len(q.Messages[i].JSON)
	}
	return n
}

// putIDs replaces the prompt in a body by the ids that the frontend made.
func (p *RoutePlan) putIDs(body *openai.Body) error {
	switch {
	case !p.made:
		return nil
	case p.Req.Endpoint == openai.Completion:
		return body.SetValue("prompt", p.tokens)
	}
	return body.SetValue("prompt_token_ids", p.tokens)
}

// learn takes the token ids from a ctx reply, for a gen router that goes by blocks.
func (s *Server) learn(p *RoutePlan, h *handoff) {
	if _, ok := s.routers[discovery.Generation].(router.Listener); !ok || p.tokens != nil || h.idsAsBytes {
		return
	}
	var ids []int32
	if json.Unmarshal(h.promptIDs, &ids) == nil {
		p.tokens, p.learned = ids, true
	}
}
