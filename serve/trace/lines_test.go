package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestLinesAreBounded: whole lines, files of a bounded size, and the newest of them.
func TestLinesAreBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	l, err := NewLines(dir, "perf", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	l.bytes = 100
	const lines = 400
	for i := range lines {
		if _, err := fmt.Fprintf(l, "line %04d", i); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("late")); err == nil {
		t.Error("written after the end")
	}
	files, err := filepath.Glob(filepath.Join(dir, "perf-*.jsonl"))
	if err != nil || len(files) != linesFiles {
		t.Fatalf("%d files, %v", len(files), err)
	}
	slices.Sort(files)
	var all []string
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil || len(data) > 110 {
			t.Errorf("%s has %d bytes, %v", path, len(data), err)
		}
		all = append(all, strings.Fields(strings.ReplaceAll(string(data), "line ", ""))...)
	}
	if !slices.IsSorted(all) || all[len(all)-1] != fmt.Sprintf("%04d", lines-1) || len(all) != linesFiles*10 {
		t.Errorf("%d lines up to %s", len(all), all[len(all)-1])
	}
	var none *Lines
	if n, err := none.Write([]byte("x")); n != 1 || err != nil || none.Close() != nil {
		t.Error("a nil Lines fails")
	}
	if l, err := NewLines("", "perf", time.Now()); l != nil || err != nil {
		t.Error("no folder is no Lines")
	}
	if _, err := NewLines(files[0], "perf", time.Now()); err == nil {
		t.Error("a file as folder")
	}
}
