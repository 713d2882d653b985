package schedule

import (
	"math"
	"math/rand/v2"
	"time"
)

// gaps are the times of an open loop.
type gaps struct {
	o   *Options
	rng *rand.Rand
}

func newGaps(o *Options) *gaps {
	return &gaps{o, rand.New(rand.NewPCG(o.Seed, 0x6172726976616c73))} //nolint:gosec // a load model, no secret
}

// first is when the first unit starts: at once, as closed loops do.
func (g *gaps) first() time.Duration { return 0 }

// next is when the unit after the one at at starts.
func (g *gaps) next(at time.Duration) time.Duration {
	if math.IsInf(g.o.Rate, 1) {
		return at
	}
	unit := 1.0 // mean 1
	if g.o.Mode == Rate {
		shape := g.o.Burstiness
		if shape == 0 {
			shape = 1
		}
		unit = gamma(g.rng, shape) / shape
	}
	return at + stretched(time.Second, g.stretch(at.Seconds(), unit))
}

// stretch is how many seconds from at it takes until so many units are expected.
func (g *gaps) stretch(at, units float64) float64 {
	r0, r1, d := g.o.Rate, g.o.RateEnd, g.o.Duration.Seconds()
	if r1 == 0 || at >= d {
		return units / r0
	}
	rate, slope := r0+(r1-r0)*at/d, (r1-r0)/d
	if slope == 0 {
		return units / rate
	}
	under := rate*rate + 2*slope*units
	if under <= 0 { // the rate falls to nothing before
		return 2 * d
	}
	return 2 * units / (rate + math.Sqrt(under))
}

// gamma draws from the Gamma distribution of scale 1 by Marsaglia and Tsang's method.
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape == 1 {
		return rng.ExpFloat64()
	}
	if shape < 1 {
		return gamma(rng, shape+1) * math.Pow(1-rng.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if u := 1 - rng.Float64(); math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
