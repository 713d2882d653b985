package sampler

import (
	"errors"
	"testing"

	"tandem/engine/request"
)

// pattern is a grammar of token ids: output k must be pattern[k], and then it ends.
type pattern []int32

func (p pattern) Start() request.GuideMatcher { return &place{p: p} }

type place struct {
	p  pattern
	at int
}

func (m *place) Push(token int32) bool {
	ok := m.at < len(m.p) && m.p[m.at] == token
	m.at++
	return ok
}

func (m *place) Mask() ([]uint64, bool, error) {
	switch {
	case m.at >= len(m.p):
		return nil, true, nil
	case m.p[m.at] == 63:
		return nil, false, errors.New("too complex")
	case m.p[m.at] < 0:
		return []uint64{0}, false, nil
	}
	return []uint64{1 << m.p[m.at]}, false, nil
}

func TestGuideConfinesToTheGrammar(t *testing.T) {
	p := request.DefaultSampling()
	p.EOS = []int32{7}
	s := New(&p, []int32{1})
	s.Guide(pattern{3, 0, 5})
	row := func() []float32 { return []float32{1, 9, 2, 0, 9, -3, 9, 9} }
	var out []int32
	for i, want := range []int32{3, 0, 5, 7, 7} { // behind its end only ends
		for range 2 { // a step may be thrown away and come again
			tok, err := s.Sample(row(), i, out)
			if err != nil || tok.ID != want {
				t.Fatalf("token %d: %d %v, want %d", i, tok.ID, err, want)
			}
		}
		out = append(out, want)
	}
	// A state that another worker begins anew replays what there is.
	again := New(&p, []int32{1})
	again.Guide(pattern{3, 0, 5})
	if tok, err := again.Sample(row(), 2, []int32{3, 0}); err != nil || tok.ID != 5 {
		t.Errorf("replayed: %d %v", tok.ID, err)
	}
	if tok, err := again.Sample(row(), 1, []int32{3}); err != nil || tok.ID != 0 {
		t.Errorf("taken back: %d %v", tok.ID, err)
	}
}

func TestGuideErrors(t *testing.T) {
	for _, c := range []struct {
		name    string
		p       pattern
		out     []int32
		mutate  func(*request.Sampling)
		want    request.Code
		allowed bool
	}{
		{"nothing allowed", pattern{-1}, nil, nil, request.GrammarDeadEnd, false},
		{"what is allowed is banned", pattern{3}, nil, func(s *request.Sampling) { s.BadWords = [][]int32{{3}} }, request.GrammarDeadEnd, false},
		{"an end before min_tokens", pattern{}, nil, func(s *request.Sampling) { s.MinTokens = 5 }, request.GrammarDeadEnd, false},
		{"a token that the grammar refuses", pattern{3, 4}, []int32{5}, nil, request.Internal, false},
		{"too complex", pattern{63}, nil, nil, request.InvalidGrammar, false},
		{"fine", pattern{3}, nil, nil, "", true},
	} {
		p := request.DefaultSampling()
		p.EOS = []int32{7}
		if c.mutate != nil {
			c.mutate(&p)
		}
		s := New(&p, []int32{1})
		s.Guide(c.p)
		_, err := s.Sample([]float32{1, 2, 3, 4, 5, 6, 7, 8}, len(c.out), c.out)
		if (err == nil) != c.allowed || err != nil && err.Code != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
