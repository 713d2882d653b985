package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tandem/test/bench/stub"
)

func TestCompare(t *testing.T) {
	see := func(i int) *stub.Server {
		return &stub.Server{TTFT: time.Duration(i) * time.Millisecond, Overhead: 4 * i}
	}
	a, b := stubServer(t, see(0)), stubServer(t, see(1))
	dir := filepath.Join(t.TempDir(), "out")
	out, log, err := bench("compare", a, b, "-q", "-n", "4", "--isl", "12", "--osl", "2", "--slices", "3", "-o", dir)
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, log)
	}
	for _, want := range []string{"A slice 1", "B slice 3", "A is A http", "TTFT p50 (ms)", "requests/s", "B/A"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Index(out, "B slice 2") > strings.Index(out, "A slice 2") {
		t.Error("the second pair begins with A, as the first did")
	}
	data, err := os.ReadFile(filepath.Join(dir, "compare.json"))
	var doc struct {
		Slices  int
		Metrics []struct {
			Key string
			P   float64
		}
	}
	if err == nil {
		err = json.Unmarshal(data, &doc)
	}
	if err != nil || doc.Slices != 3 || len(doc.Metrics) < 4 || doc.Metrics[0].Key != "ttft_p50" {
		t.Errorf("%s: %v", data, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || !strings.Contains(string(page), "with 95 % confidence") || !strings.Contains(string(page), "<pre") {
		t.Errorf("the report lacks the comparison: %v", err)
	}
}

// One pair has no interval, and is written for what it is.
func TestCompareOnePair(t *testing.T) {
	url, dir := stubServer(t, &stub.Server{}), t.TempDir()
	if out, log, err := bench("compare", url, url, "-q", "-n", "2", "--isl", "4", "--osl", "2", "--slices", "1", "-o", dir); err != nil {
		t.Fatalf("%v: %s%s", err, out, log)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "compare.json")); err != nil || !strings.Contains(string(data), `"low": null`) {
		t.Errorf("%s: %v", data, err)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "report.html")); err != nil || strings.Contains(string(page), "NaN") {
		t.Errorf("the report has no intervals to draw: %v", err)
	}
}

// recordPrompts keeps the bodies that a server is sent; the requests come one at a time.
func recordPrompts(to *[]string) func(http.Header, []byte) {
	return func(_ http.Header, body []byte) { *to = append(*to, string(body)) }
}

func TestCompareSendsBothTheSame(t *testing.T) {
	var got [2][]string
	servers := [2]string{}
	for i := range servers {
		servers[i] = stubServer(t, &stub.Server{Overhead: 4 * i, Seen: recordPrompts(&got[i])})
	}
	if out, log, err := bench("compare", servers[0], servers[1], "-q", "-n", "3", "--isl", "12", "--osl", "1", "--slices", "2", "--concurrency", "1", "--warmup", "0"); err != nil {
		t.Fatalf("%v: %s%s", err, out, log)
	}
	if len(got[0]) != 8 || strings.Join(got[0][2:], "\n") != strings.Join(got[1][2:], "\n") { // two find out the overhead
		t.Errorf("A was sent %q, B %q", got[0], got[1])
	}
}

func TestCompareRefusesBadUse(t *testing.T) {
	url := stubServer(t, &stub.Server{})
	model := filepath.Join(t.TempDir(), "a.gguf")
	if err := os.WriteFile(model, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"one load":            {url, url, "--rate", "1,2"},
		"at least 1":          {url, url, "--slices", "0"},
		"llama-cpp-python":    {url, "llama-cpp-python:no/where.gguf"},
		"tandem":              {"tandem:no/where.gguf", url},
		"with --llama-server": {url, "llama-server:" + model, "--llama-server", "no/such/program"},
		"with --python":       {url, "llama-cpp-python:" + model, "--python", "no/such/python3"},
		"accepts 2":           {url},
		"or one of":           {"vllm:model", url},
	} {
		if _, _, err := bench(append([]string{"compare"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
