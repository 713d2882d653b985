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

	ready   bool // the rest is what may come after seen tokens
	allowed []uint64
	mayEnd  bool
	err     *request.Error
}

// Guide confines the output to a grammar. Call it before the first Sample.
func (s *State) Guide(g request.Guide) { s.guide.grammar = g }

// Prepare finds what the grammar allows after output, which is most of the work of
// a guided Sample and needs no logits: it may be done while they are computed. A
// bug in a grammar ends its request only.
func (s *State) Prepare(output []int32) {
	g := &s.guide
	if g.grammar == nil || g.ready && g.seen == len(output) {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			g.at, g.err = nil, request.Errorf(request.Internal, "output token %d: the grammar failed: %v", len(output), p)
		}
	}()
	g.ready, g.err = true, nil
	if g.at == nil || g.seen > len(output) { // a step was thrown away
		g.at, g.seen, g.ended = g.grammar.Start(), 0, false
	}
	for ; g.seen < len(output); g.seen++ {
		switch id := output[g.seen]; {
		case slices.Contains(s.params.EOS, id):
			g.ended = true
		case !g.at.Push(id):
			g.err = request.Errorf(request.Internal, "output token %d: the grammar refuses token %d", g.seen, id)
			g.seen = len(output)
			return
		}
	}
	if g.ended {
		g.allowed, g.mayEnd = nil, true
		return
	}
	var err error
	if g.allowed, g.mayEnd, err = g.at.Mask(); err != nil {
		g.err = request.Errorf(request.InvalidGrammar, "output token %d: %v", len(output), err)
	}
}

// follow forbids what the grammar does not allow after output. Where the output may
// end, the end tokens are allowed too.
func (s *State) follow(logits []float32, output []int32) *request.Error {
	if s.guide.grammar == nil {
		return nil
	}
	s.Prepare(output)
	if s.guide.err != nil {
		return s.guide.err
	}
	s.keepOnly(logits, s.guide.allowed, s.guide.mayEnd)
	return nil
}

func (s *State) keepOnly(logits []float32, allowed []uint64, end bool) {
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
