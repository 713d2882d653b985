package workload

// Mix joins two numbers to one that looks random. It is the same everywhere and for ever: workloads are made of it.
func Mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 ^ (b + 0xd1b54a32d192ed03)
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x = (x ^ x>>29) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// Name turns a text into a number for Mix (FNV-1a of 64 bits).
func Name(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// ID makes a segment id of two numbers, 1 to MaxID.
func ID(a, b uint64) uint64 { return Mix(a, b)&(MaxID-1) + 1 }

// TailID is the segment id of what a prompt has beyond its segments.
func (r *Request) TailID() uint64 { return ID(Name("tail"), Name(r.ID)) }

// Segments calls yield with every part of the prompt, the tail included, until it returns false.
func (r *Request) Segments(yield func(Segment) bool) {
	left := r.Input
	for _, s := range r.Prompt {
		if left <= 0 {
			return
		}
		s.Tokens = min(s.Tokens, left)
		left -= s.Tokens
		if !yield(s) {
			return
		}
	}
	if left > 0 {
		yield(Segment{r.TailID(), left})
	}
}

// AppendTokens appends the prompt as numbers below vocab. A client maps them to ordinary tokens of its model.
func (r *Request) AppendTokens(dst []int32, seed uint64, vocab int) []int32 {
	for s := range r.Segments {
		at := Mix(seed, s.ID)
		for i := range s.Tokens {
			dst = append(dst, int32(Mix(at, uint64(i))%uint64(vocab)))
		}
	}
	return dst
}

// AppendBlocks appends the ids of the prompt's full blocks of size tokens: equal
// ids mean equal prefixes up to that block. Prompts must name shared content by
// the same segments, as those of this project's generators and importers do.
func (r *Request) AppendBlocks(dst []uint64, size int) []uint64 {
	dst, _, _ = r.blocks(dst, size)
	return dst
}

// AppendAllBlocks is AppendBlocks with an id for what is left behind the last full block.
func (r *Request) AppendAllBlocks(dst []uint64, size int) []uint64 {
	dst, id, filled := r.blocks(dst, size)
	if filled > 0 {
		dst = append(dst, id&(MaxID-1)+1)
	}
	return dst
}

// blocks also returns the chain's state behind the last full block and how many tokens are there.
func (r *Request) blocks(dst []uint64, size int) (out []uint64, id uint64, filled int) {
	id = Name("block")
	for s := range r.Segments {
		for at := 0; at < s.Tokens; {
			n := min(size-filled, s.Tokens-at)
			id = Mix(id, Mix(s.ID, uint64(at)<<32|uint64(n)))
			at, filled = at+n, filled+n
			if filled == size {
				id, filled = id&(MaxID-1)+1, 0
				dst = append(dst, id)
			}
		}
	}
	return dst, id, filled
}
