package config

import (
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/serve/discovery"
)

func TestCluster(t *testing.T) {
	const section = "disagg_cluster: {cluster_uri: \"http://h:8000\", cluster_name: c, minimal_instances: {context_servers: 2}, inactive_timeout_sec: 20}\n"
	f, warnings, err := loadFrontend(section + "trust_internal_network: true\ncontext_servers: {num_instances: 0}\n")
	if err != nil || len(warnings) > 0 || f.ValidateServe() != nil || len(f.UnusedByServe()) > 0 {
		t.Fatalf("%v %q %v %v", err, warnings, f.ValidateServe(), f.UnusedByServe())
	}
	if d := f.Discovery(); d.MinContext != 2 || d.MinGen != 1 || !f.TrustNetwork {
		t.Errorf("%+v", d)
	}
	if got := f.WorkerFile(f.Context); got["trust_internal_network"] != true || got["disagg_cluster"] != nil {
		t.Errorf("workers of frontend up get %v", got)
	}
	w, warnings, err := LoadWorker(executor.Ctx, Source{Data: []byte(section), LookupEnv: env()})
	if err != nil || len(warnings) > 0 || !w.Cluster.On() || w.Cluster.TTL() != 20*time.Second || w.Cluster.HeartbeatInterval() != 5*time.Second {
		t.Errorf("%+v %q %v", w.Cluster, warnings, err)
	}
	f, _, err = loadFrontend("", "TANDEM_DISAGG_CLUSTER__CLUSTER_URI", "etcd://h:1")
	if err != nil || f.Cluster.URI != "etcd://h:1" || f.Cluster.Minimal.Generation != 1 {
		t.Errorf("%+v %v", f.Cluster, err)
	}
	for _, tc := range []struct{ section, want string }{
		{"cluster_uri: x", `disagg_cluster.cluster_uri: "x" is neither`},
		{"cluster_uri: \"zk://h:1\"", "cluster_uri"},
		{"cluster_uri: \"http://h:1\", tls: {ca: a.pem}", "disagg_cluster.tls: has no effect"},
		{"cluster_uri: \"etcds://h:1\", tls: {cert: a.pem}", "disagg_cluster.tls: cert and key"},
		{"cluster_uri: \"http://h:1\", username: u, password: p", "disagg_cluster.username: only etcd"},
		{"cluster_uri: \"etcd://h:1\", username: u", "disagg_cluster.username: belongs together"},
		{"tls: {ca: a.pem}", "disagg_cluster.tls"},
		{"cluster_name: a", "disagg_cluster.cluster_uri: is required"},
		{"cluster_uri: \"http://h:1\", cluster_name: a/b", "cluster_name"},
		{"cluster_uri: \"http://h:1\", heartbeat_interval_sec: 5.1", "half of inactive_timeout_sec"},
		{"cluster_uri: \"http://h:1\", heartbeat_interval_sec: 0", "heartbeat_interval_sec"},
		{"cluster_uri: \"http://h:1\", minimal_instances: {context_servers: -1}", "context_servers: -1"},
		{"cluster_uri: \"http://h:1\", minimal_instances: {generation_servers: -1}", "generation_servers: -1"},
		{"cluster_uri: \"http://h:1\", minimal_instances: {ctx: 1}", "unknown key"},
		{"cluster_uri: \"etcd://h:1\", remote_storage: true", "remote_storage"},
		{"cluster_uri: \"etcd://h:1\", advertise_host: \"[::1]\"", "advertise_host"},
		{"cluster_ury: x", "unknown key"},
	} {
		text := "disagg_cluster: {" + tc.section + "}"
		_, _, err := loadFrontend(text)
		_, _, werr := LoadWorker(executor.Ctx, Source{Data: []byte(text), LookupEnv: env()})
		for _, err := range []error{err, werr} {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.section, err, tc.want)
			}
		}
	}
	for text, want := range map[string]string{
		"disagg_cluster: {cluster_uri: \"https://h:1\"}":                                                                   "write http://h:1",
		"disagg_cluster: {cluster_uri: \"https://h:1\", remote_storage: true}":                                             "",
		"disagg_coordinator_url: \"ftp://h:1\"":                                                                            "disagg_coordinator_url",
		"{disagg_coordinator_url: \"etcds://h:1\", disagg_cluster: {username: u, password: env:PW, tls: {}}}":              "",
		"{disagg_coordinator_url: \"etcds://h:1\", disagg_cluster: {cluster_name: a}}":                                     "disagg_cluster.cluster_uri: is required",
		"{disagg_coordinator_url: \"http://h:1\", disagg_cluster: {username: u, password: p}}":                             "only etcd",
		"{disagg_coordinator_url: \"http://h:1\", tls: {cert: a, key: b}, disagg_cluster: {cluster_uri: \"https://h:1\"}}": "",
	} {
		f, _, err := loadFrontend(text, "PW", "secret")
		if want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if f.Cluster.Username != "" && err == nil {
			a, err := f.Cluster.Access(discovery.Store{Etcd: true, TLS: true})
			if a.TLS == nil || a.Username != "u" || a.Password != "" && a.Password != "secret" || err != nil && !strings.Contains(err.Error(), "PW") {
				t.Errorf("access %+v %v", a, err)
			}
		}
	}
	_, warnings, err = loadFrontend("disagg_coordinator_url: \"etcd://h:1\"")
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "no effect") {
		t.Errorf("nothing to share: %q %v", warnings, err)
	}
	_, _, err = loadFrontend(section + "context_servers: {urls: [\"a:1\"]}")
	if err == nil || !strings.Contains(err.Error(), "context_servers.urls") || !strings.Contains(err.Error(), "disagg_cluster") {
		t.Errorf("both: %v", err)
	}
}
