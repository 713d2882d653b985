package sampler

import (
	"math"
	"slices"
	"sync"
)

// drawChunk is how many vocabulary entries share one stored running sum.
const drawChunk = 256

// smallTopK is the largest k that is selected with a heap while scanning.
const smallTopK = 256

// order packs a logit and its id so that ascending keys mean logit descending,
// then id ascending. Every filter keeps a prefix of this one order, so a set of
// kept tokens is just the key of its last member.
func order(logit float32, id int) uint64 {
	b := math.Float32bits(logit + 0) // -0 becomes +0: they are equal logits
	if b>>31 == 0 {
		b = ^b &^ (1 << 31)
	}
	return uint64(b)<<32 | uint64(uint32(id))
}

// unorder returns the logit and the id of a key.
func unorder(key uint64) (float32, int) {
	b := uint32(key >> 32)
	if b>>31 == 0 {
		b = ^b &^ (1 << 31)
	}
	return math.Float32frombits(b), int(uint32(key))
}

// row is what the filters and the draw share: the kept tokens, in ascending order of their ids. kernels/cpu keeps them alike,
// so that both add the same weights in the same order.
type row struct {
	x   []float32 // their logits
	ids []int32   // nil: token i is at i
	top float64   // largest logit
	inv float64   // one over the temperature

	own *part // where a part of them goes
}

// part is room for the tokens that filters leave.
type part struct {
	x   []float32
	ids []int32
}

// partPool holds them between draws: a wide filter leaves much of a vocabulary.
var partPool = sync.Pool{New: func() any { return new(part) }}

func (r *row) id(i int) int {
	if r.ids == nil {
		return i
	}
	return int(r.ids[i])
}

// cut keeps the tokens up to and including key.
func (r *row) cut(key uint64) {
	floor, last := unorder(key)
	x, ids := r.own.x[:0], r.own.ids[:0] // of r itself after the first cut: written behind what is read
	for i, l := range r.x {
		if l < floor {
			continue
		}
		if id := r.id(i); l > floor || id <= last {
			x, ids = append(x, l), append(ids, int32(id))
		}
	}
	r.x, r.ids, r.own.x, r.own.ids = x, ids, x, ids
}

func (r *row) weight(logit float32) float64 { return expNeg((float64(logit) - r.top) * r.inv) }

// draw applies temperature, top-k, min-p and top-p and draws a token.
func (s *State) draw(logits []float32, top float32, index int) int {
	p := s.params
	own := partPool.Get().(*part)
	defer partPool.Put(own)
	r := row{x: logits, top: float64(top), inv: 1 / p.Temperature, own: own}
	if p.TopK > 0 && p.TopK < len(logits) {
		s.topK(&r, p.TopK)
	}
	if p.MinP > 0 {
		r.minP(p.MinP, p.Temperature)
	}
	if p.TopP < 1 {
		r.topP(p.TopP * r.accumulate(nil))
	}
	s.sums = s.sums[:0]
	total := r.accumulate(&s.sums)
	return r.pick(s.sums, Uniform(p.Seed, uint64(index), p.Stream)*total)
}

// weights fills dst with the weights of the drawChunk tokens from the one at from on, and returns how many there are. Widening
// the logits in a loop of its own matters: amd64's conversion waits for the old value of its target register, which would
// otherwise be the previous exp.
func (r *row) weights(dst *[drawChunk]float64, from int) int {
	chunk := r.x[from:min(from+drawChunk, len(r.x))]
	for i, l := range chunk {
		dst[i] = float64(l)
	}
	for i, l := range dst[:len(chunk)] {
		dst[i] = expNeg((l - r.top) * r.inv)
	}
	return len(chunk)
}

// accumulate sums the weights of the kept tokens, chunk by chunk, and returns the
// total. If sums is not nil it gets the running sum after each chunk.
func (r *row) accumulate(sums *[]float64) float64 {
	var w [drawChunk]float64
	sum := 0.0
	for from := 0; from < len(r.x); from += drawChunk {
		n := r.weights(&w, from)
		clear(w[n:])
		sum += sumChunk(&w)
		if sums != nil {
			*sums = append(*sums, sum)
		}
	}
	return sum
}

