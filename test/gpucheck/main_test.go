package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tandem/engine/cuda/measure"
	"tandem/test/gpucheck/report"
)

// output writes lines to a file, as run.sh does.
func output(t *testing.T, lines ...report.Line) string {
	t.Helper()
	var b bytes.Buffer
	for _, l := range lines {
		if err := l.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "out.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReportGoesIntoThePage(t *testing.T) {
	text, err := os.ReadFile("../../docs/performance-gpu.md")
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, text, 0o600); err != nil {
		t.Fatal(err)
	}
	file := output(t, report.Line{Step: report.Machine, Device: "made-up device"},
		report.Line{Step: report.Measure, Result: measure.Result{Name: measure.Copy, Bytes: 2e9, Seconds: 1e-3}})
	var out bytes.Buffer
	for range 2 { // the second time in place of the first
		if err := reportCommand(&out, []string{"-page", page, file}); err != nil || out.Len() > 0 {
			t.Fatal(err, out.String())
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || strings.Count(string(got), "made-up device") != 1 || !strings.Contains(string(got), "2000 GB/s of copies") || strings.Contains(string(got), "no GPU was at hand") {
		t.Errorf("%v\n%s", err, got)
	}
	if err := reportCommand(&out, []string{file}); err != nil || !strings.Contains(out.String(), "made-up device") {
		t.Error(err, out.String())
	}
}

func TestReportRefuses(t *testing.T) {
	emulated := output(t, report.Line{Step: report.Machine, Emulator: true})
	var out bytes.Buffer
	for want, args := range map[string][]string{
		"name an output":  {},
		"no such file":    {"/nowhere"},
		"of an emulator":  {"-page", "../../docs/performance-gpu.md", emulated},
		"no output of":    {output(t)},
		"not a line of p": {"-ptxas", emulated},
	} {
		if err := reportCommand(&out, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
