package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestScratchLeftovers: what a killed process left goes at the next start; what another one uses, and what is not of
// `frontend up`, stays.
func TestScratchLeftovers(t *testing.T) {
	parent, outside := t.TempDir(), t.TempDir()
	file := func(path string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	used, release, err := newScratch(parent)
	if err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(parent, "tandem-up-1")
	file(filepath.Join(stale, "lock"))
	file(filepath.Join(stale, "ctx0.yaml"))
	stay := []string{
		used, file(filepath.Join(parent, "tandem-up-2", "lock.new")), file(filepath.Join(parent, "other", "lock")), file(filepath.Join(outside, "lock")),
	}
	if err := os.Symlink(outside, filepath.Join(parent, "tandem-up-3")); err != nil {
		t.Fatal(err)
	}
	own, releaseOwn, err := newScratch(parent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("the leftover is still there: %v", err)
	}
	for _, path := range append(stay, own) {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone: %v", path, err)
		}
	}
	release()
	releaseOwn()
	for _, dir := range []string{used, own} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s was not removed: %v", dir, err)
		}
	}
}
