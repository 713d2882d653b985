package speed

import (
	"context"
	"errors"
	"time"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/engine/tensor"
)

// Engine is our side: the CPU backend without scheduler, as the peer is
// measured without its server.
type Engine struct {
	Loaded *runner.Loaded
	b      runner.Backend
	batch  tensor.Batch
	filled Row // whose sequences the cache has
}

const blockTokens = 16

// Load loads a GGUF file for at most `cells` tokens in the cache, with activations as in
// [runner.LoadOptions].
func Load(path string, threads, cells int, activations string) (*Engine, error) {
	core := executor.DefaultConfig()
	l, err := runner.Load(context.Background(), runner.LoadOptions{Path: path, Core: core, Threads: threads, PoolTokens: cells, Activations: activations})
	if err != nil {
		return nil, err
	}
	return &Engine{Loaded: l, b: l.Backends[0]}, nil
}

// Close frees the model.
func (e *Engine) Close() { e.Loaded.Close() }

// Info describes the backend.
func (e *Engine) Info() string { return e.b.Info() }

func (e *Engine) token(i int) int32 { return int32(1000 + (i*7919)%(e.Loaded.Config.Vocab-2000)) }

// pages gives sequence s its own blocks for n tokens.
func pages(s, n int) []int32 {
	per := (n + blockTokens - 1) / blockTokens
	out := make([]int32, per)
	for i := range out {
		out[i] = int32(s*per + i)
	}
	return out
}

// Measure returns tokens per second.
func (e *Engine) Measure(r Row) (float64, error) {
	if r.Steps == 0 {
		took, err := e.prefill(0, 0, r.Depth, r.Depth, true)
		return float64(r.Depth) / took.Seconds(), err
	}
	cells := r.Depth + r.Steps
	for s := range r.Batch {
		if e.filled == r {
			break
		}
		if _, err := e.prefill(s, 0, r.Depth, cells, false); err != nil {
			return 0, err
		}
	}
	e.filled = r
	start := time.Now()
	for k := range r.Steps {
		e.batch.Reset()
		for s := range r.Batch {
			e.batch.Add([]int32{e.token(k + s)}, r.Depth+k, pages(s, cells), true)
		}
		if _, err := e.b.Run(&e.batch); err != nil {
			return 0, err
		}
	}
	return float64(r.Batch*r.Steps) / time.Since(start).Seconds(), nil
}

// StepBytes counts the bytes of weights that a step of one sequence reads.
func (e *Engine) StepBytes() (int, error) {
	b, ok := e.b.(interface{ WeightsRead() uint64 })
	if !ok {
		return 0, errors.New("the backend does not count what it reads")
	}
	before := b.WeightsRead()
	_, err := e.Measure(Row{Batch: 1, Depth: 16, Steps: 2})
	two := b.WeightsRead()
	if err == nil {
		_, err = e.Measure(Row{Batch: 1, Depth: 16, Steps: 4})
	}
	// The second run fills the cache again, as its row is another one.
	return int(b.WeightsRead()-two-(two-before)) / 2, err
}

// Turn returns the seconds until the first token of n tokens behind a prefix that
// is cached.
func (e *Engine) Turn(cached, n int) (float64, error) {
	if _, err := e.prefill(0, 0, cached, cached+n, false); err != nil {
		return 0, err
	}
	took, err := e.prefill(0, cached, cached+n, cached+n, true)
	return took.Seconds(), err
}

// prefill runs the tokens [at, n) of sequence s in chunks of 512.
func (e *Engine) prefill(s, at, n, cells int, logits bool) (time.Duration, error) {
	e.filled = Row{}
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = e.token(i)
	}
	table := pages(s, cells)
	start := time.Now()
	for ; at < n; at += 512 {
		end := min(n, at+512)
		e.batch.Reset()
		e.batch.Add(tokens[at:end], at, table, logits && end == n)
		if _, err := e.b.Run(&e.batch); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}
