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

// Stream delivers the outputs of one request in order. The engine never waits
// for its reader: at most MaxTokens outputs can pile up.
type Stream struct {
	engine *Engine
	id     request.ID

	mu      sync.Mutex
	pending []Output
	ended   bool
	route   *Route        // nil with one rank
	ready   chan struct{} // has a token while pending is not empty
}

func newStream(e *Engine, id request.ID) *Stream {
	return &Stream{engine: e, id: id, ready: make(chan struct{}, 1)}
}

// push appends an output. Tokens are copied: the core reuses its own.
func (s *Stream) push(o Output) {
	o.Tokens = slices.Clone(o.Tokens)
	s.mu.Lock()
	s.pending = append(s.pending, o)
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Next returns the next output, waiting for it. The one with Finish set is the
// last. When ctx ends first, the request is cancelled and ctx's error returned.
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
	ended := s.ended
	s.mu.Unlock()
	if !ended {
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
		s.ended = true
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
	if len(s.pending) == 1 && s.pending[0].Finish != request.Running && len(s.pending[0].Tokens) == 0 {
		return s.pending[0].Err
	}
	return nil
}
