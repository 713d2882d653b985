package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tandem/engine/cuda/measure"
	"tandem/test/bench/profile"
)

// output is of a made-up device whose numbers are easy to divide.
func output(emulator bool) []Line {
	return []Line{
		{Step: Machine, Device: "a device", Note: "10 GB are free", Emulator: emulator},
		{Step: Run, Status: OK, Note: "a|b ", Result: measure.Result{Name: "cases", Seconds: 12}},
		{Step: Measure, Result: measure.Result{Name: measure.Copy, Bytes: 1e9, Seconds: 1e-3}},
		{Step: Measure, Result: measure.Result{Name: measure.Cube, Flop: 1e12, Seconds: 1e-3}},
		{Step: Decode, Model: "m", Gap: 20e-6, Result: measure.Result{Batch: 4, Context: 100, Bytes: 8e9, Seconds: 10e-3}},
		{Step: Decode, Model: "m", Gap: 80e-6, Result: measure.Result{Batch: 16, Context: 100, Bytes: 7e9, Seconds: 10e-3}},
		{Step: Decode, Model: "m", Status: Skipped, Note: "no room", Result: measure.Result{Batch: 64}},
		{Step: Prefill, Model: "m", Result: measure.Result{Rows: 10, Flop: 1e12, Seconds: 10e-3}},
		{Step: Prefill, Model: "m", Result: measure.Result{Rows: 100, Flop: 7e12, Seconds: 10e-3}},
		{Step: Serve, Model: "s", Latency: &Latency{Requests: 8, Tokens: 64, Path: "ctx_gen", TTFT50: 0.012, ITL99: 0.003}},
		{Step: Code, Result: measure.Result{Name: "HMMA"}, Note: "12"},
	}
}

func write(t *testing.T, lines []Line) []Line {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("words of a tool\n\n")
	for _, l := range lines {
		if err := l.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestReportComparesWithCeilings(t *testing.T) {
	text := New(write(t, output(false))).String()
	for _, want := range []string{
		"1000 GB/s of copies, 1000 TFLOP/s",
		"| cases | ok | 12 | a\\|b |",
		"| m | 4 | 100 | 10.00 | 400 | 8.00 | 80 % | pass | 20 | pass |",
		"| m | 16 | 100 | 10.00 | 1600 | 7.00 | 70 % | FAIL | 80 | FAIL |",
		"| m | 64 | 0 | no room |",
		"| m | 10 | 10.0 | 1000 | 100.0 | 10 % | – |", // only the longest has a target
		"| m | 100 | 10.0 | 10000 | 700.0 | 70 % | pass |",
		"| s | 8 | 64 | ctx_gen | 12.0 |",
		"| HMMA | 12 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestEmulatorsAreNotJudged(t *testing.T) {
	r := New(write(t, output(true)))
	text := r.String()
	if !r.Emulated || !strings.Contains(text, "THIS IS AN EMULATOR") || strings.Contains(text, "pass") || strings.Contains(text, "FAIL") || strings.Contains(text, " %") && strings.Contains(text, "80 %") {
		t.Errorf("judged:\n%s", text)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, text := range []string{"", "nothing\n", `{"step":"run"}` + "\n", `{"step":"machine"` + "\n"} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// The lines of iterations are those that the simulator's profiles are fitted to.
func TestIterationsAreKept(t *testing.T) {
	var b bytes.Buffer
	for _, l := range output(false) {
		if err := l.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	p := profile.Point{CtxTokens: 3, Seconds: 0.5}
	if err := p.WriteLine(&b, "m", "d"); err != nil {
		t.Fatal(err)
	}
	points, model, device, err := profile.ReadPoints(bytes.NewReader(b.Bytes()))
	if err != nil || len(points) != 1 || points[0] != p || model != "m" || device != "d" {
		t.Errorf("%v of %q on %q, %v", points, model, device, err)
	}
	if lines, err := Read(&b); err != nil || len(lines) != len(output(false))+1 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

const root = "../../.."

// The page's table of registers is that of the kernels in the tree.
func TestPageHasTheKernelsOfTheTree(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "performance-gpu.md"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(root, "kernels", "cuda", "ptx", "ptxas.log"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := PTXAS(string(log))
	if err != nil {
		t.Fatal(err)
	}
	want, err := Replace(string(page), PartPTXAS, table)
	if err != nil {
		t.Fatal(err)
	}
	if want != string(page) {
		t.Error("docs/performance-gpu.md shows other kernels than the tree has; run make gpu-page")
	}
	if _, err := Replace(string(page), PartReport, ""); err != nil {
		t.Error(err)
	}
}

func TestPTXASTakesTheMost(t *testing.T) {
	const log = "sm_80 a td_x: registers 30, stack 0, spill stores 0, spill loads 0, shared 8, sources 1f\n" +
		"sm_80 a td_y: registers 40, stack 0, spill stores 12, spill loads 4, shared 0, sources 1f\n" +
		"sm_90 a td_x: registers 20, stack 0, spill stores 0, spill loads 0, shared 8, sources 1f\n"
	got, err := PTXAS(log)
	if err != nil || !strings.Contains(got, "| `a` | 2 | 40 | 8 | 12 | 20 | 8 | 0 |") {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := PTXAS("sm_80 a\n"); err == nil {
		t.Error("an odd line was taken")
	}
}
