package model

import (
	"fmt"
	"math"

	"tandem/engine/tensor"
)

// ScalingType names how rotation frequencies are stretched beyond the context
// the model was first trained on.
type ScalingType string

// The supported kinds of RoPE scaling.
const (
	ScalingNone    ScalingType = ""
	ScalingLinear  ScalingType = "linear"  // every frequency / Factor
	ScalingLlama3  ScalingType = "llama3"  // low frequencies / Factor, a smooth step between
	ScalingYaRN    ScalingType = "yarn"    // ramp over dimensions, and an attention factor
	ScalingDivisor ScalingType = "divisor" // one divisor a frequency, as GGUF's rope_freqs.weight
)

// RoPEConfig says how positions rotate queries and keys.
type RoPEConfig struct {
	Base     float64
	Dims     int  // leading dimensions of a head that rotate
	Adjacent bool // pairs are (2i, 2i+1) rather than (i, i+Dims/2)
	Scaling  Scaling
}

// Scaling holds the parameters of one ScalingType; those of others are zero.
type Scaling struct {
	Type        ScalingType
	Factor      float64
	OrigContext float64 // llama3, yarn: context before scaling
	LowFreq     float64 // llama3: wavelengths above OrigContext/LowFreq are scaled fully
	HighFreq    float64 // llama3: wavelengths below OrigContext/HighFreq are not scaled
	BetaFast    float64 // yarn: rotations within OrigContext above which nothing is scaled
	BetaSlow    float64 // yarn: rotations below which everything is scaled
	Attn        float64 // yarn: multiplies cos and sin; 0 means 1
	NoTruncate  bool    // yarn: keep the ramp's ends fractional
	Divisors    []float32
}

func (r *RoPEConfig) validate(headDim int) error {
	if r.Dims < 2 || r.Dims%2 != 0 || r.Dims > headDim {
		return fmt.Errorf("RoPE dimensions are %d, want an even number from 2 to the head dimension %d", r.Dims, headDim)
	}
	if !(r.Base > 1 && r.Base < 1e18) {
		return fmt.Errorf("RoPE base is %v, want a number above 1", r.Base)
	}
	s := &r.Scaling
	positive := func(name string, v float64) error {
		if !(v > 0 && v < 1e12) {
			return fmt.Errorf("RoPE scaling %s: %s is %v, want a positive number", s.Type, name, v)
		}
		return nil
	}
	switch s.Type {
	case ScalingNone:
		return nil
	case ScalingLinear:
		return positive("factor", s.Factor)
	case ScalingLlama3:
		if !(s.HighFreq > s.LowFreq) {
			return fmt.Errorf("RoPE scaling llama3: high_freq_factor %v is not above low_freq_factor %v", s.HighFreq, s.LowFreq)
		}
		return firstError(positive("factor", s.Factor), positive("original context", s.OrigContext), positive("low_freq_factor", s.LowFreq))
	case ScalingYaRN:
		return firstError(positive("factor", s.Factor), positive("original context", s.OrigContext),
			positive("beta_fast", s.BetaFast), positive("beta_slow", s.BetaSlow), positive("attention factor", s.Attn))
	case ScalingDivisor:
		if len(s.Divisors) != r.Dims/2 {
			return fmt.Errorf("RoPE scaling: %d frequency divisors, want %d", len(s.Divisors), r.Dims/2)
		}
		for i, d := range s.Divisors {
			if err := positive(fmt.Sprintf("divisor %d", i), float64(d)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("RoPE scaling %q is not supported (linear, llama3, yarn and dynamic are)", s.Type)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Tensor returns the rotation with scaling applied to the frequencies.
func (r *RoPEConfig) Tensor() tensor.RoPE {
	out := tensor.RoPE{Dims: r.Dims, Adjacent: r.Adjacent, Scale: 1, InvFreq: make([]float32, r.Dims/2)}
	if r.Scaling.Type == ScalingYaRN {
		out.Scale = float32(r.Scaling.Attn)
	}
	for i := range out.InvFreq {
		freq := math.Pow(r.Base, -2*float64(i)/float64(r.Dims))
		out.InvFreq[i] = float32(r.scaled(freq, i))
	}
	return out
}

// scaled returns the frequency of pair i after scaling.
func (r *RoPEConfig) scaled(freq float64, i int) float64 {
	s := &r.Scaling
	switch s.Type {
	case ScalingLinear:
		return freq / s.Factor
	case ScalingDivisor:
		return freq / float64(s.Divisors[i])
	case ScalingLlama3:
		// turns is how often the pair rotates within the original context.
		turns := s.OrigContext * freq / (2 * math.Pi)
		keep := clamp01((turns - s.LowFreq) / (s.HighFreq - s.LowFreq))
		return keep*freq + (1-keep)*freq/s.Factor
	case ScalingYaRN:
		low, high := r.yarnRange()
		keep := 1 - clamp01((float64(i)-low)/(high-low))
		return keep*freq + (1-keep)*freq/s.Factor
	}
	return freq
}

// yarnRange returns between which pair indices the ramp falls from unscaled to
// scaled: where a pair makes BetaFast and BetaSlow turns in the original context.
func (r *RoPEConfig) yarnRange() (low, high float64) {
	s := &r.Scaling
	at := func(turns float64) float64 {
		return float64(r.Dims) * math.Log(s.OrigContext/(turns*2*math.Pi)) / (2 * math.Log(r.Base))
	}
	low, high = at(s.BetaFast), at(s.BetaSlow)
	if !s.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.Dims-1))
	if high-low < 0.001 {
		high = low + 0.001
	}
	return low, high
}

func clamp01(x float64) float64 { return min(max(x, 0), 1) }

// yarnAttention is the usual growth of attention logits with the scale factor.
func yarnAttention(factor, weight float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*weight*math.Log(factor) + 1
}
