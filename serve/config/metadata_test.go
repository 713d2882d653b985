package config

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestMetadataServer(t *testing.T) {
	f, warnings, err := loadFrontend("metadata_server: {server_type: etcd, hostname: e, refresh_interval: 2.5}\n")
	if err != nil || len(warnings) > 0 || f.ValidateServe() != nil || !f.Joining() || f.Metadata.RefreshInterval() != 2500*time.Millisecond ||
		f.Metadata.HealthTimeout() != 5*time.Second || f.Metadata.Port != 2379 || f.Discovery().MinGen != 1 {
		t.Fatalf("%+v %q %v", f.Metadata, warnings, err)
	}
	dir, files := t.TempDir(), 0
	write := func(text string) string {
		files++
		path := filepath.Join(dir, "meta"+strconv.Itoa(files)+".yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "metadata_server_config_file: " + path + "\n"
	}
	f, _, err = loadFrontend(write("server_type: \"etcd\"\nhostname: \"h\"\nport: 1\nhealth_check_timeout: 1.0\nrefresh_interval: 1.0\n"))
	if err != nil || f.Metadata.Host != "h" || f.Metadata.Port != 1 {
		t.Errorf("a file of its own: %+v %v", f.Metadata, err)
	}
	const on = "metadata_server: {server_type: etcd}\n"
	for _, tc := range []struct{ text, want string }{
		{"metadata_server: {server_type: zk}", "metadata_server.server_type"},
		{"metadata_server: {hostname: h}", "metadata_server.server_type: is required"},
		{"metadata_server: {server_type: etcd, port: 0}", "metadata_server.port"},
		{"metadata_server: {server_type: etcd, hostname: \"a b\"}", "metadata_server.hostname"},
		{"metadata_server: {server_type: etcd, refresh_interval: 0}", "metadata_server.refresh_interval"},
		{"metadata_server: {server_type: etcd, health_check_timeout: 1e9}", "metadata_server.health_check_timeout"},
		{"metadata_server: {server: etcd}", "unknown key"},
		{on + "disagg_cluster: {cluster_uri: \"etcd://h:1\"}", "metadata_server"},
		{on + "generation_servers: {urls: [\"a:1\"]}", "metadata_server"},
		{on + write("server_type: etcd"), "use one"},
		{write("hostname: h"), "server_type: is required"},
		{write("nope: h"), "unknown key"},
		{"metadata_server_config_file: " + filepath.Join(dir, "none"), "no such file"},
		{write("server_type: etcd") + "context_servers: {urls: [\"a:1\"]}", "context_servers.urls"},
	} {
		if _, _, err := loadFrontend(tc.text); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", tc.text, err, tc.want)
		}
	}
}
