package sampler

import (
	"math"
	"slices"
	"strings"
	"testing"

	"tandem/engine/request"
)

func sampling(change func(*request.Sampling)) *request.Sampling {
	p := request.DefaultSampling()
	p.Temperature = 0
	if change != nil {
		change(&p)
	}
	return &p
}

func TestRules(t *testing.T) {
	cases := []struct {
		name   string
		params *request.Sampling
		prompt []int32
		output []int32
		logits []float32
		want   int32
	}{
		{"ties go to the lowest id", sampling(nil), nil, nil, []float32{1, 2, 2, 2, 0, 1}, 1},
		{"tiny temperature is greedy", sampling(func(p *request.Sampling) { p.Temperature = 9e-6 }), nil, nil, []float32{1, 2, 2}, 1},
		{"single bad word", sampling(func(p *request.Sampling) { p.BadWords = [][]int32{{1}} }), nil, nil, []float32{1, 2, 0}, 0},
		{"bad word tail spans prompt and output", sampling(func(p *request.Sampling) { p.BadWords = [][]int32{{7, 8, 1}} }), []int32{5, 7}, []int32{8}, []float32{1, 2, 0}, 0},
		{"bad word tail not current", sampling(func(p *request.Sampling) { p.BadWords = [][]int32{{7, 8, 1}} }), []int32{7, 8}, []int32{9}, []float32{1, 2, 0}, 1},
		{"bad word longer than all tokens", sampling(func(p *request.Sampling) { p.BadWords = [][]int32{{3, 7, 8, 1}} }), []int32{7}, []int32{8}, []float32{1, 2, 0}, 1},
		{"min_tokens bans eos and stop ids", sampling(func(p *request.Sampling) {
			p.MinTokens, p.EOS, p.StopTokenIDs = 2, []int32{1}, []int32{2}
		}), nil, []int32{0}, []float32{1, 9, 8}, 0},
		{"min_tokens reached", sampling(func(p *request.Sampling) { p.MinTokens, p.EOS = 2, []int32{1} }), nil, []int32{0, 0}, []float32{1, 9, 8}, 1},
		{"bias", sampling(func(p *request.Sampling) { p.LogitBias = []request.Bias{{Token: 2, Value: 5}} }), nil, nil, []float32{1, 2, 0}, 2},
		{"bias before repetition", sampling(func(p *request.Sampling) {
			p.LogitBias, p.RepetitionPenalty = []request.Bias{{Token: 1, Value: 2}}, 4
		}), []int32{1}, nil, []float32{.8, 1, .6}, 0}, // (1+2)/4 = .75
		{"repetition multiplies negatives", sampling(func(p *request.Sampling) { p.RepetitionPenalty = 2 }), []int32{1}, nil, []float32{-1.5, -1, -3}, 0},
		{"presence skips the prompt", sampling(func(p *request.Sampling) { p.PresencePenalty = 2 }), []int32{1}, nil, []float32{1, 2, 0}, 1},
		{"presence", sampling(func(p *request.Sampling) { p.PresencePenalty = 2 }), nil, []int32{1}, []float32{1, 2, 0}, 0},
		{"frequency counts", sampling(func(p *request.Sampling) { p.FrequencyPenalty = .4 }), nil, []int32{1, 1, 1}, []float32{1, 2, 0}, 0},
		{"ids beyond the row are ignored", sampling(func(p *request.Sampling) {
			p.RepetitionPenalty, p.EOS, p.MinTokens = 2, []int32{99}, 5
		}), []int32{50}, []int32{51}, []float32{1, 2}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tok, err := New(c.params, c.prompt).Sample(c.logits, len(c.output), c.output)
			if err != nil || tok.ID != c.want {
				t.Errorf("got %d, %v; want %d", tok.ID, err, c.want)
			}
		})
	}
}

func TestBadLogits(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	banned := sampling(func(p *request.Sampling) { p.BadWords = [][]int32{{1}} })
	cases := []struct {
		name   string
		params *request.Sampling
		logits []float32
	}{
		{"nan", sampling(nil), []float32{1, nan, 2, 3, 4}},
		{"nan last", sampling(nil), []float32{1, 2, 3, 4, nan}},
		{"banned nan still counts", banned, []float32{1, nan}},
		{"all -inf", sampling(nil), []float32{-inf, -inf}},
		{"everything banned", banned, []float32{-inf, 3}},
		{"+inf", sampling(func(p *request.Sampling) { p.Temperature = 1 }), []float32{1, inf}},
		{"empty", sampling(nil), nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.params, nil).Sample(c.logits, 0, nil)
			if err == nil || err.Code != request.BadLogits {
				t.Errorf("got %v, want bad_logits", err)
			}
		})
	}
}

// TestAcceptIsOptional: pause, resume and a ctx/gen split rebuild a State and
// must not change the outcome.
func TestAcceptIsOptional(t *testing.T) {
	p := sampling(func(p *request.Sampling) {
		p.Temperature, p.FrequencyPenalty, p.RepetitionPenalty, p.Seed = 1, .5, 1.2, 9
	})
	base := []float32{1, 1.2, .8, 1.1, .9, 1, 1, 1}
	kept := New(p, []int32{3})
	var output []int32
	for n := range 40 {
		tok, err := kept.Sample(slices.Clone(base), n, output)
		fresh, err2 := New(p, []int32{3}).Sample(slices.Clone(base), n, output)
		if err != nil || err2 != nil || tok.ID != fresh.ID {
			t.Fatalf("token %d: %d %v, rebuilt %d %v", n, tok.ID, err, fresh.ID, err2)
		}
		output = append(output, tok.ID)
		if n%2 == 0 {
			kept.Accept(tok.ID)
		}
	}
}

