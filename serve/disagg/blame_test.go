package disagg

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tandem/serve/discovery"
)

// refuses makes a worker that answers legs with a 400.
func refuses(t *testing.T, role discovery.Role, param, code string) *stub {
	return says(t, role, http.StatusBadRequest, fmt.Sprintf(
		`{"error":{"message":"no good","type":"invalid_request_error","param":%q,"code":%q}}`, param, code))
}

// A worker that refuses what the cluster itself has put into a leg says nothing of the client's request: that is a failure of
// the cluster. What it says of the client's own members is for the client.
func TestClientsAreNotBlamedForLegs(t *testing.T) {
	const chat = "/v1/chat/completions"
	bodies := map[string]string{
		completions: hello,
		chat:        `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":3}`,
	}
	for _, c := range []struct {
		role        discovery.Role
		path        string
		param, code string
		want        int
		blamed      string // of a 400
	}{
		{discovery.Generation, completions, "disaggregated_params.encoded_opaque_state", "invalid_request", 502, ""},
		{discovery.Context, completions, "disaggregated_params.disagg_request_id", "invalid_request", 502, ""},
		{discovery.Generation, completions, "prompt", "invalid_request", 502, ""},
		{discovery.Generation, completions, "prompt[7]", "invalid_request", 502, ""},
		{discovery.Generation, chat, "prompt_token_ids", "invalid_request", 502, ""},
		{discovery.Generation, chat, "messages[0].content", "invalid_request", 502, ""},
		{discovery.Generation, chat, "prompt_token_ids", "context_length_exceeded", 400, "messages"},
		{discovery.Generation, chat, "prompt_token_ids", "capacity_never", 400, "messages"},
		{discovery.Generation, completions, "prompt", "context_length_exceeded", 400, "prompt"},
		{discovery.Generation, completions, "logit_bias", "invalid_request", 400, "logit_bias"},
		{discovery.Context, chat, "messages[3].content", "invalid_request", 400, "messages[3].content"},
		{discovery.Context, chat, "prompt_token_ids", "context_length_exceeded", 400, "messages"},
		{discovery.Context, completions, "prompt_token_ids[3]", "invalid_request", 400, "prompt"},
	} {
		t.Run(fmt.Sprint(c.role, " ", c.path, " ", c.param, " ", c.code), func(t *testing.T) {
			ctx, gen := newStub(t, discovery.Context, ctxReply{}.script), refuses(t, discovery.Generation, c.param, c.code)
			if c.role == discovery.Context {
				ctx, gen = refuses(t, discovery.Context, c.param, c.code), newStub(t, discovery.Generation, genReply{}.script)
			}
			a := newRig(t, []*stub{ctx}, []*stub{gen}).post(c.path, bodies[c.path])
			a.wantError(t, c.want, "no good")
			e := a.body.Error
			if c.want == 502 && (e.Type != "upstream_error" || e.Param != nil || e.Code != nil) {
				t.Errorf("%s", a.raw)
			}
			if c.want == 400 && (e.Type != "invalid_request_error" || e.Param == nil || *e.Param != c.blamed) {
				t.Errorf("%s does not blame %s", a.raw, c.blamed)
			}
			if c.role == discovery.Generation && len(ctx.requests()) == 1 {
				<-ctx.aborts // the blocks are given up whoever is to blame
			}
		})
	}
}

// A prompt whose ids leave no worker room for an answer is refused where they are counted, in the client's words: as a list of
// ids it can be larger than any worker takes, which would say that the client's body is too large.
func TestTooLongPromptsGoNowhere(t *testing.T) {
	text := strings.Repeat("x", 2048)
	for name, c := range map[string]struct {
		path, body, param string
		prompts           Prompts
	}{
		"made from a text":  {completions, `{"model":"tiny","prompt":"` + text + `"}`, "prompt", Prompts{}},
		"made from a chat":  {"/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"` + text + `"}]}`, "messages", Prompts{Template: lines{}}},
		"the client's":      {completions, `{"model":"tiny","prompt":[1` + strings.Repeat(",1", 2047) + `]}`, "prompt", Prompts{}},
		"the client's, too": {"/v1/chat/completions", `{"model":"tiny","prompt_token_ids":[1` + strings.Repeat(",1", 2047) + `]}`, "prompt_token_ids", Prompts{}},
	} {
		t.Run(name, func(t *testing.T) {
			c.prompts.Tokenizer = letters(t)
			r, _ := kvRig(t, true, func(_ *rig, p *Parts) { p.Prompts = &c.prompts })
			a := r.post(c.path, c.body)
			a.wantError(t, http.StatusBadRequest, "the context length is 2048")
			if e := a.body.Error; e.Param == nil || *e.Param != c.param || e.Code == nil || *e.Code != "context_length_exceeded" {
				t.Errorf("%s", a.raw)
			}
			if n := len(r.ctx[0].requests()); n != 0 {
				t.Errorf("%d legs", n)
			}
			if strings.Contains(c.body, `"prompt"`) { // one that is cut has room
				r.post(c.path, c.body[:len(c.body)-1]+`,"truncate_prompt_tokens":5}`).wantOK(t, "ABC")
			}
		})
	}
}
