//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/test/ports"
)

// clusterInfo is the part of /cluster_info that is looked at.
type clusterInfo struct {
	Ready   bool `json:"is_ready"`
	Workers struct {
		Context    []clusterWorker `json:"context_servers"`
		Generation []clusterWorker `json:"generation_servers"`
	} `json:"current_workers"`
	Warnings []struct{ Code, Message string } `json:"warnings"`
}

type clusterWorker struct {
	ID       string `json:"worker_id"`
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Routable bool   `json:"routable"`
}

func (r *rig) info(t *testing.T) (c clusterInfo) {
	t.Helper()
	getJSON(t, r.url+"/cluster_info", &c)
	return c
}

// warned tells whether /cluster_info and the log have a warning.
func (r *rig) warned(t *testing.T, code string) bool {
	t.Helper()
	for _, w := range r.info(t).Warnings {
		if w.Code == code {
			return true
		}
	}
	return false
}

// lists tells whether a stub is among the workers, routable.
func lists(workers []clusterWorker, s *stub) bool {
	for _, w := range workers {
		if net.JoinHostPort(w.Host, strconv.Itoa(w.Port)) == s.id {
			return w.Routable
		}
	}
	return false
}

// newCluster starts a frontend that hosts the storage where workers register.
func newCluster(t *testing.T, yaml string) *rig {
	t.Helper()
	addr := ports.Address(t)
	_, port, _ := net.SplitHostPort(addr)
	r := &rig{farm: &farm{}}
	r.ctx = []*stub{r.farm.newStub(t, "ctx0", "context")}
	r.gen = []*stub{r.farm.newStub(t, "gen0", "generation")}
	file := writeFile(t, "cluster.yaml", fmt.Sprintf(`
hostname: 127.0.0.1
port: %s
expose_routing_headers: true
disagg_cluster:
  cluster_uri: http://%s
  cluster_name: t
  minimal_instances: {context_servers: 1, generation_servers: 1}
%s`, port, addr, yaml))
	p, ready := launch(t, "frontend", frontendBin, "serve", "-c", file)
	go func() { // the ready line may come only when workers are there
		for range ready {
		}
	}()
	p.url = "http://" + addr
	r.process = p
	live := func() bool {
		resp, err := client.Get(p.url + "/health/live")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	if !eventually(settleLimit, func() bool {
		select {
		case <-p.done:
			return true
		default:
			return live()
		}
	}) || !live() {
		t.Fatalf("the frontend does not live:\n%s", p.log.String())
	}
	return r
}

// storage does one operation on the storage and returns status and result.
func (r *rig) storage(t *testing.T, method, path string, body any) (int, string) {
	t.Helper()
	var in io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, method, r.url+path, in)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(data))
}

// keyOf is a worker's key.
func keyOf(s *stub, id string) string { return "/disagg/t/workers/" + workerID(s, id) }

func workerID(s *stub, id string) string {
	return strings.ToUpper(s.role) + "-" + s.id + "-" + id
}

// register puts a stub into the storage, as a worker does.
func (r *rig) register(t *testing.T, s *stub, id string, ttl int) {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.id)
	n, _ := strconv.Atoi(port)
	s.mu.Lock()
	incarnation := s.info["incarnation"]
	s.mu.Unlock()
	value, err := json.Marshal(object{"worker_id": workerID(s, id), "host": host, "port": n, "role": s.role, "incarnation": incarnation})
	if err != nil {
		t.Fatal(err)
	}
	if status, text := r.storage(t, http.MethodPost, "/set", object{"key": keyOf(s, id), "value": string(value), "ttl": ttl}); status != http.StatusOK {
		t.Fatalf("register %s: %d %s", s.name, status, text)
	}
}

