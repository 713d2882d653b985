package load

import (
	"fmt"
	"math"
)

// Search finds the highest load at which a server is good enough: it doubles until a probe fails and then bisects, by
// ratio. It is pure: ask Next, run that load, tell Add.
type Search struct {
	low, high float64 // the best that was good, the least that was not; high 0 = none yet
	next      float64
	tolerance float64 // of high/low - 1
	least     float64
	most      float64
}

// NewSearch begins at start and ends when the bracket is narrower than tolerance (0.05 = 5 %), or beyond the limits.
func NewSearch(start, least, most, tolerance float64) (*Search, error) {
	if !(start > 0) || !(least > 0) || !(most >= start) || !(least <= start) || !(tolerance > 0) || math.IsInf(most, 0) {
		return nil, fmt.Errorf("search from %g within %g to %g by %g: want 0 < least <= start <= most and a tolerance above 0", start, least, most, tolerance)
	}
	return &Search{next: start, tolerance: tolerance, least: least, most: most}, nil
}

// Next is the load to try; false when the search is over.
func (s *Search) Next() (float64, bool) {
	switch {
	case s.next == 0, s.high > 0 && s.low > 0 && s.high/s.low-1 <= s.tolerance:
		return 0, false
	}
	return s.next, true
}

// Add tells how the load of Next went.
func (s *Search) Add(good bool) {
	x := s.next
	if good {
		s.low = x
	} else {
		s.high = x
	}
	switch {
	case s.low == 0 && x <= s.least, s.high == 0 && x >= s.most:
		s.next = 0
	case s.low == 0:
		s.next = max(s.least, x/2)
	case s.high == 0:
		s.next = min(s.most, 2*x)
	default:
		s.next = math.Sqrt(s.low * s.high)
	}
}

// Bracket is the highest load that was good (0 = none) and the lowest that was not (+Inf = none).
func (s *Search) Bracket() (low, high float64) {
	if s.high == 0 {
		return s.low, math.Inf(1)
	}
	return s.low, s.high
}
