package model

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
)

// The expected frequencies are those of transformers, written by testdata/rope.py.
func TestRoPEAgreesWithPython(t *testing.T) {
	raw, err := os.ReadFile("testdata/rope.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name    string
		Config  json.RawMessage
		InvFreq []float64 `json:"inv_freq"`
		Scale   float64
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 7 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			cfg, err := parseHFConfig(c.Config, nil, true)
			if err != nil {
				t.Fatal(err)
			}
			r := cfg.RoPE.Tensor()
			if len(r.InvFreq) != len(c.InvFreq) || math.Abs(float64(r.Scale)-c.Scale) > 1e-6 {
				t.Fatalf("%d frequencies, scale %v; want %d, %v", len(r.InvFreq), r.Scale, len(c.InvFreq), c.Scale)
			}
			for i, want := range c.InvFreq {
				if math.Abs(float64(r.InvFreq[i])-want) > 2e-6*want {
					t.Errorf("frequency %d is %v, want %v", i, r.InvFreq[i], want)
				}
			}
		})
	}
}

func TestRoPEValidate(t *testing.T) {
	good := RoPEConfig{Base: 10000, Dims: 64}
	cases := map[string]struct {
		change func(*RoPEConfig)
		want   string
	}{
		"odd":      {func(r *RoPEConfig) { r.Dims = 63 }, "dimensions"},
		"too many": {func(r *RoPEConfig) { r.Dims = 66 }, "dimensions"},
		"base":     {func(r *RoPEConfig) { r.Base = 1 }, "base"},
		"base NaN": {func(r *RoPEConfig) { r.Base = math.NaN() }, "base"},
		"type":     {func(r *RoPEConfig) { r.Scaling.Type = "magic" }, `"magic"`},
		"factor":   {func(r *RoPEConfig) { r.Scaling = Scaling{Type: ScalingLinear, Factor: -1} }, "factor"},
		"freqs": {func(r *RoPEConfig) {
			r.Scaling = Scaling{Type: ScalingLlama3, Factor: 8, OrigContext: 9, LowFreq: 4, HighFreq: 4}
		}, "high_freq_factor"},
		"yarn": {func(r *RoPEConfig) {
			r.Scaling = Scaling{Type: ScalingYaRN, Factor: 8, OrigContext: 9, BetaFast: 32, Attn: 1}
		}, "beta_slow"},
		"divisors":  {func(r *RoPEConfig) { r.Scaling = Scaling{Type: ScalingDivisor, Divisors: []float32{1}} }, "1 frequency divisors"},
		"divisor 0": {func(r *RoPEConfig) { r.Scaling = Scaling{Type: ScalingDivisor, Divisors: make([]float32, 32)} }, "divisor 0"},
	}
	for name, c := range cases {
		r := good
		c.change(&r)
		if err := r.validate(64); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	if err := good.validate(64); err != nil {
		t.Error(err)
	}
}
