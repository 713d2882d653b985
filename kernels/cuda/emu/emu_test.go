package emu

import (
	"os"
	"testing"
)

// library builds the emulator of the test kernels.
func library(t *testing.T) Library {
	t.Helper()
	lib, err := Build("testdata/basic.cu")
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func TestBuildIsCached(t *testing.T) {
	lib := library(t)
	before, err := os.Stat(lib.CUDA())
	if err != nil {
		t.Fatal(err)
	}
	if again := library(t); again != lib {
		t.Fatalf("second build lies in %s, the first in %s", again.Dir, lib.Dir)
	}
	after, err := os.Stat(lib.CUDA())
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Fatal("the second build compiled again")
	}
}

func TestKernelsOfASource(t *testing.T) {
	b := &builder{emu: "."}
	got, err := b.kernels("testdata/basic.cu")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) < 5 || got[0] != "td_add" {
		t.Fatalf("kernels of basic.cu: %v", got)
	}
}
