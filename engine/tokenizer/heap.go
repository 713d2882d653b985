package tokenizer

// candidate is a possible merge of the symbol at pos with its right neighbour.
// left and right are the ids it was computed from.
type candidate struct {
	rank, pos       int32
	left, right, id int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.pos < d.pos
}

// mergeHeap is a binary min-heap by rank, then position. It is written out
// because container/heap would box each candidate.
type mergeHeap []candidate

func (h *mergeHeap) push(c candidate) {
	s := append(*h, c)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.before(s[up]) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = c
	*h = s
}

func (h *mergeHeap) pop() candidate {
	s := *h
	top, last := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && s[down+1].before(s[down]) {
			down++
		}
		if !s[down].before(last) {
			break
		}
		s[i] = s[down]
		i = down
	}
	if len(s) > 0 {
		s[i] = last
	}
	*h = s
	return top
}
