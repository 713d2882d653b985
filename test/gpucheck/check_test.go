//go:build cuda

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/cuda/measure"
	"tandem/test/bench/profile"
	"tandem/test/gpucheck/report"
)

const root = "../.."

// checkLimit is for the check alone, on a machine that does other things too.
const checkLimit = 3 * time.Minute

// The folder is built and its script run as on a GPU machine, on the emulator with tiny sizes.
func TestCheckOnTheEmulator(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "check")
	// Without -trimpath, what other tests have compiled is not compiled again.
	if out, err := exec.Command("make", "-C", root, "gpu-check", "GPU_CHECK="+dir, "GPU_CHECK_FLAGS=").CombinedOutput(); err != nil {
		t.Fatalf("make gpu-check: %v\n%s", err, out)
	}
	text := runCheck(t, dir, nil)
	lines, err := report.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	checkSteps(t, lines)
	points, model, device, err := profile.ReadPoints(bytes.NewReader(text))
	if err != nil || model != "tiny" || device != emulatorName {
		t.Fatalf("%d iterations of %q on %q, %v", len(points), model, device, err)
	}
	if _, err := profile.Make(model, device, points); err != nil {
		t.Errorf("the iterations make no profile: %v", err)
	}
	tables := report.New(lines).String()
	for _, want := range []string{"THIS IS AN EMULATOR", "| tiny | 2 | 40 |", "| tiny, Q4_0 | 1 |", "| ctx_gen |", "| prefill attention | rows 24 |"} {
		if !strings.Contains(tables, want) {
			t.Errorf("no %q in the report:\n%s", want, tables)
		}
	}
	page := filepath.Join(dir, "page.md")
	if err := reportCommand(&bytes.Buffer{}, []string{"-page", page, filepath.Join(dir, "out.jsonl")}); err == nil || !strings.Contains(err.Error(), "emulator") {
		t.Errorf("times of an emulator went into a page: %v", err)
	}
	t.Run("wrong kernels", func(t *testing.T) { wrongKernels(t, dir) })
}

// checkSteps looks for what must have run, and that nothing failed.
func checkSteps(t *testing.T, lines []report.Line) {
	t.Helper()
	status, count := map[string]string{}, map[string]int{}
	for _, l := range lines {
		count[l.Step]++
		if l.Step == report.Run {
			status[l.Name] = l.Status
		}
		if l.Status == report.Failed {
			t.Errorf("%s failed: %s", l.Name, l.Note)
		}
	}
	for _, name := range []string{"machine", "cases", "products", "models", "pieces", "engine", "serve", "all"} {
		if status[name] != report.OK {
			t.Errorf("step %s: %q; all steps: %v", name, status[name], status)
		}
	}
	for step, least := range map[string]int{report.Measure: 30, report.Decode: 4, report.Prefill: 2, report.Serve: 1, "iteration": 10} {
		if count[step] < least {
			t.Errorf("%d lines of %s, want %d", count[step], step, least)
		}
	}
	has := func(what string, fn func(l report.Line) bool) {
		if !slices.ContainsFunc(lines, fn) {
			t.Error("no line of", what)
		}
	}
	has("a copy", func(l report.Line) bool { return l.Name == measure.Copy && l.Bytes > 0 })
	// By hand: the matrices of two layers have 49152 elements, the output matrix 300 x 64, a token's cache 256 bytes.
	has("the bytes of a decoding step", func(l report.Line) bool {
		return l.Step == report.Decode && l.Model == "tiny" && l.Batch == 1 && l.Bytes == 2*(49152+300*64)+40*256
	})
	has("the operations of a prompt", func(l report.Line) bool {
		return l.Step == report.Prefill && l.Rows == 8 && l.Flop == 2*49152*8+2*2*64*8*8
	})
}

func runCheck(t *testing.T, dir string, wantErr func(error) bool, env ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), checkLimit)
	defer cancel()
	emulator, err := exec.Command("go", "run", root+"/kernels/cuda/emu/emubuild").Output()
	if err != nil {
		t.Fatalf("build the emulator: %v", err)
	}
	out := filepath.Join(dir, "out.jsonl")
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "run.sh"), out)
	cmd.Env = append(append(os.Environ(), strings.Fields(string(emulator))...), env...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); wantErr == nil && err != nil || wantErr != nil && !wantErr(err) {
		t.Errorf("run.sh: %v\n%s", err, said.String())
	}
	if !strings.Contains(said.String(), "THIS IS AN EMULATOR") {
		t.Errorf("it does not say that it ran on an emulator:\n%s", said.String())
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// wrongKernels lets the cases fail: the check says which, ends, and measures nothing.
func wrongKernels(t *testing.T, dir string) {
	text := runCheck(t, dir, func(err error) bool { return err != nil }, "TANDEM_CUBINS="+t.TempDir())
	lines, err := report.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	last := lines[len(lines)-1]
	if last.Name != "cases" || last.Status != report.Failed || !strings.Contains(last.Note, "embed") || strings.Contains(string(text), `"measure"`) {
		t.Errorf("the output ends with %+v", last)
	}
}
