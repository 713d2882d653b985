package runner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/engine/executor"
	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// paged is a device whose every next token depends on what its blocks hold for all
// tokens before: a wrong block gives another answer.
type paged struct {
	counting
	size   int
	blocks [][]byte
}

func newPaged(core executor.Config) *paged {
	d := &paged{size: core.Layout.BlockBytes(), blocks: make([][]byte, core.Blocks)}
	for i := range d.blocks {
		d.blocks[i] = make([]byte, d.size)
	}
	return d
}

func chained(h uint64, token int32) uint64 { return (h^uint64(token))*1099511628211 + 7 }

// oracle continues a prompt by n tokens.
func oracle(prompt []int32, n int) (out []int32) {
	h := uint64(1)
	for _, t := range prompt {
		h = chained(h, t)
	}
	for range n {
		out = append(out, int32(h>>20%vocab))
		h = chained(h, out[len(out)-1])
	}
	return out
}

func (d *paged) Run(b *tensor.Batch) ([]float32, error) {
	var logits []float32
	for i := 0; i+1 < len(b.RowStart) && len(logits) < len(b.LogitRows)*vocab; i++ {
		pages := b.Pages[b.PageStart[i]:b.PageStart[i+1]]
		at := func(p int32) []byte { return d.blocks[pages[p/16]][8*(p%16):] }
		h := uint64(1)
		if p := b.PosStart[i]; p > 0 {
			h = binary.LittleEndian.Uint64(at(p - 1))
		}
		for row := b.RowStart[i]; row < b.RowStart[i+1]; row++ {
			h = chained(h, b.Tokens[row])
			binary.LittleEndian.PutUint64(at(b.PosStart[i]+row-b.RowStart[i]), h)
			if slices.Contains(b.LogitRows, row) {
				one := make([]float32, vocab)
				one[h>>20%vocab] = 1
				logits = append(logits, one...)
			}
		}
	}
	return logits, nil
}

func (d *paged) CopyBlockPrefix(from, to int32, tokens int) error {
	copy(d.blocks[to][:8*tokens], d.blocks[from])
	return nil
}

func (d *paged) Block(id int32) []byte { return d.blocks[id] }

// split is a device whose blocks are not the host's.
type split struct{ *paged }

func (d split) Block(int32) []byte         { return nil }
func (d split) BlockBytes() int            { return d.size }
func (d split) Read(id int32, to []byte)   { copy(to, d.blocks[id]) }
func (d split) Write(id int32, src []byte) { copy(d.blocks[id], src) }

// copier is a device that copies on a queue of its own. What it is asked to run
// waits for the copies before.
type copier struct {
	*paged
	queue chan func()
	fail  func() error // of an Offload
	open  sync.WaitGroup
}

func newCopier(p *paged) *copier {
	c := &copier{paged: p, queue: make(chan func(), 1000)}
	go func() {
		for do := range c.queue {
			do()
			c.open.Done()
		}
	}()
	return c
}

func (c *copier) HostMemory(n int64) ([]byte, error) { return make([]byte, n), nil }

func (c *copier) add(do func()) {
	c.open.Add(1)
	c.queue <- do
}

func (c *copier) Offload(block int32, to []byte, done func(error)) {
	c.add(func() {
		if c.fail != nil {
			done(c.fail())
			return
		}
		copy(to, c.blocks[block])
		done(nil)
	})
}

func (c *copier) Onboard(block int32, from []byte, done func(error)) {
	c.add(func() { copy(c.blocks[block], from); done(nil) })
}

func (c *copier) Run(b *tensor.Batch) ([]float32, error) {
	c.open.Wait()
	return c.paged.Run(b)
}

func tierCore(host, disk int) executor.Config {
	core := executor.DefaultConfig()
	core.Vocab, core.Blocks, core.MaxSeqLen, core.Namespace = vocab, 10, 160, "test@0"
	core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}
	core.Tiers = kvcache.Tiers{HostBlocks: host, DiskBlocks: disk, MinPriority: 30}
	core.OnboardAlways = true
	return core
}

func startTiers(t *testing.T, core executor.Config, d Device, dir string) (*Engine, chan error) {
	t.Helper()
	e, err := New(Config{Core: core, Info: Info{Vocab: vocab}, Overlap: laneOfTests == "aside", Tiers: TierConfig{Dir: dir, Identity: "test"}}, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- e.Run(context.WithoutCancel(t.Context())) }()
	return e, died
}

