package result

import (
	"cmp"
	"math"
	"slices"
)

// Oversaturated tells whether an open loop asked for more than the server can do: requests in flight and times to the
// first chunk both rise over the run, by more than chance explains, and by half at least.
func Oversaturated(records []*Record) bool {
	var done []*Record
	for _, r := range records {
		if r.Phase == Measured && r.Outcome == OK && r.First >= 0 {
			done = append(done, r)
		}
	}
	const least = 30
	if len(done) < least {
		return false
	}
	slices.SortFunc(done, func(a, b *Record) int { return cmp.Compare(a.Sched, b.Sched) })
	ends := make([]int64, len(done))
	for i, r := range done {
		ends[i] = r.End
	}
	slices.Sort(ends)
	ttft, flying := make([]float64, len(done)), make([]float64, len(done))
	for i, r := range done {
		ttft[i] = r.TTFTCO()
		over, _ := slices.BinarySearch(ends, r.Sched)
		flying[i] = float64(i - over)
	}
	return rises(ttft) && rises(flying)
}

// rises tells whether values grow with their place: Mann and Kendall's test at three deviations, and the last third is
// half more than the first.
func rises(v []float64) bool {
	const most = 1000 // pairs grow with the square
	if len(v) > most {
		thin := make([]float64, most)
		for i := range thin {
			thin[i] = v[i*len(v)/most]
		}
		v = thin
	}
	s := 0
	for i := range v {
		for j := i + 1; j < len(v); j++ {
			s += cmp.Compare(v[j], v[i])
		}
	}
	n := float64(len(v))
	deviation := math.Sqrt(n * (n - 1) * (2*n + 5) / 18)
	third := len(v) / 3
	mean := func(x []float64) float64 { return Describe(slices.Clone(x)).Mean }
	return float64(s) > 3*deviation && mean(v[len(v)-third:]) > 1.5*mean(v[:third])
}