// sumChunk adds in the order of vector lanes, so that processors and devices that
// have them come to the same bits (kernels/cpu does), and none waits for the other.
func sumChunk(w *[drawChunk]float64) float64 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float64
	for i := 0; i < len(w); i += 8 {
		v := (*[8]float64)(w[i:])
		s0, s1, s2, s3 = s0+v[0], s1+v[1], s2+v[2], s3+v[3]
		s4, s5, s6, s7 = s4+v[4], s5+v[5], s6+v[6], s7+v[7]
	}
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

// pick returns the first kept token whose running sum exceeds target, or, if
// rounding leaves none, the last one with any weight: of the chunk whose sum does,
// which is added up again one by one, or of all.
func (r *row) pick(sums []float64, target float64) int {
	chunk, _ := slices.BinarySearchFunc(sums, target, func(sum, t float64) int {
		if sum > t {
			return 1
		}
		return -1
	})
	if chunk == len(sums) {
		return r.lastWeighed(len(r.x))
	}
	sum := 0.0
	if chunk > 0 {
		sum = sums[chunk-1]
	}
	var w [drawChunk]float64
	for i, v := range w[:r.weights(&w, chunk*drawChunk)] {
		if sum += v; sum > target {
			return r.id(chunk*drawChunk + i)
		}
	}
	return r.lastWeighed(min((chunk+1)*drawChunk, len(r.x)))
}

// lastWeighed is the last kept token before end that has any weight, or the first of all.
func (r *row) lastWeighed(end int) int {
	for i := end - 1; i > 0; i-- {
		if r.weight(r.x[i]) > 0 {
			return r.id(i)
		}
	}
	return r.id(0)
}

// topK keeps the k largest logits.
func (s *State) topK(r *row, k int) {
	if k > smallTopK {
		keys := keyPool.Get().(*[]uint64)
		defer keyPool.Put(keys)
		r.keys(keys)
		if k <= len(*keys) {
			selectKeys(*keys, k)
			r.cut(slices.Max((*keys)[:k]))
		}
		return
	}
	s.heap = largest(s.heap[:0], r.x, k)
	if len(s.heap) == k {
		r.cut(s.heap[0])
	}
}

// minP keeps the tokens with at least p times the largest probability.
func (r *row) minP(p, temperature float64) {
	// Logits clearly below the bound need no exp.
	bound := math.Nextafter32(float32(r.top+temperature*(math.Log(p)-1e-6)), float32(math.Inf(-1)))
	last := uint64(0)
	for i, l := range r.x {
		if l < bound {
			continue
		}
		if key := order(l, r.id(i)); key > last && r.weight(l) >= p {
			last = key
		}
	}
	r.cut(last)
}

// topP keeps the shortest prefix, in key order, whose weights reach target.
// Only as many keys are sorted as the prefix needs, in pieces that grow.
func (r *row) topP(target float64) {
	keys := keyPool.Get().(*[]uint64)
	defer keyPool.Put(keys)
	r.keys(keys)
	rest, piece, sum := *keys, 64, 0.0
	for len(rest) > 0 {
		piece = min(piece, len(rest))
		selectKeys(rest, piece)
		slices.Sort(rest[:piece])
		for _, key := range rest[:piece] {
			l, _ := unorder(key)
			if sum += r.weight(l); sum >= target {
				r.cut(key)
				return
			}
		}
		rest, piece = rest[piece:], piece*8
	}
}

// keyPool holds key buffers of vocabulary size for the wide selections.
var keyPool = sync.Pool{New: func() any { return new([]uint64) }}

// keys fills dst with the keys of the kept tokens that have any probability.
func (r *row) keys(dst *[]uint64) {
	out := (*dst)[:0]
	for i, l := range r.x {
		if l >= -math.MaxFloat32 {
			out = append(out, order(l, r.id(i)))
		}
	}
	*dst = out
}
