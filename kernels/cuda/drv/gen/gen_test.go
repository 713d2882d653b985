package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTrampolinesAreUpToDate(t *testing.T) {
	want, err := source(read(t, "../symbols.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if read(t, "../trampolines.c") != want {
		t.Error("trampolines.c differs from symbols.txt: go generate ./kernels/cuda/drv")
	}
}

// TestHeaderAndSymbolsAgree keeps a function from being declared without a trampoline, which
// would show only when a program with the tag is linked.
func TestHeaderAndSymbolsAgree(t *testing.T) {
	names, err := symbols(read(t, "../symbols.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^CUresult (\w+)\(`).FindAllStringSubmatch(read(t, "../../include/cuda.h"), -1) {
		declared = append(declared, m[1])
	}
	for _, n := range declared {
		if !slices.Contains(names, n) {
			t.Errorf("cuda.h declares %s, symbols.txt lacks it", n)
		}
	}
	for _, n := range names {
		if !slices.Contains(declared, n) {
			t.Errorf("symbols.txt has %s, cuda.h does not declare it", n)
		}
	}
}

func TestSymbolsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"cuInit\ncuInit\n":   "twice",
		"printf\n":           "no function of the driver",
		"cuInit cuDevice\n":  "no function of the driver",
		"# only a comment\n": "",
	} {
		_, err := source(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("source(%q): %v, want %q", text, err, want)
		}
	}
}
