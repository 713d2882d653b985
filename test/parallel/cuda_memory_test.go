//go:build cuda

package parallel

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"tandem/engine/cuda/gpu"
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/test/tinymodel"
)

// launchMemory is what the emulator's driver wants free for a launch, as a driver
// may that takes memory for a kernel then.
const launchMemory = 1 << 20

// others takes the device's memory but for some bytes, as other programs may, until
// the function that it returns is called.
func others(t *testing.T, leave int64) (end func()) {
	t.Helper()
	dev, err := gpu.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	var taken []gpu.Ptr
	err = dev.Do(func() error {
		for part := int64(1); ; {
			free, _, err := dev.MemInfo()
			if n := (free - leave) / part; err != nil || n < 4096 {
				return err
			} else if p, err := dev.Alloc(n); err != nil {
				part *= 2 // there is no such piece
			} else {
				taken = append(taken, p)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		err := dev.Do(func() (err error) {
			for _, p := range taken {
				err = errors.Join(err, dev.Free(p))
			}
			return err
		})
		if err := errors.Join(err, dev.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Steps need no memory that they did not have when the engine was ready. Where the
// driver has none for a launch the requests of the step end with an error, and the
// engine serves on as soon as there is some again.
func TestDeviceOutOfMemory(t *testing.T) {
	const n, tokens = 3, 6
	m, err := tinymodel.Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	want := answers(t, division{ranks: 1}.start(t, m.Path), m.Vocab, n, tokens)
	e := division{ranks: 1, backend: "cuda"}.start(t, m.Path)
	end := others(t, 2*launchMemory)
	alike(t, answers(t, e, m.Vocab, n, tokens), want)
	if failed := e.Stats(time.Minute).StepErrors; failed != 0 {
		t.Errorf("%d steps failed though there was memory for launches", failed)
	}
	end()

	end = others(t, 0)
	core := executor.DefaultConfig()
	core.MaxSeqLen = 256
	_, err = runner.Load(t.Context(), runner.LoadOptions{Path: m.Path, Core: core, Backend: "cuda", TokensOnly: true, PoolTokens: 512})
	if err == nil || !strings.Contains(err.Error(), "lower kv_cache_config.max_tokens") {
		t.Errorf("an engine on a full device: %v", err)
	}
	for i, r := range requests(m.Vocab, n, tokens) {
		r.ID = e.NewID()
		got, err := answer(t.Context(), e, r)
		var failed *request.Error
		switch {
		case err == nil && os.Getenv("TANDEM_GPU") != "": // a real driver needs none
		case !errors.As(err, &failed) || failed.Code != request.StepFailed:
			t.Errorf("request %d without memory: %v, error %v", i, got, err)
		}
	}
	end()
	alike(t, answers(t, e, m.Vocab, n, tokens), want)
}