// beat refreshes keys until the returned function is called.
func (r *rig) beat(t *testing.T, ttl int, keys ...string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for _, key := range keys {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/expire?key="+url.QueryEscape(key)+"&ttl="+strconv.Itoa(ttl), nil)
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

func TestScenario30(t *testing.T) {
	scenario(t)
	r := newCluster(t, "")
	r.register(t, r.ctx[0], "1-1-001", -1)
	within(t, "ctx is listed", func() bool { return lists(r.info(t).Workers.Context, r.ctx[0]) })
	if got := healthOf(r.url); got != http.StatusServiceUnavailable {
		t.Errorf("/health is %d", got)
	}
	r.ask(t, textPath, helloText).wantError(t, http.StatusServiceUnavailable)
	r.register(t, r.gen[0], "1-1-002", -1)
	within(t, "ready", func() bool { return healthOf(r.url) == http.StatusOK })
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
}

func TestScenario31(t *testing.T) {
	scenario(t)
	r := newCluster(t, "  heartbeat_interval_sec: 1\n  inactive_timeout_sec: 4\n")
	extra := r.farm.newStub(t, "gen1", "generation")
	const ttl = 4 // seconds, several times the pause between beats
	r.register(t, r.ctx[0], "1-1-001", ttl)
	r.register(t, r.gen[0], "1-1-002", ttl)
	r.register(t, extra, "1-1-003", ttl)
	stopDying := r.beat(t, ttl, keyOf(extra, "1-1-003"))
	stopOld := r.beat(t, ttl, keyOf(r.gen[0], "1-1-002"))
	r.beat(t, ttl, keyOf(r.ctx[0], "1-1-001"))
	within(t, "ready", func() bool { return healthOf(r.url) == http.StatusOK })
	within(t, "all are listed", func() bool { return lists(r.info(t).Workers.Generation, extra) })

	// Killed: its heart stops with it.
	stopDying()
	extra.kill()
	within(t, "the dead worker is gone", func() bool {
		for _, w := range r.info(t).Workers.Generation {
			if net.JoinHostPort(w.Host, strconv.Itoa(w.Port)) == extra.id {
				return false
			}
		}
		return true
	})

	// Restarted at once at the same address: the old key lives on and expires.
	stopOld()
	r.gen[0].kill()
	r.gen[0].restart(t)
	r.register(t, r.gen[0], "2-2-004", ttl)
	r.beat(t, ttl, keyOf(r.gen[0], "2-2-004"))
	within(t, "the new one is routable", func() bool { return lists(r.info(t).Workers.Generation, r.gen[0]) })
	gone := func() bool {
		status, _ := r.storage(t, "GET", "/get?key="+url.QueryEscape(keyOf(r.gen[0], "1-1-002")), nil)
		return status == http.StatusNotFound
	}
	serves := func() {
		t.Helper()
		if !lists(r.info(t).Workers.Generation, r.gen[0]) {
			t.Fatal("the restarted worker was lost when its predecessor's key expired")
		}
		r.ask(t, textPath, helloText).wantOK(t, "ABC")
	}
	within(t, "the old key expires", func() bool { serves(); return gone() })
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // the frontend hears of it
		serves()
	}
}

func TestScenario32(t *testing.T) {
	scenario(t)
	r := newCluster(t, "")
	for _, c := range []struct {
		method, path string
		body         any
		status       int
		want         string // "" = any
	}{
		{"GET", "/get_prefix?key_prefix=/none", nil, 200, `{"result":{}}`},
		{"GET", "/get?key=/a", nil, 404, ""},
		{"POST", "/set", object{"key": "/a", "value": "1", "ttl": -1}, 200, `{"result":true}`},
		{"POST", "/set", object{"key": "/a", "value": "2", "ttl": -1}, 409, `{"result":false}`},
		{"GET", "/get?key=/a", nil, 200, `{"result":"1"}`},
		{"POST", "/set", object{"key": "/a", "value": "2", "ttl": -1, "overwrite_if_exists": true}, 200, `{"result":true}`},
		{"GET", "/get_prefix?key_prefix=/a", nil, 200, `{"result":{"/a":"2"}}`},
		{"GET", "/expire?key=/a&ttl=60", nil, 200, `{"result":true}`},
		{"GET", "/expire?key=/b&ttl=60", nil, 404, ""},
		{"DELETE", "/delete?key=/a", nil, 200, `{"result":true}`},
		{"DELETE", "/delete?key=/a", nil, 404, ""},
		{"POST", "/set", object{"key": "/c", "value": "1", "ttl": 1}, 200, `{"result":true}`},
	} {
		status, text := r.storage(t, c.method, c.path, c.body)
		if status != c.status || c.want != "" && strings.ReplaceAll(text, " ", "") != c.want {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, status, text, c.status, c.want)
		}
	}
	within(t, "/c expires", func() bool {
		status, _ := r.storage(t, "GET", "/get?key=/c", nil)
		return status == http.StatusNotFound
	})
}

