package runner

import (
	"context"
	"slices"
	"sync"

	"tandem/engine/executor"
	"tandem/engine/request"
)

// Output is one event of a request as its stream delivers it.
type Output struct {
	executor.Output
	// Opaque is the encoded transfer handle of a ContextOnly answer.
	Opaque []byte
}

// Stream delivers the outputs of one request, those of each choice in order. The
// engine never waits for its reader: at most MaxTokens outputs of each choice can
// pile up.
type Stream struct {
	engine *Engine
	id     request.ID

	mu      sync.Mutex
	pending []Output
	open    int           // choices whose last output was not taken
	ends    finals        // choices whose last output came
	route   *Route        // nil with one rank
	ready   chan struct{} // has a token while pending is not empty
}

func newStream(e *Engine, r *request.Request) *Stream {
	return &Stream{engine: e, id: r.ID, open: r.Answers(), ends: make(finals, r.Answers()), ready: make(chan struct{}, 1)}
}

// push appends an output. Tokens are copied: the core reuses its own.
func (s *Stream) push(o Output) {
	o.Tokens = slices.Clone(o.Tokens)
	s.mu.Lock()
	s.pending = append(s.pending, o)
	s.ends.note(&o)
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// fail ends the choices that have not ended.
func (s *Stream) fail(err *request.Error) {
	s.mu.Lock()
	left := s.ends.left(s.id, err)
	s.mu.Unlock()
	for _, o := range left {
		s.push(o)
	}
}

// finals notes which choices of a request had their last output.
type finals []bool

func (e finals) note(o *Output) {
	if o.Finish != request.Running && o.Choice < len(e) {
		e[o.Choice] = true
	}
}

// left makes the last outputs of those that had none.
func (e finals) left(id request.ID, err *request.Error) (out []Output) {
	for i, ended := range e {
		if !ended {
			out = append(out, Output{Output: executor.Output{
				Request: &request.Request{ID: id}, Choice: i, Finish: request.FinishError, Err: err,
			}})
		}
	}
	return out
}

// Next returns the next output, waiting for it. Each choice has one with Finish
// set, its last. When ctx ends first, the request is cancelled and ctx's error returned.
func (s *Stream) Next(ctx context.Context) (Output, error) {
	for {
		if o, ok := s.pop(); ok {
			return o, nil
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			s.Cancel()
			return Output{}, context.Cause(ctx)
		}
	}
}

// Route returns the request's place; false in an instance of one rank.
func (s *Stream) Route() (Route, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.route == nil {
		return Route{}, false
	}
	return *s.route, true
}

func (s *Stream) setRoute(r *Route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.route = r
}

// Cancel ends the request if it is still alive. It may be called at any time.
func (s *Stream) Cancel() {
	s.mu.Lock()
	open := s.open > 0
	s.mu.Unlock()
	if open {
		s.engine.Cancel(s.id)
	}
}

func (s *Stream) pop() (Output, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return Output{}, false
	}
	o := s.pending[0]
	s.pending[0] = Output{}
	if s.pending = s.pending[1:]; len(s.pending) == 0 {
		s.pending = nil
	}
	if o.Finish != request.Running {
		s.open--
	}
	if len(s.pending) > 0 {
		select {
		case s.ready <- struct{}{}:
		default:
		}
	}
	return o, true
}

// refused returns the error of a request that the core ended at arrival, if it did.
func (s *Stream) refused() *request.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return refusal(s.pending, s.open)
}

// refusal returns the error in the first outputs of a request if they end all of
// its choices.
func refusal(outs []Output, choices int) *request.Error {
	if len(outs) != choices {
		return nil
	}
	for i := range outs {
		if outs[i].Finish == request.Running || len(outs[i].Tokens) > 0 {
			return nil
		}
	}
	return outs[0].Err
}
