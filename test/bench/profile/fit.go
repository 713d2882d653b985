package profile

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"tandem/test/bench/result"
)

// Point is one measured iteration of a rank.
type Point struct {
	CtxTokens   int     `json:"ctx_tokens"`    // prompt tokens computed
	CtxPrior    int     `json:"ctx_attention"` // sum over chunks of chunk tokens times the positions before the chunk
	GenRequests int     `json:"gen_requests"`  // requests that decode one token each
	GenContext  int     `json:"gen_context"`   // sum of their context lengths
	Seconds     float64 `json:"seconds"`
}

// features of a point, in the order of Coefficients.
func (p Point) features() [features]float64 {
	return [features]float64{1, float64(p.CtxTokens), float64(p.GenRequests), float64(p.GenContext), float64(p.CtxPrior)}
}

const features = 5

// Coefficients give the seconds of a rank's iteration: Iteration + CtxToken*ctx
// tokens + GenRequest*gen requests + GenContext*sum of context lengths +
// CtxAttention*sum of chunk tokens times positions before the chunk.
type Coefficients struct {
	Iteration    float64 `json:"iteration_s"`
	CtxToken     float64 `json:"ctx_token_s"`
	GenRequest   float64 `json:"gen_request_s"`
	GenContext   float64 `json:"gen_context_token_s"`
	CtxAttention float64 `json:"ctx_attention_s"`
}

// Seconds is the modelled time of an iteration.
func (c Coefficients) Seconds(p Point) float64 {
	t := 0.0
	for i, f := range p.features() {
		t += float64(c.list()[i] * f) // not fused: simulated runs are equal on all machines
	}
	return t
}

func (c Coefficients) list() [features]float64 {
	return [features]float64{c.Iteration, c.CtxToken, c.GenRequest, c.GenContext, c.CtxAttention}
}

// Fit is how well coefficients describe the points they come from.
type Fit struct {
	Points      int     `json:"points"`
	R2          float64 `json:"r2"`           // of seconds
	ResidualP95 float64 `json:"residual_p95"` // of |modelled - measured| / measured
}

// MaxResidual is the largest residual_p95 of a profile that may stand behind
// published results.
const MaxResidual = 0.15

// ErrPoor is wrapped by errors about fits above MaxResidual.
var ErrPoor = errors.New("the fit is poor")

// Check tells whether the fit is good enough for published results.
func (f Fit) Check() error {
	if !(f.ResidualP95 <= MaxResidual) {
		return fmt.Errorf("%w: 5 %% of the iterations are off by more than %.0f %%, at most %.0f %% are allowed", ErrPoor, 100*f.ResidualP95, 100*MaxResidual)
	}
	return nil
}

// Solve finds the coefficients, none of them negative, that make the sum of
// squared relative errors least. With five of them the active sets of
// non-negative least squares (Lawson and Hanson, Solving Least Squares Problems,
// chapter 23) are few enough to try them all.
func Solve(points []Point) (Coefficients, Fit, error) {
	if len(points) < 2*features {
		return Coefficients{}, Fit{}, fmt.Errorf("%d iterations, at least %d are needed", len(points), 2*features)
	}
	for i, p := range points {
		if !(p.Seconds > 0) || math.IsInf(p.Seconds, 0) || min(p.CtxTokens, p.CtxPrior, p.GenRequests, p.GenContext) < 0 {
			return Coefficients{}, Fit{}, fmt.Errorf("iteration %d: %+v: seconds must be positive, counts not negative", i, p)
		}
	}
	best, least := [features]float64{}, math.Inf(1)
	for set := 1; set < 1<<features; set++ {
		x, ok := solveSet(points, set)
		if !ok {
			continue
		}
		if e := relativeError(points, x); e < least {
			best, least = x, e
		}
	}
	if math.IsInf(least, 1) {
		return Coefficients{}, Fit{}, errors.New("no coefficients fit: the iterations are all alike; vary prompt tokens, batch and context")
	}
	c := Coefficients{best[0], best[1], best[2], best[3], best[4]}
	return c, c.fit(points), nil
}

// solveSet solves the least squares of the features in set, and is not ok if one
// comes out negative or the points do not tell them apart.
func solveSet(points []Point, set int) (x [features]float64, ok bool) {
	var index []int
	for i := range features {
		if set>>i&1 != 0 {
			index = append(index, i)
		}
	}
	// Columns are scaled by their largest value, which keeps the normal equations
	// far from the limits of float64.
	scale := make([]float64, len(index))
	for _, p := range points {
		f := p.features()
		for k, i := range index {
			scale[k] = max(scale[k], f[i]/p.Seconds)
		}
	}
	n := len(index)
	m := make([][]float64, n)
	for k := range m {
		if m[k] = make([]float64, n+1); scale[k] == 0 {
			return x, false
		}
	}
	for _, p := range points {
		f := p.features()
		for r := range n {
			fr := f[index[r]] / p.Seconds / scale[r]
			for c := range n {
				m[r][c] += fr * f[index[c]] / p.Seconds / scale[c]
			}
			m[r][n] += fr
		}
	}
	if !eliminate(m) {
		return x, false
	}
	for k, i := range index {
		if x[i] = m[k][n] / scale[k]; x[i] < 0 {
			return x, false
		}
	}
	return x, true
}

// eliminate solves [n][n+1] equations in place by Gauss and Jordan with pivots.
func eliminate(m [][]float64) bool {
	for c := range m {
		pivot := c
		for r := c + 1; r < len(m); r++ {
			if math.Abs(m[r][c]) > math.Abs(m[pivot][c]) {
				pivot = r
			}
		}
		if math.Abs(m[pivot][c]) < 1e-12 {
			return false
		}
		m[c], m[pivot] = m[pivot], m[c]
		for r := range m {
			if r == c {
				continue
			}
			by := m[r][c] / m[c][c]
			for k := c; k <= len(m); k++ {
				m[r][k] -= by * m[c][k]
			}
		}
	}
	for c := range m {
		m[c][len(m)] /= m[c][c]
	}
	return true
}

func relativeError(points []Point, x [features]float64) (sum float64) {
	c := Coefficients{x[0], x[1], x[2], x[3], x[4]}
	for _, p := range points {
		e := c.Seconds(p)/p.Seconds - 1
		sum += e * e
	}
	return sum
}

// fit measures the coefficients against points.
func (c Coefficients) fit(points []Point) Fit {
	mean := 0.0
	for _, p := range points {
		mean += p.Seconds / float64(len(points))
	}
	var left, all float64
	off := make([]float64, 0, len(points))
	for _, p := range points {
		e := c.Seconds(p) - p.Seconds
		left, all = left+e*e, all+(p.Seconds-mean)*(p.Seconds-mean)
		off = append(off, math.Abs(e)/p.Seconds)
	}
	f := Fit{Points: len(points), R2: 1, ResidualP95: quantile(off, 0.95)}
	if all > 0 {
		f.R2 = 1 - left/all
	}
	return f
}

// quantile of values in any order.
func quantile(v []float64, q float64) float64 {
	return result.Quantile(slices.Sorted(slices.Values(v)), q)
}
