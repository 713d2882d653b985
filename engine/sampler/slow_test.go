package sampler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/request"
)

// slowSample is the rule of this package written the obvious way: dense counts,
// full sorts, one step after another.
func slowSample(p *request.Sampling, prompt []int32, logits []float32, index int, output []int32) (request.Token, bool) {
	l := slices.Clone(logits)
	if slices.ContainsFunc(l, func(v float32) bool { return v != v }) {
		return request.Token{}, false
	}
	ninf := float32(math.Inf(-1))
	seq := slices.Concat(prompt, output)
	for _, w := range p.BadWords {
		n := len(w) - 1
		if n <= len(seq) && slices.Equal(seq[len(seq)-n:], w[:n]) {
			l[w[n]] = ninf
		}
	}
	if index < p.MinTokens {
		for _, id := range slices.Concat(p.EOS, p.StopTokenIDs) {
			l[id] = ninf
		}
	}
	for _, b := range p.LogitBias {
		l[b.Token] += float32(b.Value)
	}
	for id := range l {
		if slices.Contains(seq, int32(id)) {
			if l[id] > 0 {
				l[id] = float32(float64(l[id]) / p.RepetitionPenalty)
			} else {
				l[id] = float32(float64(l[id]) * p.RepetitionPenalty)
			}
		}
		n := 0
		for _, o := range output {
			if int(o) == id {
				n++
			}
		}
		if n > 0 {
			l[id] = float32(float64(l[id]) - (p.FrequencyPenalty*float64(n) + p.PresencePenalty))
		}
	}
	return slowChoose(p, l, index)
}

func slowChoose(p *request.Sampling, l []float32, index int) (request.Token, bool) {
	ids := make([]int, 0, len(l))
	for id, v := range l {
		if v != v || math.IsInf(float64(v), 1) {
			return request.Token{}, false
		}
		if !math.IsInf(float64(v), -1) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return request.Token{}, false
	}
	best := func(a, b int) int { return cmp.Or(cmp.Compare(l[b], l[a]), cmp.Compare(a, b)) }
	slices.SortFunc(ids, best)
	top := float64(l[ids[0]])
	chosen := ids[0]
	if p.Temperature >= greedyBelow {
		chosen = slowDraw(p, l, slices.Clone(ids), index)
	}
	tok := request.Token{ID: int32(chosen)}
	if p.Logprobs >= 0 {
		sum := 0.0
		for _, v := range l {
			sum += math.Exp(float64(v) - top)
		}
		norm := top + math.Log(sum)
		tok.Logprob = float64(l[chosen]) - norm
		tok.Rank = 1 + slices.Index(ids, chosen)
		for _, id := range ids[:min(len(ids), p.Logprobs)] {
			tok.Top = append(tok.Top, request.TopLogprob{ID: int32(id), Logprob: float64(l[id]) - norm})
		}
	}
	return tok, true
}

func slowDraw(p *request.Sampling, l []float32, ids []int, index int) int {
	top := float64(l[ids[0]])
	w := func(id int) float64 { return expNeg((float64(l[id]) - top) / p.Temperature) }
	total := func(ids []int) (sum float64) {
		for _, id := range slices.Sorted(slices.Values(ids)) {
			sum += w(id)
		}
		return sum
	}
	if p.TopK > 0 {
		ids = ids[:min(len(ids), p.TopK)]
	}
	if p.MinP > 0 {
		ids = slices.DeleteFunc(slices.Clone(ids), func(id int) bool { return w(id) < p.MinP })
	}
	if p.TopP < 1 {
		target, sum := p.TopP*total(ids), 0.0
		for i, id := range ids {
			if sum += w(id); sum >= target {
				ids = ids[:i+1]
				break
			}
		}
	}
	target, sum := Uniform(p.Seed, uint64(index), p.Stream)*total(ids), 0.0
	slices.Sort(ids)
	for _, id := range ids {
		if sum += w(id); sum > target {
			return id
		}
	}
	return ids[len(ids)-1]
}

