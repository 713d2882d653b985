package cpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

// started is a backend that loaded the test model through a store of packed
// weights, as a process does at its start.
type started struct {
	store   *Store
	backend *Backend
	log     *bytes.Buffer
}

func startSaved(t *testing.T, c Saved, w *weights) *started {
	t.Helper()
	s := &started{log: new(bytes.Buffer)}
	c.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	s.store = OpenStore(c)
	cfg := groupConfig("", 2, tensor.BF16)
	cfg.Store = s.store
	s.backend = build(t, w, cfg)
	return s
}

// end saves as a server does, and stops when that is done.
func (s *started) end(t *testing.T) {
	t.Helper()
	s.store.Save()
	s.store.saving.Wait()
	s.backend.Close()
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
}

func (s *started) logits(t *testing.T) []float32 {
	t.Helper()
	var b tensor.Batch
	b.Reset()
	b.Add([]int32{1, 2, 3}, 0, []int32{1}, true)
	out, err := s.backend.Run(&b)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(out)
}

func savedIn(t *testing.T) Saved {
	t.Helper()
	own := keptFree
	keptFree = func(uint64) uint64 { return 0 } // the disk of whoever runs this may be nearly full
	t.Cleanup(func() { keptFree = own })
	dir := t.TempDir()
	source := filepath.Join(dir, "model")
	if err := os.WriteFile(source, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return Saved{Path: filepath.Join(dir, "packed", "m.packed"), Source: source, Identity: "one"}
}

// The second start maps what the first one packed, and computes the same bits.
func TestSavedWeightsAreMapped(t *testing.T) {
	c, w := savedIn(t), newWeights(adpShape, 3)
	first := startSaved(t, c, w)
	if first.store.Mapped() {
		t.Error("mapped before anything was saved")
	}
	want, report := first.logits(t), first.backend.MemoryReport()
	first.end(t)
	second := startSaved(t, c, w)
	if !second.store.Mapped() || second.store.packed != 0 {
		t.Errorf("mapped: %t, %d bytes packed again", second.store.Mapped(), second.store.packed)
	}
	if got := second.logits(t); !slices.Equal(got, want) {
		t.Error("other logits with mapped weights")
	}
	if got := second.backend.MemoryReport().WeightBytes; got != report.WeightBytes {
		t.Errorf("%d bytes of weights, packed they were %d", got, report.WeightBytes)
	}
	second.store.Save()
	if second.store.stop != nil {
		t.Error("saved again what was mapped")
	}
	second.end(t)
	if list, _ := filepath.Glob(filepath.Join(filepath.Dir(c.Path), "*.tmp")); len(list) > 0 {
		t.Errorf("left behind: %q", list)
	}
}

// A file that is not what it should be is not used, and is replaced.
func TestSavedWeightsThatCannotBeUsed(t *testing.T) {
	w := newWeights(adpShape, 3)
	change := func(at int64, b byte) func(t *testing.T, c *Saved) {
		return func(t *testing.T, c *Saved) {
			data, err := os.ReadFile(c.Path)
			if err != nil {
				t.Fatal(err)
			}
			data[at] ^= b
			if err := os.WriteFile(c.Path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, harm := range map[string]func(t *testing.T, c *Saved){
		"stale":   func(_ *testing.T, c *Saved) { c.Identity = "two" },
		"magic":   change(0, 1),
		"version": change(8, 1),
		"index":   change(12, 1),
		"matrix":  change(savedHead+100, 1),
		"cut": func(t *testing.T, c *Saved) {
			if err := os.Truncate(c.Path, savedHead+10); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := savedIn(t)
			first := startSaved(t, c, w)
			want := first.logits(t)
			first.end(t)
			harm(t, &c)
			again := startSaved(t, c, w)
			if again.store.Mapped() || !slices.Equal(again.logits(t), want) {
				t.Errorf("mapped: %t; log: %s", again.store.Mapped(), again.log)
			}
			if !strings.Contains(again.log.String(), "will be replaced") {
				t.Errorf("log: %s", again.log)
			}
			again.end(t)
			last := startSaved(t, c, w)
			if !last.store.Mapped() {
				t.Errorf("not replaced; log: %s", again.log)
			}
			last.end(t)
		})
	}
}

// Another model with weights of the same names and shapes takes none of them.
func TestSavedWeightsOfOtherBytes(t *testing.T) {
	c := savedIn(t)
	startSaved(t, c, newWeights(adpShape, 3)).end(t)
	other := newWeights(adpShape, 4)
	a, b := startSaved(t, c, other), build(t, other, groupConfig("", 2, tensor.BF16))
	alone := started{backend: b}
	if !slices.Equal(a.logits(t), alone.logits(t)) {
		t.Error("weights of another model")
	}
	a.end(t)
}

// Processes that start at the same time write one after the other; the second
// finds the file. One that is stopped while it waits leaves nothing.
func TestSavedWeightsByTwoProcesses(t *testing.T) {
	c, w := savedIn(t), newWeights(adpShape, 3)
	dir := filepath.Dir(c.Path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := lockFolder(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	a, b := startSaved(t, c, w), startSaved(t, c, w)
	b.store.Save() // waits for the lock
	b.backend.Close()
	if err := b.store.Close(); err != nil { // and gives up
		t.Fatal(err)
	}
	if _, err := os.Stat(c.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("written without the lock: %v", err)
	}
	lock.Close()
	a.end(t)
	info, err := os.Stat(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	late := startSaved(t, c, w)
	if n, err := late.store.keep.write(context.Background(), nil); n != 0 || err != nil {
		t.Errorf("the file was there, yet %d bytes were written: %v", n, err)
	}
	late.end(t)
	if now, err := os.Stat(c.Path); err != nil || !os.SameFile(info, now) {
		t.Error("written twice")
	}
}

// What goes wrong with the disk costs nothing but the next start's time.
func TestSavedWeightsWithoutRoom(t *testing.T) {
	if disk := uint64(100 << 30); keptFree(disk) != 5<<30 || keptFree(1<<30) != 1<<30 {
		t.Errorf("of 100 GiB %d stay free, of one %d", keptFree(disk), keptFree(1<<30))
	}
	if err := room(t.TempDir(), 1<<60); err == nil || !strings.Contains(err.Error(), "free on the disk") {
		t.Errorf("an exabyte: %v", err)
	}
	c, w := savedIn(t), newWeights(adpShape, 3)
	if err := os.WriteFile(filepath.Dir(c.Path), nil, 0o600); err != nil { // no folder can be made
		t.Fatal(err)
	}
	s := startSaved(t, c, w)
	s.logits(t)
	s.end(t)
	if !strings.Contains(s.log.String(), "not kept") {
		t.Errorf("log: %s", s.log)
	}
}

// Leftovers of dead processes and weights of models that are gone are removed.
func TestSweep(t *testing.T) {
	c, w := savedIn(t), newWeights(adpShape, 3)
	startSaved(t, c, w).end(t)
	dir := filepath.Dir(c.Path)
	gone := c
	gone.Path, gone.Source = filepath.Join(dir, "gone.packed"), filepath.Join(dir, "none")
	startSaved(t, gone, w).end(t)
	for _, name := range []string{"m.packed.12.tmp", "notes.txt", "broken.packed"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sweep(dir)
	var left []string
	list, _ := os.ReadDir(dir)
	for _, d := range list {
		left = append(left, d.Name())
	}
	if want := []string{"broken.packed", "lock", "m.packed", "notes.txt"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}

// Any bytes are refused or describe matrices inside the file.
func FuzzReadIndex(f *testing.F) {
	file := func(index string) []byte {
		head := append([]byte(savedMagic), 1, 0, 0, 0)
		head = binary.LittleEndian.AppendUint32(head, crc32.Checksum([]byte(index), castagnoli))
		head = binary.LittleEndian.AppendUint64(head, savedHead+128)
		head = binary.LittleEndian.AppendUint64(head, uint64(len(index)))
		return append(append(head, make([]byte, savedHead+128-len(head))...), index...)
	}
	f.Add(file(`{"Identity":"x","Entries":[{"Key":"k","DTypes":[4],"Rows":[1],"Cols":32,"Offset":4096,"Bytes":64,"Sums":[1]}]}`))
	f.Add(file(`{"Entries":[{"Offset":4160,"Bytes":9223372036854775807}]}`))
	f.Add([]byte(savedMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := readIndex(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		for _, e := range x.Entries {
			_ = data[e.Offset : e.Offset+e.Bytes]
		}
	})
}
