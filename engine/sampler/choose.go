package sampler

import "math"

// largest returns the keys of the n largest finite logits as a heap whose root
// is the least likely of them. It appends to heap, which must be empty.
func largest(heap []uint64, logits []float32, n int) []uint64 {
	floor := float32(-math.MaxFloat32)
	for id, l := range logits {
		if l < floor || len(heap) == n && l == floor {
			continue // a tie with the root has a higher id and loses
		}
		if len(heap) < n {
			heap = append(heap, order(l, id))
			siftUp(heap)
		} else {
			heap[0] = order(l, id)
			siftDown(heap)
		}
		if len(heap) == n {
			floor, _ = unorder(heap[0])
		}
	}
	return heap
}

// siftUp restores the max-heap after an append.
func siftUp(h []uint64) {
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up] >= h[i] {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

// siftDown restores the max-heap after the root was replaced.
func siftDown(h []uint64) {
	for i := 0; ; {
		big := 2*i + 1
		if big >= len(h) {
			return
		}
		if big+1 < len(h) && h[big+1] > h[big] {
			big++
		}
		if h[i] >= h[big] {
			return
		}
		h[i], h[big] = h[big], h[i]
		i = big
	}
}

// selectKeys reorders keys so that the n smallest come first, in any order.
// Keys are distinct. 0 <= n <= len(keys).
func selectKeys(keys []uint64, n int) {
	lo, hi := 0, len(keys) // the boundary n lies in keys[lo:hi]
	for n > lo && n < hi {
		pivot := medianOf3(keys[lo], keys[lo+(hi-lo)/2], keys[hi-1])
		i, j := lo, hi-1
		for i <= j {
			for keys[i] < pivot {
				i++
			}
			for keys[j] > pivot {
				j--
			}
			if i <= j {
				keys[i], keys[j] = keys[j], keys[i]
				i++
				j--
			}
		}
		// keys[lo:j+1] <= pivot <= keys[i:hi]
		switch {
		case n <= j+1:
			hi = j + 1
		case n >= i:
			lo = i
		default:
			return
		}
	}
}

func medianOf3(a, b, c uint64) uint64 { return max(min(a, b), min(max(a, b), c)) }
