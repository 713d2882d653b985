package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"tandem/serve/config"
)

func clusterNode(t *testing.T, listen, yaml string) *node {
	t.Helper()
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		t.Skipf("cannot listen on %s: %v", listen, err)
	}
	t.Cleanup(func() { ln.Close() })
	port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	cfg, _, err := config.LoadFrontend(config.Source{
		Data: []byte(strings.ReplaceAll(yaml, "PORT", port)), LookupEnv: func(string) (string, bool) { return "", false },
	})
	if err != nil {
		t.Fatal(err)
	}
	return &node{cfg: cfg, log: slog.New(slog.DiscardHandler), listener: ln}
}

func TestClusterURIMustBeOurOwn(t *testing.T) {
	for _, tc := range []struct{ listen, uri, want string }{
		{"127.0.0.1:0", "http://127.0.0.1:PORT", ""},
		{"127.0.0.1:0", "http://localhost:PORT", ""},
		{"0.0.0.0:0", "http://127.0.0.1:PORT", ""},
		{"[::]:0", "http://localhost:PORT", ""},
		{"127.0.0.1:0", "http://127.0.0.1:1", "port 1 is not this frontend's"},
		{"127.0.0.1:0", "http://127.0.0.2:PORT", "127.0.0.2 is not an address of this frontend"},
		{"0.0.0.0:0", "http://192.0.2.7:PORT", "192.0.2.7 is not an address of this frontend"},
		{"127.0.0.1:0", "http://no-such-host.invalid:PORT", `host "no-such-host.invalid" is not known`},
		{"127.0.0.1:0", "http://192.0.2.7:1\n  remote_storage: true", ""},
		{"127.0.0.1:0", "etcd://192.0.2.7:1", ""},
	} {
		n := clusterNode(t, tc.listen, "disagg_cluster:\n  cluster_uri: "+tc.uri+"\n")
		d, err := n.discover(nil)
		if tc.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s at %s: %v, want %q", tc.uri, tc.listen, err, tc.want)
		}
		if d != nil {
			_ = d.close()
		}
	}
}

// TestStorageRoutesAreThereOnlyIfItIsOurs: without a storage its paths go to the public handler.
func TestStorageRoutesAreThereOnlyIfItIsOurs(t *testing.T) {
	public := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "public") })
	get := func(d *discovered, path, from string) (int, string) {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		d.handler(public).ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	const none = "/get_prefix?key_prefix=/none"
	if status, body := get(nil, none, "127.0.0.1:1"); status != 200 || body != "public" {
		t.Errorf("a listed cluster: %d %s", status, body)
	}
	remote, err := clusterNode(t, "127.0.0.1:0", "disagg_cluster: {cluster_uri: \"http://192.0.2.7:1\", remote_storage: true}").discover(nil)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := get(remote, none, "127.0.0.1:1"); status != 200 || body != "public" {
		t.Errorf("another's storage: %d %s", status, body)
	}
	for _, tc := range []struct {
		yaml, from string
		status     int
	}{
		{"", "127.0.0.1:1", 200},
		{"", "192.0.2.9:1", 401},
		{"\ntrust_internal_network: true", "192.0.2.9:1", 200},
	} {
		own, err := clusterNode(t, "127.0.0.1:0", "disagg_cluster: {cluster_uri: \"http://127.0.0.1:PORT\"}"+tc.yaml).discover(nil)
		if err != nil {
			t.Fatal(err)
		}
		if status, body := get(own, none, tc.from); status != tc.status || status == 200 && body != `{"result":{}}` {
			t.Errorf("from %s with %q: %d %s", tc.from, tc.yaml, status, body)
		}
		if status, body := get(own, "/health", tc.from); status != 200 || body != "public" {
			t.Errorf("other paths: %d %s", status, body)
		}
	}
	own, err := clusterNode(t, "127.0.0.1:0", "disagg_cluster: {cluster_uri: \"http://127.0.0.1:PORT\"}").discover([]byte("a key of sixteen"))
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := get(own, none, "127.0.0.1:1"); status != 401 {
		t.Errorf("unsigned though there is a key: %d", status)
	}
}

// Frontends of one cluster make different request ids, also those of one host and one node_id; one for which no numbers are left
// does not start.
func TestFrontendsOfAClusterHaveTheirOwnNumbers(t *testing.T) {
	const yaml = "\n  heartbeat_interval_sec: 0.1\n  inactive_timeout_sec: 0.2\nnode_id: 3\ntrust_internal_network: true\n"
	built := func(uri string) *node {
		t.Helper()
		n := clusterNode(t, "127.0.0.1:0", "disagg_cluster:\n  cluster_uri: "+uri+yaml)
		if err := n.build(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.server.Close(); _ = n.discovered.close() })
		return n
	}
	first := built("http://127.0.0.1:PORT")
	srv := &http.Server{Handler: first.discovered.handler(first.server.Handler())}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(first.listener) }()
	defer func() { srv.Close(); <-served }()
	second := built("http://" + first.listener.Addr().String() + "\n  remote_storage: true") // of this process, so it prefers the same
	for i, n := range []*node{first, second} {
		if err := n.takeNumbers(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, _ := first.discovered.storage.List("/disagg//frontends/3-")
		if len(list) != i+1 {
			t.Errorf("%d frontends, and %v", i+1, list)
		}
	}
	for _, key := range second.numberKeys() {
		_ = first.discovered.storage.Set(key, "another", 0, true)
	}
	err := built("http://" + first.listener.Addr().String() + "\n  remote_storage: true").takeNumbers(t.Context())
	if err == nil || !strings.Contains(err.Error(), "node_id: other frontends of the cluster have the number 3") {
		t.Errorf("beside 64 others: %v", err)
	}
}
