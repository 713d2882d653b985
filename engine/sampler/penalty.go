package sampler

import (
	"math"
	"slices"
)

// counts tracks which ids a request has seen. It is sparse: its size follows
// the request, not the vocabulary. The zero value tracks nothing.
type counts struct {
	on   bool
	at   map[int32]int32 // id to its index in ids
	ids  []int32         // in the order of first sight
	out  []int32         // occurrences in the output, by index in ids
	seen int             // output tokens counted
}

func (c *counts) start(prompt []int32) {
	*c = counts{on: true, at: make(map[int32]int32, len(prompt)), ids: c.ids[:0], out: c.out[:0]}
	for _, id := range prompt {
		c.slot(id)
	}
}

func (c *counts) slot(id int32) int32 {
	i, ok := c.at[id]
	if !ok {
		i = int32(len(c.ids))
		c.at[id] = i
		c.ids, c.out = append(c.ids, id), append(c.out, 0)
	}
	return i
}

func (c *counts) add(id int32) {
	if c.on {
		c.out[c.slot(id)]++
		c.seen++
	}
}

// sync makes the counts those of output: tokens that came without Accept are
// added, and after a step that was thrown away everything is counted again.
func (c *counts) sync(prompt, output []int32) {
	if !c.on {
		return
	}
	if c.seen > len(output) {
		c.start(prompt)
	}
	for _, id := range output[c.seen:] {
		c.add(id)
	}
}

// ban applies the list of allowed tokens, bad words and min_tokens, in that order.
func (s *State) ban(logits []float32, index int, output []int32) {
	s.confine(logits)
	for _, word := range s.params.BadWords {
		if n := len(word) - 1; n >= 0 && s.endsWith(word[:n], output) {
			forbid(logits, word[n])
		}
	}
	if index < s.params.MinTokens {
		for _, id := range s.params.EOS {
			forbid(logits, id)
		}
		for _, id := range s.params.StopTokenIDs {
			forbid(logits, id)
		}
	}
}

// confine forbids all tokens but those of Allowed, if there are any.
func (s *State) confine(logits []float32) {
	if s.params.Allowed == nil {
		return
	}
	next := 0
	for _, id := range s.params.Allowed {
		for ; next < min(int(id), len(logits)); next++ {
			forbid(logits, int32(next))
		}
		next = int(id) + 1
	}
	for ; next < len(logits); next++ {
		forbid(logits, int32(next))
	}
}

// endsWith reports whether prompt+output ends in tail.
func (s *State) endsWith(tail, output []int32) bool {
	n := len(tail)
	if n <= len(output) {
		return slices.Equal(output[len(output)-n:], tail)
	}
	fromPrompt := n - len(output)
	return fromPrompt <= len(s.prompt) &&
		slices.Equal(output, tail[fromPrompt:]) &&
		slices.Equal(s.prompt[len(s.prompt)-fromPrompt:], tail[:fromPrompt])
}

// forbid sets a logit to -Inf. A NaN stays, so that it is still reported, and an
// id beyond the row is ignored.
func forbid(logits []float32, id int32) {
	if id >= 0 && int(id) < len(logits) && logits[id] == logits[id] {
		logits[id] = float32(math.Inf(-1))
	}
}

// shape applies logit bias, then the repetition penalty, then the frequency and
// presence penalties. Sums are taken in float64 and rounded once.
func (s *State) shape(logits []float32) {
	for _, b := range s.params.LogitBias {
		if b.Token >= 0 && int(b.Token) < len(logits) {
			logits[b.Token] = float32(float64(logits[b.Token]) + b.Value)
		}
	}
	rep, freq, pres := s.params.RepetitionPenalty, s.params.FrequencyPenalty, s.params.PresencePenalty
	for i, id := range s.counts.ids {
		if id < 0 || int(id) >= len(logits) {
			continue
		}
		l := float64(logits[id])
		if l > 0 {
			l /= rep
		} else {
			l *= rep
		}
		if n := s.counts.out[i]; n > 0 {
			l = float64(float32(l)) - (float64(freq*float64(n)) + pres)
		}
		logits[id] = float32(l)
	}
}