func TestScenario33(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{gen: 2, before: func(r *rig) { r.gen[1].setInfo("model_fingerprint", "another") }})
	for range 4 {
		r.ask(t, textPath, helloText).wantOK(t, "ABC")
	}
	wantLegs(t, r.gen[1], 0)
	if !r.warned(t, "W_PAIRING") {
		t.Errorf("/cluster_info lacks W_PAIRING: %s", get(t, r.url+"/cluster_info"))
	}
	// When no worker fits, the client hears so at once.
	r.gen[0].setInfo("model_fingerprint", "another")
	within(t, "503", func() bool { return r.ask(t, textPath, helloText).status == http.StatusServiceUnavailable })
}

// refused starts a frontend that must not start and returns its last line.
func refused(t *testing.T, yaml string) string {
	t.Helper()
	p, ready := launch(t, "frontend", frontendBin, "serve", "--port", "0", "-c", writeFile(t, "cluster.yaml", yaml))
	select {
	case line, ok := <-ready:
		if ok {
			t.Fatalf("it started: %s", line)
		}
	case <-time.After(startLimit):
		t.Fatalf("it neither starts nor ends:\n%s", p.log.String())
	}
	if code := p.wait(t, stopLimit); code <= 0 {
		t.Errorf("exit code %d", code)
	}
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	return lines[len(lines)-1]
}

// twoURLs is the least file that serves.
const twoURLs = "context_servers: {urls: [\"127.0.0.1:1\"]}\ngeneration_servers: {urls: [\"127.0.0.1:2\"]}\n"

func TestScenario34(t *testing.T) {
	scenario(t)
	for _, c := range []struct {
		yaml string
		says []string
	}{
		{"context_servers: {urls: [\"127.0.0.1:1\", \"127.0.0.1:3\"], num_instances: 1}\ngeneration_servers: {urls: [\"127.0.0.1:2\"]}\n", []string{"context_servers: num_instances is 1 but urls has 2"}},
		{twoURLs + "node_id: 256\n", []string{"node_id", "256"}},
		{twoURLs + "allow_request_chat_template: \"yes\"\n", []string{"allow_request_chat_template"}},
		{twoURLs + "schedule_stlye: x\n", []string{"schedule_stlye", `"schedule_style"`}}, //nolint:misspell // the mistake is the case
		{"model: a\ncontext_servers: {urls: [\"127.0.0.1:1\"], model: b}\ngeneration_servers: {urls: [\"127.0.0.1:2\"]}\n", []string{"context_servers.model: is b here and a at the top level"}},
		{twoURLs + "subagent_affinity_scope: all\n", []string{"subagent_affinity_scope", "all", "context", "both"}},
	} {
		line := refused(t, c.yaml)
		for _, part := range c.says {
			if !strings.Contains(line, part) {
				t.Errorf("%q is missing in %q for\n%s", part, line, c.yaml)
			}
		}
	}
}

func TestScenario35(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	if text := get(t, r.url+"/cluster_info"); strings.Count(text, `{"type":"round_robin"}`) != 2 {
		t.Errorf("routers in %s", text)
	}
	line := refused(t, "context_servers: {urls: [\"127.0.0.1:1\"], router: {type: foo}}\ngeneration_servers: {urls: [\"127.0.0.1:2\"]}\n")
	for _, part := range []string{"foo", "round_robin", "load_balancing", "conversation"} {
		if !strings.Contains(line, part) {
			t.Errorf("%q is missing in %q", part, line)
		}
	}
}
