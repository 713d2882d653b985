package traces

import (
	"slices"

	"tandem/test/bench/workload"
)

// conversation is what is known of one while its turns are read.
type conversation struct {
	last   int                // request, -1 = none
	prompt []workload.Segment // longest so far: prompts that begin with it share its memory
	full   []workload.Segment // of the last turn with all that it had and its answer, for turns that say what they add
	input  int                // tokens of full
}

func (r *reader) conversation(id string) *conversation {
	if id == "" {
		return &conversation{last: -1}
	}
	c := r.conversations[id]
	if c == nil {
		c = &conversation{last: -1}
		r.conversations[id] = c
	}
	return c
}

// share returns the prompt, in the memory of earlier turns where it goes on from them.
func (c *conversation) share(prompt []workload.Segment) []workload.Segment {
	n := len(c.prompt)
	if len(prompt) >= n && slices.Equal(prompt[:n], c.prompt) {
		c.prompt = append(c.prompt, prompt[n:]...)
		return c.prompt[:len(c.prompt):len(c.prompt)]
	}
	return prompt
}

// add appends a request. Its prompt is complete.
func (r *reader) add(line int, q workload.Request) int {
	c := r.conversation(q.Conversation)
	q.Prompt = c.share(q.Prompt)
	if q.Reply == 0 {
		q.Reply = workload.ID(workload.Name("reply"), workload.Name(q.ID))
	}
	c.last = len(r.w.Requests)
	c.full = append(slices.Clone(q.Prompt), tail(&q)...)
	if q.Output > 0 {
		c.full = append(c.full, workload.Segment{ID: q.Reply, Tokens: q.Output})
	}
	c.input = q.Input + q.Output
	r.w.Requests = append(r.w.Requests, q)
	r.lines = append(r.lines, place{r.o.Name, line})
	return c.last
}

// tail is what a prompt has beyond its segments, as a segment.
func tail(q *workload.Request) []workload.Segment {
	if n := q.Tail(); n > 0 {
		return []workload.Segment{{ID: q.TailID(), Tokens: n}}
	}
	return nil
}

// hashes turns hash ids into segments of block tokens, of which the last may be shorter if short is set. salt keeps ids of
// different conversations apart.
func (r *reader) hashes(line int, ids []int64, block, input int, salt uint64, short bool) ([]workload.Segment, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	want := input / block
	if short {
		want = (input + block - 1) / block
	}
	if len(ids) != want {
		if err := r.fail(line, "hash_ids", "has %d ids, %d tokens in blocks of %d have %d", len(ids), input, block, want); err != nil {
			return nil, err
		}
		ids = ids[:min(len(ids), want)]
	}
	out := make([]workload.Segment, 0, len(ids))
	before := uint64(0)
	for i, id := range ids {
		s := workload.Segment{ID: workload.ID(salt, uint64(id)), Tokens: min(block, input-i*block)}
		if p, ok := r.predecessor[s.ID]; ok && p != before {
			if err := r.fail(line, "hash_ids", "has the id %d behind another one than before: ids must name whole prefixes", id); err != nil {
				return nil, err
			}
		}
		r.predecessor[s.ID] = before
		before = s.ID
		out = append(out, s)
	}
	return out, nil
}
