package metamorphic

import (
	"context"
	"fmt"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/transfer/wire"
)

// start runs an engine until the test ends.
func start(t *testing.T, path string, role executor.Role, v *variant, size load) *runner.Engine {
	t.Helper()
	core := executor.DefaultConfig()
	core.MaxBatch, core.MaxNumTokens, core.MaxSeqLen = 32, 2048, 512
	core.BlockReuse, core.PartialReuse, core.ShareInPass = false, false, false
	o := runner.LoadOptions{
		Path: path, Core: core, Threads: 1, PoolTokens: size.pool, Incarnation: string(role) + "1", Backend: "cpu",
		TokensOnly: true, HangTimeout: 3 * time.Minute, Idle: time.Minute, Overlap: new(bool),
	}
	if role != executor.Mixed {
		o.Core.Role, o.Core.LocalRecompute, o.Wire = role, false, &wire.Config{}
	}
	if v.change != nil {
		v.change(&o, size)
	}
	l, err := runner.Load(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Engine.Run(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		l.Engine.Shutdown(ctx)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		l.Close()
	})
	return l.Engine
}

// answer is what a client gets: the tokens of each choice, with all that is told
// of them.
type answer [][]request.Token

// ask sends a request and reads its answer. seen hears how many tokens there are.
func ask(ctx context.Context, e *runner.Engine, r *request.Request, opaque []byte, seen func(int)) (a answer, handle []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	r.ID = e.NewID()
	s, err := e.Submit(ctx, r, opaque)
	if err != nil {
		return nil, nil, err
	}
	a = make(answer, r.Answers())
	for left, n := len(a), 0; left > 0; {
		o, err := s.Next(ctx)
		if err != nil {
			return nil, nil, err
		}
		if o.Err != nil {
			return nil, nil, o.Err
		}
		a[o.Choice] = append(a[o.Choice], o.Tokens...)
		if len(o.Opaque) > 0 {
			handle = o.Opaque
		}
		if o.Finish != request.Running {
			left--
		}
		if n += len(o.Tokens); seen != nil {
			seen(n)
		}
	}
	return a, handle, nil
}

// handOver runs both legs of a request, one after the other.
func handOver(ctx context.Context, from, to *runner.Engine, r *request.Request, id int64, seen func(int)) (answer, error) {
	first := *r
	first.Kind, first.TransferID = request.ContextOnly, id
	begin, handle, err := ask(ctx, from, &first, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("ctx: %w", err)
	}
	rest := *r
	rest.Kind, rest.TransferID = request.GenerationOnly, id
	for _, tokens := range begin {
		rest.FirstTokens = append(rest.FirstTokens, tokens...)
	}
	a, _, err := ask(ctx, to, &rest, handle, seen)
	if err != nil {
		return nil, fmt.Errorf("gen: %w", err)
	}
	return a, nil
}
