package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"tandem/engine/executor"
	"tandem/serve/config"
)

func TestAdvertisedHost(t *testing.T) {
	for _, tc := range []struct {
		listen, cluster, transceiver, endpoint, want string
	}{
		{"127.0.0.1:0", "", "", "127.0.0.1:1", "127.0.0.1"},
		{"127.0.0.1:0", "", "a.internal", "127.0.0.1:1", "a.internal"},
		{"127.0.0.1:0", "b.internal", "a.internal", "127.0.0.1:1", "b.internal"},
		{"0.0.0.0:0", "", "", "127.0.0.1:1", "127.0.0.1"},
		{"0.0.0.0:0", "", "", "localhost:1", "127.0.0.1"},
		{"0.0.0.0:0", "", "", "no-such-host.invalid:1", ""},
	} {
		ln, err := net.Listen("tcp", tc.listen)
		if err != nil {
			t.Fatal(err)
		}
		p := &process{listener: ln, cfg: config.Worker{
			Cluster: config.Cluster{AdvertiseHost: tc.cluster}, Transceiver: &config.Transceiver{AdvertiseHost: tc.transceiver},
		}}
		got, err := p.advertised(tc.endpoint)
		ln.Close()
		if (err == nil) != (tc.want != "") || got != tc.want && !(tc.want == "127.0.0.1" && got == "::1") {
			t.Errorf("%+v: %q %v", tc, got, err)
		}
	}
}

func TestRoleChangesOnlyWhereItCan(t *testing.T) {
	for _, tc := range []struct {
		role   executor.Role
		query  string
		origin bool
		member bool
		want   int
	}{
		{executor.Mixed, "role=ctx", false, false, http.StatusConflict}, // not registered
		{executor.Gen, "role=ctx", false, true, http.StatusConflict},
		{executor.Mixed, "role=both", false, true, http.StatusBadRequest},
		{executor.Mixed, "role=ctx", true, true, http.StatusForbidden},
	} {
		p := &process{role: tc.role}
		if tc.member {
			p.member.Store(&membership{})
		}
		r := httptest.NewRequest(http.MethodPost, "/cluster/role?"+tc.query, nil)
		if tc.origin {
			r.Header.Set("Origin", "http://page")
		}
		w := httptest.NewRecorder()
		p.changeRole(w, r)
		if w.Code != tc.want {
			t.Errorf("%+v: %d %s", tc, w.Code, w.Body)
		}
	}
}
