package trace

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func capture(t *testing.T, maxBytes int64, files int) (*Capture, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "traces")
	c, err := NewCapture(CaptureOptions{Dir: dir, MaxBytes: maxBytes, MaxFiles: files, Source: "test"}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return c, dir
}

// read returns the lines of all files, in order.
func read(t *testing.T, dir string) (names, lines []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		for sc := bufio.NewScanner(z); sc.Scan(); {
			lines = append(lines, sc.Text())
		}
		f.Close()
	}
	return names, lines
}

func TestCaptureWritesRequests(t *testing.T) {
	c, dir := capture(t, 1<<20, 2)
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	c.Add(Captured{
		RequestID: "7", Conversation: c.Name("alice"), Input: 9, Output: 3, BlockSize: 4, HashIDs: c.Hashes(prompt, 4, ""),
		Observed: &Observed{TTFTMs: 12.5, E2EMs: 40, Outcome: "ok"},
	}, epoch.Add(1500*time.Microsecond))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, lines := read(t, dir)
	if len(lines) != 2 || !strings.HasPrefix(lines[0], `{"kind":"trace-header","version":1,`) {
		t.Fatalf("%q", lines)
	}
	var got Captured
	if err := json.Unmarshal([]byte(lines[1]), &got); err != nil {
		t.Fatal(err)
	}
	if got.TimestampMs != 1.5 || got.Input != 9 || len(got.HashIDs) != 2 || got.Observed.TTFTMs != 12.5 || strings.Contains(lines[1], "alice") {
		t.Errorf("%s", lines[1])
	}
	for _, f := range []string{dir, filepath.Join(dir, filepath.Base(must(filepath.Glob(dir + "/*"))[0]))} {
		if st, err := os.Stat(f); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s can be read by others: %v", f, st.Mode())
		}
	}
}

func must[T any](v T, _ error) T { return v }

func TestCaptureHashes(t *testing.T) {
	a, _ := capture(t, 1<<20, 1)
	defer a.Close()
	b, _ := capture(t, 1<<20, 1)
	defer b.Close()
	x, y := []int32{1, 2, 3, 4, 5, 6}, []int32{1, 2, 9, 9, 5, 6}
	hx, hy := a.Hashes(x, 2, ""), a.Hashes(y, 2, "")
	if len(hx) != 3 || hx[0] != hy[0] || hx[1] == hy[1] || hx[2] == hy[2] {
		t.Errorf("%v and %v: equal ids must mean equal prefixes", hx, hy)
	}
	if slices.Equal(hx, b.Hashes(x, 2, "")) || a.Name("c") == b.Name("c") {
		t.Error("two runs have the same salt")
	}
	if hx[0] == a.Hashes(x, 2, "tenant")[0] || a.Hashes(x, 8, "") != nil || a.Hashes(x, 0, "") != nil || a.Name("") != "" {
		t.Error("salts, short prompts or no id")
	}
	for _, id := range hx {
		if id < 0 || id >= 1<<53 {
			t.Errorf("%d does not fit a double", id)
		}
	}
}

func TestCaptureIsBounded(t *testing.T) {
	c, dir := capture(t, 2000, 3)
	for i := range 400 {
		c.Add(Captured{RequestID: fmt.Sprint(i), Input: i, Observed: &Observed{Outcome: "ok"}}, epoch)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	names, lines := read(t, dir)
	if len(names) != 3 || !strings.Contains(lines[len(lines)-1], `"request_id":"399"`) {
		t.Errorf("%d files, last line %s", len(names), lines[len(lines)-1])
	}
	for _, name := range names {
		if st, err := os.Stat(name); err != nil || st.Size() > 2500 {
			t.Errorf("%s has %d bytes", name, st.Size())
		}
	}
}

func TestNoCapture(t *testing.T) {
	c, err := NewCapture(CaptureOptions{}, epoch)
	if c != nil || err != nil || c.On() || c.Close() != nil {
		t.Error(c, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewCapture(CaptureOptions{Dir: file}, epoch); err == nil {
		t.Error("a file is no folder")
	}
}
