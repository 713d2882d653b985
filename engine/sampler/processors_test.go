package sampler

import (
	"compress/gzip"
	"encoding/json"
	"math"
	"os"
	"testing"

	"tandem/engine/request"
)

type processorCase struct {
	Name           string
	Prompt, Output []int32
	Logits, Want   []*float32 // nil = minus infinity
	Kept           bool       // Want tells which tokens filters leave; else the logits after penalties
	Sampling       struct {
		RepetitionPenalty float64      `json:"repetition_penalty"`
		BadWords          [][]int32    `json:"bad_words"`
		MinTokens         int          `json:"min_tokens"`
		EOS               []int32      `json:"eos"`
		LogitBias         [][2]float64 `json:"logit_bias"`
		Temperature       float64      `json:"temperature"`
		TopK              int          `json:"top_k"`
		TopP              float64      `json:"top_p"`
		MinP              float64      `json:"min_p"`
	}
}

func (c *processorCase) params() request.Sampling {
	p, s := request.DefaultSampling(), &c.Sampling
	p.BadWords, p.MinTokens, p.EOS, p.TopK, p.MinP = s.BadWords, s.MinTokens, s.EOS, s.TopK, s.MinP
	if s.RepetitionPenalty > 0 {
		p.RepetitionPenalty = s.RepetitionPenalty
	}
	if s.Temperature > 0 {
		p.Temperature = s.Temperature
	}
	if s.TopP > 0 {
		p.TopP = s.TopP
	}
	for _, b := range s.LogitBias {
		p.LogitBias = append(p.LogitBias, request.Bias{Token: int32(b[0]), Value: b[1]})
	}
	return p
}

// TestLogitsProcessors compares with those of transformers; testdata/make.py wrote
// the cases.
func TestLogitsProcessors(t *testing.T) {
	f, err := os.Open("testdata/processors.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var cases []processorCase
	if err := json.NewDecoder(z).Decode(&cases); err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		c := &cases[i]
		t.Run(c.Name, func(t *testing.T) {
			p := c.params()
			logits := make([]float32, len(c.Logits))
			for id, l := range c.Logits {
				logits[id] = *l
			}
			if c.Kept {
				checkKept(t, c, &p, logits)
				return
			}
			s := New(&p, c.Prompt)
			s.counts.sync(c.Prompt, c.Output)
			s.ban(logits, len(c.Output), c.Output)
			s.shape(logits)
			for id, want := range c.Want {
				switch {
				case want == nil && !math.IsInf(float64(logits[id]), -1), want != nil && math.Abs(float64(*want-logits[id])) > 1e-5:
					t.Errorf("token %d: %v, want %v", id, logits[id], want)
				}
			}
		})
	}
}

// checkKept draws with many seeds: just the tokens that the filters of the reference
// leave may come, and all of those that are likely do.
func checkKept(t *testing.T, c *processorCase, p *request.Sampling, logits []float32) {
	t.Helper()
	got := make([]bool, len(logits))
	row := make([]float32, len(logits))
	for seed := range uint64(4000) {
		p.Seed = seed
		copy(row, logits)
		tok, err := New(p, c.Prompt).Sample(row, len(c.Output), c.Output)
		if err != nil {
			t.Fatal(err)
		}
		got[tok.ID] = true
	}
	sum := 0.0
	for _, w := range c.Want {
		if w != nil {
			sum += math.Exp(float64(*w))
		}
	}
	for id, w := range c.Want {
		if w == nil && got[id] {
			t.Errorf("token %d was drawn, the reference leaves it out", id)
		}
		if w != nil && !got[id] && math.Exp(float64(*w))/sum > 0.005 {
			t.Errorf("token %d never came; its probability is %.4f", id, math.Exp(float64(*w))/sum)
		}
	}
}

func TestAllowedTokens(t *testing.T) {
	p := request.DefaultSampling()
	p.Allowed = []int32{2, 5}
	for seed := range uint64(200) {
		p.Seed = seed
		tok, err := New(&p, []int32{1}).Sample([]float32{9, 9, 1, 9, 9, 1, 9, 9}, 0, nil)
		if err != nil || tok.ID != 2 && tok.ID != 5 {
			t.Fatalf("%d %v", tok.ID, err)
		}
	}
	p.Allowed = []int32{0, 7}
	p.Temperature = 0
	if tok, _ := New(&p, []int32{1}).Sample([]float32{1, 9, 9, 9, 9, 9, 9, 2}, 0, nil); tok.ID != 7 {
		t.Errorf("%d", tok.ID)
	}
}
