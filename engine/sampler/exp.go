package sampler

import "math"

// Weights are exp of a non-positive number, one per vocabulary entry and token,
// which makes exp the cost of a plain draw. This one splits x = k·ln2/64 + r
// and multiplies a table entry by a short polynomial: about 1 ulp, and the same
// bits on every machine (no fused multiply-add: each product is rounded by an
// explicit conversion).
const (
	expBits  = 6
	expSlots = 1 << expBits
	// ln2/64 in two parts; the high part has trailing zeros, so k·high is exact.
	expStepHi = 0x1.62e42fefap-7
	expStepLo = 0x1.cf79abc9e3b39p-46
	expScale  = expSlots / math.Ln2
	// Adding and subtracting 1.5·2^52 rounds to the nearest integer.
	expRound     = 0x1.8p52
	expRoundBits = 0x4338000000000000
	// Below this the result leaves the normal range; it counts as no weight.
	expMin = -708.0
)

var expTable = func() (t [expSlots]float64) {
	for i := range t {
		t[i] = math.Exp2(float64(i) / expSlots)
	}
	return t
}()

// expNeg returns exp(x) for x <= 0; 0 below exp(-708), exactly 1 at 0.
func expNeg(x float64) float64 {
	if x < expMin {
		return 0
	}
	shifted := float64(x*expScale) + expRound
	k := int64(math.Float64bits(shifted) - expRoundBits)
	kf := shifted - expRound
	r := (x - float64(kf*expStepHi)) - float64(kf*expStepLo)
	r2 := float64(r * r)
	p := r + float64(r2*(0.5+float64(r*(1.0/6+float64(r*(1.0/24+float64(r*(1.0/120))))))))
	t := expTable[k&(expSlots-1)]
	y := t + float64(t*p)
	return math.Float64frombits(math.Float64bits(y) + uint64(k>>expBits)<<52)
}
