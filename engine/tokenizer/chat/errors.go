package chat

import "errors"

// ErrNoTemplate is returned by NewTemplate for an empty source: the model comes
// without a chat template, and guessing one would silently change its answers.
var ErrNoTemplate = errors.New("the model has no chat template: use /v1/completions, or give it a template")

// RenderError says why one conversation cannot be rendered: a message is
// malformed, or the template refuses it. The request is to blame, not the model.
type RenderError struct {
	Param   string // the request field to blame, "messages" or "tools" or "chat_template_kwargs"
	Message string // what is wrong, for the client
	Refused bool   // the template itself raised it
}

// Error implements error.
func (e *RenderError) Error() string {
	if e.Refused {
		return "the chat template refused the conversation: " + e.Message
	}
	return e.Param + ": " + e.Message
}