func TestValidate(t *testing.T) {
	nan := math.NaN()
	cases := []struct {
		param  string
		change func(*request.Sampling)
	}{
		{"", func(*request.Sampling) {}},
		{"", func(p *request.Sampling) {
			p.LogitBias, p.StopTokenIDs = []request.Bias{{Token: 9, Value: -100}}, []int32{0}
		}},
		{"temperature", func(p *request.Sampling) { p.Temperature = -.1 }},
		{"temperature", func(p *request.Sampling) { p.Temperature = nan }},
		{"temperature", func(p *request.Sampling) { p.Temperature = math.Inf(1) }},
		{"top_k", func(p *request.Sampling) { p.TopK = -1 }},
		{"top_p", func(p *request.Sampling) { p.TopP = 0 }},
		{"top_p", func(p *request.Sampling) { p.TopP = nan }},
		{"min_p", func(p *request.Sampling) { p.MinP = 1.01 }},
		{"repetition_penalty", func(p *request.Sampling) { p.RepetitionPenalty = 0 }},
		{"presence_penalty", func(p *request.Sampling) { p.PresencePenalty = 2.1 }},
		{"frequency_penalty", func(p *request.Sampling) { p.FrequencyPenalty = nan }},
		{"top_logprobs", func(p *request.Sampling) { p.Logprobs = 21 }},
		{"min_tokens", func(p *request.Sampling) { p.MinTokens = -1 }},
		{"logit_bias", func(p *request.Sampling) { p.LogitBias = []request.Bias{{Token: 10}} }},
		{"logit_bias", func(p *request.Sampling) { p.LogitBias = []request.Bias{{Token: 1, Value: 101}} }},
		{"bad_words", func(p *request.Sampling) { p.BadWords = [][]int32{{}} }},
		{"bad_words", func(p *request.Sampling) { p.BadWords = [][]int32{{1, -1}} }},
		{"stop_token_ids", func(p *request.Sampling) { p.StopTokenIDs = []int32{10} }},
	}
	for _, c := range cases {
		p := request.DefaultSampling()
		c.change(&p)
		err := Validate(&p, 10)
		switch {
		case c.param == "" && err != nil:
			t.Errorf("unexpected %v", err)
		case c.param != "" && (err == nil || err.Param != c.param || err.Code != request.InvalidRequest):
			t.Errorf("%s: got %v", c.param, err)
		case err != nil && strings.TrimSpace(err.Message) == "":
			t.Errorf("%s: no message", c.param)
		}
	}
}

const benchVocab = 49152

func benchLogits() []float32 {
	l := make([]float32, benchVocab)
	for i := range l {
		// Roughly normal, like a real row: most tokens far below the best.
		l[i] = float32((Uniform(1, uint64(i), 0) + Uniform(2, uint64(i), 0) + Uniform(3, uint64(i), 0) - 1.5) * 12)
	}
	return l
}

func BenchmarkSample(b *testing.B) {
	logits := benchLogits()
	flat := make([]float32, benchVocab)
	for i := range flat {
		flat[i] = float32(Uniform(4, uint64(i), 0))
	}
	plain := func(p *request.Sampling) { p.Temperature = 1 }
	cases := []struct {
		name   string
		logits []float32
		change func(*request.Sampling)
	}{
		{"greedy", logits, nil},
		{"temperature", logits, plain},
		{"top_k=40", logits, func(p *request.Sampling) { plain(p); p.TopK = 40 }},
		{"top_k=5000", logits, func(p *request.Sampling) { plain(p); p.TopK = 5000 }},
		{"top_p=.95", logits, func(p *request.Sampling) { plain(p); p.TopP = .95 }},
		{"top_p=.95/flat", flat, func(p *request.Sampling) { plain(p); p.TopP = .95 }},
		{"top_k=50,top_p=.9", logits, func(p *request.Sampling) { plain(p); p.TopK, p.TopP = 50, .9 }},
		{"min_p=.05", logits, func(p *request.Sampling) { plain(p); p.MinP = .05 }},
		{"greedy,logprobs=5", logits, func(p *request.Sampling) { p.Logprobs = 5 }},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			s := New(sampling(c.change), nil)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if _, err := s.Sample(c.logits, n, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestScoreIsTheLogSoftmaxOfWhatTheModelSaid(t *testing.T) {
	logits := []float32{2, 1, .5, 0, -1, 3, 3, float32(math.Inf(-1))}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	norm := math.Log(sum)
	tok := Score(logits, 1, 3)
	if math.Abs(tok.Logprob-(1-norm)) > 1e-12 || tok.Rank != 4 || len(tok.Top) != 3 || tok.Top[0].ID != 5 || tok.Top[1].ID != 6 || tok.Top[2].ID != 0 {
		t.Errorf("%+v", tok)
	}
	if tok := Score(logits, 7, 0); tok.Logprob != -9999 || tok.Rank != 8 || tok.Top != nil {
		t.Errorf("a token that cannot be: %+v", tok)
	}
	logits[3] = float32(math.NaN())
	if tok := Score(logits, 1, 1); tok.Logprob != -9999 {
		t.Errorf("of NaN: %+v", tok)
	}
}
