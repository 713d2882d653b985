//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// workerYAML keeps the pool small and lets tests see chunked prefill.
const workerYAML = `
max_num_tokens: 512
kv_cache_config:
  max_tokens: 32768
  enable_block_reuse: %v
cache_transceiver_config:
  lease_ms: %d
`

// workerConfig is what tests vary of a worker.
type workerConfig struct {
	noReuse bool
	lease   time.Duration // 0 = a minute
	threads int           // 0 = the default
	extra   []string      // flags
}

func startWorker(t *testing.T, role string, c workerConfig) *process {
	t.Helper()
	needModel(t)
	if c.lease == 0 {
		c.lease = time.Minute
	}
	file := writeFile(t, "worker.yaml", fmt.Sprintf(workerYAML, !c.noReuse, c.lease.Milliseconds()))
	args := append([]string{
		"serve", modelName, "--role", role, "--port", "0", "-c", file, "--threads", strconv.Itoa(c.threads),
	}, c.extra...)
	return start(t, role, engineBin, args...)
}

// cluster is a frontend with one worker of each role.
type cluster struct {
	*process // the frontend
	ctx, gen *process
}

func startCluster(t *testing.T, c workerConfig, frontendYAML string) *cluster {
	t.Helper()
	out := &cluster{ctx: startWorker(t, "ctx", c), gen: startWorker(t, "gen", c)}
	out.process = startFrontend(t, []*process{out.ctx}, []*process{out.gen}, frontendYAML)
	return out
}

func startFrontend(t *testing.T, ctx, gen []*process, more string) *process {
	t.Helper()
	list := func(ps []*process) string {
		var urls []string
		for _, p := range ps {
			urls = append(urls, strconv.Quote(p.url))
		}
		return strings.Join(urls, ", ")
	}
	file := writeFile(t, "cluster.yaml", fmt.Sprintf(`
hostname: 127.0.0.1
expose_routing_headers: true
context_servers: {urls: [%s]}
generation_servers: {urls: [%s]}
%s`, list(ctx), list(gen), more))
	return start(t, "frontend", frontendBin, "serve", "--port", "0", "-c", file)
}

// kvStats is /kv_cache_stats.
type kvStats struct {
	Total     int `json:"blocks_total"`
	Free      int `json:"blocks_free"`
	Active    int `json:"blocks_active"`
	Reusable  int `json:"blocks_reusable"`
	Pinned    int `json:"blocks_pinned_for_handoff"`
	Receiving int `json:"blocks_receiving"`
	Handoffs  int `json:"handoffs_open"`
	Transfers int `json:"transfers_in_flight"`
	Running   int `json:"requests_active"`
	Waiting   int `json:"requests_waiting"`
}

func (s kvStats) clean() bool {
	return s.Active+s.Pinned+s.Receiving+s.Handoffs+s.Transfers+s.Running+s.Waiting == 0 && s.Free+s.Reusable == s.Total
}

// stats reads a worker's block counts and checks that they add up.
func stats(t *testing.T, p *process) kvStats {
	t.Helper()
	var s kvStats
	getJSON(t, p.url+"/kv_cache_stats", &s)
	if sum := s.Free + s.Active + s.Reusable + s.Pinned + s.Receiving; sum != s.Total {
		t.Errorf("%s: the blocks do not add up: %+v", p.name, s)
	}
	return s
}

// waitClean waits until workers hold nothing for any request.
func waitClean(t *testing.T, limit time.Duration, workers ...*process) {
	t.Helper()
	for _, p := range workers {
		var s kvStats
		if !eventually(limit, func() bool { s = stats(t, p); return s.clean() }) {
			t.Errorf("%s is not clean after %v: %+v", p.name, limit, s)
		}
	}
}

// waitBusy waits until a worker has blocks in use.
func waitBusy(t *testing.T, p *process) {
	t.Helper()
	if !eventually(answerLimit, func() bool { return stats(t, p).Active > 0 }) {
		t.Fatalf("%s never began to work", p.name)
	}
}

// footprint is what a process holds of the system when idle.
type footprint struct{ goroutines, files int }

func footprintOf(t *testing.T, p *process) footprint {
	t.Helper()
	fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.pid()), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	var n int
	text := get(t, p.admin+"/debug/pprof/goroutine?debug=1")
	if _, err := fmt.Sscanf(text, "goroutine profile: total %d", &n); err != nil {
		t.Fatalf("%s: no goroutine count in %q", p.name, text[:min(len(text), 80)])
	}
	return footprint{goroutines: n, files: len(fds)}
}

// footprints returns the most that idle processes hold over a while that is
// longer than the pause between health probes.
func footprints(t *testing.T, ps ...*process) map[*process]footprint {
	t.Helper()
	most := map[*process]footprint{}
	for range 20 {
		client.CloseIdleConnections()
		for _, p := range ps {
			now := footprintOf(t, p)
			most[p] = footprint{max(most[p].goroutines, now.goroutines), max(most[p].files, now.files)}
		}
		time.Sleep(200 * time.Millisecond)
	}
	return most
}

// leakLimit is longer than workers keep unused connections to each other, 30 s.
const leakLimit = time.Minute

// checkFootprint fails if a process goes on holding more than it did before.
func checkFootprint(t *testing.T, p *process, before footprint) {
	t.Helper()
	// A connection of the measurement itself is two goroutines and one file.
	const slackGoroutines, slackFiles = 2, 1
	var now footprint
	ok := eventually(leakLimit, func() bool {
		client.CloseIdleConnections()
		now = footprintOf(t, p)
		return now.goroutines <= before.goroutines+slackGoroutines && now.files <= before.files+slackFiles
	})
	if !ok {
		t.Errorf("%s: %+v before, %+v after\n%s", p.name, before, now, get(t, p.admin+"/debug/pprof/goroutine?debug=1"))
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %v\n%s", url, resp.StatusCode, err, body)
	}
	return string(body)
}

func getJSON(t *testing.T, url string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(get(t, url)), v); err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
}

// metric finds a value in Prometheus text; "" if it is not there.
func metric(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
