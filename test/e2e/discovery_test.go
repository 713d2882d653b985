//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tandem/serve/discovery"
	registry "tandem/serve/discovery/cluster"
	etcdstore "tandem/serve/discovery/etcd"
	"tandem/test/etcd"
	"tandem/test/ports"
)

// clusterKey is the internal_request_auth_key of these tests.
const clusterKey = "a key for tests only"

// follower starts a frontend whose workers register.
func follower(t *testing.T, name string, port int, uri, more string) *process {
	t.Helper()
	file := writeFile(t, "cluster.yaml", fmt.Sprintf(`
hostname: 127.0.0.1
port: %d
expose_routing_headers: true
internal_request_auth_key: %s
disagg_cluster:
  cluster_uri: %s
  cluster_name: t
  heartbeat_interval_sec: 1
  inactive_timeout_sec: 4
%s`, port, clusterKey, uri, more))
	p, _ := launch(t, name, frontendBin, "serve", "-c", file) // it prints its ready line when the workers are there
	p.url = "http://127.0.0.1:" + strconv.Itoa(port)
	if !eventually(startLimit, func() bool { return alive(p.url) || isDone(p) }) || isDone(p) {
		t.Fatalf("%s does not live:\n%s", name, p.log.String())
	}
	return p
}

func isDone(p *process) bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func alive(url string) bool {
	resp, err := client.Get(url + "/health/live")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// members lists what a frontend may choose, as role@port.
func members(t *testing.T, p *process) string {
	t.Helper()
	var info clusterInfo
	getJSON(t, p.url+"/cluster_info", &info)
	var out []string
	for role, list := range map[string][]clusterWorker{"ctx": info.Workers.Context, "gen": info.Workers.Generation} {
		for _, w := range list {
			if w.Routable {
				out = append(out, role+"@"+strconv.Itoa(w.Port))
			}
		}
	}
	return sortedWords(out)
}

func sortedWords(words []string) string {
	return strings.Join(slices.Sorted(slices.Values(words)), " ")
}

func waitMembers(t *testing.T, p *process, want ...string) {
	t.Helper()
	got := ""
	if !eventually(settleLimit, func() bool { got = members(t, p); return got == sortedWords(want) }) {
		t.Fatalf("%s has %q, want %q\n%s", p.name, got, want, p.log.String())
	}
}

// joins registers a stub as a worker process would, until leave or die.
func joins(t *testing.T, s *stub, store registry.Store) (leave, die func()) {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.id)
	n, _ := strconv.Atoi(port)
	m := &mortal{Store: store}
	r := registry.NewRegistrar(m, registry.RegistrarConfig{
		ClusterName: "t", Heartbeat: time.Second, TTL: 4 * time.Second,
		Worker: registry.Worker{Host: host, Port: n, Role: discovery.Role(s.role), Incarnation: s.name},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	leave = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(leave)
	return leave, func() { m.die(); leave() }
}

// mortal is a store that a killed worker does not reach any more.
type mortal struct {
	registry.Store
	mu   sync.Mutex
	dead bool
}

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

func (m *mortal) Delete(ctx context.Context, key string) error {
	m.mu.Lock()
	dead := m.dead
	m.mu.Unlock()
	if dead {
		return nil
	}
	return m.Store.Delete(ctx, key)
}

func portOf(s *stub) string { _, port, _ := net.SplitHostPort(s.id); return port }

// hello asks a frontend for a whole answer of stubs.
func hello(p *process) answer {
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	return send(ctx, p.url+textPath, helloText)
}

// TestDiscoveryStorageOfAnotherFrontend: one frontend reads the storage of another, and goes on while that restarts.
func TestDiscoveryStorageOfAnotherFrontend(t *testing.T) {
	t.Parallel()
	ports := []int{ports.Free(t), ports.Free(t)}
	uri := "http://127.0.0.1:" + strconv.Itoa(ports[0])
	first := follower(t, "first", ports[0], uri, "")
	second := follower(t, "second", ports[1], uri, "  remote_storage: true\n")
	f := &farm{}
	ctx, gen, gen1 := f.newStub(t, "ctx0", "context"), f.newStub(t, "gen0", "generation"), f.newStub(t, "gen1", "generation")
	store := registry.NewClient(registry.ClientConfig{URL: uri, Key: []byte(clusterKey)})
	defer store.Close()
	joins(t, ctx, store)
	joins(t, gen, store)
	_, die := joins(t, gen1, store)
	all := []string{"ctx@" + portOf(ctx), "gen@" + portOf(gen), "gen@" + portOf(gen1)}
	for _, p := range []*process{first, second} {
		waitMembers(t, p, all...)
		hello(p).wantOK(t, "ABC")
	}
	// A stranger neither reads nor registers.
	for _, path := range []string{"/get_prefix?key_prefix=/", "/expire?key=a&ttl=1"} {
		resp, err := client.Get(first.url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without the key: %d", path, resp.StatusCode)
		}
	}
	// The worker dies with its registration in place; its listener stays, so that only the missing heartbeat tells.
	die()
	for _, p := range []*process{first, second} {
		waitMembers(t, p, all[:2]...)
	}
	first.signal(t, syscall.SIGKILL)
	first.wait(t, stopLimit)
	asked := func() {
		t.Helper()
		for range 20 { // two polls of the storage
			hello(second).wantOK(t, "ABC")
			time.Sleep(100 * time.Millisecond)
		}
	}
	asked()
	if got := members(t, second); got != sortedWords(all[:2]) {
		t.Errorf("while the storage is away: %q", got)
	}
	again := follower(t, "first again", ports[0], uri, "")
	waitMembers(t, again, all[:2]...)
	asked()
}

// TestDiscoveryEtcd: two frontends over a real etcd; workers join, leave, die, and a frontend restarts.
func TestDiscoveryEtcd(t *testing.T) {
	t.Parallel() // mostly waits
	server := etcd.Start(t)
	uri := "etcd://" + server.Addr
	ports := []int{ports.Free(t), ports.Free(t)}
	a, b := follower(t, "a", ports[0], uri, ""), follower(t, "b", ports[1], uri, "")
	store, err := etcdstore.New([]string{server.Addr}, etcdstore.Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	f := &farm{}
	ctx, gen, gen1 := f.newStub(t, "ctx0", "context"), f.newStub(t, "gen0", "generation"), f.newStub(t, "gen1", "generation")
	joins(t, ctx, store)
	waitMembers(t, a, "ctx@"+portOf(ctx))
	if got := healthOf(a.url); got != http.StatusServiceUnavailable {
		t.Errorf("one role only: /health is %d", got)
	}
	hello(a).wantError(t, http.StatusServiceUnavailable)
	leave, _ := joins(t, gen, store)
	_, die := joins(t, gen1, store)
	all := []string{"ctx@" + portOf(ctx), "gen@" + portOf(gen), "gen@" + portOf(gen1)}
	for _, p := range []*process{a, b} {
		waitMembers(t, p, all...)
		within(t, "ready", func() bool { return healthOf(p.url) == http.StatusOK })
		hello(p).wantOK(t, "ABC")
	}
	a.stop(t)
	again := follower(t, "a again", ports[0], uri, "")
	waitMembers(t, again, all...)
	die()
	waitMembers(t, b, all[:2]...) // etcd looks for ended leases twice a second
	leave()
	waitMembers(t, b, all[0])
	hello(b).wantError(t, http.StatusServiceUnavailable)
}

// TestDiscoveryMetadataServer: workers of another engine, which wrote their addresses into etcd.
func TestDiscoveryMetadataServer(t *testing.T) {
	t.Parallel() // mostly waits
	server := etcd.Start(t)
	f := &farm{}
	ctx, gen, gen1 := f.newStub(t, "ctx0", "context"), f.newStub(t, "gen0", "generation"), f.newStub(t, "gen1", "generation")
	store, err := etcdstore.New([]string{server.Addr}, etcdstore.Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, s := range []*stub{ctx, gen, gen1} {
		s.native = true
		value := fmt.Sprintf(`{"url":"http://%s","server_type":%q}`, s.id, s.role)
		if err := store.Put(t.Context(), "trtllm/"+s.name, value, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	host, port, _ := net.SplitHostPort(server.Addr)
	meta := writeFile(t, "meta.yaml", fmt.Sprintf("server_type: \"etcd\"\nhostname: %q\nport: %s\nrefresh_interval: 0.5\nhealth_check_timeout: 2.0\n", host, port))
	front := start(t, "frontend", frontendBin, "serve", "--port", "0", "-c", writeFile(t, "cluster.yaml", "hostname: 127.0.0.1\nmetadata_server_config_file: "+meta+"\n"))
	all := []string{"ctx@" + portOf(ctx), "gen@" + portOf(gen), "gen@" + portOf(gen1)}
	waitMembers(t, front, all...)
	hello(front).wantOK(t, "ABC")
	gen1.kill()
	within(t, "the key of the dead worker is removed", func() bool {
		list, err := store.List(t.Context(), "trtllm/")
		return err == nil && len(list) == 2
	})
	waitMembers(t, front, all[:2]...)
	hello(front).wantOK(t, "ABC")
}

// TestDiscoveryWorkers: real workers register, serve, are killed and restarted, leave, and change their role.
func TestDiscoveryWorkers(t *testing.T) {
	t.Parallel() // mostly waits
	needModel(t)
	port := ports.Free(t)
	uri := "http://127.0.0.1:" + strconv.Itoa(port)
	front := follower(t, "frontend", port, uri, "")
	worker := func(role string, port int) *process {
		file := writeFile(t, "worker.yaml", fmt.Sprintf(`
max_num_tokens: 512
kv_cache_config: {max_tokens: 8192}
cache_transceiver_config: {}
internal_request_auth_key: %s
disagg_cluster: {cluster_uri: "%s", cluster_name: t, heartbeat_interval_sec: 1, inactive_timeout_sec: 4}
`, clusterKey, uri))
		return start(t, role, engineBin, "serve", modelName, "--role", role, "--port", strconv.Itoa(port), "-c", file, "--threads", "1")
	}
	ask := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		defer cancel()
		a := send(ctx, front.url+textPath, `{"prompt":"The capital of France is","max_tokens":4,"temperature":0}`)
		if a.status != http.StatusOK || len(a.body.Choices) != 1 || a.body.Choices[0].Text == "" {
			t.Fatalf("%d %v %s", a.status, a.err, a.raw)
		}
	}
	named := func(role string, p *process) string { return role + "@" + p.url[strings.LastIndex(p.url, ":")+1:] }
	ctx, gen := worker("ctx", 0), worker("gen", 0)
	waitMembers(t, front, named("ctx", ctx), named("gen", gen))
	ask()

	// Killed: gone when its heart has not beaten for a while. Back on its port: routable again.
	gen.signal(t, syscall.SIGKILL)
	gen.wait(t, stopLimit)
	waitMembers(t, front, named("ctx", ctx))
	_, genPort, _ := net.SplitHostPort(strings.TrimPrefix(gen.url, "http://"))
	n, _ := strconv.Atoi(genPort)
	gen = worker("gen", n)
	waitMembers(t, front, named("ctx", ctx), named("gen", gen))
	ask()

	// Two mixed workers; one changes its role while it serves.
	one := worker("mixed", 0)
	waitMembers(t, front, named("ctx", ctx), named("gen", gen), named("ctx", one), named("gen", one))
	resp, err := client.Post(one.admin+"/cluster/role?role=ctx", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("change of role: %d", resp.StatusCode)
	}
	waitMembers(t, front, named("ctx", ctx), named("gen", gen), named("ctx", one))
	if resp, err = client.Post(gen.admin+"/cluster/role?role=ctx", "", nil); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusConflict {
		t.Errorf("a gen worker changes its role: %d", resp.StatusCode)
	}

	// Leaves in good order.
	ctx.signal(t, syscall.SIGTERM)
	waitMembers(t, front, named("gen", gen), named("ctx", one))
	ask()
	if code := ctx.wait(t, stopLimit); code != 0 {
		t.Errorf("the worker that left ended with %d", code)
	}
}
