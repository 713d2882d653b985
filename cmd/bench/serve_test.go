package main

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tandem/test/bench/result"
	"tandem/test/bench/stub"
)

func stubServer(t *testing.T, s *stub.Server) string {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv.URL
}

func readSummary(t *testing.T, dir string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, result.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestServe(t *testing.T) {
	url := stubServer(t, &stub.Server{TTFT: time.Millisecond, Overhead: 3})
	dir := filepath.Join(t.TempDir(), "out")
	out, log, err := bench("serve", url, "-n", "6", "--isl", "20", "--osl", "3", "--rate", "200", "--goodput", "e2el:60000", "-o", dir)
	if err != nil {
		t.Fatalf("%v: %s", err, log)
	}
	for _, want := range []string{"stub, chat at http", "6 completed, 0 failed", "goodput (e2el:60000)", "100.0 % good", "TTFT (ms)", "report.html"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	m := readSummary(t, dir)
	if m["completed"] != 6.0 || m["total_input_tokens"] != 120.0 || m["total_output_tokens"] != 18.0 || m["request_rate"] != 200.0 || m["model_id"] != stub.Model {
		t.Errorf("%v", m)
	}
	f, err := os.Open(filepath.Join(dir, result.RecordsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := result.ReadRecords(f)
	warm := 0
	for _, r := range records {
		if r.Phase == result.Warmup {
			warm++
		}
	}
	if err != nil || len(records) != 8 || warm != 2 {
		t.Errorf("%d records, %d of the warm-up, %v", len(records), warm, err)
	}
	if _, _, err := bench("serve", url, "-n", "1", "-o", dir); err == nil {
		t.Error("a folder with a run is overwritten")
	}
}

func TestServeSweepsAndWorkloads(t *testing.T) {
	url := stubServer(t, &stub.Server{})
	dir := filepath.Join(t.TempDir(), "out")
	if out, log, err := bench("serve", url, "-q", "-n", "4", "--isl", "8", "--osl", "2", "--concurrency", "1,2", "-o", dir); err != nil {
		t.Fatalf("%v: %s%s", err, out, log)
	}
	if steps := readSummary(t, dir)["steps"].([]any); len(steps) != 2 || steps[1].(map[string]any)["max_concurrency"] != 2.0 {
		t.Errorf("%v", steps)
	}
	for _, args := range [][]string{
		{"-w", "shared-prefix", "--groups", "2", "--per-group", "2", "--system", "8", "--question", "4", "--api", "completions"},
		{"-w", "multi-turn", "--conversations", "2", "--sessions", "2", "--think-scale", "0", "--prefix-bucket", "0.5:1:8", "--actual-replies"},
		{"-w", "agentic", "--conversations", "2", "--trees", "1", "--think-scale", "0", "--fanout", "0.5", "--turns", "3", "--system", "8", "--first", "16"},
		{"--rate", "inf", "-n", "3"},
		{"--constant", "100:200", "--duration", "50ms", "--salt", "0"},
	} {
		out, log, err := bench(append([]string{"serve", url, "-q", "--osl", "2", "--warmup", "0"}, args...)...)
		if err != nil || !strings.Contains(out, " 0 failed") {
			t.Errorf("%v: %v: %s%s", args, err, out, log)
		}
	}
}

func TestServeFindsTheCapacity(t *testing.T) {
	url := stubServer(t, &stub.Server{}) // nobody answers at once, whatever the machine does
	out, log, err := bench("serve", url, "-q", "-n", "4", "--isl", "4", "--osl", "1", "--concurrency", "1", "--bisect", "--goodput", "ttft:0", "--warmup", "0")
	if err != nil || !strings.Contains(out, "capacity_at_slo (ttft:0 for 90 % of requests): max_concurrency 0, and not 1") {
		t.Errorf("%v: %s%s", err, out, log)
	}
}

func TestServeRefusesBadUse(t *testing.T) {
	url := stubServer(t, &stub.Server{})
	for want, args := range map[string][]string{
		"on top of another":    {"--rate", "1", "--sessions", "2"},
		"not a number above 0": {"--concurrency", "0"},
		"needs --goodput":      {"--concurrency", "1", "--bisect"},
		"begins at one value":  {"--rate", "1,2", "--bisect"},
		"goodput":              {"--goodput", "speed:1"},
		"want chat or":         {"--api", "grpc"},
		"want one of":          {"-w", "nothing"},
		"Name: value":          {"-H", "x"},
		"JSON object":          {"--extra-body", "[]"},
		"--prompt-ids needs":   {"--prompt-ids"},
		"distribution":         {"--isl", "many"},
		"WEIGHT:COUNT":         {"-w", "multi-turn", "--prefix-bucket", "x"},
		"a ramp from":          {"--rate", "1:5"},
		"--ramp-up":            {"--concurrency", "1:5"},
		"--tokenizer":          {"--tokenizer", "no/where.gguf"},
		"--requests 0":         {"-n", "0"},
		"--prefix -5":          {"--prefix", "-5"},
		"--isl 9e+08":          {"--isl", "9e8"},
		"--turns":              {"-w", "multi-turn", "--turns", "1e9"},
		"--fanout 2":           {"-w", "agentic", "--fanout", "2"},
		"stands alone":         {"--rate", "1,inf"},
		"one value of":         {"--rate", "inf", "--bisect", "--goodput", "chat"},
		"burstiness +Inf":      {"--rate", "1", "--burstiness", "inf"},
		"--burstiness 0":       {"--rate", "1", "--burstiness", "0"},
		"is for --rate":        {"--constant", "1", "--burstiness", "2"},
		"for closed loops":     {"--rate", "1", "--ramp-up", "1s"},
		"for open loops":       {"--sessions", "1", "--max-concurrency", "2"},
		"lengths of its own":   {"-w", "isl-osl-grid", "--isl", "5"},
		"several shapes":       {"-w", "isl-osl-grid", "--bisect", "--goodput", "chat", "--concurrency", "1"},
		"--grace":              {"--duration", "1s", "--grace", "-1s"},
		"duration -1s":         {"--duration", "-1s"},
		"max concurrency":      {"--rate", "1", "--max-concurrency", "-1"},
		"--good 2":             {"--bisect", "--goodput", "chat", "--good", "2"},
		"--tolerance NaN":      {"--bisect", "--goodput", "chat", "--tolerance", "nan"},
		"--temperature NaN":    {"--temperature", "nan"},
		"--timeout":            {"--timeout", "-1s"},
		"frame the request":    {"-H", "Content-Length: 5"},
		"--accelerators":       {"--accelerators", "-1"},
		"tell e2el only":       {"--stream=false", "--goodput", "tpot:50"},
		"--session-headers":    {"--session-headers", "a b"},
	} {
		if out, _, err := bench(append([]string{"serve", url, "-q"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
}

// Steps that are over before their load is reached are no capacity, and say so.
func TestServeDoesNotGuessACapacity(t *testing.T) {
	url := stubServer(t, &stub.Server{TTFT: 20 * time.Millisecond})
	for _, args := range [][]string{{"--concurrency", "1"}, {"--rate", "1000"}} {
		out, log, err := bench(append([]string{"serve", url, "-q", "-n", "3", "--isl", "4", "--osl", "1", "--bisect", "--goodput", "ttft:60000", "--warmup", "0"}, args...)...)
		if err != nil || !strings.Contains(out, "requests of a step are too few to hold") || strings.Contains(out, "1000000") {
			t.Errorf("%v: %v: %s%s", args, err, out, log)
		}
	}
	if out, log, err := bench("serve", url, "-q", "-n", "3", "--isl", "4", "--osl", "1", "--concurrency", "16384"); err != nil || !strings.Contains(out, "flags: underloaded") {
		t.Errorf("%v: %s%s", err, out, log)
	}
}

// The grid is what its steps send, not what --isl would be.
func TestServeNamesTheGrid(t *testing.T) {
	url := stubServer(t, &stub.Server{})
	out, log, err := bench("serve", url, "-q", "-w", "isl-osl-grid", "--concurrency", "1", "--duration", "20ms", "--grace", "1ms", "--warmup", "0")
	if err != nil || !strings.Contains(out, "isl-osl-grid: prompts and answers of 1024/1024, 1024/8192, 8192/1024 tokens") || !strings.Contains(out, "8192/1024, max_concurrency 1") {
		t.Errorf("%v: %s%s", err, out, log)
	}
}

// A salt below 0 other than -1 is a salt: its texts are the same each time.
func TestSaltsAreWhatTheySay(t *testing.T) {
	var got []string
	url := stubServer(t, &stub.Server{Seen: recordPrompts(&got)})
	for range 2 {
		if out, log, err := bench("serve", url, "-q", "-n", "1", "--isl", "8", "--osl", "1", "--warmup", "0", "--salt", "-7"); err != nil {
			t.Fatalf("%v: %s%s", err, out, log)
		}
	}
	if len(got) != 6 || got[2] != got[5] { // two find out the overhead
		t.Errorf("%q", got)
	}
}

// What could not begin leaves its folder free, and says what to do.
func TestServeThatCannotBegin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	for want, args := range map[string][]string{"start a server there": {"http://127.0.0.1:1"}, "want a URL": {"ftp://x"}, "needs --goodput": {"127.0.0.1:1", "--bisect"}} {
		if _, _, err := bench(append([]string{"serve", "-o", dir}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	url := stubServer(t, &stub.Server{})
	if _, _, err := bench("serve", url, "-q", "-n", "2", "--isl", "4", "--osl", "1", "-o", dir); err != nil {
		t.Errorf("the folder is taken: %v", err)
	}
}

// Answers in one piece have an end, and no times of tokens.
func TestServeWithoutStreams(t *testing.T) {
	for _, api := range []string{"chat", "completions"} {
		url := stubServer(t, &stub.Server{TTFT: time.Millisecond, Overhead: 3})
		dir := filepath.Join(t.TempDir(), "out")
		out, log, err := bench("serve", url, "--api", api, "-n", "5", "--isl", "20", "--osl", "4", "--stream=false", "-o", dir)
		if err != nil || !strings.Contains(out, "5 completed, 0 failed") || !strings.Contains(out, "end to end (ms)") || strings.Contains(out, "TTFT") {
			t.Fatalf("%s: %v: %s%s", api, err, out, log)
		}
		if page, err := os.ReadFile(filepath.Join(dir, result.ReportFile)); err != nil || strings.Contains(string(page), "ttft over time") || !strings.Contains(string(page), "e2el") {
			t.Errorf("the report shows times of tokens: %v", err)
		}
		if m := readSummary(t, dir); m["total_input_tokens"] != 100.0 || m["total_output_tokens"] != 20.0 || m["mean_ttft_ms"] != 0.0 || m["mean_e2el_ms"] == 0.0 {
			t.Errorf("%v", m)
		}
	}
}
