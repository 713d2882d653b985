package cluster

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"tandem/serve/discovery"
)

func TestParse(t *testing.T) {
	prefix := Prefix("c")
	id := WorkerID(discovery.Context, "fe80::1", 8001, time.UnixMilli(1234), 77, 1002)
	if id != "CONTEXT-[fe80::1]:8001-1234-77-002" {
		t.Errorf("worker id %q", id)
	}
	value, err := json.Marshal(Registration{WorkerID: id, Host: "fe80::1", Port: 8001, Role: discovery.Context, Incarnation: "i"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(prefix, prefix+id, string(value))
	want := discovery.Member{
		WorkerID: id, ID: "[fe80::1]:8001", URL: "http://[fe80::1]:8001", Role: discovery.Context, Incarnation: "i", Since: 1234,
	}
	if err != nil || got != want {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	secret, err := Parse(prefix, prefix+id, strings.Replace(string(value), `"port"`, `"scheme":"https","port"`, 1))
	if want.URL = "https://[fe80::1]:8001"; err != nil || secret != want {
		t.Errorf("with TLS: %+v %v, want %+v", secret, err, want)
	}
	for _, tc := range []struct {
		value string
		role  discovery.Role // "" = refused
	}{
		{`{"host":"Host-1","port":1,"role":"GENERATION"}`, discovery.Generation},
		{`{"host":"h","port":1,"role":0}`, discovery.Context},
		{`{"host":"h","port":1,"role":1,"later":{}}`, discovery.Generation},
		{`{"host":"h","port":1,"role":"mixed"}`, discovery.Mixed},
		{`{"host":"h","port":1,"role":2}`, ""},
		{`{"host":"h","port":1,"role":null}`, ""},
		{`{"host":"h","port":1}`, ""},
		{`{"host":"h","port":0,"role":0}`, ""},
		{`{"host":"","port":1,"role":0}`, ""},
		{`{"host":"h","port":1,"role":0,"scheme":"file"}`, ""},
		{`{"host":"u@h","port":1,"role":0}`, ""},
		{`{"host":"h/x?","port":1,"role":0}`, ""},
		{`[]`, ""},
		{``, ""},
	} {
		got, err := Parse(prefix, prefix+"w", tc.value)
		if (err == nil) != (tc.role != "") || got.Role != tc.role {
			t.Errorf("%s: %+v %v", tc.value, got, err)
		}
	}
	for _, key := range []string{prefix, "/disagg/cd/workers/w"} {
		if _, err := Parse(prefix, key, string(value)); err == nil {
			t.Errorf("key %s accepted", key)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("CONTEXT-h:1-2-3-004", `{"host":"h","port":1,"role":0}`)
	f.Fuzz(func(t *testing.T, id, value string) {
		m, err := Parse("/p/", "/p/"+id, value)
		if err == nil && (m.ID == "" || !strings.HasPrefix(m.URL, "http://") || m.Role == "") {
			t.Errorf("%+v", m)
		}
	})
}
