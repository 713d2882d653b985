package runner

import (
	"strings"
	"testing"

	"tandem/engine/comm"
	"tandem/engine/cpu"
	"tandem/engine/executor"
	"tandem/engine/transfer"
)

// Bytes are the default where the processor multiplies them, and of no meaning on a GPU.
func TestActivationsFollowTheDevice(t *testing.T) {
	for _, tc := range []struct {
		key, isa string
		onCPU    bool
		want     cpu.Activations
		err      string
	}{
		{"", "portable", true, cpu.Activations16, ""},
		{"auto", "portable", true, cpu.Activations16, ""},
		{"auto", "", true, cpu.BestActivations(""), ""},
		{"int8", "portable", true, cpu.Activations8, ""},
		{"int16", "", true, cpu.Activations16, ""},
		{"auto", "", false, cpu.Activations16, ""},
		{"int16", "", false, cpu.Activations16, ""},
		{"int8", "", false, 0, "--backend cpu"},
		{"int4", "", true, 0, "auto, int16 or int8"},
	} {
		o := LoadOptions{Activations: tc.key, ISA: tc.isa}
		got, err := o.activations(tc.onCPU)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q, CPU %t: error %v, want %q", tc.key, tc.onCPU, err, tc.err)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%q at %q, CPU %t: %v, %v, want %v", tc.key, tc.isa, tc.onCPU, got, err, tc.want)
		}
	}
}

// Processes whose numbers differ may not share an instance, nor blocks on a disk.
func TestActivationsAreAgreedOn(t *testing.T) {
	lines := func(a cpu.Activations) string { return (&LoadOptions{acts: a}).settings(Config{}) }
	if lines(cpu.Activations8) == lines(cpu.Activations16) {
		t.Error("processes join with other activations")
	}
	identity := func(a cpu.Activations) string {
		core := executor.DefaultConfig()
		core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "BF16", BlockTokens: 16}
		o := LoadOptions{acts: a, Tiers: TierOptions{HostBytes: 1 << 20}}
		cfg, err := o.tiers(&core, "model", "cpu", comm.Span{})
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Identity
	}
	if identity(cpu.Activations8) == identity(cpu.Activations16) {
		t.Error("blocks on a disk serve other activations")
	}
}
