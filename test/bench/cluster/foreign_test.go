package cluster

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const fakeArgs = "FAKE_SERVER_ARGS"

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(fakeArgs); ok {
		fmt.Println(fakeServer(strings.Fields(args)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fakeServer loads its model while it is asked for the first time, then tells its arguments.
func fakeServer(args []string) error {
	port := ""
	for i, a := range args {
		if a == "--port" {
			port = args[i+1]
		}
	}
	if port == "" {
		return errors.New("no port")
	}
	var asked atomic.Int64
	return http.ListenAndServe("127.0.0.1:"+port, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			http.Error(w, "loading", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, strings.Join(args, " "))
	}))
}

// fakeProgram is this test binary as a server.
func fakeProgram(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "llama-server")
	script := fmt.Sprintf("#!/bin/sh\n%s=\"$*\" exec '%s'\n", fakeArgs, self)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLlamaServerIsStartedWithItsArguments(t *testing.T) {
	p, err := LlamaServer{Program: fakeProgram(t), Model: "a.gguf", Threads: 3, Args: []string{"-np", "8"}, Wait: limit}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	resp, err := http.Get(p.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	want := "-m a.gguf --host 127.0.0.1 --port " + p.URL[strings.LastIndex(p.URL, ":")+1:] + " -t 3 -np 8"
	if err != nil || resp.StatusCode != http.StatusOK || string(body) != want {
		t.Errorf("status %d, %v, arguments %q, want %q", resp.StatusCode, err, body, want)
	}
}

func TestForeignTellsLastWords(t *testing.T) {
	_, err := Foreign(t.Context(), limit, fakeProgram(t), func(string) []string { return []string{"-m", "a.gguf"} })
	if err == nil || !strings.Contains(err.Error(), "no port") {
		t.Error(err)
	}
	if _, err := Foreign(t.Context(), limit, "/no/such/program", func(string) []string { return nil }); err == nil {
		t.Error("started what is not there")
	}
}
