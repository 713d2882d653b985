package runner

import (
	"log/slog"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/model"
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
		core, kv := o.sizes(m)
		if core.MaxSeqLen != c.wantSeq || kv.Blocks != c.wantBlk || core.Blocks != c.wantBlk {
			t.Errorf("%s: max_seq_len %d with %d blocks, want %d with %d", c.name, core.MaxSeqLen, kv.Blocks, c.wantSeq, c.wantBlk)
		}
		if (c.warns == "") != (log.Len() == 0) || !strings.Contains(log.String(), c.warns) {
			t.Errorf("%s: warned %q, want %q", c.name, log.String(), c.warns)
		}
	}
}

func TestSlidingWindowIsTold(t *testing.T) {
	var log strings.Builder
	o := LoadOptions{Core: executor.DefaultConfig(), PoolTokens: 4096, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	core, _ := o.sizes(model.Config{Vocab: 100, Layers: 1, KVHeads: 1, HeadDim: 8, Context: 512, Window: 512})
	if core.MaxSeqLen != 512 || !strings.Contains(log.String(), "sliding window") {
		t.Errorf("max_seq_len %d, log %q", core.MaxSeqLen, log.String())
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
