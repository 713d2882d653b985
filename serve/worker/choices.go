package worker

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"tandem/engine/request"
	"tandem/engine/runner"
)

// submit hands the job to the engine.
func (j *job) submit(ctx context.Context) (Stream, error) {
	if j.parts == nil {
		return j.Engine.Submit(ctx, j.req, j.opaque)
	}
	var m merged
	for _, r := range j.parts {
		s, err := j.Engine.Submit(ctx, r, nil)
		if err != nil {
			m.Cancel()
			return nil, err
		}
		m.streams = append(m.streams, s)
	}
	return &m, nil
}

// merged is the stream of several requests as if they were the choices of one.
type merged struct {
	streams []Stream
	once    sync.Once
	out     chan part
}

type part struct {
	runner.Output
	err error
}

// Next implements Stream: outputs come in the order in which they are there.
func (m *merged) Next(ctx context.Context) (runner.Output, error) {
	m.once.Do(func() { m.start(ctx) })
	select {
	case p := <-m.out:
		return p.Output, p.err
	case <-ctx.Done():
		m.Cancel()
		return runner.Output{}, context.Cause(ctx)
	}
}

// start reads every stream until its end; nobody waits for the reader when ctx ends.
func (m *merged) start(ctx context.Context) {
	m.out = make(chan part)
	for i, s := range m.streams {
		go func() {
			for {
				o, err := s.Next(ctx)
				o.Choice = i
				select {
				case m.out <- part{o, err}:
				case <-ctx.Done():
					return
				}
				if err != nil || o.Finish != request.Running {
					return
				}
			}
		}()
	}
}

// Cancel implements Stream.
func (m *merged) Cancel() {
	for _, s := range m.streams {
		s.Cancel()
	}
}

// Route implements Stream: that of the first choice.
func (m *merged) Route() (runner.Route, bool) { return m.streams[0].Route() }

// tally follows the choices of a reply to their ends.
type tally struct {
	open   int            // choices that have not ended
	usage  request.Usage  // the prompt once, the tokens of all choices that ended
	finish request.Finish // of the first choice
}

// add counts an output and reports whether it was the last of all.
func (t *tally) add(o *runner.Output) bool {
	if o.Finish == request.Running {
		return false
	}
	t.open--
	t.usage.CompletionTokens += o.Usage.CompletionTokens
	if o.Choice == 0 {
		t.usage.PromptTokens, t.usage.CachedTokens, t.finish = o.Usage.PromptTokens, o.Usage.CachedTokens, o.Finish
	}
	return t.open == 0
}

// best returns the n answers with the highest mean log-probability of a token,
// the best first; equal ones keep their order.
func best(all []answer, n int) []answer {
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b answer) int { return cmp.Compare(b.mean(), a.mean()) })
	return out[:n]
}

// mean is the mean log-probability of the answer's tokens.
func (a *answer) mean() float64 {
	sum := 0.0
	for _, t := range a.tokens {
		sum += finite(t.Logprob)
	}
	return sum / float64(max(len(a.tokens), 1))
}
