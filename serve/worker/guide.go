package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tandem/engine/guided"
	"tandem/engine/request"
	"tandem/serve/openai"
)

// guideTime is how long a grammar may take to compile.
const guideTime = 2 * time.Second

// guidesAtOnce is how many grammars are compiled at a time: the engine needs the
// processors too.
const guidesAtOnce = 2

// maxGuides is how many compiled grammars are kept.
const maxGuides = 64

// guides compiles grammars over the tokens of one model, beside the engine, and keeps
// those that were made last.
type guides struct {
	once  sync.Once
	vocab *guided.Vocab
	slots chan struct{} // of those that compile

	mu   sync.Mutex
	of   map[guideKey]*guided.Grammar
	last []guideKey // the newest at the end
}

type guideKey struct{ kind, text string }

func newGuides() *guides { return &guides{slots: make(chan struct{}, guidesAtOnce)} }

// get returns the grammar of a request, compiled in limit at most. It waits for its
// turn until ctx ends.
func (g *guides) get(ctx context.Context, b *Backend, size int, ask *openai.Guided, limit time.Duration) (request.Guide, error) {
	key := guideKey{ask.Kind, ask.Text}
	if c := g.kept(key); c != nil {
		return grammar{c}, nil
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other grammars: %w", context.Cause(ctx))
	}
	defer func() { <-g.slots }()
	if c := g.kept(key); c != nil { // of a request that came just before
		return grammar{c}, nil
	}
	g.once.Do(func() {
		known := b.Tokenizer.VocabSize()
		g.vocab = guided.NewVocab(size, func(id int32) []byte {
			if int(id) >= known || b.Tokenizer.IsSpecial(id) {
				return nil
			}
			return b.Tokenizer.TokenBytes(id)
		})
	})
	deadline := time.Now().Add(limit)
	c, err := compileGuide(key, g.vocab, func() bool { return ctx.Err() != nil || time.Now().After(deadline) })
	if ctx.Err() != nil {
		return nil, fmt.Errorf("compile a grammar: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, &request.Error{Code: request.InvalidGrammar, Param: ask.Param, Message: openai.Cut(err.Error(), openai.MaxErrorText)}
	}
	g.keep(key, c)
	return grammar{c}, nil
}

// compileGuide turns a panic into the error of this request alone.
func compileGuide(key guideKey, v *guided.Vocab, stop func() bool) (c *guided.Grammar, err error) {
	defer func() {
		if p := recover(); p != nil {
			c, err = nil, fmt.Errorf("the grammar cannot be compiled: %v", p)
		}
	}()
	return guided.Compile(guided.Kind(key.kind), key.text, v, stop)
}

func (g *guides) kept(key guideKey) *guided.Grammar {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of[key]
}

func (g *guides) keep(key guideKey, c *guided.Grammar) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[guideKey]*guided.Grammar{}
	}
	if g.of[key] == nil {
		g.last = append(g.last, key)
	}
	g.of[key] = c
	if len(g.last) > maxGuides {
		delete(g.of, g.last[0])
		g.last = g.last[1:]
	}
}

// grammar is a compiled grammar as the sampler takes it.
type grammar struct{ *guided.Grammar }

// Start implements request.Guide.
func (g grammar) Start() request.GuideMatcher { return g.Grammar.Start() }
