package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Dist is a distribution of lengths or times. The zero Dist is always 0.
type Dist struct {
	kind string
	a, b float64
}

// Fixed is always v.
func Fixed(v float64) Dist { return Dist{"fixed", v, 0} }

// Uniform lies between low and high, both included when drawn as a whole number.
func Uniform(low, high float64) Dist { return Dist{"uniform", low, high} }

// Spread lies evenly within ratio of mean: [(1-ratio) mean, (1+ratio) mean].
func Spread(mean, ratio float64) Dist { return Uniform(mean*(1-ratio), mean*(1+ratio)) }

// LogNormal has a median and the deviation of its logarithm.
func LogNormal(median, sigma float64) Dist { return Dist{"lognormal", median, sigma} }

// Normal has a mean and a deviation.
func Normal(mean, std float64) Dist { return Dist{"normal", mean, std} }

// Geometric counts trials to the first success, at least 1, with this mean.
func Geometric(mean float64) Dist { return Dist{"geometric", max(1, mean), 0} }

// Exponential has this mean.
func Exponential(mean float64) Dist { return Dist{"exponential", mean, 0} }

// Zero tells whether the distribution is always 0.
func (d Dist) Zero() bool { return d.kind == "" || d.kind == "fixed" && d.a == 0 }

// Mean is the expected value.
func (d Dist) Mean() float64 {
	switch d.kind {
	case "uniform":
		return (d.a + d.b) / 2
	case "lognormal":
		return d.a * math.Exp(d.b*d.b/2)
	}
	return d.a // of those cut at 0, that of the whole
}

// most bounds what is drawn: a tail that is longer overflows whoever counts it.
const most = 1 << 30

// Sample draws a value, 0 at least and most at most.
func (d Dist) Sample(rng *rand.Rand) float64 { return min(d.sample(rng), most) }

func (d Dist) sample(rng *rand.Rand) float64 {
	switch d.kind {
	case "fixed":
		return d.a
	case "uniform":
		return d.a + rng.Float64()*(d.b-d.a)
	case "lognormal":
		return d.a * math.Exp(d.b*rng.NormFloat64())
	case "normal":
		return max(0, d.a+d.b*rng.NormFloat64())
	case "exponential":
		return d.a * rng.ExpFloat64()
	case "geometric":
		if d.a <= 1 {
			return 1
		}
		return 1 + math.Floor(math.Log(1-rng.Float64())/math.Log(1-1/d.a))
	}
	return 0
}

// Int draws a whole number, least at least.
func (d Dist) Int(rng *rand.Rand, least int) int {
	if d.kind == "uniform" { // both ends are as likely as the others
		low, high := int(math.Round(d.a)), int(math.Round(d.b))
		return max(least, low+rng.IntN(max(1, high-low+1)))
	}
	return max(least, int(math.Round(d.Sample(rng))))
}

// String writes the distribution as ParseDist reads it.
func (d Dist) String() string {
	g := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	switch d.kind {
	case "":
		return "0"
	case "fixed":
		return g(d.a)
	case "uniform":
		return g(d.a) + "-" + g(d.b)
	case "geometric", "exponential":
		return d.kind + "(" + g(d.a) + ")"
	}
	return d.kind + "(" + g(d.a) + "," + g(d.b) + ")"
}

// ErrDist says that a text names no distribution.
var ErrDist = errors.New("distribution")

// ParseDist reads 512, 512:0.2 (512 give or take 20 %), 400-600, lognormal(600,0.8), normal(512,64), geometric(30) or
// exponential(2).
func ParseDist(text string) (Dist, error) {
	bad := func() error {
		return fmt.Errorf("%w %q: give a number, MEAN:RATIO, LOW-HIGH, lognormal(MEDIAN,SIGMA), normal(MEAN,STD), geometric(MEAN) or exponential(MEAN), none of them negative or above %d", ErrDist, text, most)
	}
	name, args, call := strings.Cut(text, "(")
	sep := ","
	switch {
	case call && strings.HasSuffix(args, ")"):
		args = strings.TrimSuffix(args, ")")
	case call:
		return Dist{}, bad()
	case strings.Contains(text, ":"):
		name, args, sep = "spread", text, ":"
	case strings.Contains(strings.TrimPrefix(text, "-"), "-") && !strings.ContainsAny(text, "eE"):
		name, args, sep = "uniform", text, "-"
	default:
		name, args = "fixed", text
	}
	var v []float64
	for part := range strings.SplitSeq(args, sep) {
		x, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(x >= 0) || x > most {
			return Dist{}, bad()
		}
		v = append(v, x)
	}
	one := map[string]func(float64) Dist{"fixed": Fixed, "geometric": Geometric, "exponential": Exponential}
	two := map[string]func(a, b float64) Dist{"uniform": Uniform, "spread": Spread, "lognormal": LogNormal, "normal": Normal}
	switch {
	case len(v) == 1 && one[name] != nil:
		return one[name](v[0]), nil
	case len(v) != 2 || two[name] == nil || name == "uniform" && v[0] > v[1] || name == "spread" && v[1] > 1 || name == "lognormal" && v[1] > 10:
		return Dist{}, bad()
	}
	return two[name](v[0], v[1]), nil
}
