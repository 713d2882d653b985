package sampler

import (
	"slices"

	"tandem/engine/request"
)

// guide follows the output through the request's grammar. The zero value has none.
type guide struct {
	grammar request.Guide
	at      request.GuideMatcher
	seen    int  // output tokens that it followed
	ended   bool // an end token was among them
}

// Guide confines the output to a grammar. Call it before the first Sample.
func (s *State) Guide(g request.Guide) { s.guide.grammar = g }

// follow catches up with the output and forbids what the grammar does not allow
// next. Where the output may end, the end tokens are allowed too.
func (s *State) follow(logits []float32, output []int32) *request.Error {
	g := &s.guide
	if g.grammar == nil {
		return nil
	}
	if g.at == nil || g.seen > len(output) { // a step was thrown away
		g.at, g.seen, g.ended = g.grammar.Start(), 0, false
	}
	for _, id := range output[g.seen:] {
		switch {
		case slices.Contains(s.params.EOS, id):
			g.ended = true
		case !g.at.Push(id):
			return request.Errorf(request.Internal, "output token %d: the grammar refuses token %d", g.seen, id)
		}
		g.seen++
	}
	allowed, end, err := g.at.Mask()
	if err != nil {
		return request.Errorf(request.InvalidGrammar, "output token %d: %v", len(output), err)
	}
	s.keepOnly(logits, allowed, end)
	return nil
}

func (s *State) keepOnly(logits []float32, allowed []uint64, end bool) {
	if s.guide.ended {
		allowed, end = nil, true
	}
	for id := range logits {
		if w := id >> 6; w < len(allowed) && allowed[w]>>(id&63)&1 == 1 {
			continue
		}
		if end && slices.Contains(s.params.EOS, int32(id)) {
			continue
		}
		forbid(logits, int32(id))
	}
}

func deadEnd(index int) *request.Error {
	return request.Errorf(request.GrammarDeadEnd, "output token %d: the grammar and the other rules of the request together allow no token", index)
}
