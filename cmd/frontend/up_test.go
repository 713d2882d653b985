package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tandem/engine/model"
	"tandem/serve/config"
)

func fakeCluster(t *testing.T, mode string) (*cluster, *record, *record) {
	t.Helper()
	out, logs := newRecord(), newRecord()
	ln, err := listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{
		cfg: config.DefaultFrontend(), log: logs.log(), level: "info", out: out, errOut: logs, bin: os.Args[0],
		env: []string{fakeEnv + "=1"}, model: mode, ctx: 1, gen: 1, threads: 2, listener: ln,
		tune: func(s *supervisor) { s.minPause, s.maxPause = time.Millisecond, time.Millisecond },
	}, out, logs
}

func TestUp(t *testing.T) {
	c, out, logs := fakeCluster(t, "ok")
	stop, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.run(stop, t.Context()) }()
	line := out.wait("\n", 1)
	at := "http://" + c.listener.Addr().String()
	if !strings.HasPrefix(line, "Tandem is ready at "+at+" (1 ctx + 1 gen, tiny). Try: curl -s ") || strings.Count(line, "\n") != 1 {
		t.Errorf("ready line %q", line)
	}
	const ask = `{"model":"tiny","prompt":"hello"}`
	if status, body := post(t, at+"/v1/completions", ask); status != 200 || !strings.Contains(body, "ABC") {
		t.Errorf("%d %s", status, body)
	}
	post(t, c.cfg.Generation.URLs[0]+"/crash", "")
	logs.wait("worker is back", 1)
	logs.wait("worker is up", 2) // ctx and gen at the start
	if status, body := post(t, at+"/v1/completions", ask); status != 200 && status != 503 {
		t.Errorf("right after the restart: %d %s", status, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if status, _ := post(t, c.cfg.Generation.URLs[0]+"/disagg/abort", ""); status != 0 {
		t.Error("a worker outlived up")
	}
}

func TestUpStartFails(t *testing.T) {
	c, out, _ := fakeCluster(t, "broken")
	err := c.run(t.Context(), t.Context())
	if err == nil || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("%v", err)
	}
	if text := out.wait("", 0); text != "" {
		t.Errorf("said %q", text)
	}
}