// converse sends prompt i of some that have nothing in common, and proves its answer.
func converse(t *testing.T, e *Engine, i int) {
	t.Helper()
	prompt := make([]int32, 100)
	for j := range prompt {
		prompt[j] = int32((j*j + 17*i + j) % vocab)
	}
	s, err := e.Submit(t.Context(), greedy(e, 5, prompt...), nil)
	if err != nil {
		t.Fatal(err)
	}
	ids, last := collect(t, s)
	if last.Finish != request.FinishLength || !slices.Equal(ids, oracle(prompt, 5)) {
		t.Fatalf("prompt %d: %v, want %v; %q %v", i, ids, oracle(prompt, 5), last.Finish, last.Err)
	}
}

func TestContentComesBackFromEveryKindOfDevice(t *testing.T) {
	for _, kind := range []string{"memory", "split memory", "copies on its own"} {
		t.Run(kind, func(t *testing.T) {
			core := tierCore(64, 0)
			p := newPaged(core)
			var d Device = p
			switch kind {
			case "split memory":
				d = split{p}
			case "copies on its own":
				c := newCopier(p)
				defer goleak.VerifyNone(t)
				defer close(c.queue)
				d = c
			}
			e, died := startTiers(t, core, d, "")
			for i := range 9 {
				converse(t, e, i%3)
			}
			if st := e.Stats(time.Minute); st.OnboardBytes < 6*5*uint64(p.size) || st.TierFailed > 0 {
				t.Errorf("%+v", st)
			}
			end(t, e, died)
		})
	}
}

func TestOffloadThatFailsLosesOnlyContent(t *testing.T) {
	core := tierCore(64, 0)
	c := newCopier(newPaged(core))
	c.fail = func() error { return errors.New("the copy engine is gone") }
	e, died := startTiers(t, core, c, "")
	for i := range 6 {
		converse(t, e, i%3)
	}
	if st := e.Stats(time.Minute); st.TierFailed == 0 || st.OnboardBytes != 0 || st.HostBlocks != 0 {
		t.Errorf("%+v", st)
	}
	end(t, e, died)
	close(c.queue)
}

// TestFilesOutliveTheEngine spills, ends, and finds all of it in another engine.
func TestFilesOutliveTheEngine(t *testing.T) {
	dir := t.TempDir()
	core := tierCore(100, 200) // the disk may be slow, so the host has room for all
	for run := range 3 {
		e, died := startTiers(t, core, newPaged(core), dir)
		for i := range 12 {
			converse(t, e, i)
		}
		await(t, func() bool { return run > 0 || e.Stats(time.Minute).SpillBytes > 0 })
		st := e.Stats(time.Minute)
		if run == 0 && st.SpillBytes == 0 || run > 0 && st.LoadBytes == 0 || st.TierFailed > 0 {
			t.Errorf("run %d: %+v", run, st)
		}
		if run == 1 && st.PrefixHitTokens < 12*80 {
			t.Errorf("only %d tokens were found again", st.PrefixHitTokens)
		}
		stop(t, e, died)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.kv"))
	if err != nil || len(files) < 70 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, f := range files { // a bit falls over in each
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)-1] ^= 1
		if err := os.WriteFile(f, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, died := startTiers(t, core, newPaged(core), dir)
	for i := range 4 {
		converse(t, e, i)
	}
	if st := e.Stats(time.Minute); st.BadFiles == 0 {
		t.Errorf("%+v", st)
	}
	stop(t, e, died)
}

func TestDiskThatFailsIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	core := tierCore(40, 200)
	e, died := startTiers(t, core, newPaged(core), dir)
	folders, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(folders) != 1 {
		t.Fatal(folders, err)
	}
	for i := range 256 { // where the folders of the files would be
		if err := os.WriteFile(filepath.Join(folders[0], fmt.Sprintf("%02x", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 16 {
		converse(t, e, i)
	}
	await(t, func() bool { return e.Stats(time.Minute).DiskRests == 1 })
	if st := e.Stats(time.Minute); st.TierFailed == 0 || st.HostBlocks == 0 {
		t.Errorf("%+v", st)
	}
	stop(t, e, died)
}

func TestTiersThatCannotBe(t *testing.T) {
	core := tierCore(4, 0)
	if _, err := New(Config{Core: core, Info: Info{Vocab: vocab}}, &counting{}, nil); err == nil {
		t.Error("a device without blocks has a host tier")
	}
	core = tierCore(4, 4)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Core: core, Info: Info{Vocab: vocab}, Tiers: TierConfig{Dir: file}}, newPaged(core), nil); err == nil {
		t.Error("a file as disk_cache_dir")
	}
	goleak.VerifyNone(t)
}