func drawParams(t *rapid.T, vocab int) request.Sampling {
	id := rapid.Int32Range(0, int32(vocab-1))
	p := request.Sampling{
		Temperature:       rapid.SampledFrom([]float64{0, 1e-6, 1e-3, .5, 1, 1, 3}).Draw(t, "temperature"),
		TopK:              rapid.SampledFrom([]int{0, 0, 1, 2, 7, 300, 1000}).Draw(t, "top_k"),
		TopP:              rapid.SampledFrom([]float64{1, 1, .999, .9, .5, .25, 1e-9}).Draw(t, "top_p"),
		MinP:              rapid.SampledFrom([]float64{0, 0, .01, .5, 1}).Draw(t, "min_p"),
		RepetitionPenalty: rapid.SampledFrom([]float64{1, 1, 1.3, .7}).Draw(t, "repetition"),
		PresencePenalty:   rapid.SampledFrom([]float64{0, 0, .5, -2}).Draw(t, "presence"),
		FrequencyPenalty:  rapid.SampledFrom([]float64{0, 0, .25, -1}).Draw(t, "frequency"),
		BadWords:          rapid.SliceOfN(rapid.SliceOfN(id, 1, 3), 0, 3).Draw(t, "bad_words"),
		Seed:              rapid.Uint64().Draw(t, "seed"),
		Stream:            rapid.Uint32Range(0, 3).Draw(t, "stream"),
		Logprobs:          rapid.SampledFrom([]int{-1, 0, 3, 20}).Draw(t, "logprobs"),
		StopTokenIDs:      rapid.SliceOfN(id, 0, 2).Draw(t, "stop"),
		EOS:               rapid.SliceOfN(id, 0, 2).Draw(t, "eos"),
		MinTokens:         rapid.IntRange(0, 3).Draw(t, "min_tokens"),
	}
	for _, tok := range rapid.SliceOfNDistinct(id, 0, 3, rapid.ID).Draw(t, "bias") {
		p.LogitBias = append(p.LogitBias, request.Bias{Token: tok, Value: float64(tok%7) - 3.5})
	}
	return p
}

// drawLogits makes rows with many ties, signed zeros, holes and, rarely, poison.
func drawLogits(t *rapid.T, vocab int) []float32 {
	seed := rapid.Uint64().Draw(t, "row")
	shape := rapid.IntRange(0, 4).Draw(t, "shape")
	l := make([]float32, vocab)
	for i := range l {
		u := Uniform(seed, uint64(i), 0)
		switch shape {
		case 0:
			l[i] = float32(u*20 - 10)
		case 1:
			l[i] = float32(math.Round(u*6) - 3) // ties
		case 2:
			l[i] = float32(math.Copysign(0, u-.5)) // -0 and +0
		case 3:
			l[i] = float32(u * 4)
			if u < .7 {
				l[i] = float32(math.Inf(-1))
			}
		case 4:
			l[i] = float32(u * .01)
		}
	}
	switch rapid.IntRange(0, 30).Draw(t, "poison") {
	case 0:
		l[vocab/2] = float32(math.NaN())
	case 1:
		l[vocab/2] = float32(math.Inf(1))
	case 2:
		for i := range l {
			l[i] = float32(math.Inf(-1))
		}
	}
	return l
}

func TestSampleEqualsSlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab := rapid.SampledFrom([]int{1, 2, 9, 257, 700}).Draw(t, "vocab")
		p := drawParams(t, vocab)
		ids := rapid.SliceOfN(rapid.Int32Range(0, int32(vocab-1)), 1, 6)
		prompt, output := ids.Draw(t, "prompt"), ids.Draw(t, "output")[1:]
		s := New(&p, prompt)
		// Accepted: part of the output, all of it, or more (a discarded step).
		known := slices.Concat(output, prompt)
		for _, id := range known[:rapid.IntRange(0, len(known)).Draw(t, "accepted")] {
			s.Accept(id)
		}
		logits := drawLogits(t, vocab)
		want, ok := slowSample(&p, prompt, logits, len(output), output)
		got, err := s.Sample(slices.Clone(logits), len(output), output)
		if ok != (err == nil) {
			t.Fatalf("error %v, slow ok %v", err, ok)
		}
		if err != nil {
			if err.Code != request.BadLogits {
				t.Fatalf("code %s", err.Code)
			}
			return
		}
		if msg := differ(got, want); msg != "" {
			t.Fatalf("%s\ngot  %+v\nwant %+v", msg, got, want)
		}
	})
}

func differ(got, want request.Token) string {
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	switch {
	case got.ID != want.ID:
		return fmt.Sprintf("id %d, want %d", got.ID, want.ID)
	case got.Rank != want.Rank || !near(got.Logprob, want.Logprob):
		return "rank or logprob"
	}
	same := func(a, b request.TopLogprob) bool { return a.ID == b.ID && near(a.Logprob, b.Logprob) }
	if !slices.EqualFunc(got.Top, want.Top, same) {
		return "top logprobs"
	}
	return ""
}

func TestSelectKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfDistinct(rapid.Uint64(), rapid.ID).Draw(t, "keys")
		n := rapid.IntRange(0, len(keys)).Draw(t, "n")
		sorted := slices.Sorted(slices.Values(keys))
		selectKeys(keys, n)
		slices.Sort(keys[:n])
		if !slices.Equal(keys[:n], sorted[:n]) {
			t.Fatalf("first %d of %v", n, sorted)
		}
	})
}