func TestChildren(t *testing.T) {
	cfg, _, err := config.LoadFrontend(config.Source{
		Data:      []byte("max_num_tokens: 99\ngeneration_servers: {max_batch_size: 3, threads: 7, admin_addr: off, kv_cache_config: {max_tokens: 5}, scheduler_config: {capacity_scheduler_policy: STATIC_BATCH}}"),
		LookupEnv: func(string) (string, bool) { return "", false },
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{cfg: cfg, model: "m", level: "warn", ctx: 2, gen: 1, threads: 4, pools: map[string]int{"ctx": 1000, "gen": 1000}}
	dir := t.TempDir()
	list, err := c.children(dir)
	if err != nil || len(list) != 3 {
		t.Fatalf("%v %v", list, err)
	}
	args := strings.Join(list[0].args(0), " ")
	if want := "serve m --role ctx --host 127.0.0.1 --port 0 -c " + filepath.Join(dir, "ctx0.yaml") + " --threads 2 --admin-addr 127.0.0.1:0"; !strings.HasPrefix(args, want) {
		t.Errorf("args %s", args)
	}
	if args := strings.Join(list[2].args(81), " "); !strings.Contains(args, "--role gen") || !strings.Contains(args, "--port 81") || !strings.Contains(args, "--threads 7 --admin-addr off") {
		t.Errorf("args %s", args)
	}
	read := func(name string) (v struct {
		Tokens int `json:"max_num_tokens"`
		Batch  int `json:"max_batch_size"`
		KV     struct {
			Max int `json:"max_tokens"`
		} `json:"kv_cache_config"`
		Scheduler struct {
			Policy string `json:"capacity_scheduler_policy"`
		} `json:"scheduler_config"`
	},
	) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		if _, _, err := config.LoadWorker("ctx", config.Source{Data: data}); err != nil {
			t.Errorf("%s does not load: %v", name, err)
		}
		return v
	}
	if v := read("ctx1.yaml"); v.Tokens != 99 || v.Batch != 0 || v.KV.Max != 1000 || v.Scheduler.Policy != "MAX_UTILIZATION" {
		t.Errorf("ctx1 %+v", v)
	}
	if v := read("gen0.yaml"); v.Tokens != 99 || v.Batch != 3 || v.KV.Max != 5 || v.Scheduler.Policy != "STATIC_BATCH" {
		t.Errorf("gen0 %+v", v)
	}
}

func TestPrepareErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("context_servers: {urls: [\"a:1\"]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(string) bool { return false }
	all := func(string) bool { return true }
	cases := []struct {
		name    string
		f       upFlags
		changed func(string) bool
		want    string
	}{
		{"level", upFlags{level: "loud"}, none, "--log-level"},
		{"urls", upFlags{level: "info", config: file, ctx: 1, gen: 1}, none, "urls"},
		{"no ctx", upFlags{level: "info", ctx: 0, gen: 1, port: 1}, all, "--ctx 0"},
		{"many gen", upFlags{level: "info", ctx: 1, gen: 65, port: 1}, all, "--gen 65"},
		{"threads", upFlags{level: "info", ctx: 1, gen: 1, threads: -1}, none, "--threads"},
		{"absent file", upFlags{level: "info", config: file + "x"}, none, "no such file"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := prepare(c.f, c.changed)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
	for name, path := range map[string]string{"absent model": filepath.Join(t.TempDir(), "absent.gguf"), "a file that is no model": file} {
		if err := (&cluster{model: path}).workers(); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ln, err := listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	if _, err := listen("127.0.0.1", port); err == nil || !strings.Contains(err.Error(), "--port") {
		t.Errorf("busy port: %v", err)
	}
}

// Workers with ranks load from the files that up writes, and their pools are of ranks.
func TestChildrenWithRanks(t *testing.T) {
	cfg, _, err := config.LoadFrontend(config.Source{
		Data: []byte("tensor_parallel_size: 2\nenable_attention_dp: true\n" +
			"attention_dp_config: {kv_cache_routing_conversation_affinity: true}\ngeneration_servers: {hang_timeout_sec: 5}"),
		LookupEnv: func(string) (string, bool) { return "", false },
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{cfg: cfg, model: "m", level: "warn", ctx: 1, gen: 1, threads: 4, pools: map[string]int{roleCtx: 500, roleGen: 700}}
	dir := t.TempDir()
	list, err := c.children(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		role string
		pool int
		hang time.Duration
	}{{"ctx", 500, 30 * time.Second}, {"gen", 700, 5 * time.Second}} {
		w, warnings, err := config.LoadWorker("context", config.Source{File: filepath.Join(dir, want.role+"0.yaml"), LookupEnv: func(string) (string, bool) { return "", false }})
		if err != nil || len(warnings) > 0 || !w.ADP() || w.TensorParallelSize != 2 || !w.AttentionDP.Conversations || w.KVCache.MaxTokens != want.pool || w.HangTimeout() != want.hang {
			t.Errorf("%s: %v %q %+v", want.role, err, warnings, w)
		}
		if args := strings.Join(list[i].args(0), " "); !strings.Contains(args, "--threads 4 ") {
			t.Errorf("args %s", args)
		}
		if nice := map[string]int{"ctx": ctxNice, "gen": 0}[want.role]; w.ThreadsNice != nice {
			t.Errorf("%s: threads_nice %d, want %d", want.role, w.ThreadsNice, nice)
		}
	}
}

// TestThreadsOfChildren: roles have all threads each, unless those are bound to
// processors, and what the file says stays.
func TestThreadsOfChildren(t *testing.T) {
	for _, c := range []struct {
		file    string
		threads []string // of ctx0, ctx1 and gen0
		nice    int      // of ctx
	}{
		{"", []string{"3", "2", "5"}, ctxNice},
		{"pin_threads: true", []string{"2", "2", "1"}, 0},
		{"threads_nice: 0", []string{"3", "2", "5"}, 0},
		{"context_servers: {threads: 4, threads_nice: 9}", []string{"4", "4", "5"}, 9},
		{"context_servers: {threads: 4}", []string{"4", "4", "5"}, 0},
	} {
		cfg, _, err := config.LoadFrontend(config.Source{Data: []byte(c.file), LookupEnv: func(string) (string, bool) { return "", false }})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		list, err := (&cluster{cfg: cfg, model: "m", level: "warn", ctx: 2, gen: 1, threads: 5}).children(dir)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range c.threads {
			if args := strings.Join(list[i].args(0), " "); !strings.Contains(args, "--threads "+want+" ") {
				t.Errorf("%q: worker %d has %s, want %s threads", c.file, i, args, want)
			}
		}
		w, _, err := config.LoadWorker("context", config.Source{File: filepath.Join(dir, "ctx0.yaml"), LookupEnv: func(string) (string, bool) { return "", false }})
		if err != nil || w.ThreadsNice != c.nice {
			t.Errorf("%q: threads_nice %d, want %d; %v", c.file, w.ThreadsNice, c.nice, err)
		}
	}
}

func TestPoolTokens(t *testing.T) {
	m := model.Config{Layers: 1, KVHeads: 4, HeadDim: 64, Context: 1 << 30}
	w := config.DefaultWorker()
	pool := func(ranks int, adp bool) float64 {
		w.TensorParallelSize, w.EnableAttentionDP = ranks, adp
		return float64(poolTokens(m, 2, w))
	}
	alone := pool(1, false)
	if alone <= 1 {
		t.Skip("the memory of this machine is unknown")
	}
	near := func(name string, got, want float64) {
		t.Helper()
		if got < want*0.8 || got > want*1.25 { // others use the machine too
			t.Errorf("%s: %.0f tokens, want about %.0f", name, got, want)
		}
	}
	near("attention DP on 4 ranks", pool(4, true), alone/4)
	near("2 ranks that share the heads", pool(2, false), alone)
	near("8 ranks of which two keep each head", pool(8, false), alone/2)
	w.KVCache.MaxTokens = 5
	if n := poolTokens(m, 2, w); n != 0 {
		t.Errorf("the file says how many, and up says %d", n)
	}
	w.KVCache.MaxTokens, w.MaxBatchSize, w.MaxSeqLen = 0, 2, 30
	if n := poolTokens(m, 2, w); n != 60 {
		t.Errorf("2 requests of 30 tokens get %d", n)
	}
}

func TestShare(t *testing.T) {
	for _, c := range []struct{ threads, workers, i, want int }{{4, 3, 0, 2}, {4, 3, 1, 1}, {1, 2, 1, 1}, {8, 2, 1, 4}} {
		if got := share(c.threads, c.workers, c.i); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
