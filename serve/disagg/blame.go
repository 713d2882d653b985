package disagg

import (
	"net/http"
	"strings"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// tooLong refuses a prompt that none of the workers which may get it has room for, before it is sent to one: as token ids it may
// be many times what the client sent.
func (s *Server) tooLong(p *RoutePlan) error {
	if p.tokens == nil || p.Req.TruncatePrompt != 0 {
		return nil
	}
	list := s.reg.Candidates(discovery.Context, p.Req.Model)
	if p.Path == PathGenOnly {
		list = s.reg.Alone(p.Req.Model)
	}
	limit := 0
	for _, in := range p.able(list) {
		if in.Info.MaxSeqLen <= 0 {
			return nil // it tells no limit, and will judge
		}
		limit = max(limit, in.Info.MaxSeqLen)
	}
	if n := len(p.tokens); limit > 0 && n >= limit {
		return openai.PromptTooLong(p.ownPrompt(), n, limit)
	}
	return nil
}

// ownPrompt names the member in which the client sent its prompt.
func (p *RoutePlan) ownPrompt() string {
	for _, name := range []string{"prompt_token_ids", "prompt_token_ids_b64"} {
		if raw, ok := p.Req.Body.Get(name); ok && string(raw) != "null" {
			return name
		}
	}
	if p.Req.Endpoint == openai.Chat {
		return "messages"
	}
	return "prompt"
}

// ofPrompt are the members that have a prompt.
var ofPrompt = map[string]bool{"prompt": true, "messages": true, "prompt_token_ids": true, "prompt_token_ids_b64": true}

// codeCapacityNever is a worker's answer when its pool is too small for a request, however idle it is.
const codeCapacityNever = "capacity_never"

// blame looks at what a worker refuses with a 4xx. What the frontend or another worker has put into the leg is no mistake of the
// client's: then it returns true. Else it says param in the client's words.
func (p *RoutePlan) blame(role discovery.Role, e *openai.Error) (ours bool) {
	root := e.Param
	if i := strings.IndexAny(root, ".["); i >= 0 {
		root = root[:i]
	}
	tooMuch := e.Code == openai.CodeContextLength || e.Code == codeCapacityNever
	switch {
	case root == "disaggregated_params": // clients may not send it
		return true
	case !ofPrompt[root]:
	case role == discovery.Generation && p.last != nil && !tooMuch: // the ctx worker had taken it
		return e.Status == http.StatusBadRequest
	case root != p.ownPrompt():
		e.Param = p.ownPrompt()
	}
	return false
}
