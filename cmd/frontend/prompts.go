package main

import (
	"cmp"
	"encoding/json"
	"fmt"

	"tandem/engine/hub"
	"tandem/engine/runner"
	"tandem/engine/tokenizer/chat"
	"tandem/serve/disagg"
)

// prompts loads the tokenizer that routers need to see blocks, nil if none does, or the model is not on this machine: routers
// then compare texts.
func (n *node) prompts() (*disagg.Prompts, error) {
	custom := ""
	for _, c := range []struct{ section, tokenizer string }{
		{"context_servers", n.cfg.Context.Router.CustomTokenizer}, {"generation_servers", n.cfg.Generation.Router.CustomTokenizer},
	} {
		if c.tokenizer != "" && custom != "" && c.tokenizer != custom {
			return nil, fmt.Errorf("config: %s.router.custom_tokenizer: is %s, but %s for the other role; both see the same prompts", c.section, c.tokenizer, custom)
		}
		if c.tokenizer != "" {
			custom = c.tokenizer
		}
	}
	if !n.cfg.Context.Router.NeedsTokens() && !n.cfg.Generation.Router.NeedsTokens() {
		return nil, nil //nolint:nilnil // nil prompts are the frontend's way to have none
	}
	name := cmp.Or(custom, n.cfg.Model(), n.model)
	if name == "" {
		n.log.Warn("the router sees no token ids, only texts: set router.custom_tokenizer, or model")
		return nil, nil //nolint:nilnil // as above
	}
	path, err := hub.Locate(name)
	if err != nil && custom == "" {
		n.log.Warn("the router sees no token ids, only texts: fetch the model here, or set router.custom_tokenizer", "model", name, "error", err)
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, fmt.Errorf("custom_tokenizer: %w", err)
	}
	text, err := runner.LoadText(path, n.log)
	if err != nil {
		return nil, fmt.Errorf("tokenizer of %s: %w", name, err)
	}
	out := &disagg.Prompts{Tokenizer: text.Tokenizer}
	if custom == "" {
		out.Fingerprint = text.Fingerprint // one that was named on purpose is trusted
	}
	if text.Template != nil {
		out.Template = chatTemplate{text.Template}
	}
	return out, nil
}

// chatTemplate renders as the workers do.
type chatTemplate struct{ t *chat.Template }

func (c chatTemplate) Render(messages, tools, kwargs json.RawMessage) (string, error) {
	text, err := c.t.Render(chat.Input{Messages: messages, Tools: tools, AddGenerationPrompt: true, Extra: kwargs})
	if err != nil {
		return "", fmt.Errorf("chat template: %w", err)
	}
	return text, nil
}
