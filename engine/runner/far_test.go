package runner

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/request"
)

// Forbidden tokens have no finite log-probability; they reach clients at another
// process as they are.
func TestGroupTellsForbiddenTokens(t *testing.T) {
	w := newWorld(t, worldConfig{size: 2, spans: []comm.Span{{}, {First: 1, Last: 1}}})
	e := w.engines[0]
	s := newStream(e, &request.Request{ID: 77})
	e.group.mu.Lock()
	e.group.remote[77] = &submission{ctx: t.Context(), req: greedy(e, 1, 1), stream: s}
	e.group.mu.Unlock()
	want := request.Token{ID: 1, Logprob: -1, Top: []request.TopLogprob{{ID: 1, Logprob: -1}, {ID: 2, Logprob: math.Inf(-1)}}}
	far := &remote{m: w.engines[1].group.members[0], id: 77, opened: true}
	far.push(Output{Output: executor.Output{Tokens: []request.Token{want}, Finish: request.FinishLength}})
	o, err := s.Next(t.Context())
	if err != nil || len(o.Tokens) != 1 || len(o.Tokens[0].Top) != 2 || o.Tokens[0].Top[1] != want.Top[1] || o.Tokens[0].Top[0] != want.Top[0] {
		t.Errorf("%+v %v", o.Tokens, err)
	}
	if !math.IsInf(want.Top[1].Logprob, -1) {
		t.Error("the sender's tokens were changed")
	}
	w.stop()
}

// An abort ends all that has the id: what waits, and what runs.
func TestGroupAbortsTwins(t *testing.T) {
	w := newWorld(t, worldConfig{
		size: 2, spans: []comm.Span{{}, {First: 1, Last: 1}}, wire: true,
		core: func(k *executor.Config) { k.Role, k.MaxBatch = executor.Ctx, 1 },
	})
	e := w.engines[0]
	gate, reached := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 3)
	send := func(ctx context.Context) {
		r := greedy(e, 4, 1, 2, 3)
		r.Kind, r.TransferID, r.DPRank = request.ContextOnly, 5, 1
		s, err := e.Submit(ctx, r, nil)
		if err == nil {
			var o Output
			if o, err = s.Next(ctx); err == nil && o.Finish == request.FinishNotFinished {
				err = errors.New("it was not aborted")
			}
		}
		ended <- err
	}
	w.devices[1].strike(func() { close(reached); <-gate })
	go send(t.Context()) // runs
	<-reached
	go send(t.Context()) // both wait
	go send(t.Context())
	await(t, func() bool {
		e.in.mu.Lock()
		defer e.in.mu.Unlock()
		return len(e.in.new) == 2
	})
	answer := make(chan executor.AbortState, 1)
	go func() {
		state, err := e.Abort(t.Context(), 5)
		if err != nil {
			t.Error(err)
		}
		answer <- state
	}()
	await(t, func() bool {
		e.in.mu.Lock()
		defer e.in.mu.Unlock()
		return len(e.in.aborts) == 1
	})
	close(gate)
	if state := <-answer; state != executor.AbortAborted {
		t.Errorf("the abort found %q", state)
	}
	for range 3 {
		if err := <-ended; err != nil && err.Error() == "it was not aborted" {
			t.Log(err) // the first one may have been answered before
		}
	}
	await(t, func() bool { return e.Stats(time.Minute).Alive == 0 })
	w.stop()
	w.empty()
}
