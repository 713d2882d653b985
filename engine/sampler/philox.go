package sampler

import "math/bits"

// Multipliers and key increments of Philox4x32.
const (
	philoxMul0 = 0xD2511F53
	philoxMul1 = 0xCD9E8D57
	philoxKey0 = 0x9E3779B9
	philoxKey1 = 0xBB67AE85
)

// philox returns the Philox4x32-10 block of a counter under a key.
func philox(ctr [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := mulHiLo(philoxMul0, ctr[0])
		hi1, lo1 := mulHiLo(philoxMul1, ctr[2])
		ctr = [4]uint32{hi1 ^ ctr[1] ^ key[0], lo1, hi0 ^ ctr[3] ^ key[1], lo0}
		key[0] += philoxKey0
		key[1] += philoxKey1
	}
	return ctr
}

func mulHiLo(a, b uint32) (hi, lo uint32) { return bits.Mul32(a, b) }

// Uniform returns the uniform in [0,1) of output token n (0-based) of choice
// stream under seed. It has 53 random bits.
func Uniform(seed, n uint64, stream uint32) float64 {
	x := philox(
		[4]uint32{uint32(n), uint32(n >> 32), stream, 0},
		[2]uint32{uint32(seed), uint32(seed >> 32)},
	)
	return float64(uint64(x[0]>>5)<<26+uint64(x[1]>>6)) / (1 << 53)
}
