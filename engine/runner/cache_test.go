package runner

import (
	"context"
	"errors"
	"testing"

	"tandem/engine/blockhash"
	"tandem/engine/executor"
	"tandem/engine/transfer"
)

// The events of a running engine name the blocks that a router computes from the prompt.
func TestCacheEventsOfAnEngine(t *testing.T) {
	core := executor.DefaultConfig()
	core.Vocab, core.Blocks, core.MaxSeqLen, core.Namespace, core.EventBuffer = vocab, 64, 256, "test@0", 100
	core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}
	e, err := New(Config{Core: core, Info: Info{Vocab: vocab}}, &counting{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- e.Run(context.WithoutCancel(t.Context())) }()
	logs := e.CacheEvents()
	if len(logs) != 1 {
		t.Fatalf("%d records", len(logs))
	}
	snap, err := e.CacheSnapshot(t.Context(), 0)
	if err != nil || len(snap) != 1 || snap[0].Kind != executor.CacheCreated {
		t.Fatalf("%+v, %v", snap, err)
	}
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(i)
	}
	s, err := e.Submit(t.Context(), greedy(e, 2, prompt...), nil)
	if err != nil {
		t.Fatal(err)
	}
	collect(t, s)
	events, _, _, ok := logs[0].Read(snap[0].ID+1, 100)
	root := blockhash.Root("test@0", "", "")
	first := blockhash.Next(root, prompt[:16])
	second := blockhash.Next(first, prompt[16:32])
	if !ok || len(events) != 1 || events[0].Parent != root.Wire() || len(events[0].Blocks) != 2 ||
		events[0].Blocks[0] != first.Wire() || events[0].Blocks[1] != second.Wire() {
		t.Errorf("events %+v", events)
	}
	if n, err := e.ResetCache(t.Context()); n != 1 || err != nil {
		t.Errorf("%d ranks reset, %v", n, err)
	}
	if events, _, _, _ = logs[0].Read(snap[0].ID+2, 100); len(events) != 1 || events[0].Kind != executor.CacheCleared {
		t.Errorf("events of a reset: %+v", events)
	}
	stop(t, e, died)
	if _, err := e.ResetCache(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("reset of a stopped engine: %v", err)
	}
	if _, err := e.CacheSnapshot(t.Context(), 0); !errors.Is(err, ErrStopped) {
		t.Errorf("snapshot of a stopped engine: %v", err)
	}
}
