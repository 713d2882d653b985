package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A simulated run writes the files of bench serve, and equal flags give equal
// records.
func TestSimWritesTheSameFilesTwice(t *testing.T) {
	var records [2]string
	for i := range records {
		dir := filepath.Join(t.TempDir(), "out")
		out, log, err := bench("sim", "--cluster", "1xCTX-ADP2|1xGEN", "-w", "multi-turn", "--conversations", "50", "--sessions", "4", "--duration", "5s",
			"--warm-up", "1s", "--watch", "-o", dir)
		if err != nil || !strings.Contains(out, "TTFT") || !strings.Contains(out, "simulated, 1xCTX-ADP2|1xGEN") || !strings.Contains(log, "virtual time") {
			t.Fatalf("%v: %s%s", err, out, log)
		}
		for _, name := range []string{"run.json", "summary.json", "report.html", "aiperf.json"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		data, err := os.ReadFile(filepath.Join(dir, "records.jsonl"))
		if err != nil || len(data) < 1000 {
			t.Fatal(err, len(data))
		}
		records[i] = string(data)
	}
	if records[0] != records[1] {
		t.Error("the records differ")
	}
}

func TestSimExperiment(t *testing.T) {
	dir := t.TempDir()
	out, _, err := bench("sim", "--experiment", "R5", "--seeds", "1", "-o", dir)
	if err != nil || !strings.Contains(out, "pass  other ranks go on") {
		t.Fatalf("%v: %s", err, out)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "r5.json")); err != nil || !strings.Contains(string(data), `"pass": true`) {
		t.Errorf("%v: %s", err, data)
	}
}

// One arm runs alone, and what it took is told.
func TestSimOneArm(t *testing.T) {
	out, log, err := bench("sim", "--experiment", "r3", "--seeds", "1", "--arm", "EQUAL_PROGRESS")
	if err != nil || !strings.Contains(out, "EQUAL_PROGRESS") || strings.Contains(out, "FIRST_COME") || strings.Contains(out, "pass") {
		t.Errorf("%v: %s", err, out)
	}
	if !strings.Contains(log, " s of processor, at most ") || strings.Contains(log, " 0.00 GiB") {
		t.Error(log)
	}
}

func TestPlan(t *testing.T) {
	dir := t.TempDir()
	out, _, err := bench("plan", "--isl", "500", "--osl", "40", "--duration", "3s", "--ladder", "8,2", "--ctx-gpus", "1", "--gen-gpus", "1", "--budget", "4", "--mixed", "-o", dir)
	if err != nil || !strings.Contains(out, "one ctx instance") || !strings.Contains(out, "below ideal") {
		t.Fatalf("%v: %s", err, out)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "plan.svg")); err != nil || !strings.Contains(string(data), "<svg") {
		t.Error(err)
	}
}

// What comes all at the beginning is measured, since no warm-up comes before it.
func TestSimMeasuresWhatComesAtOnce(t *testing.T) {
	for want, args := range map[string][]string{
		"29 requests in": {"-w", "pathology-head-of-line", "--isl", "240", "--duration", "1m"}, "10 requests in": {"-w", "random", "-n", "10", "--rate", "inf", "--duration", "1m"},
	} {
		out, _, err := bench(append([]string{"sim", "--cluster", "1xMIXED"}, args...)...)
		if err != nil || !strings.Contains(out, want) || strings.Contains(out, "no request was answered") {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
}

// A run that nobody can finish says so.
func TestSimTellsThatNothingWasAnswered(t *testing.T) {
	out, _, err := bench("sim", "--cluster", "1xMIXED", "-w", "multi-turn", "--conversations", "2", "--sessions", "1", "--warm-up", "0s", "--duration", "1s", "--hop", "1h")
	if err != nil || !strings.Contains(out, "no request was answered within the measured time") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestSimAndPlanRefuseBadUse(t *testing.T) {
	for want, args := range map[string][]string{
		"--cluster":       {"sim", "--cluster", "2xFOO"},
		"want CTX":        {"sim", "--cluster", "1xGEN"},
		"--adp-router":    {"sim", "--adp-router", "x"},
		"new_conv_place":  {"sim", "--placement", "x"},
		"no such file":    {"sim", "--profile", "nowhere.json"},
		"--experiment":    {"sim", "--experiment", "e99"},
		"there are":       {"sim", "--experiment", "r3", "--arm", "x"},
		"--host-band":     {"sim", "--host-blocks", "10", "--host-bandwidth", "0"},
		"--router: ":      {"sim", "--router", "x"},
		"--gen-router: ":  {"sim", "--gen-router", "x"},
		"--placement: ":   {"sim", "--placement", "x"},
		"power of two":    {"sim", "--tokens-per-block", "60"},
		"--max-batch":     {"sim", "--max-batch-size", "0"},
		"--max-num":       {"sim", "--max-num-tokens", "64"},
		"--bandwidth":     {"sim", "--bandwidth", "nan"},
		"--hop":           {"sim", "--hop", "-1s"},
		"15 GB":           {"sim", "--blocks", "999999999"},
		"--kv-bytes":      {"sim", "--kv-bytes", "0"},
		"--warm-up":       {"sim", "--warm-up", "-1s"},
		"--arm":           {"sim", "--arm", "x"},
		"names none":      {"sim", "--experiment", ""},
		"--traces":        {"sim", "--experiment", "e12", "--traces", "nowhere"},
		"rate 1e+09":      {"sim", "--rate", "1e9"},
		"--think":         {"sim", "-w", "multi-turn", "--think", "1e9"},
		"--ttft":          {"plan", "--ttft", "0s"},
		"1s to 24h":       {"plan", "--duration", "9999h"},
		"no room for a":   {"plan", "--blocks", "10"},
		"not a directory": {"plan", "-o", "/dev/null/x"},
		"measure for":     {"plan", "--duration", "1s", "--osl", "100000"},
		"--bisect":        {"sim", "--bisect", "--rate", "1"},
		"--budget":        {"plan", "--budget", "3"},
		"--ladder":        {"plan", "--ladder", "0"},
	} {
		if _, _, err := bench(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
