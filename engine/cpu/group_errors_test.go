package cpu

import (
	"strings"
	"testing"

	"tandem/engine/pass"
	"tandem/engine/tensor"
)

// Each mistake in the recording of a group's ops is told by the seal.
func TestGroupRecordingErrors(t *testing.T) {
	type handles struct {
		b                        *Backend
		x, y, narrow, all, share tensor.Buffer // 32, 32 and 16 wide, then shared of 32
		m, up                    tensor.Matrix
		v                        tensor.Vector
	}
	attn := tensor.Attn{Heads: 2, KVHeads: 1, HeadDim: 16}
	for want, rec := range map[string]func(h handles){
		"columns: 9 from 24 on of a buffer of 32":      func(h handles) { h.b.Columns(h.x, 24, 9) },
		"columns: 1 from -1 on":                        func(h handles) { h.b.Columns(h.x, -1, 1) },
		"columns: 0 from 1 on":                         func(h handles) { h.b.Columns(h.x, 1, 0) },
		"columns: 9 from 0 on of a buffer of 8":        func(h handles) { h.b.Columns(h.b.Columns(h.x, 0, 8), 0, 9) },
		"columns: not a buffer":                        func(h handles) { h.b.Columns(99, 0, 1) },
		"gather columns: cuts [0 32]":                  func(h handles) { h.b.GatherColumns(h.x, []int{0, 32}) },
		"gather columns: cuts [1 8 32]":                func(h handles) { h.b.GatherColumns(h.x, []int{1, 8, 32}) },
		"cuts [0 33 32], must ascend":                  func(h handles) { h.b.GatherColumns(h.x, []int{0, 33, 32}) },
		"gather columns: it is 32 wide, must be 31":    func(h handles) { h.b.GatherColumns(h.x, []int{0, 8, 31}) },
		"gather columns: it is not a buffer":           func(h handles) { h.b.GatherColumns(-1, []int{0, 8, 31}) },
		"gather rows: input is 16 wide, must be 32":    func(h handles) { h.b.GatherRows(h.all, h.narrow) },
		"gather rows: the buffer is of this rank's":    func(h handles) { h.b.GatherRows(h.y, h.x) },
		"gather rows: the buffer is shared":            func(h handles) { h.b.GatherRows(h.all, h.share) },
		"gather rows: the buffer is a view":            func(h handles) { h.b.GatherRows(h.b.Columns(h.all, 0, 16), h.narrow) },
		"own rows: the buffer is of this rank's":       func(h handles) { h.b.OwnRows(h.x, h.y) },
		"own rows: output is 16 wide, must be 32":      func(h handles) { h.b.OwnRows(h.narrow, h.all) },
		"add shares: the buffer is shared":             func(h handles) { h.b.AddShares(h.all, h.share) },
		"add shares: input and output are the same":    func(h handles) { h.b.AddShares(h.x, h.x) },
		"add shares: the buffer is a view":             func(h handles) { h.b.AddShares(h.narrow, h.b.Columns(h.all, 0, 16)) },
		"add shares: share is not a buffer":            func(h handles) { h.b.AddShares(h.x, 99) },
		"linear: one buffer has this rank's rows":      func(h handles) { h.b.AddLinear(h.x, h.all, h.m, tensor.None) },
		"gated MLP: one buffer has this rank's rows":   func(h handles) { h.b.GatedMLP(h.all, h.x, h.v, 0, h.up) },
		"embed: the buffer is shared":                  func(h handles) { h.b.Embed(h.all, h.m) },
		"attention: the buffer is shared":              func(h handles) { h.b.Attention(h.all, h.x, attn) },
		"attention: input and output are the same":     func(h handles) { h.b.Attention(h.b.Columns(h.x, 0, 32), h.x, attn) },
		"linear: input and output are the same buffer": func(h handles) { h.b.AddLinear(h.b.Columns(h.x, 0, 32), h.b.Columns(h.x, 0, 32), h.m, -1) },
		"experts: one buffer has this rank's rows": func(h handles) {
			h.b.MoE(h.all, h.x, tensor.MoE{Norm: h.v, Router: h.m, Used: 1, GateUp: []tensor.Matrix{h.up}, Down: []tensor.Matrix{h.m}})
		},
		"logits: the buffer is shared":                         func(h handles) { h.b.Logits(h.all, h.v, 0, h.m, nil) },
		"logits: cuts [0 16 32] give rank 1 16 rows, its matr": func(h handles) { h.b.Logits(h.x, h.v, 0, h.m, []int{0, 16, 32}) },
		"the output matrix has 50 rows, the vocabulary 99": func(h handles) {
			h.b.Embed(h.x, h.m)
			h.b.Logits(h.x, h.v, 0, h.m, []int{0, 18, 50})
		},
	} {
		t.Run(want, func(t *testing.T) {
			cfg := tinyConfig()
			cfg.Group = fakeGroup{newWorld(2), 1}
			b, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			h := handles{b: b, x: b.Buffer(32), y: b.Buffer(32), narrow: b.Buffer(16), all: b.Shared(32), share: b.Shared(32)}
			square := host("w", tensor.F32, make([]float32, 32*32), 32, 32)
			h.m, _ = b.Matrix(square)
			h.up, _ = b.GateUp(square, square)
			h.v, _ = b.Vector(host("v", tensor.F32, make([]float32, 32), 32))
			rec(h)
			if err := b.Seal(99); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A backend that is alone refuses the ops of a group, but has views.
func TestOpsOfAGroupNeedOne(t *testing.T) {
	for name, rec := range map[string]func(b *Backend, x tensor.Buffer){
		"Shared":        func(b *Backend, _ tensor.Buffer) { b.Shared(32) },
		"GatherColumns": func(b *Backend, x tensor.Buffer) { b.GatherColumns(x, []int{0, 32}) },
		"GatherRows":    func(b *Backend, x tensor.Buffer) { b.GatherRows(x, x) },
		"OwnRows":       func(b *Backend, x tensor.Buffer) { b.OwnRows(x, x) },
		"AddShares":     func(b *Backend, x tensor.Buffer) { b.AddShares(x, x) },
		"Logits":        func(b *Backend, x tensor.Buffer) { b.Logits(x, 0, 0, 0, []int{0, 32}) },
	} {
		b, err := New(tinyConfig())
		if err != nil {
			t.Fatal(err)
		}
		x := b.Buffer(32)
		if b.Columns(x, 4, 8); b.Err() != nil {
			t.Fatalf("a view: %v", b.Err())
		}
		_, _ = b.Vector(host("v", tensor.F32, make([]float32, 32), 32))
		_, _ = b.Matrix(host("w", tensor.F32, make([]float32, 32*32), 32, 32))
		rec(b, x)
		if err := b.Seal(32); err == nil || !strings.Contains(err.Error(), pass.ErrNoGroup.Error()) {
			t.Errorf("%s: got %v", name, err)
		}
		b.Close()
	}
}

func TestGroupConfig(t *testing.T) {
	cfg := tinyConfig()
	cfg.Group = fakeGroup{newWorld(2), 2}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "rank 2 of a group of 2") {
		t.Errorf("got %v", err)
	}
	cfg.Group = fakeGroup{newWorld(3), 2}
	if n := cfg.sharedRows(); n != 24 {
		t.Errorf("%d rows of all ranks, want 24", n)
	}
	cfg.MaxSharedRows = 7
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "7 rows of all ranks") {
		t.Errorf("got %v", err)
	}
	if cfg.MaxSharedRows = 9; cfg.Validate() != nil || cfg.sharedRows() != 9 {
		t.Errorf("%d rows of all ranks and %v, want 9", cfg.sharedRows(), cfg.Validate())
	}
}
