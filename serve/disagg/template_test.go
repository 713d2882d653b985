package disagg

import (
	"testing"
)

// A chat's own template goes to the workers only where the operator allows it.
func TestChatTemplateOfARequest(t *testing.T) {
	const body = `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"chat_template":"{{ messages[0].content }}"}`
	off := one(t, ctxReply{}, genReply{})
	off.post("/v1/chat/completions", body).wantError(t, 400, "chat_template")
	on := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.AllowChatTemplate = true }))
	on.post("/v1/chat/completions", body)
	if got := string(on.ctx[0].requests()[0].body["chat_template"]); got != `"{{ messages[0].content }}"` {
		t.Errorf("the ctx worker got the template %s", got)
	}
	if len(off.ctx[0].requests()) != 0 {
		t.Error("a worker got what was refused")
	}
}
