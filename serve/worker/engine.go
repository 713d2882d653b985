package worker

import (
	"context"
	"encoding/json"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tokenizer"
	"tandem/engine/tokenizer/chat"
)

// Engine is what a Server needs of the engine; FromRunner makes one.
type Engine interface {
	NewID() request.ID
	// Now is the engine clock, to make deadlines with.
	Now() time.Duration
	// Submit returns once the request has its place, in the queue or on a rank.
	// The error is a *request.Error when it was refused.
	Submit(ctx context.Context, r *request.Request, opaque []byte) (Stream, error)
	Abort(ctx context.Context, disaggID int64) (executor.AbortState, error)
	Stats(stall time.Duration) runner.Stats
	// Views tells what the ranks of this process have, for debugging. It waits for
	// fresh figures until ctx ends at most.
	Views(ctx context.Context) []runner.View
	// ResetCache forgets what can be reused, and returns of how many ranks.
	ResetCache(ctx context.Context) (ranks int, err error)
	Info() runner.Info
}

// Stream delivers the outputs of one request.
type Stream interface {
	// Next waits for the next output; the one with Finish set is the last. When
	// ctx ends first the request is cancelled.
	Next(ctx context.Context) (runner.Output, error)
	// Cancel ends the request if it is still alive.
	Cancel()
	// Route is the request's place; false in an instance of one rank.
	Route() (runner.Route, bool)
}

// Template renders a chat into the text of a prompt.
type Template interface {
	// Render takes JSON texts so that the order of members, which templates
	// print, survives: messages a list, tools a list or nil, kwargs an object or
	// nil. An error is the client's: the template refused the chat, and an
	// *openai.Error says which field is to blame.
	Render(messages, tools, kwargs json.RawMessage) (string, error)
}

// Backend is a loaded model with its engine.
type Backend struct {
	Engine    Engine
	Tokenizer *tokenizer.Tokenizer
	Template  Template // nil: the model has none, chat requests with messages are refused
	// Foreign renders a chat by the request's own template, a program of a stranger, as Template.Render does by the model's;
	// nil: such requests are refused.
	Foreign  func(ctx context.Context, source string, messages, tools, kwargs json.RawMessage) (string, error)
	EOS      []int32     // nil = the tokenizer's
	Format   chat.Format // of the model's answers to chats
	Defaults Defaults

	guides *guides // made by Attach
}

// Defaults are the sampling values that apply where a request says nothing,
// from the model's generation_config. Nil leaves the OpenAI default.
type Defaults struct {
	Temperature       *float64
	TopP              *float64
	TopK              *int
	MinP              *float64
	RepetitionPenalty *float64
}

// FromRunner adapts an engine of package runner.
func FromRunner(e *runner.Engine) Engine { return runnerEngine{e} }

type runnerEngine struct{ *runner.Engine }

func (r runnerEngine) Submit(ctx context.Context, q *request.Request, opaque []byte) (Stream, error) {
	s, err := r.Engine.Submit(ctx, q, opaque)
	if err != nil {
		return nil, err
	}
	return s, nil
}
