package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tandem/serve/trace"
	"tandem/test/bench/stub"
)

// captured writes a trace as a frontend does, over two files, and returns its folder.
func captured(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	start := time.Unix(1_800_000_000, 0)
	c, err := trace.NewCapture(trace.CaptureOptions{Dir: dir, MaxBytes: 200, MaxFiles: 9, Source: "test"}, start)
	if err != nil {
		t.Fatal(err)
	}
	prompt := make([]int32, 40)
	for i := range 4 {
		prompt = append(prompt, int32(i))
		c.Add(trace.Captured{
			RequestID: string(rune('a' + i)), Conversation: c.Name("talk"), Input: len(prompt), Output: 2, BlockSize: 8, HashIDs: c.Hashes(prompt, 8, ""),
			Observed: &trace.Observed{E2EMs: 1, Outcome: "ok"},
		}, start.Add(time.Duration(10+i)*5*time.Millisecond))
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReplayACapture(t *testing.T) {
	dir := captured(t)
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) < 2 {
		t.Fatalf("the capture has %d files", len(files))
	}
	url := stubServer(t, &stub.Server{})
	for _, args := range [][]string{{"--speed", "2"}, {"--sessions", "1"}, {"--concurrency", "2", "-n", "4"}} {
		out, log, err := bench(append([]string{"replay", dir, "--url", url, "-q", "--goodput", "chat"}, args...)...)
		if err != nil || !strings.Contains(out, "4 requests, 1 conversations, 1 trees; 4 with a time") || !strings.Contains(out, "4 completed, 0 failed") {
			t.Errorf("%v: %v: %s%s", args, err, out, log)
		}
	}
	if out, _, err := bench("replay", dir, "--check", "--capacity", "100"); err != nil || !strings.Contains(out, "all of 100 tokens") {
		t.Errorf("%v: %s", err, out)
	}
}

// A trace that ends before its time is measured as long as it took.
func TestReplayThatEndsEarly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	url := stubServer(t, &stub.Server{})
	if out, log, err := bench("replay", captured(t), "--url", url, "-q", "--duration", "1m", "-o", dir); err != nil {
		t.Fatalf("%v: %s%s", err, out, log)
	}
	if m := readSummary(t, dir); m["duration"].(float64) > 30 {
		t.Errorf("rates are over %v s", m["duration"])
	}
}

func TestReplayConverts(t *testing.T) {
	dir := captured(t)
	for _, f := range []string{"mooncake", "weka", "native"} {
		path := filepath.Join(t.TempDir(), "x.jsonl")
		if out, _, err := bench("replay", dir, "--write", path, "--write-format", f); err != nil || !strings.Contains(out, "written to "+path+": 4 requests, reuse of blocks of ") {
			t.Fatalf("%v: %s", err, out)
		}
		out, _, err := bench("replay", path, "--check", "--format", f)
		if err != nil || !strings.Contains(out, "4 requests, 1 conversations") {
			t.Errorf("%s: %v: %s", f, err, out)
		}
	}
}

func TestReplayRefusesBadTraces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.jsonl")
	text := `{"request_id":"a","timestamp_ms":0,"input_length":3,"output_length":1}` + "\n" + `{"request_id":"a","timestamp_ms":1,"input_length":3,"output_length":1}` + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := bench("replay", path, "--check"); err == nil || !strings.Contains(err.Error(), "bad.jsonl:2: request_id") {
		t.Errorf("%v", err)
	}
	if out, _, err := bench("replay", path, "--check", "--lenient"); err != nil || !strings.Contains(out, "left out: ") {
		t.Errorf("%v: %s", err, out)
	}
	kept := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(kept, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"no such file": {"nowhere"}, "no files": {t.TempDir()}, "bench serve": {path, "--lenient", "--bisect"}, "--write-format": {path, "--lenient", "--write", filepath.Join(t.TempDir(), "y"), "--write-format", "azure"},
		"--speed 0": {path, "--speed", "0"}, "--osl": {path, "--osl", "-1"}, "--requests -1": {path, "-n", "-1"}, "trace's clock": {path, "--rate", "1", "--from", "1s"},
		"the trace itself": {path, "--write", filepath.Join(filepath.Dir(path), ".", "bad.jsonl")}, "from 2s to 1s": {captured(t), "--from", "2s", "--to", "1s"},
		"hash ids of -7": {captured(t), "--write", kept, "--block-size", "-7"},
	} {
		if _, _, err := bench(append([]string{"replay"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if data, err := os.ReadFile(kept); string(data) != "before" {
		t.Errorf("what could not be converted replaced a file: %q, %v", data, err)
	}
}

// A trace with decisions is asked again, and still is a trace for replay.
func TestReplayRoutes(t *testing.T) {
	dir := t.TempDir()
	start := time.Unix(1_800_000_000, 0)
	c, err := trace.NewCapture(trace.CaptureOptions{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1, Routes: true}, start)
	if err != nil {
		t.Fatal(err)
	}
	for i, server := range []string{"a:1", "b:1", "a:1", "b:1"} {
		n := uint64(i + 1)
		c.Choose(&trace.Chosen{Number: n, Router: "round_robin", RoutingID: c.Name("talk"), Candidates: []string{"a:1", "b:1"}, Server: server, Outcome: "load"}, start)
		c.Add(trace.Captured{RequestID: string(rune('p' + i)), Input: 9, Output: 1}, start)
		c.Release(n, true, start)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if out, _, err := bench("replay", dir, "--routes", "recorded"); err != nil || !strings.Contains(out, "ctx, round_robin: 4 of 4 decisions are the same, 4 for the same reason") {
		t.Errorf("%v: %s", err, out)
	}
	if out, _, err := bench("replay", dir, "--routes", "conversation"); err != nil || !strings.Contains(out, "ctx, conversation: 2 of 4") || !strings.Contains(out, "decision 2 went to") {
		t.Errorf("%v: %s", err, out)
	}
	if out, _, err := bench("replay", dir, "--check"); err != nil || !strings.Contains(out, "4 requests") {
		t.Errorf("%v: %s", err, out)
	}
	if _, _, err := bench("replay", captured(t), "--routes", "recorded"); err == nil || !strings.Contains(err.Error(), "trace_capture.routes") {
		t.Errorf("a trace without decisions: %v", err)
	}
}
