package runner

import (
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

func TestSizes(t *testing.T) {
	m := model.Config{Vocab: 100, Layers: 1, KVHeads: 1, HeadDim: 8, Context: 8192}
	for _, c := range []struct {
		name             string
		seq, batch, pool int
		wantSeq, wantBlk int
		warns            string
	}{
		{"the pool decides", 0, 4, 2048, 2048, 128, "size of the KV pool"},
		{"a last block that is not full counts", 0, 4, 2040, 2048, 128, "size of the KV pool"},
		{"the pool is large enough", 0, 4, 9000, 8192, 563, ""},
		{"the user asked for less", 1000, 4, 2048, 1000, 128, ""},
		{"more than the model", 9999, 4, 20000, 8192, 1250, "made for"},
		{"derived", 64, 2, 0, 64, 8, ""},
	} {
		var log strings.Builder
		o := LoadOptions{Core: executor.DefaultConfig(), PoolTokens: c.pool, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		o.Core.MaxSeqLen, o.Core.MaxBatch = c.seq, c.batch
		core, kv := o.sizes(m, comm.Span{}, 0)
		if core.MaxSeqLen != c.wantSeq || kv.Blocks != c.wantBlk || core.Blocks != c.wantBlk {
			t.Errorf("%s: max_seq_len %d with %d blocks, want %d with %d", c.name, core.MaxSeqLen, kv.Blocks, c.wantSeq, c.wantBlk)
		}
		if (c.warns == "") != (log.Len() == 0) || !strings.Contains(log.String(), c.warns) {
			t.Errorf("%s: warned %q, want %q", c.name, log.String(), c.warns)
		}
	}
}

func TestDropWindows(t *testing.T) {
	var log strings.Builder
	ck := &model.Checkpoint{Config: model.Config{Arch: "mistral", Layers: 2, Context: 4096, Windows: []int{512, 0}}}
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if err := dropWindows(logger, ck); err != nil || ck.Config.Context != 512 || ck.Config.Windows != nil || !strings.Contains(log.String(), "sliding window") {
		t.Errorf("%+v, %v, log %q", ck.Config, err, log.String())
	}
	ck.Config = model.Config{Arch: "gemma3", Context: 4096, Windows: []int{512, 0}, LocalRoPE: &model.RoPEConfig{}}
	if err := dropWindows(logger, ck); err == nil || ck.Config.Context != 4096 {
		t.Errorf("%+v, %v", ck.Config, err)
	}
}

func TestOwnName(t *testing.T) {
	for _, c := range []struct{ inside, path, want string }{
		{"Tiny 1B", "/models/x.gguf", "Tiny 1B"},
		{"acme/tiny", "/models/y", "acme/tiny"},
		{"", "/models/tiny-chat", "tiny-chat"},
		{"", "/models/tiny.Q8_0.gguf", "tiny.Q8_0"},
		{"/home/maker/run7/last", "/models/tiny-chat", "tiny-chat"},
		{"./out", "/models/tiny-chat", "tiny-chat"},
	} {
		ck := &model.Checkpoint{Path: c.path, Config: model.Config{Name: c.inside}}
		if got := ownName(ck); got != c.want {
			t.Errorf("%q at %s is served as %q, want %q", c.inside, c.path, got, c.want)
		}
	}
}

func TestPoolFitsTheMachine(t *testing.T) {
	kv := tensor.KVShape{Layers: 2, KVHeads: 2, HeadDim: 64, BlockTokens: 16, DType: tensor.BF16}
	const total = 1 << 30
	for _, c := range []struct {
		blocks, tokens int
		total          int64
		want           string
	}{
		{total / kv.BlockBytes(), 1 << 20, total, ""},
		{total/kv.BlockBytes() + 1, 1 << 20, total, "kv_cache_config.max_tokens: 1048576 tokens take 1.0 GiB"},
		{1 << 57, 1 << 61, total, "kv_cache_config.max_tokens"},
		{1 << 57, 0, total, ""},   // our own size is never too large
		{1 << 57, 1 << 61, 0, ""}, // no figure to compare with
	} {
		kv.Blocks = c.blocks
		err := checkPool(kv, c.tokens, 1, c.total)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%d blocks of %d: %v", c.blocks, c.total, err)
		}
	}
}

func TestPoolOfTheMostTokens(t *testing.T) {
	core := executor.DefaultConfig()
	core.BlockTokens = 8
	for _, c := range []struct{ tokens, want int }{{1, 1}, {8, 1}, {9, 2}, {math.MaxInt, 1 << 60}} {
		if got := poolBlocks(core, tensor.KVShape{}, c.tokens, 0); got != c.want {
			t.Errorf("%d tokens take %d blocks, want %d", c.tokens, got, c.want)
		}
	}
}

// Ranks that rest meet often enough not to be missed.
func TestIdle(t *testing.T) {
	for _, c := range []struct {
		ranks            int
		idle, hang, want time.Duration
	}{
		{1, 0, 0, time.Second},
		{1, 0, time.Millisecond, time.Second},
		{2, 0, 0, time.Second},
		{2, 0, 30 * time.Second, time.Second},
		{2, 0, 400 * time.Millisecond, 100 * time.Millisecond},
		{2, 50 * time.Millisecond, 400 * time.Millisecond, 50 * time.Millisecond},
	} {
		o := LoadOptions{Ranks: c.ranks, Idle: c.idle, HangTimeout: c.hang}
		if got := o.idle(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
