package comm

import "math/bits"

// share splits n elements into parts at multiples of a cache line.
func share(n, part, parts int) (lo, hi int) {
	const line = cacheLine / 4
	lines := (n + line - 1) / line
	return min(lines*part/parts*line, n), min(lines*(part+1)/parts*line, n)
}

// chunk is how many elements are summed at a time, so that they and the sums
// of the levels above stay in the first-level cache.
const chunk = 1024

// scratchLen is how many elements the sums of a group of so many ranks need
// beside the sources: one chunk for each level of the tree.
func scratchLen(size int) int { return chunk * bits.Len(uint(size-1)) }

// sumInto sums elements [lo, hi) of what all ranks show, for every element
// alone, and writes the sums to dst, or to every rank's rows if dst is nil. dst
// may be that stretch of one of the sources.
func (r *Rank) sumInto(dst []float32, lo, hi int) {
	src := r.hub.src
	for at := lo; at < hi; at += chunk {
		n := min(chunk, hi-at)
		sum := treeSum(src, r.scratch, at, n)
		if dst != nil {
			copy(dst[at-lo:], sum)
			continue
		}
		for _, s := range src {
			copy(s[at:], sum)
		}
	}
}

// treeSum returns the sum of src[i][at:at+n] over all i, by halves: the lower
// half of a range has (lo+hi)/2 as its end. It is a source itself if there is
// one only, else it lies in scratch.
func treeSum(src [][]float32, scratch []float32, at, n int) []float32 {
	if len(src) == 1 {
		return src[0][at : at+n]
	}
	mid := len(src) / 2
	// The sum of the lower half, if it is none of the sources, lies where the
	// result will; the upper half may use only what is behind it.
	a := treeSum(src[:mid], scratch, at, n)
	b := treeSum(src[mid:], scratch[n:], at, n)
	addTwo(scratch[:n], a, b)
	return scratch[:n]
}

// addTwo is dst = a + b; all have one length.
func addTwo(dst, a, b []float32) {
	for len(dst) >= 8 && len(a) >= 8 && len(b) >= 8 {
		d, x, y := (*[8]float32)(dst), (*[8]float32)(a), (*[8]float32)(b)
		d[0] = x[0] + y[0]
		d[1] = x[1] + y[1]
		d[2] = x[2] + y[2]
		d[3] = x[3] + y[3]
		d[4] = x[4] + y[4]
		d[5] = x[5] + y[5]
		d[6] = x[6] + y[6]
		d[7] = x[7] + y[7]
		dst, a, b = dst[8:], a[8:], b[8:]
	}
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}
